"""What could not be read is counted in good grammar, and root is not told that it is a user."""

from __future__ import annotations

import os

import pytest

from fleetmem.agent import words
from fleetmem.agent.model import Trouble
from fleetmem.agent.probes import processes


def test_counts() -> None:
    assert words.count(1, "process") == "1 process"
    assert words.count(2, "process") == "2 processes"
    assert words.count(0, "journal file") == "0 journal files"
    assert words.count(1, "process", 75) == "1 of 75 processes"
    assert words.count(1, "process", 1) == "1 of 1 process"


@pytest.mark.parametrize(("user", "said"), [(0, "even to root"), (1000, "to this user")])
def test_whom_it_is_kept_from(user: int, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    assert words.reader("to").startswith(said)


def test_a_probe_says_it_to_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may be kept from a process, too: that is no other user's."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr("fleetmem.agent.probes.processes._first_look", lambda work, pid: None)
    with pytest.raises(Trouble) as caught:
        processes.processes_identity(pids=[os.getpid()])
    assert caught.value.reason.startswith("1 of 1 process cannot be read in full even by root (")
