"""engine.request: which addresses are asked, what counts as an answer, whose reads count."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fleetmem.agent.kernel import storage_reads, sysroot
from fleetmem.agent.model import Trouble
from fleetmem.agent.services import loopback
from tests.unit.page_cache.cache_ground import MIB, call, disk

__all__ = ["disk"]


@contextlib.contextmanager
def server(*answers: bytes | None) -> Iterator[tuple[str, list[bytes]]]:
    """Answers one connection after another with these bytes (None: with nothing, and stays
    open); what it was asked."""
    asked: list[bytes] = []
    kept: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            for answer in answers:
                channel, _ = listening.accept()
                asked.append(channel.recv(65536))
                if answer is None:
                    kept.append(channel)
                    continue
                with contextlib.suppress(OSError):
                    channel.sendall(answer)
                channel.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}", asked
        thread.join(timeout=60)
        assert not thread.is_alive()
    for channel in kept:
        channel.close()


def ask(url: str, seconds: float = 60.0) -> Any:
    outcome, reason, reading = call("engine.request", url=url, seconds=seconds)
    assert outcome == "ok", reason
    return reading


def ok(body: bytes, *head: bytes) -> bytes:
    return b"\r\n".join([b"HTTP/1.0 200 OK", *head, b"", body])


@pytest.mark.parametrize(
    "url",
    [
        "http://10.0.0.1:8000/health",
        "http://gh200-01:8000/health",
        "http://127.0.0.1.evil.example/",
        "http://127.0.0.1@10.0.0.1/",
        "http://[::2]:8000/",
        "http://0.0.0.0:8000/",
        "http://127.0.0.256/",
        "https://127.0.0.1/",
        "ftp://127.0.0.1/",
        "127.0.0.1:8000/health",
        "http://127.0.0.1:0/",
        "http://127.0.0.1:99999/",
        "http://127.0.0.1:x/",
        "http://[::1]x/",
        "http://127.0.0.1/a b",
        "http://127.0.0.1/a\r\nHost: x",
        "http://127.0.0.1/\u00e9",
        "http:///health",
        "",
    ],
)
def test_only_the_host_itself_is_asked(url: str) -> None:
    outcome, reason, reading = call("engine.request", url=url)
    assert (outcome, reading) == ("denied", None)
    assert reason


@pytest.mark.parametrize(
    ("url", "addresses", "port", "path"),
    [
        ("http://127.0.0.1:8000/health", ["127.0.0.1"], 8000, "/health"),
        ("http://127.8.9.10/a?b=c#d", ["127.8.9.10"], 80, "/a?b=c"),
        ("http://localhost:30000", ["127.0.0.1", "::1"], 30000, "/"),
        ("http://[::1]:8000/v1/completions", ["::1"], 8000, "/v1/completions"),
        ("http://[::1]?x", ["::1"], 80, "/?x"),
    ],
)
def test_addresses_in_parts(url: str, addresses: list[str], port: int, path: str) -> None:
    place = loopback.parse(url)
    assert [address for _, address in place.addresses] == addresses
    assert (place.port, place.path) == (port, path)


def test_a_plain_get() -> None:
    """Status and size of the answer, and who listens: this process."""
    with server(b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy") as (url, asked):
        reading = ask(f"{url}/health?deep=1")
    assert asked[0].startswith(b"GET /health?deep=1 HTTP/1.0\r\nHost: 127.0.0.1:")
    assert (reading["status"], reading["problem"], reading["body_bytes"]) == (503, None, 4)
    assert (reading["method"], reading["model"]) == ("GET", None)
    assert reading["listening"] == [os.getpid()]


@pytest.mark.parametrize(
    ("path", "question"),
    [
        ("/v1/completions", b'{"model":"a/b","max_tokens":1,"prompt":"a"}'),
        (
            "/base/v1/chat/completions",
            b'{"model":"a/b","max_tokens":1,"messages":[{"role":"user","content":"a"}]}',
        ),
    ],
)
def test_one_token_of_the_model_that_is_served(path: str, question: bytes) -> None:
    models = ok(b'{"data": [{"id": "a/b"}, {"id": "lora"}]}\n')
    with server(models, ok(b"{}")) as (url, asked):
        reading = ask(url + path)
    assert asked[0].startswith(b"GET " + path.partition("/v1/")[0].encode() + b"/v1/models ")
    head, _, body = asked[1].partition(b"\r\n\r\n")
    assert head.startswith(b"POST " + path.encode() + b" HTTP/1.0\r\n")
    assert f"Content-Length: {len(question)}".encode() in head
    assert body == question
    assert (reading["status"], reading["method"], reading["model"]) == (200, "POST", "a/b")


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (b"HTTP/1.0 401 No\r\n\r\n", "GET /v1/models: status 401, so no model is known"),
        (ok(b'{"data": []}'), "GET /v1/models: it names no model"),
        (ok(b'{"data": [{"id": 5}]}'), "GET /v1/models: it names no model"),
        (ok(b"[" * 100_000), "GET /v1/models: it names no model"),
        (ok(b"\xff"), "GET /v1/models: it names no model"),
        (b"", "GET /v1/models: it hung up"),
    ],
)
def test_without_a_model_nothing_is_asked(answer: bytes, problem: str) -> None:
    with server(answer) as (url, asked):
        reading = ask(f"{url}/v1/completions")
    assert (reading["status"], reading["problem"]) == (None, problem)
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (b"SSH-2.0-OpenSSH\r\n\r\n", "what answers does not speak HTTP"),
        (b"HTTP/1.1 abc\r\n\r\n", "what answers does not speak HTTP"),
        (b"HTTP/1.1 2000\r\n\r\n", "what answers does not speak HTTP"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000, "what answers does not speak HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort",
         "it closed the connection in the middle of its answer"),
        (b"", "it hung up"),
    ],
)  # fmt: skip
def test_what_is_no_answer(answer: bytes, problem: str) -> None:
    with server(answer) as (url, _):
        reading = ask(url)
    assert (reading["status"], reading["problem"]) == (None, problem)


def test_an_endless_answer_is_cut() -> None:
    """A stream counts as an answer; at most a mebibyte and a head of it are taken."""
    with server(ok(b"x" * (8 * MIB))) as (url, _):
        reading = ask(url)
    assert reading["status"] == 200
    assert MIB <= reading["body_bytes"] <= MIB + (1 << 17)


def test_silence_ends_in_time() -> None:
    with server(None) as (url, asked):
        reading = ask(url, seconds=0.5)
    assert len(asked) == 1
    assert (reading["status"], reading["problem"]) == (None, "no answer in time")


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    reading = ask(f"http://localhost:{port}/")
    assert (reading["status"], reading["problem"]) == (None, "connection refused")
    assert (reading["listening"], reading["processes"], reading["read_bytes"]) == ([], [], None)


# --- who reads -----------------------------------------------------------------------------

ENGINE = """
import os, socket, sys
listening = socket.create_server(("127.0.0.1", 0))
print(listening.getsockname()[1], flush=True)
channel, _ = listening.accept()
channel.recv(65536)
pid = os.fork()
if not pid:
    data = open(sys.argv[1], "rb").read()
    os._exit(0)
