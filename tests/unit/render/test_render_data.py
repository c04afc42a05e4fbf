"""Answers for programs, the painter and the progress line."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest

from fleetmem.controller.memory.account import snapshot
from fleetmem.controller.render.audit.audit import audit_rows
from fleetmem.controller.render.kit.csv_text import csv_text
from fleetmem.controller.render.kit.data import COLUMNS, flat_findings, to_csv, to_json, to_jsonl
from fleetmem.controller.render.kit.paint import paint, wants_colour
from fleetmem.controller.render.kit.progress import Progress, falling_bar, progress_text, wait_text
from tests.unit.memory.memory_samples import readings
from tests.unit.reclaim.reclaim_samples import eight_gpus, envelope, idle, unreachable
from tests.unit.reclaim.reclaim_world import device, facts


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_json_is_the_envelope_in_ascii() -> None:
    """What goes in comes out, and a terminal sees nothing but ASCII."""
    run = envelope(eight_gpus(), unreachable("h2"))
    run["hosts"][0]["reclaim"]["targets"][0]["name"] = "\x1b]0;x\x07\u202e模型\ud800"
    text = to_json(run)
    assert json.loads(text) == run
    assert text.isascii()
    assert "\x1b" not in text


def test_jsonl_has_a_host_a_line_and_a_summary() -> None:
    """Hosts first, then everything else in one line."""
    run = envelope(eight_gpus("a"), unreachable("b"))
    lines = [json.loads(line) for line in to_jsonl(run).splitlines()]
    assert [line.get("host") for line in lines] == ["a", "b", None]
    assert lines[0] == {"run": run["run"]["id"], **run["hosts"][0]}
    assert lines[2]["summary"] == run["summary"]
    assert lines[2]["run"] == run["run"]


def test_csv_has_a_row_a_gpu() -> None:
    """Every target has a row, absent is empty, formulas are disarmed."""
    lost = unreachable("=HYPERLINK(1)")
    rows = list(csv.DictReader(io.StringIO(to_csv(envelope(eight_gpus("a"), idle("b"), lost)))))
    assert [row["host"] for row in rows] == ["a"] * 8 + ["b", "'=HYPERLINK(1)"]
    assert rows[3]["before_bytes"] == str((92049 + 33) << 20)
    assert rows[-1]["gpu"] == ""
    assert rows[-1]["error"] == "connect_timeout"
    assert tuple(rows[0]) == COLUMNS


@pytest.mark.parametrize("command", ["run", "audit"])
def test_csv_of_a_judgement_has_a_row_a_finding(command: str) -> None:
    """Every target has a row; formulas are disarmed."""
    whole = envelope(idle("a1"), idle("a2"), idle("b"), unreachable("c"))
    whole["run"]["command"] = command
    for entry in whole["hosts"]:
        entry.pop("reclaim", None)
    one = {"severity": "warn", "subject": "GPU 0", "advice": None, "next": ["one", "two"]}
    whole["findings"] = [
        {**one, "rule": "memory/x", "hosts": "a[1-2]", "evidence": {"say": "=1 GiB"}},  # type: ignore[typeddict-item]
        {**one, "rule": "memory/y", "hosts": "a2", "evidence": {}, "next": []},  # type: ignore[typeddict-item]
    ]
    rows = list(csv.DictReader(io.StringIO(to_csv(whole))))
    assert [(row["host"], row["rule"], row["say"], row["next"]) for row in rows] == [
        ("a1", "memory/x", "'=1 GiB", "one; two"),
        ("a2", "memory/x", "'=1 GiB", "one; two"),
        ("a2", "memory/y", "", ""),
        ("b", "", "", ""),
        ("c", "", "", ""),
    ]
    assert rows[-1]["error"] == "connect_timeout"
    assert audit_rows(whole) == flat_findings(whole)
    assert len(audit_rows(whole)) == len(rows)


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        (None, ""),
        (-1, "-1"),
        ("-1", "'-1"),
        ("=1+1", "'=1+1"),
        ("@x", "'@x"),
        ("\t=x", "'\t=x"),
        ("a=1", "a=1"),
        (["one", "two"], "one; two"),
        (["=one"], "'=one"),
        ([], ""),
        ({"ok": 3, "failed": 1}, "ok 3; failed 1"),
        ({}, ""),
    ],
)
def test_a_cell_of_csv(value: object, cell: str) -> None:
    """One rule for all of them: no Python in it, and nothing that a spreadsheet would run."""
    (row,) = csv.DictReader(io.StringIO(csv_text([{"a": 0, "b": value}])))
    assert row == {"a": "0", "b": cell}


def test_csv_without_rows() -> None:
    assert csv_text([]) == ""
    assert csv_text([], ("a", "b")) == "a,b\n"


def test_csv_of_a_check_has_what_was_found_on_each_host() -> None:
    found = idle("a")
    found.pop("reclaim")
    gpus = [device(0, 0, name="NVIDIA H200"), device(1, 0, name="NVIDIA H200")]
    found["readings"] = {
        "host.facts": _read("ok", facts()),
        "gpu.devices": _read("ok", {"driver_version": "580.65", "gpus": gpus}),
        "host.operations": _read("denied", None, "not root"),
    }
    found["outcome"] = "partial"
    whole = envelope({**found, "seconds": 1.5}, unreachable("b"))
    whole["run"]["command"] = "hosts"
    first, second = csv.DictReader(io.StringIO(to_csv(whole)))
    assert first == {
        "run": whole["run"]["id"],
        "host": "a",
        "outcome": "partial",
        "error": "",
        "seconds": "1.5",
        "user": "root",
        "python": "3.11.2",
        "kernel": "6.8",
        "machine": "aarch64",
        "total_bytes": str(512 << 30),
        "page_size_bytes": "4096",
        "state_dir": "/run/fleetmem",
        "state_dir_reason": "",
        "gpus": "2",
        "gpu_names": "NVIDIA H200",
        "driver_version": "580.65",
        "problems": "host.operations: denied: not root",
    }
    assert (second["host"], second["outcome"], second["gpus"]) == ("b", "unreachable", "")
    assert second["problems"].startswith("connect_timeout: ")


def test_csv_of_a_recorded_snapshot_is_its_table() -> None:
    found = idle("a")
    found.pop("reclaim")
    found["snapshot"] = snapshot(readings())
    whole = envelope(found, unreachable("b"))
    rows = list(csv.DictReader(io.StringIO(to_csv(whole))))
    on_node = [int(row["bytes"]) for row in rows if row["location"] == "numa:1"]
    assert sum(on_node) == 2048 << 20
    assert (rows[-1]["host"], rows[-1]["outcome"]) == ("b", "unreachable")


def _read(outcome: str, reading: Any, reason: str | None = None) -> Any:
    return {"outcome": outcome, "reason": reason, "reading": reading, "seconds": 0.1}


@pytest.mark.parametrize(
    ("environ", "terminal", "colour"),
    [
        ({"TERM": "xterm"}, True, True),
        ({"TERM": "dumb"}, True, False),
        ({"TERM": "xterm"}, False, False),
        ({"TERM": "xterm", "NO_COLOR": "1"}, True, False),
        ({"FORCE_COLOR": "1"}, False, True),
        ({"FORCE_COLOR": "0"}, False, False),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False, False),
        ({"TERM": "xterm", "NO_COLOR": ""}, True, True),
    ],
)
def test_when_there_is_colour(environ: dict[str, str], terminal: bool, colour: bool) -> None:
    """NO_COLOR wins, then FORCE_COLOR, then the terminal."""
    assert wants_colour(Terminal() if terminal else io.StringIO(), environ) is colour


def test_colour_only_repeats_the_text() -> None:
    """Without its escapes a coloured line is the plain one; markup stays text."""
    import re

    lines = [(("✗ held_by  ", "bad"), ("[red]not markup[/] :smile:   ", "")), ((" ", ""),), ()]
    coloured = paint(lines, colour=True)
    assert "\x1b[31m" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == paint(lines, colour=False)
    assert paint(lines, colour=False) == "✗ held_by  [red]not markup[/] :smile:\n\n\n"


def test_progress_names_the_slowest() -> None:
    """Counts first, then who has been in one phase for longest."""
    phases = {f"h{number}": ("nvml", 10.0 - number) for number in range(5)}
    text = progress_text(64, 58, phases, 11.0)
    assert text == "58/64 · slowest h4 nvml 5 s, h3 nvml 4 s, h2 nvml 3 s"
    assert progress_text(2, 2, {}, 0.0) == "2/2"


def test_falling_bar() -> None:
    """Eight cells, full at the start, empty at the end, unknown said."""
    assert falling_bar(100, 100) == "████████"
    assert falling_bar(50, 100) == "████····"
    assert falling_bar(0, 100) == "········"
    assert len(falling_bar(33, 100)) == 8
    assert falling_bar(None, 100) == "????????"
    event = {
        "host": "h\x1b",
        "used_bytes": [50],
        "start_bytes": [100],
        "seconds": 1.0,
        "expect_seconds": 2.5,
    }
    assert wait_text(event) == "h\\x1b ████···· 1.0 s, about 1.5 s left"


def test_a_host_cannot_break_the_progress_line() -> None:
    """Chunks of a wait are remote data: wrong types and lengths are shown as unknown."""
    event = {
        "host": "h",
        "used_bytes": ["\x1b", float("nan"), 1, 2, True, 10**400],
        "start_bytes": [100, 100, 100],
        "seconds": "soon",
        "expect_seconds": 1.0,
    }
    assert wait_text(event) == "h ???????? ???????? ▏·······"


def progress_on(
    stream: io.StringIO, quiet: bool = False, **environ: str
) -> tuple[Progress, list[float]]:
    """A progress line with a clock that the test moves."""
    moment = [0.0]
    progress = Progress(stream, quiet, lambda: moment[0], {"TERM": "xterm", **environ})
    progress.begin(["a", "b"])
    return progress, moment


def test_progress_without_a_terminal_is_a_line_every_ten_seconds() -> None:
    """No escapes, no flood."""
    stream = io.StringIO()
    progress, moment = progress_on(stream)
    progress.phase("a", "nvml")
    for second in range(25):
        moment[0] = float(second)
        progress.tick()
    assert stream.getvalue() == "0/2 · slowest a nvml 10 s\n0/2 · slowest a nvml 20 s\n"
    progress.clear()
    assert "\x1b" not in stream.getvalue()


def test_progress_on_a_terminal_gives_way() -> None:
    """The line is rewritten in place and removed before anything else is written."""
    stream = Terminal()
    progress, _ = progress_on(stream)
    progress.done("a")
    progress.tick()
    assert stream.getvalue() == "\r\x1b[K1/2"
    progress.pause()
    assert stream.getvalue().endswith("\r\x1b[K")
    before = stream.getvalue()
    progress.tick()
    assert stream.getvalue() == before
    progress.resume()
    progress.tick()
    assert stream.getvalue() != before


def test_a_host_that_works_again_is_not_done() -> None:
    """Planning ends a host once, applying a second time; it is counted once."""
    stream = io.StringIO()
    progress, moment = progress_on(stream)
    progress.done("a")
    progress.done("a")
    progress.done("b")
    progress.phase("a", "term")
    moment[0] = 10.0
    progress.tick()
    assert stream.getvalue() == "1/2 · slowest a term 10 s\n"


def test_progress_under_ci_and_quiet() -> None:
    """CI gets plain lines even with a terminal; quiet gets nothing at all."""
    stream = Terminal()
    progress, moment = progress_on(stream, CI="1")
    moment[0] = 10.0
    progress.tick()
    assert stream.getvalue() == "0/2\n"
    silent = Terminal()
    progress, moment = progress_on(silent, quiet=True)
    moment[0] = 10.0
    progress.tick()
    progress.clear()
    assert silent.getvalue() == ""


def test_a_gone_reader_does_not_end_the_run() -> None:
    """A broken stderr silences the line, nothing more."""

    class Broken(Terminal):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    progress, _ = progress_on(Broken())
    progress.tick()
    progress.tick()
