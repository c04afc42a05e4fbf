"""Heirs: who has the files of the dead numbers that NVML still names. Pure.

A certificate of kind (a) needs all of it: a number that is dead in the initial pid namespace,
a process that looks like the fork of a CUDA process and like nothing else, no kin among the
living holders, one family of candidates, and no anchor in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fleetmem.controller.reclaim.law.anchors import Anchor, anchors
from fleetmem.controller.reclaim.survey import heir_like, may_hold

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from fleetmem.controller.reclaim.law.family import Family
    from fleetmem.controller.reclaim.law.known import Known
    from fleetmem.controller.reclaim.survey import Survey


@dataclass(frozen=True)
class Inheritance:
    """``held``: bytes by GPU; of several heirs the first carries them, so they count once."""

    dead: tuple[int, ...]
    held: Mapping[int, int | None]


@dataclass(frozen=True)
class Ambiguity:
    """A GPU on which NVML names dead pids and nothing proves which process has their files.

    ``one_family``: the candidates belong together, and somebody may want them.
    """

    gpu: int
    dead: tuple[int, ...]
    candidates: tuple[int, ...]
    one_family: bool = False


@dataclass(frozen=True)
class Heirs:
    """Heirs by pid, GPUs that a person must decide, and living kin of fork-like processes."""

    found: Mapping[int, Inheritance]
    ambiguous: tuple[Ambiguity, ...]
    kin: Mapping[int, tuple[int, ...]]


def heirs(
    survey: Survey,
    known: Known,
    families: Mapping[int, Family],
    abandoned: frozenset[int],
    protected: Callable[[int], bool],
) -> Heirs:
    """*abandoned*: processes with a certificate of another kind, or covered by one."""
    forks = [pid for pid in survey.processes if heir_like(survey, pid) and not protected(pid)]
    kin = _kin(survey, known, forks)
    unclear = _untold(survey, known, forks)
    free = [pid for pid in forks if pid not in kin]
    found: dict[int, Inheritance] = {}
    ambiguous = []
    for gpu in sorted(survey.gpus):
        dead = survey.dead(gpu)
        opened = [pid for pid in free if may_hold(survey, pid, gpu)] if dead else []
        if not opened:
            continue
        belong = one_family(survey, known, opened)
        if not belong or unclear & set(opened) or _anchored(known, families, opened, abandoned):
            names = tuple(sorted(dead))
            ambiguous.append(Ambiguity(gpu, names, tuple(sorted(opened)), belong))
            continue
        sizes = [size for size in dead.values() if size is not None]
        total = sum(sizes) if len(sizes) == len(dead) else None
        for place, pid in enumerate(sorted(opened)):
            before = found.get(pid, Inheritance((), {}))
            found[pid] = Inheritance(
                tuple(sorted({*dead, *before.dead})),
                {**before.held, gpu: total if place == 0 else 0},
            )
    torn = {pid for row in ambiguous for pid in row.candidates}
    return Heirs({pid: row for pid, row in found.items() if pid not in torn}, tuple(ambiguous), kin)


def _kin(survey: Survey, known: Known, forks: Iterable[int]) -> dict[int, tuple[int, ...]]:
    """Living holders that each of *forks* was forked from, or was forked together with."""
    living = survey.listed_pids()
    by_layout: dict[str, list[int]] = {}
    for pid in living:
        row = known.tied.get(pid)
        if row is not None and row["layout"] is not None and row["alive"]:
            by_layout.setdefault(row["layout"], []).append(pid)
    shared = _shared(known)
    found = {}
    for pid in forks:
        row = known.tied.get(pid)
        near = set(shared.get(pid, frozenset()) & living)
        near |= {a["pid"] for a in survey.processes[pid]["ancestors"]} & living
        if row is not None and row["layout"] is not None:
            near |= set(by_layout.get(row["layout"], ()))
        near.discard(pid)
        if near:
            found[pid] = tuple(sorted(near))
    return found


def _shared(known: Known) -> dict[int, frozenset[int]]:
    """Everybody that each process shares open files of the driver with, however many steps on."""
    near: dict[int, set[int]] = {}
    for link in known.ties["links"]:
        if link["kind"] == "fork" and link["other"] is not None:
            near.setdefault(link["pid"], set()).add(link["other"])
            near.setdefault(link["other"], set()).add(link["pid"])
    found: dict[int, frozenset[int]] = {}
    for pid in near:
        if pid in found:
            continue
        reached, queue = {pid}, [pid]
        while queue:
            for other in near[queue.pop()] - reached:
                reached.add(other)
                queue.append(other)
        found.update(dict.fromkeys(reached, frozenset(reached)))
    return found


def _untold(survey: Survey, known: Known, forks: Iterable[int]) -> set[int]:
    """Forks of which nobody can say whether a living holder is their kin."""
    living = survey.listed_pids()
    unread = any(_layout(known, pid) is None for pid in living)
    return {pid for pid in forks if living and (unread or _layout(known, pid) is None)}


def _layout(known: Known, pid: int) -> str | None:
    row = known.tied.get(pid)
    return None if row is None else row["layout"]


def _anchored(
    known: Known,
    families: Mapping[int, Family],
    candidates: list[int],
    abandoned: frozenset[int],
) -> list[Anchor]:
    """Anchors of the candidates' families, their dead parent's other forks left aside."""
    layouts = {_layout(known, pid) for pid in candidates} - {None}
    orphans = {
        pid
        for pid, row in known.tied.items()
        if row["layout"] in layouts and known.launcher(pid).state == "dead"
    }
    gone = abandoned | orphans | set(candidates)
    found: list[Anchor] = []
    for family in {id(f): f for f in (families.get(pid) for pid in candidates) if f}.values():
        found += anchors(known, family, frozenset(gone))
    if any(pid not in families for pid in candidates):
        found.append(Anchor("unread", candidates[0], "its ties were not read"))
    return found


def one_family(survey: Survey, known: Known, pids: list[int]) -> bool:
    """Same session, or same user, program and command line, or an owner of their own."""
    rows = [survey.processes[pid] for pid in pids]
    if len(rows) == 1:
        return True
    if len({row["sid"] for row in rows}) == 1 and rows[0]["sid"]:
        return True
    makes = {(row["uid"], row["exe"], row["title"]) for row in rows}
    if len(makes) == 1 and rows[0]["exe"] is not None:
        return True
    return len({row["cgroup"] for row in rows}) == 1 and all(
        known.tied[pid]["cgroup_shared"] is False and known.owners(pid, cgroup_only=True)
        if pid in known.tied
        else False
        for pid in pids
    )
