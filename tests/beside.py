"""What runs beside what when several workers share the tests (`pytest -n 4`).

A unit of work is a file, so that a lab of a module starts once; files that share a costly machine
are one unit. Most of the lab's time is spent waiting, so more workers than cores pay off. The
longest units start first: the order below is by measured time and matters for speed alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from xdist.scheduler import LoadScopeScheduling

if TYPE_CHECKING:
    import pytest

ONE_MACHINE = ("tests/systemd/", "tests/numa/")
"""Folders whose files share one machine or lab for the whole run."""

LONGEST = (
    "tests/systemd/",
    "tests/lab/reclaim/test_plans.py",
    "tests/lab/reclaim/test_verdicts.py",
    "tests/numa/",
    "tests/lab/fleet/test_sick_hosts.py",
    "tests/lab/look/test_snapshot_numa.py",
    "tests/lab/reclaim/test_interrupts.py",
    "tests/lab/fleet/test_bad_days.py",
    "tests/lab/fleet/test_ways_in.py",
    "tests/lab/reclaim/test_pagecache_dead.py",
    "tests/contract/test_agent.py",
    "tests/lab/",
    "tests/contract/",
)


def unit_of(nodeid: str) -> str:
    """The unit of work that a test belongs to."""
    for folder in ONE_MACHINE:
        if nodeid.startswith(folder):
            return folder
    return nodeid.partition("::")[0]


def order(unit: str) -> int:
    """Where a unit comes in the queue."""
    places = (at for at, start in enumerate(LONGEST) if unit.startswith(start))
    return next(places, len(LONGEST))


class ByUnit(LoadScopeScheduling):
    """The plugin's own scheduling with these units, in this order."""

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)


def scheduling(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """For the hook of pytest-xdist."""
    config.option.loadscopereorder = False
    return ByUnit(config, log)
