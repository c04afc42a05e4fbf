"""Families: what stands or falls together, by closure over ties. Pure.

Members are joined by what one side would notice the loss of: a live launcher, a pipe, a
socket or a connection between them, open files that a fork shares. The leader of a session
or group is *beside* a family, and so is whoever started that: it says whether somebody is
logged in there, and no more, since a leader also starts what has nothing to do with it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fleetmem.controller.reclaim.law.known import DATA

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping

    from fleetmem.agent.shapes import Link
    from fleetmem.controller.reclaim.law.known import Known

LAUNCHED_BY, LAUNCHER_OF = "launched by", "launcher of"
_BACK = {LAUNCHED_BY: LAUNCHER_OF, LAUNCHER_OF: LAUNCHED_BY}
_SHOWN = 4


@dataclass(frozen=True)
class Family:
    """``edges``: for each member its neighbours with the kind of tie. ``beside``: leaders and
    who started them, each with the member whose leader it is."""

    members: frozenset[int]
    edges: Mapping[int, tuple[tuple[int, str], ...]]
    beside: Mapping[int, int]


def families(known: Known) -> dict[int, Family]:
    """The family of each process of the reading."""
    edges: dict[int, dict[int, str]] = {pid: {} for pid in known.tied}
    for pid in known.tied:
        launcher = known.launchers[pid]
        if pid in known.trackers:
            continue
        if launcher.state == "alive" and launcher.pid in edges:
            _join(edges, pid, launcher.pid, LAUNCHED_BY, LAUNCHER_OF)
    for link in known.ties["links"]:
        if joins(known, link):
            kind = "fork" if link["kind"] == "fork" else link["kind"]
            assert link["other"] is not None
            _join(edges, link["pid"], link["other"], kind, kind)
    found: dict[int, Family] = {}
    for pid in known.tied:
        if pid not in found:
            members = _reach(edges, pid)
            family = Family(
                members,
                {one: tuple(edges[one].items()) for one in members},
                _beside(known, members),
            )
            found.update(dict.fromkeys(members, family))
    return found


def joins(known: Known, link: Link) -> bool:
    """Whether *link* makes two processes of this host one family."""
    other = link["other"]
    if link["kind"] not in DATA and link["kind"] != "fork":
        return False
    if link["where"] != "here" or other is None:
        return False
    if other not in known.tied or link["pid"] not in known.tied:
        return False
    if known.tied[other]["system"] or known.tied[link["pid"]]["system"]:
        return False
    return not known.is_mere_output(link)


def _join(edges: dict[int, dict[int, str]], a: int, b: int, ab: str, ba: str) -> None:
    edges[a].setdefault(b, ab)
    edges[b].setdefault(a, ba)


def _reach(edges: Mapping[int, Mapping[int, str]], start: int) -> frozenset[int]:
    found, queue = {start}, [start]
    while queue:
        for other in edges[queue.pop()]:
            if other not in found:
                found.add(other)
                queue.append(other)
    return frozenset(found)


def _beside(known: Known, members: Iterable[int]) -> dict[int, int]:
    found: dict[int, int] = {}
    inside = set(members)
    for pid in sorted(inside - known.trackers):
        for link in known.links[pid]:
            if link["kind"] not in ("session", "group") or link["where"] != "here":
                continue
            above = link["other"] or -1
            while above in known.tied and above not in inside and above not in found:
                row = known.tied[above]
                if row["adopter"] or (row["system"] and row["system"] != "login"):
                    break
                found[above] = pid
                above = known.launchers[above].pid or -1
    return found


Step = tuple[int, str]
"""A process, and the tie that leads to it."""


@dataclass(frozen=True)
class Way:
    """The way from a process to ``source``; of a long one ``steps`` has both ends and ``None``."""

    source: int
    steps: tuple[Step | None, ...] = ()

    def behind(self, step: Step) -> Way:
        """The same way, one step longer at its beginning."""
        steps = (step, *self.steps)
        return Way(self.source, steps if len(steps) <= _SHOWN else (*steps[:2], None, steps[-1]))


def nearest(family: Family, sources: Iterable[int]) -> dict[int, Way]:
    """For each member the way to the nearest of *sources*."""
    queue = deque(sorted(set(sources)))
    ways = {pid: Way(pid) for pid in queue}
    while queue:
        here = queue.popleft()
        for other, kind in family.edges[here]:
            if other not in ways:
                ways[other] = ways[here].behind((here, _BACK.get(kind, kind)))
                queue.append(other)
    return ways


def upwards(family: Family, launchers: Container[int]) -> dict[int, Way]:
    """For each member below one of *launchers* the way up to the nearest."""
    ways: dict[int, Way] = {}
    queue = deque(pid for pid in sorted(family.members) if pid in launchers)
    while queue:
        here = queue.popleft()
        above = Way(here) if here in launchers else ways[here]
        for child, kind in family.edges[here]:
            if kind == LAUNCHER_OF and child not in ways:
                ways[child] = above.behind((here, LAUNCHED_BY))
                if child not in launchers:
                    queue.append(child)
    return ways
