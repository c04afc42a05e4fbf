"""Judging takes time in proportion to what is judged, not to its square."""

from __future__ import annotations

import sys
from random import Random
from typing import Any

import pytest

from fleetmem.controller.reclaim.classify import classify
from fleetmem.controller.reclaim.law.rules import rules
from fleetmem.controller.reclaim.options import ReclaimOptions
from fleetmem.controller.reclaim.plan import make_plan
from fleetmem.controller.reclaim.survey import Survey
from tests.unit.reclaim.stories import scenes
from tests.unit.reclaim.stories.host import Host, Process
from tests.unit.reclaim.stories.reading import survey


def crowd(size: int, how: str) -> Survey:
    """A host on which *size* processes hold a GPU."""
    host = Host()
    place = scenes.background(host, Random(1))
    main = scenes.start(host, place, "python3", "python3 train.py")
    host.allocate(main, 0, 1 << 30)
    last: Process = main
    for _ in range(size):
        if how == "forks":
            last = host.fork(main)
            continue
        last = host.spawn(last if how == "chain" else main, "python3", "python3 rank.py")
        host.allocate(last, 0, 1 << 20)
    if how == "heirs":
        for one in [p for p in host.processes.values() if p is not main and p.context]:
            host.fork(one, session=True)
            host.kill(one)
    return survey(host)


def calls(seen: Survey) -> int:
    """How many calls of functions it takes to judge and plan."""
    count = 0

    def note(_frame: Any, event: str, _arg: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    rules()
    sys.setprofile(note)
    try:
        make_plan(seen, classify(seen, rules()), ReclaimOptions(gpu="all"), {})
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("how", ["ranks", "chain", "forks", "heirs"])
def test_twice_as_many_take_twice_the_work(how: str) -> None:
    small, large = calls(crowd(100, how)), calls(crowd(200, how))
    assert large < 2.2 * small
