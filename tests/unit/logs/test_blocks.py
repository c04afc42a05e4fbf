"""An event is a block: kept whole, oldest line first inside, folded as one over hosts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fleetmem.controller.answer.envelope import new_envelope, new_host, new_run
from fleetmem.controller.logs.blocks import blocks
from fleetmem.controller.logs.run import _events
from fleetmem.controller.render.kit.line import WIDTH, cells, plain
from fleetmem.controller.render.logs.logs import Shown, log_lines
from fleetmem.controller.render.logs.normal import names_of, normal
from fleetmem.controller.rules.kernel_words import FILE, kernel_words
from fleetmem.controller.rules.playbook_files import problems_of

VLLM = "(EngineCore_DP0 pid=9) ERROR 10-06 15:57:53 [core.py:708] "
TRACE = [
    "Traceback (most recent call last):",
    '  File "/opt/vllm/core.py", line 10, in run',
    "    self.step()",
    "ValueError: no room for the cache",
]


def rows(
    *texts: str, second: int = 0, pid: int | None = 7, hits: tuple[int, ...] | None = None
) -> list[dict[str, Any]]:
    """Lines as a log holds them, the newest first."""
    found = [
        {
            "time": f"2026-03-01T10:00:{second + n // 50:02d}.{n % 50:06d}Z",
            "invocation": None, "age": None, "pid": pid, "name": "python3", "priority": 6,
            "from": "unit", "hit": hits is None or n in hits, "message": text,
        }
        for n, text in enumerate(texts)
    ]  # fmt: skip
    return found[::-1]


def texts(found: list[dict[str, Any]]) -> list[list[str]]:
    return [[row["message"] for row in one.rows] for one in blocks(found)]


def test_a_traceback_is_one_event() -> None:
    found = rows("INFO: ready", *TRACE, "INFO: next")
    assert texts(found) == [["INFO: next"], TRACE, ["INFO: ready"]]


def test_a_traceback_with_a_head_on_every_line() -> None:
    lines = [VLLM + line for line in TRACE]
    other = "(APIServer pid=3) INFO 10-06 15:57:54 [launcher.py:1] stopping"
    assert texts(rows(*lines, other)) == [[other], lines]


def test_chained_exceptions_stay_together() -> None:
    lines = [
        *TRACE,
        "",
        "The above exception was the direct cause of the following exception:",
        "",
        *TRACE[:3],
        "RuntimeError: the start failed",
    ]
    assert texts(rows(*lines)) == [lines]


def test_two_processes_that_write_at_once() -> None:
    first, second = rows(*TRACE, pid=1), rows(*TRACE, pid=2)
    mixed = [row for pair in zip(first, second, strict=True) for row in pair]
    assert texts(mixed) == [TRACE, TRACE]


def test_two_tracebacks_are_two_events() -> None:
    assert texts(rows(*TRACE, *TRACE)) == [TRACE, TRACE]


@pytest.mark.parametrize(
    "lines",
    [
        ["| device | free |", "| CUDA0  | 10   |", "| CUDA1  | 12   |"],
        ["Call Trace:", " <TASK>", " schedule+0x1", " </TASK>"],
        ["dump of the header", "00000000: 7f 45 4c 46 02 01 01 00", "00000010: 03 00 3e 00 01 00"],
        ["terminate called", "frame #0: c10::Error", "frame #1: at::native"],
    ],
)
def test_tables_and_dumps_are_one_event(lines: list[str]) -> None:
    assert texts(rows(*lines)) == [lines]


def test_lines_a_while_apart_are_not_one_event() -> None:
    early, late = rows("header"), rows("  indented", second=30)
    assert texts([*late, *early]) == [["  indented"], ["header"]]


def test_only_events_with_a_match_are_kept_and_they_are_whole() -> None:
    found = rows("before", *TRACE, "after", hits=(4,))
    kept = _events({"lines": found, "truncated": None}, 10)
    assert [row["message"] for row in kept["lines"]] == TRACE[::-1]
    many = _events({"lines": rows(*["ValueError"] * 30), "truncated": None}, 10)
    assert (len(many["lines"]), many["truncated"]) == (10, "lines")


def screen(per_host: dict[str, list[dict[str, Any]]], shown: Shown | None = None) -> list[str]:
    entries = []
    for name, lines in per_host.items():
        entry = new_host(name, "ok")
        section = {"name": "u", "units": [], "files": [], "invocations": [], "truncated": None,
                   "scanned": 90, "lines": lines}  # fmt: skip
        entry["logs"] = [section]  # type: ignore[typeddict-unknown-key]
        entries.append(entry)
    envelope = new_envelope(new_run("logs"), list(per_host), entries)
    found = [plain(one) for one in log_lines(envelope, shown or Shown())]
    assert all(cells(one) <= WIDTH for one in found)
    return found


def test_equal_events_of_many_hosts_are_one_row_in_writing_order() -> None:
    hosts = {f"gpu-{n:02d}": rows(*TRACE, pid=100 + n) for n in range(1, 65)}
    found = screen(hosts)
    assert found[1].split()[:2] == ["64", "gpu-[01-64]"]
    body = [line[44:].strip() for line in found[1:5]]
    assert body == [line.strip() for line in TRACE]
    assert found[5] == "64 events of 64 hosts, newest first"


def test_nccl_lines_of_64_hosts_fold() -> None:
    """They begin with host:pid:tid and the device; ranks and peers differ, too."""
    hosts = {
        f"gpu-{n:02d}": rows(
            f"gpu-{n:02d}:{4000 + n}:{5000 + n} [{n % 8}] NCCL WARN no call to gpu-{n % 9 + 1:02d}"
            f" at 10.0.0.{n}<4{n:03d}> of rank {n} failed: TP{n % 8}"
        )
        for n in range(1, 65)
    }
    found = screen(hosts)
    assert found[-1] == "64 events of 64 hosts, newest first"
    assert sum("NCCL WARN" in line for line in found) == 1


def test_the_order_can_be_turned_round() -> None:
    lines = {"h": [*rows("second", second=5), *rows("first")]}
    newest = screen(lines, Shown(raw=True))
    oldest = screen(lines, Shown(raw=True, oldest=True))
    assert [line.split()[-1] for line in newest[1:]] == ["second", "first"]
    assert [line.split()[-1] for line in oldest[1:]] == ["first", "second"]


def test_nothing_is_cut_without_saying_so() -> None:
    long = " ".join(f"word{n}" for n in range(900))
    for shown in (Shown(), Shown(raw=True)):
        found = "\n".join(screen({"h": rows(long)}, shown))
        assert "word899" not in found
        assert "…" in found
        assert "--full shows them whole" in found
        whole = "\n".join(screen({"h": rows(long)}, Shown(raw=shown.raw, full=True)))
        assert "word899" in whole
        assert "…" not in whole
    middling = " ".join(f"word{n}" for n in range(60))  # more than 168 characters
    assert "word59" in "\n".join(screen({"h": rows(middling)}))


def test_a_pattern_without_a_match_says_so() -> None:
    found = screen({"h": []}, Shown(raw=True, asked="Xid"))
    assert found == ["no line matches 'Xid' among 90 that were read"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("soft lockup - CPU#3 stuck [python3:4711]", "soft lockup - CPU#71 stuck [python3:9]"),
        ("INFO: task python3:4711 blocked", "INFO: task python3:12 blocked"),
        ("Process 4001 has 3.20 GiB", "Process 77 has 3.20 GiB"),
        ("[rank3]: Worker_TP3 failed", "[rank0]: Worker_TP0 failed"),
    ],
)  # fmt: skip
def test_lines_of_two_hosts_are_one(one: str, other: str) -> None:
    assert normal(one) == normal(other)


def test_host_names_are_told_by_whole_words() -> None:
    names = names_of(["gpu-01.example.org", "root@10.0.0.5", "db"])
    assert normal("gpu-01 lost", names) == normal("gpu-01.example.org lost", names) == "* lost"
    assert normal("gpu-011 lost", names) == "gpu-011 lost"
    assert normal("db is up", names) == "* is up"


def test_every_kernel_word_has_a_line() -> None:
    assert problems_of(FILE) == []
    words = kernel_words()
    for text in (
        "watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python3:4711]",
        "pcieport 0000:80:01.1: AER: Corrected error message received",
        "EDAC MC0: 1 CE memory read error",
        "mlx5_core 0000:17:00.0: device's health compromised",
    ):
        assert any(word in text for word in words), text


def test_a_wrong_kernel_word_is_named_by_line(tmp_path: Path) -> None:
    file = tmp_path / "kernel.yaml"
    file.write_text("kernel:\n  - id: a\n    find: [lockup]\n    about: x\n    tests: [nothing]\n")
    (problem,) = problems_of(str(file))
    assert str(problem).endswith("kernel.yaml:5:13: kernel[0].tests[0]: none of its words is in it")
