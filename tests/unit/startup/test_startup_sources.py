"""The same text through a journal, a docker file and a CRI file gives the same answer."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

from fleetmem.controller.startup.offline import audit_logs, read_log
from fleetmem.controller.startup.read.parse import Parser, parse
from fleetmem.controller.startup.starts import Record, Startup

HERE = Path(__file__).parent / "startup_fixtures"
_OUTER = re.compile(r"^(\S+) gpu-7 ([\w.]+)\[(\d+)\]: ")


def _messages() -> list[str]:
    """The engine's own lines of both starts, without the journal's prefix."""
    lines = (HERE / "incident.log").read_text().splitlines()
    return [_OUTER.sub("", line) for line in lines if " systemd[1]: " not in line]


def _answer(startup: Startup) -> list[dict[str, Any]]:
    return [one.to_json() for one in startup.invocations]


def _bytes(data: bytes) -> Startup:
    parser = Parser()
    parser.feed(data)
    return parser.finish()


def _docker(lines: list[str], cut: int | None = None, tight: bool = True) -> bytes:
    rows = []
    for line in lines:
        text = line + "\n"
        parts = [text] if cut is None else [text[i : i + cut] for i in range(0, len(text), cut)]
        for part in parts:
            row = {"log": part, "stream": "stdout", "time": "2026-03-01T11:00:00.1Z"}
            # docker writes no blanks; other writers do
            rows.append(json.dumps(row, separators=(",", ":")) if tight else json.dumps(row))
    return ("\n".join(rows) + "\n").encode()


def _cri(lines: list[str], cut: int | None = None) -> bytes:
    rows = []
    for line in lines:
        parts = (
            [line] if cut is None else [line[i : i + cut] for i in range(0, max(len(line), 1), cut)]
        )
        for number, part in enumerate(parts):
            mark = "F" if number == len(parts) - 1 else "P"
            rows.append(f"2026-03-01T11:00:00.123456789Z stdout {mark} {part}")
    return ("\n".join(rows) + "\n").encode()


def test_containers_give_the_same() -> None:
    lines = _messages()
    plain = _answer(parse(lines))
    assert len(plain) == 2
    assert plain[-1]["ranks"]["TP3"]["max_tokens"] == 159277
    assert _answer(_bytes(_docker(lines))) == plain
    assert _answer(_bytes(_docker(lines, 37))) == plain
    assert _answer(_bytes(_docker(lines, tight=False))) == plain
    assert _answer(_bytes(_docker(lines, 37, tight=False))) == plain
    assert _answer(_bytes(_cri(lines))) == plain
    assert _answer(_bytes(_cri(lines, 41))) == plain
    stamped = [f"2026-03-01T11:00:00.1Z {line}" for line in lines]
    assert _answer(parse(stamped)) == plain
    composed = [f"sglang-1  | {line}" for line in lines]
    assert _answer(parse(composed)) == plain


def test_docker_entries_may_be_coloured_and_quoted() -> None:
    """Escapes of JSON between the words of a pattern hide nothing."""
    lines = [
        "[2026-03-01 11:51:48 TP0] Load \x1b[1mweight\x1b[0m begin. avail mem=94.04 GB",
        'time=2026-05-05T01:30:33Z level=INFO msg="model weights" device=CUDA1 size="14.0 GiB"',
        "  0%| 0/7\r 50%| 3/7\r[2026-03-01 11:51:49 TP0] Memory pool end. avail mem=9.00 GB",
    ]
    sglang, ollama = _bytes(_docker(lines)).invocations
    assert sglang.ranks["TP0"]["avail_before_load_bytes"] == round(94.04 * 2**30)
    assert sglang.ranks["TP0"]["avail_after_pool_bytes"] == 9 * 2**30
    assert ollama.ranks["CUDA1"]["weights_bytes"] == 14 * 2**30


def test_journal_records_give_the_same() -> None:
    """Invocation ids decide, not markers in the text."""
    plain = _answer(parse(_messages()))
    records = []
    for line in _messages():
        old = "2026-02-28" in line
        records.append(Record(line, None, "a" * 32 if old else "b" * 32, 7, "python3"))
    got = _answer(parse(records))
    for one in got:
        assert one.pop("invocation_id") in ("a" * 32, "b" * 32)
    for one in plain:
        one.pop("invocation_id")
    assert got == plain


def test_journal_json_is_read() -> None:
    """``journalctl -o json``: text, byte arrays and systemd's own lines about the unit."""
    rows = []
    for number, line in enumerate(_messages()):
        message: Any = line if number % 2 else list(line.encode())
        unit = ("a" if "2026-02-28" in line else "b") * 32
        rows.append(
            {
                "MESSAGE": message,
                "__REALTIME_TIMESTAMP": "1772365830000000",
                "_PID": "41",
                "_SYSTEMD_INVOCATION_ID": unit,
            }
        )
    rows.append(
        {
            "MESSAGE": "sglang-kimi.service: Main process exited, code=killed, status=9/KILL",
            "__REALTIME_TIMESTAMP": "1772365840000000",
            "_PID": "1",
            "SYSLOG_IDENTIFIER": "systemd",
            "INVOCATION_ID": "b" * 32,
            "_SYSTEMD_INVOCATION_ID": "0" * 32,
        }
    )
    startup = _bytes("\n".join(json.dumps(row) for row in rows).encode())
    assert [one.status for one in startup.invocations] == ["ready", "failed"]
    assert startup.invocations[1].ranks["TP7"]["max_tokens"] == 159277