os.waitpid(pid, 0)
channel.sendall(b"HTTP/1.0 200 OK\\r\\n\\r\\n")
channel.close()
sys.stdin.read()
"""


def test_reads_of_a_process_that_came_and_went_count(disk: Path) -> None:
    """The kernel adds an ended child's reads to its parent."""
    file = disk / "weights"
    file.write_bytes(os.urandom(16 * MIB))
    with file.open("rb") as opened:
        os.fdatasync(opened.fileno())
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    running = subprocess.Popen(
        [sys.executable, "-c", ENGINE, str(file)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert running.stdin is not None
    assert running.stdout is not None
    try:
        port = running.stdout.readline().strip()
        reading = ask(f"http://127.0.0.1:{port}/")
    finally:
        running.stdin.close()
        running.wait(timeout=60)
        running.stdout.close()
    assert reading["status"] == 200
    assert reading["listening"] == [running.pid]
    assert 16 * MIB <= reading["read_bytes"] < 24 * MIB
    assert reading["disks_read_bytes"] >= 16 * MIB


STAT = "%d (%s) S %d %d 1 0 -1 4194304 0 0 0 0 0 0 0 0 20 0 1 0 100 0 0 0\n"


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A launcher 10 with two children: 11 listens on port 8000, 12 does not; 13 is the worker of
    12 in a group of its own; 20 has nothing to do with it."""
    monkeypatch.setattr(sysroot, "ROOT", str(tmp_path))
    line = "0: 0100007F:1F40 00000000:0000 0A 0:0 00:0 0 0 0 777 1\n"
    for pid, name, parent, group, size in (
        (10, "launcher", 1, 10, 1), (11, "router", 10, 10, 2), (12, "shard", 10, 10, 3),
        (13, "worker", 12, 13, 4), (20, "other", 1, 20, 5),
    ):  # fmt: skip
        place = tmp_path / f"proc/{pid}"
        (place / "fd").mkdir(parents=True)
        (place / "stat").write_text(STAT % (pid, name, parent, group))
        (place / "io").write_text(f"rchar: 9\nread_bytes: {size * MIB}\nwrite_bytes: 0\n")
        (place / "fd/3").symlink_to("socket:[777]" if pid == 11 else "/dev/null")
    (tmp_path / "proc/self/net").mkdir(parents=True)
    (tmp_path / "proc/self/net/tcp").write_text("head\n" + line)
    return tmp_path


def test_the_family_of_who_listens(host: Path) -> None:
    """The process group (a launcher and its other children) and all descendants, no others."""
    found = storage_reads.Processes(8000)
    assert found.listening == [11]
    (host / "proc/13/io").write_text(f"read_bytes: {40 * MIB}\n")
    (host / "proc/20/io").write_text(f"read_bytes: {90 * MIB}\n")
    rows = found.rows()
    assert [(row["pid"], row["comm"], row["listens"], row["read_bytes"]) for row in rows] == [
        (13, "worker", False, 36 * MIB),
        (10, "launcher", False, 0),
        (11, "router", True, 0),
        (12, "shard", False, 0),
    ]
    assert found.total() == 36 * MIB
    assert storage_reads.Processes(8001).listening == []


def test_disks_below_others_count_once(host: Path) -> None:
    """A partition is part of its disk; dm lies on a disk, loop on a file."""
    for name in ("nvme0n1", "dm-0", "loop0", "cciss!c0d0"):
        (host / "sys/block" / name / "slaves").mkdir(parents=True)
    (host / "sys/block/dm-0/slaves/nvme0n1").mkdir()
    line = "%d %d %s 5 0 %d 1 0 0 0 0 0 0 0\n"
    names = ("nvme0n1", "nvme0n1p1", "dm-0", "loop0", "cciss/c0d0")

    def counted(*sectors: int) -> dict[str, int] | None:
        rows = zip(names, sectors, strict=True)
        text = "".join(line % (259, n, name, size) for n, (name, size) in enumerate(rows))
        (host / "proc/diskstats").write_text(text)
        return storage_reads.disks()

    before, after = counted(100, 50, 100, 7, 0), counted(300, 150, 250, 9, 2)
    assert storage_reads.since(before, after) == [
        {"name": "cciss/c0d0", "read_bytes": 1024, "stacked": False},
        {"name": "dm-0", "read_bytes": 150 * 512, "stacked": True},
        {"name": "loop0", "read_bytes": 1024, "stacked": True},
        {"name": "nvme0n1", "read_bytes": 200 * 512, "stacked": False},
    ]
    (host / "proc/diskstats").unlink()
    assert storage_reads.disks() is None
    assert storage_reads.since(before, None) is None


def test_an_address_is_refused_in_the_words_of_the_agent() -> None:
    with pytest.raises(Trouble, match="only this host's own loopback addresses are asked"):
        loopback.parse("http://192.168.0.1/")
