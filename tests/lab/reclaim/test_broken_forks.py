"""Forks without a visible parent, and supervisors that take their time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab import api
from tests.lab.reclaim_stage import Desk, at_most_once, own_holder, wait_for_pids

pytestmark = pytest.mark.lab

HOST = "gh200-01"
GIB = 1 << 30


@pytest.fixture
def lab() -> Iterator[api.Lab]:
    """One host."""
    with api.lab() as running:
        yield running


def test_a_fork_whose_parent_has_ended_is_planned_as_an_heir(lab: api.Lab, tmp_path: Path) -> None:
    """Forked twice into a session of its own; a holder of the same program is on GPU 1."""
    desk = Desk(lab.inventory, tmp_path)
    other = own_holder(lab, HOST, "python3 other.py", 7 * GIB, "file", gpu=1)
    own_holder(lab, HOST, "python3 train.py", 31 * GIB, "file", more="deaf afar")
    pids = set(wait_for_pids(lab, HOST, 2))
    planned = desk.reclaim("--gpu", "0", "--dry-run")
    rows = {row["pid"]: row["conditional"] for row in planned.reclaim(HOST)["targets"]}
    assert set(rows) == pids
    assert sorted(rows.values()) == [False, True]
    (fork,) = [pid for pid, conditional in rows.items() if conditional]
    found = desk.reclaim("--gpu", "0", "--yes", "--grace-period", "0.5s")
    assert found.verdicts(HOST) == {0: "reclaimed"}
    assert [row for row in found.signalled(HOST) if row[1] == fork] == [
        ("heirs", fork, "TERM"),
        ("heirs", fork, "KILL"),
    ]
    assert {pid for pid, _, _ in at_most_once(lab, HOST)} == pids
    assert lab.exec(HOST, "test", "-d", f"/proc/{other}").returncode == 0


def test_a_fork_of_somebody_elses_is_left_alone(lab: api.Lab, tmp_path: Path) -> None:
    desk = Desk(lab.inventory, tmp_path)
    own_holder(lab, HOST, "python3 train.py", 31 * GIB, "file", gpu=1, more="afar")
    theirs = set(wait_for_pids(lab, HOST, 2))
    mine = own_holder(lab, HOST, "python3 other.py", 7 * GIB, "file")
    found = desk.reclaim("--gpu", "0", "--yes")
    assert found.verdicts(HOST) == {0: "reclaimed"}
    assert set(found.targets(HOST)) == {mine}
    assert set(found.spared(HOST)) == theirs
    assert {pid for pid, _, _ in at_most_once(lab, HOST)} == {mine}


def test_a_supervisor_that_waits_a_second_is_named(lab: api.Lab, tmp_path: Path) -> None:
    """As `while :; do serve; sleep 1; done` does."""
    desk = Desk(lab.inventory, tmp_path)
    first = own_holder(lab, HOST, "service main", 40 * GIB, more="later")
    found = desk.reclaim("--gpu", "0", "--yes")
    assert found.verdicts(HOST) == {0: "respawned"}, found.reclaim(HOST)
    assert "(parent " in found.reclaim(HOST)["gpus"][0]["why"]
    assert found.code == 5
    assert found.signalled(HOST) == [("term", first, "TERM")]