def test_interleaved_invocations_of_a_journal() -> None:
    """Two runs whose records are mixed keep their own figures."""
    records = []
    for line in _messages():
        old = "2026-02-28" in line
        records.append(Record(line, None, "a" * 32 if old else "b" * 32))
    half = len(records) // 2
    mixed = [one for pair in zip(records[:half], records[half:], strict=True) for one in pair]
    startup = parse(mixed)
    assert [len(one.ranks) for one in startup.invocations] == [8, 8]


def test_an_invocation_without_known_lines_is_seen() -> None:
    """The newest start may have failed before it said anything about memory."""
    startup = parse(
        [*(Record(m, None, "a" * 32) for m in _messages()[-30:]), Record("hello", "t", "b" * 32)]
    )
    assert [one.invocation_id for one in startup.invocations] == ["a" * 32, "b" * 32]
    assert startup.invocations[1].status == "unknown"


def test_binary_messages_do_no_harm() -> None:
    assert (
        parse([Record(b"\xff\xfe KV Cache is allocated. \x00", None, "a" * 32)]).newest is not None
    )


def test_structured_log_lines() -> None:
    rows = [
        {"timestamp": "2026-03-01T11:00:00Z", "level": "INFO", "process_name": f"Worker_TP{n}",
         "pid": n + 10, "message": f"Available KV cache memory: {n + 2}.50 GiB"}
        for n in range(2)
    ]  # fmt: skip
    newest = parse([json.dumps(row) for row in rows]).newest
    assert newest is not None
    assert {k: v["kv_available_bytes"] / 2**30 for k, v in newest.ranks.items()} == {
        "TP0": 2.5,
        "TP1": 3.5,
    }


def test_files(tmp_path: Path) -> None:
    """Plain, gzip, missing, a directory and stdin-like names: one entry each."""
    packed = tmp_path / "packed.log.gz"
    packed.write_bytes(gzip.compress((HERE / "incident.log").read_bytes()))
    damaged = tmp_path / "damaged.gz"
    damaged.write_bytes(packed.read_bytes()[:900])
    empty = tmp_path / "empty.log"
    empty.write_text("nothing here\n")
    missing = tmp_path / "missing.log"
    answer = audit_logs([str(packed), str(damaged), str(empty), str(missing), str(tmp_path)])
    assert [(one["host"], one["outcome"]) for one in answer["hosts"]] == [
        ("file:packed.log.gz", "ok"),
        ("file:damaged.gz", "partial"),
        ("file:empty.log", "ok"),
        ("file:missing.log", "failed"),
        (f"file:{tmp_path.name}", "failed"),
    ]
    assert len(answer["hosts"][0]["startup"][0]["invocations"]) == 2
    assert answer["hosts"][2]["startup"] == []
    assert "no such file" in answer["hosts"][3]["error"]["message"]
    assert {one["hosts"] for one in answer["findings"]} <= {"file:packed.log.gz", "file:damaged.gz"}
    json.dumps({k: v for k, v in answer.items() if k != "startups"})


def test_two_files_of_one_name(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.log").write_bytes((HERE / "incident.log").read_bytes())
    answer = audit_logs([str(tmp_path / "a" / "x.log"), str(tmp_path / "b" / "x.log")])
    names = [one["host"] for one in answer["hosts"]]
    assert len(set(names)) == 2
    missing = str(tmp_path / "none" / "y.log")
    again = audit_logs([missing, str(tmp_path / "other" / "y.log"), missing])
    assert len({one["host"] for one in again["hosts"]}) == 3


def test_the_odd_host_of_a_group(tmp_path: Path) -> None:
    """Fifteen equal, one odd, and why."""
    paths = []
    for number in range(16):
        source = "foreign.log" if number == 9 else "incident.log"
        path = tmp_path / f"gpu-{number:02d}.log"
        path.write_bytes((HERE / source).read_bytes())
        paths.append(str(path))
    found = [f for f in audit_logs(paths)["findings"] if f["rule"] == "startup/kv-below-group"]
    assert [one["hosts"] for one in found] == ["file:gpu-09.log"]
    assert "another process held 11.13 GiB" in found[0]["evidence"]["say"]


@pytest.mark.parametrize("name", ["incident.log", "foreign.log"])
def test_forced_engine(name: str) -> None:
    assert read_log(str(HERE / name), engine="sglang").engine == "sglang"
    other = read_log(str(HERE / name), engine="trtllm")
    assert not any(one.ranks for one in other.invocations)
