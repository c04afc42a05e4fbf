"""``journal.read`` against a journalctl that hangs, fails, lies or is not there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fleetmem.agent.kernel import sysroot
from fleetmem.agent.logs import find as journal_find
from fleetmem.agent.model import DENIED, FAILED, PARTIAL, UNSUPPORTED, Trouble
from fleetmem.agent.probes import journal

ID = "0123456789abcdef" * 2
OLD = "fedcba9876543210" * 2


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sysroot, "ROOT", str(tmp_path))
    good = tmp_path / "var/log/journal/m/system.journal"
    good.parent.mkdir(parents=True)
    good.write_bytes(journal_find.SIGNATURE + b"\0" * 500)
    return tmp_path


def journalctl(root: Path, script: str) -> None:
    """A program that stands for journalctl; it writes its arguments to /args."""
    place = root / "usr/bin/journalctl"
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(f'#!/bin/sh\necho "$@" >>{root}/args\n{script}\n')
    place.chmod(0o755)


def entry(message: str, invocation: str = ID, micro: int = 5, manager: bool = False) -> str:
    name = "INVOCATION_ID" if manager else "_SYSTEMD_INVOCATION_ID"
    pid = 1 if manager else 77
    return (
        f"__REALTIME_TIMESTAMP={micro}\\nMESSAGE={message}\\n_PID={pid}\\n{name}={invocation}\\n\\n"
    )


def read(**asked: Any) -> tuple[list[str], Any]:
    rows: list[Any] = []
    reading = journal.journal_read(
        emit=lambda data: rows.extend(data["rows"]), unit="u", span_seconds=60.0, **asked
    )
    return [row[7] for row in rows], reading


def test_the_newest_start_and_nothing_of_the_one_before(root: Path) -> None:
    printed = (
        entry("new", micro=9)
        + entry("late word of the old one", OLD, 8)
        + entry("Started u.", micro=7, manager=True)
        + entry("first word", micro=6)
        + entry("Stopped u.", OLD, 5, manager=True)
        + entry("old", OLD, 4)
    )
    journalctl(root, f"printf '{printed}'")
    messages, reading = read()
    assert messages == ["new", "Started u.", "first word"]
    assert reading["invocations"] == [
        {"id": ID, "unit": "u.service", "age": 0, "first_us": 6, "last_us": 9, "entries": 3}
    ]
    words = (root / "args").read_text()
    assert " -r " in words
    assert "-o export" in words


def test_a_hanging_journal_gives_what_it_gave(root: Path) -> None:
    journalctl(root, f"printf '{entry('last words')}'; exec sleep 600")
    rows: list[Any] = []
    with pytest.raises(Trouble) as trouble:
        journal.journal_read(
            unit="u", span_seconds=3.0, emit=lambda data: rows.extend(data["rows"])
        )
    assert trouble.value.outcome == PARTIAL
    assert "did not end in time" in str(trouble.value)
    assert [row[7] for row in rows] == ["last words"]


def test_a_failing_journal_says_its_words(root: Path) -> None:
    journalctl(root, f"printf '{entry('kept')}'; echo 'Failed to iterate: Bad message' >&2; exit 1")
    with pytest.raises(Trouble) as trouble:
        read()
    assert trouble.value.outcome == PARTIAL
    assert "Bad message" in str(trouble.value)
    assert trouble.value.reading is not None
    assert trouble.value.reading["rows"] == 1
    journalctl(root, "echo 'Failed to open files: Bad message' >&2; exit 1")
    with pytest.raises(Trouble) as trouble:
        read()
    assert trouble.value.outcome == FAILED


def test_damaged_files_are_named(root: Path) -> None:
    (root / "var/log/journal/m/torn.journal").write_bytes(b"LPKS")
    journalctl(root, f"printf '{entry('kept')}'")
    with pytest.raises(Trouble, match="1 damaged journal file was left out") as trouble:
        read()
    assert trouble.value.reading is not None
    assert trouble.value.reading["damaged"] == ["/var/log/journal/m/torn.journal"]


def test_no_journald_no_files_no_right(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Trouble, match="no journalctl") as none:
        read()
    assert (none.value.outcome, none.value.code) == (UNSUPPORTED, "no_journal")
    journalctl(root, "exit 0")
    with pytest.raises(Trouble, match=r"no journal entries for u\.service"):
        read()
    (root / "var/log/journal/m/system.journal").unlink()
    with pytest.raises(Trouble, match="no journal files") as empty:
        read()
    assert empty.value.outcome == UNSUPPORTED
    (root / "var/log/journal/m/system.journal").touch()

    def refuse(name: str, limit: int = 0) -> bytes:
        raise PermissionError(name)

    monkeypatch.setattr(sysroot, "read", refuse)
    with pytest.raises(Trouble, match="systemd-journal") as denied:
        read()
    assert denied.value.outcome == DENIED


def test_a_container_that_only_the_journal_could_have(root: Path) -> None:
    journalctl(root, f"printf '{entry('its word')}'")
    assert journal.journal_read(container="c")["rows"] == 1
    journalctl(root, "exit 0")
    with pytest.raises(Trouble) as none:
        journal.journal_read(container="c")
    assert none.value.outcome == FAILED
    assert none.value.reason == (
        "no log of container c: no container runtime here has a log file or a command for it; "
        "no journal entries for it"
    )


def test_the_beginning_of_a_long_start_and_its_end(root: Path) -> None:
    """A start of months ago is read from its beginning; its newest lines stand beside it."""
    oldest_first = entry("Started u.", micro=1, manager=True)
    oldest_first += "".join(entry(f"start {n}", micro=n) for n in range(2, 6))
    newest_first = entry("dies", micro=90) + entry("start 4", micro=4)
    journalctl(
        root,
        'case "$*" in\n'
        f"*'-r -n 20000 '*) printf '{newest_first}';;\n"
        f"*' -r -n 8 '*) printf '{entry('x')}';;\n"
        f"*) printf '{oldest_first}';; esac",
    )
    messages, reading = read(head=4, count=1)
    assert messages == ["dies", "start 4", "start 3", "start 2", "Started u."]
    assert reading["truncated"] == "middle"
    span = reading["invocations"][0]
    assert (span["first_us"], span["last_us"]) == (1, 90)
    messages, reading = read(head=400, words=("dies",))
    assert messages == ["Started u."]
    assert reading["truncated"] is None


def test_several_starts_are_numbered_by_the_managers_lines(root: Path) -> None:
    ids = [format(n, "032x") for n in (3, 2, 1)]
    manager = "".join(entry("Started u.", one, 10 - n, True) for n, one in enumerate(ids))
    own = entry("word", ids[1], 4)
    journalctl(
        root,
        'case "$*" in\n'
        f"*'_SYSTEMD_INVOCATION_ID=0'*) printf '{own}';;\n"
        f"*' -n 8 '*) printf '{entry('x', ids[0])}';;\n"
        f"*) printf '{manager}';; esac",
    )
    messages, reading = read(invocation="1")
    assert messages == ["word"]
    assert [(one["id"], one["age"]) for one in reading["invocations"]] == [(ids[1], 1)]
    _, reading = read(invocation="0", count=2)
    assert [one["age"] for one in reading["invocations"]] == [0, 1]
    _, reading = read(invocation=ids[2])
    assert [(one["id"], one["age"]) for one in reading["invocations"]] == [(ids[2], 2)]
