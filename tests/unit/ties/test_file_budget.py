"""A user with very many open files costs only that user's own rows, and is named."""

from __future__ import annotations

import os
import subprocess
import time
from typing import Any

import pytest

from fleetmem.agent.kernel import tasks
from fleetmem.agent.model import Trouble
from fleetmem.agent.probes import holders, ties
from fleetmem.agent.ties.walk import Walk
from tests.unit.agent.probe_actors import actor

MANY = """
    import resource
    resource.setrlimit(resource.RLIMIT_NOFILE, (6000, 6000))
    read, write = os.pipe()
    for number in range(10, 5000):
        os.dup2(write, number)
    say("ready")
    rest()
"""


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "MOST_FILES_OF_PROCESS", 2000)
    monkeypatch.setattr(tasks, "MOST_FILES_OF_USER", 3000)


def look(*pids: int) -> dict[str, Any]:
    with pytest.raises(Trouble) as caught:
        ties.processes_ties(pids=list(pids))
    assert caught.value.outcome == "partial"
    return dict(caught.value.reading or {})


@pytest.mark.usefixtures("few")
def test_the_culprit_is_named_and_others_are_read_in_full() -> None:
    script = (
        "read, write = os.pipe()\nif os.fork() == 0:\n os.close(write)\n rest()\nsay('x')\nrest()"
    )
    with actor(MANY) as greedy, actor(script) as other:
        seen = look(other.pid, greedy.pid)
        rows = {row["pid"]: row for row in seen["processes"]}
        assert "files" in rows[greedy.pid]["unreadable"]
        assert "files" not in rows[other.pid]["unreadable"]
        why = [row["why"] for row in seen["unseen"] if row["what"] == "files"]
        name = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True)
        assert any(f"user {name.stdout.strip()} has more open files" in text for text in why)
        assert seen["bound"] == "files"


@pytest.mark.usefixtures("few")
def test_a_budget_is_of_a_user_over_all_processes() -> None:
    budget = tasks.Budget()
    with actor(MANY) as one, actor(MANY) as two, actor("say('x')\nrest()") as small:
        read = {}
        for pid in (one.pid, two.pid, small.pid):
            place = os.open(f"/proc/{pid}", os.O_RDONLY)
            try:
                read[pid] = sum(len(names) for _, _, names in budget.tables(pid, place, set()))
            finally:
                os.close(place)
    assert read[one.pid] == 2000
    assert read[two.pid] == 1000
    assert set(budget.cut) >= {one.pid, two.pid}


def test_who_has_very_many_files_is_read_last() -> None:
    """Whatever its number is: the time that it takes is taken from nobody else."""
    with actor(MANY) as greedy, actor("say('x')\nrest()") as small:
        if os.stat(f"/proc/{greedy.pid}/fd").st_size:  # Linux 6.2 tells how many they are
            order = Walk(0.0).order([os.getpid()])
            assert order[0] == os.getpid()
            assert order.index(greedy.pid) > order.index(small.pid)
        assert greedy.pid in Walk(0.0).order([])


def test_files_beyond_the_bound_are_not_even_listed() -> None:
    """A million descriptors cost a listing of as many as are read."""
    with actor(MANY) as greedy:
        place = os.open(f"/proc/{greedy.pid}", os.O_RDONLY)
        try:
            begun = time.process_time()
            ((_, _, names),) = list(tasks.tables(greedy.pid, place, set(), 100))
            assert len(names) == 100
            assert time.process_time() - begun < 1
        finally:
            os.close(place)


@pytest.mark.usefixtures("few")
def test_holders_name_the_culprit_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holders.Nodes, "known", lambda self: True)
    with actor(MANY), pytest.raises(Trouble) as caught:
        holders.gpu_holders()
    assert "has more open files than are read" in caught.value.reason
    assert caught.value.reading is not None
    assert caught.value.reading["denied"] >= 1
