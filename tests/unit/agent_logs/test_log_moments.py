"""Times in files: as people ask for them, as lines bear them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from fleetmem.agent.kernel import sysroot
from fleetmem.agent.logs.moments import moment, of_line, span
from fleetmem.agent.model import Trouble
from fleetmem.agent.probes.journal import journal_read


def local(text: str) -> int:
    return int(time.mktime(time.strptime(text, "%Y-%m-%d %H:%M:%S")) * 1e6)


@pytest.mark.parametrize(
    ("text", "ago"),
    [("-2h", 7200), ("2 hours ago", 7200), ("-30min", 1800), ("-1d", 86400), ("now", 0)],
)
def test_spans(text: str, ago: int) -> None:
    assert abs(moment(text) / 1e6 - (time.time() - ago)) < 5


def test_moments() -> None:
    assert moment("2026-03-01 11:50") == local("2026-03-01 11:50:00")
    assert moment("2026-03-01") == local("2026-03-01 00:00:00")
    assert moment("@1700000000") == 1_700_000_000_000_000
    with pytest.raises(Trouble, match="is not a time"):
        moment("last tuesday")
    assert span(None, None) is None


@pytest.mark.parametrize(
    ("line", "at"),
    [
        (b"[2026-03-01 11:50:53 TP3] Load weight begin.", local("2026-03-01 11:50:53")),
        (b"2026-03-01T11:50:53.25Z stdout", 1_772_365_853_250_000),
        (b"2026-03-01T12:50:53+0100 x", 1_772_365_853_000_000),
        (b"no time at all 10 GB", None),
    ],
)
def test_times_of_lines(line: bytes, at: int | None) -> None:
    assert of_line(line) == at


def test_a_file_between_two_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line without a time goes with the line before it."""
    monkeypatch.setattr(sysroot, "ROOT", str(tmp_path))
    (tmp_path / "e.log").write_text(
        "[2026-03-01 10:00:00] early\n"
        "  of early\n"
        "[2026-03-01 11:00:00] middle\n"
        "  of middle\n"
        "[2026-03-01 12:00:00] late\n"
    )

    def read(**asked: Any) -> list[str]:
        found: list[str] = []
        journal_read(
            file="/e.log",
            emit=lambda chunk: found.extend(row[7] for row in chunk["rows"]),
            **asked,
        )
        return found[::-1]

    (tmp_path / "plain.log").write_text("one\ntwo\n")
    with pytest.raises(Trouble, match="bears a time"):
        journal_read(file="/plain.log", since="-1h", emit=lambda chunk: None)
    assert read(since="2026-03-01 10:30")[:1] == ["[2026-03-01 11:00:00] middle"]
    assert read(since="2026-03-01 10:30", until="2026-03-01 11:30") == [
        "[2026-03-01 11:00:00] middle",
        "  of middle",
    ]
    assert read(until="2026-03-01 10:30") == ["[2026-03-01 10:00:00] early", "  of early"]
