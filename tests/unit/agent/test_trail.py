"""The host's trail: whole lines, and never in the way of an action."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import stat
from pathlib import Path

import pytest

from fleetmem.agent import trail
from fleetmem.agent.model import Trouble
from tests.unit.agent.test_ledger import EVENT, folder

__all__ = ["folder"]


def lines(folder: Path) -> list[bytes]:
    return (folder / "audit.jsonl").read_bytes().splitlines()


@pytest.fixture
def journal(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> socket.socket:
    """A journal's socket that nobody reads, as root sees it."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    one = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    one.bind(str(tmp_path / "journal"))
    return one


def test_it_is_a_file_where_there_is_no_journal(folder: Path) -> None:
    trail.trail(dict(EVENT))
    trail.trail(dict(EVENT, pid=8))
    rows = [json.loads(line) for line in lines(folder)]
    assert [row["pid"] for row in rows] == [7, 8]
    assert rows[0]["operation"] == "op"
    assert rows[0]["time"] > 1.7e9
    assert stat.S_IMODE((folder / "audit.jsonl").stat().st_mode) == 0o600


def test_it_goes_to_the_journal_where_there_is_one(folder: Path, journal: socket.socket) -> None:
    with journal:
        trail.trail(dict(EVENT, reason="two\nlines"))
        found = journal.recv(65536).decode().splitlines()
    assert found[0] == "MESSAGE=fleetmem: signal TERM to 7 (x), operation op"
    assert "SYSLOG_IDENTIFIER=fleetmem" in found
    assert "FLEETMEM_OPERATION=op" in found
    assert "FLEETMEM_REASON=two lines" in found
    assert not folder.exists()


def fill(path: Path) -> None:
    """Send to a socket until its queue is full."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one:
        one.setblocking(False)
        sent = 1
        while sent:
            try:
                sent = one.sendto(b"x", str(path))
            except BlockingIOError:
                sent = 0


def test_a_journal_that_does_not_read_is_passed_over(
    folder: Path, journal: socket.socket, tmp_path: Path
) -> None:
    """Stopped, on a sick disk: it must not keep an action from its end."""
    with journal:
        fill(tmp_path / "journal")
        trail.trail(dict(EVENT))
        assert [json.loads(line)["pid"] for line in lines(folder)] == [7]


def test_a_journal_that_fills_up_in_between_is_passed_over(
    folder: Path, journal: socket.socket, tmp_path: Path
) -> None:
    with journal:
        way = trail.Trail()
        assert not folder.exists()
        fill(tmp_path / "journal")
        way.write(dict(EVENT))
        way.close()
        assert len(lines(folder)) == 1


def test_a_journal_that_went_away_is_passed_over(
    folder: Path, journal: socket.socket, tmp_path: Path
) -> None:
    with journal:
        way = trail.Trail()
    way.write(dict(EVENT))
    way.close()
    assert len(lines(folder)) == 1


def test_an_event_too_large_for_the_journal_goes_to_the_file(
    folder: Path, journal: socket.socket
) -> None:
    with journal:
        trail.trail(dict(EVENT, reason="x" * (1 << 20)))
    assert len(lines(folder)) == 1


def test_a_line_that_was_cut_short_is_taken_back(folder: Path) -> None:
    """RLIMIT_FSIZE cuts a write as a full disk does: part of the line, then an error."""
    trail.trail(dict(EVENT))
    size = (folder / "audit.jsonl").stat().st_size
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20, before[1]))
    try:
        with pytest.raises(Trouble) as caught:
            trail.trail(dict(EVENT, pid=8))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, old)
    assert caught.value.code == "remote_disk_full"
    assert [json.loads(line)["pid"] for line in lines(folder)] == [7]
    trail.trail(dict(EVENT, pid=9))
    assert [json.loads(line)["pid"] for line in lines(folder)] == [7, 9]


def test_half_a_line_of_a_crash_is_not_glued_to_the_next(folder: Path) -> None:
    trail.trail(dict(EVENT))
    with (folder / "audit.jsonl").open("ab") as file:
        file.write(b'{"action":"sig')
    trail.trail(dict(EVENT, pid=8))
    assert [len(line) > 20 for line in lines(folder)] == [True, False, True]
    assert json.loads(lines(folder)[2])["pid"] == 8


def test_without_either_there_is_no_trail(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    (folder / "audit.jsonl").mkdir()
    with pytest.raises(Trouble) as caught:
        trail.Trail()
    assert caught.value.code == "no_trail"


def test_a_link_is_not_followed(folder: Path, tmp_path: Path) -> None:
    folder.mkdir(mode=0o700)
    (folder / "audit.jsonl").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Trouble) as caught:
        trail.trail(dict(EVENT))
    assert caught.value.code == "no_trail"
    assert not (tmp_path / "elsewhere").exists()
