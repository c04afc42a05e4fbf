"""Files on the host: rotated, packed, containers' own; always from the end."""

from __future__ import annotations

import gzip
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetmem.agent.kernel import sysroot
from fleetmem.agent.logs import container_logs
from fleetmem.agent.logs import files as log_files
from fleetmem.agent.logs.lines import cri, docker
from fleetmem.agent.logs.stamps import microseconds
from fleetmem.agent.model import DENIED, FAILED, PARTIAL, Trouble
from fleetmem.agent.probes import journal


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sysroot, "ROOT", str(tmp_path))
    return tmp_path


def put(root: Path, path: str, data: str | bytes, age: float = 0) -> Path:
    place = root / path.lstrip("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(data if isinstance(data, bytes) else data.encode())
    os.utime(place, (time.time() - age, time.time() - age))
    return place


def read(**asked: Any) -> tuple[list[str], Any]:
    """(messages oldest first, the reading); a partial one is the reading too."""
    rows: list[Any] = []
    try:
        reading = journal.journal_read(emit=lambda data: rows.extend(data["rows"]), **asked)
    except Trouble as trouble:
        if trouble.outcome != PARTIAL:
            raise
        reading = {**(trouble.reading or {}), "why": trouble.reason}
    return [row[7] for row in reversed(rows)], reading


@given(
    lines=st.lists(st.binary(max_size=30).filter(lambda v: b"\n" not in v and b"\r" not in v)),
    block=st.integers(1, 40),
    ends=st.booleans(),
)
def test_backwards_is_the_reverse(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], block: int, ends: bool
) -> None:
    path = tmp_path_factory.mktemp("log") / "x"
    data = b"\n".join(lines) + (b"\n" if ends and lines else b"")
    if data[:2] == b"\x1f\x8b" or data.startswith((b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")):
        return
    path.write_bytes(data)
    expected = data.split(b"\n")
    if expected[-1] == b"":
        expected.pop()
    old, log_files.BLOCK = log_files.BLOCK, block
    try:
        assert list(log_files.backwards(str(path))) == expected[::-1]
    finally:
        log_files.BLOCK = old


def test_rotated_and_packed_siblings_are_read_in_order(root: Path) -> None:
    put(root, "/var/log/e.log", "five\nsix\n")
    put(root, "/var/log/e.log.1", "three\nfour\n", 100)
    put(root, "/var/log/e.log.2.gz", gzip.compress(b"one\n") + gzip.compress(b"two\n"), 200)
    put(root, "/var/log/e.log.pid", "no log\n")
    put(root, "/var/log/e.logger", "no log\n")
    messages, reading = read(file="/var/log/e.log")
    assert messages == ["one", "two", "three", "four", "five", "six"]
    assert reading["files"] == ["/var/log/e.log", "/var/log/e.log.1", "/var/log/e.log.2.gz"]
    newest, reading = read(file="/var/log/e.log", limit_lines=3)
    assert newest == ["four", "five", "six"]
    assert reading["truncated"] == "lines"


def test_a_cut_packed_file_gives_what_came_before(root: Path) -> None:
    whole = gzip.compress(b"".join(b"line %d\n" % n for n in range(5000)))
    put(root, "/var/log/e.log.1.gz", whole[: len(whole) // 2])
    put(root, "/var/log/e.log", "last\n")
    messages, _ = read(file="/var/log/e.log")
    assert messages[0] == "line 0"
    assert messages[-1] == "last"
    assert 1000 < len(messages) < 5000


def test_what_cannot_be_read_is_said(root: Path) -> None:
    put(root, "/var/log/e.log", "last\n")
    put(root, "/var/log/e.log.1.xz", b"\xfd7zXZ\x00packed", 10)
    messages, reading = read(file="/var/log/e.log")
    assert messages == ["last"]
    assert "compression that is not supported" in reading["why"]
    with pytest.raises(Trouble, match="there is no file /nope") as none:
        read(file="/nope")
    assert none.value.outcome == FAILED
    if os.geteuid():
        put(root, "/var/log/secret", "x").chmod(0)
        with pytest.raises(Trouble) as denied:
            read(file="/var/log/secret")
        assert denied.value.outcome == DENIED


def docker_rows(text: str, cut: int) -> str:
    rows = []
    for line in text.splitlines(keepends=True):
        rows += [
            {"log": line[at : at + cut], "stream": "stderr", "time": "2026-05-04T01:02:03.5Z"}
            for at in range(0, len(line), cut)
        ]
    return "".join(json.dumps(row) + "\n" for row in rows)


def test_a_containers_pieces_are_joined_before_any_filter(root: Path) -> None:
    text = 'first KV Cache line\nsecond <one> "x"\nthird KV Cache line\n'
    ident = "c0ffee" + "0" * 58
    place = f"/var/lib/docker/containers/{ident}"
    put(root, f"{place}/{ident}-json.log", docker_rows(text, 4))
    put(root, f"{place}/config.v2.json", json.dumps({"Name": "/engine"}))
    for name in ("engine", "/engine", "c0ffee", ident):
        assert read(container=name)[0] == text.splitlines()
    assert read(container="engine", grep="kv cache")[0] == [
        "first KV Cache line", "third KV Cache line",
    ]  # fmt: skip
    assert read(container="engine", words=('"x"',))[0] == ['second <one> "x"']


def test_pods_and_podman(root: Path) -> None:
    uid = "5c1f2d6e-0000-4000-8000-000000000001"
    cri_text = "2026-05-04T01:02:03.5Z stdout P be\n2026-05-04T01:02:03.6Z stdout F gin\n"
    put(root, f"/var/log/pods/prod_llm-0_{uid}/engine/1.log", cri_text)
    put(
        root,
        f"/var/log/pods/prod_llm-0_{uid}/engine/0.log",
        "2026-05-04T00:00:00Z stdout F old\n",
        9,
    )
    for name in ("prod/llm-0", "llm-0", "prod/llm-0/engine", uid):
        assert read(container=name)[0] == ["old", "begin"]
    store = "/var/lib/containers/storage/overlay-containers"
    put(root, f"{store}/{'ab' * 32}/userdata/ctr.log", "2026-05-04T01:02:03+02:00 stderr F hello\n")
    put(root, f"{store}/containers.json", json.dumps([{"id": "ab" * 32, "names": ["vllm"]}]))
    assert read(container="vllm")[0] == ["hello"]
    assert container_logs.files("other") == []


def test_a_runtimes_command_is_the_last_way(root: Path) -> None:
    script = put(root, "/usr/bin/docker", '#!/bin/sh\necho "2026-05-04T01:02:03Z says $3"\n')
    script.chmod(0o755)
    messages, reading = read(container="gone")
    assert messages == ["2026-05-04T01:02:03Z says gone"]
    assert reading["files"] == ["docker logs --timestamps gone"]


REFUSED = "Error response from daemon: No such container: gone"


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (None, "no container runtime here has a log file or a command for it"),
        (f"echo '{REFUSED}' >&2; exit 1", f"docker: {REFUSED}"),
        ("exit 1", "docker: status 1"),
    ],
)
def test_a_container_that_is_not_there(root: Path, script: str | None, why: str) -> None:
    """What a runtime says of it is no line of its log."""
    if script:
        put(root, "/usr/bin/docker", f"#!/bin/sh\n{script}\n").chmod(0o755)
    rows: list[Any] = []
    with pytest.raises(Trouble) as none:
        journal.journal_read(container="gone", emit=rows.append)
    assert (none.value.outcome, rows) == (FAILED, [])
    assert none.value.code == "no_journal"
    assert none.value.reason == f"no log of container gone: {why}; this host has no journalctl"


def test_a_runtime_that_fails_on_its_way_gave_lines(root: Path) -> None:
    script = "#!/bin/sh\necho '2026-05-04T01:02:03Z a line'\necho 'daemon gone' >&2; exit 1\n"
    put(root, "/usr/bin/docker", script).chmod(0o755)
    messages, reading = read(container="gone")
    assert messages == ["2026-05-04T01:02:03Z a line", "daemon gone"]
    assert reading["why"] == "docker: status 1"
    put(root, "/usr/bin/docker", "#!/bin/sh\nexit 0\n").chmod(0o755)
    assert read(container="silent")[0] == []


def test_clocks_of_containers() -> None:
    assert microseconds("1970-01-01T00:00:01.000002Z") == 1_000_002
    assert microseconds("2026-05-04T01:02:03.5Z") == 1_777_856_523_500_000
    assert microseconds("2026-05-04T03:02:03.5+02:00") == 1_777_856_523_500_000
    assert microseconds("2024-02-29T23:59:59Z") == 1_709_251_199_000_000
    assert microseconds("no time at all") is None
    assert docker(b'{"log": 5}') is None
    assert docker(b'{"log":"x\\n","stream":"stdout","time":"?"}') == (None, "stdout", b"x", True)
    assert cri(b"2026-05-04T01:02:03Z stdout X nothing") is None
