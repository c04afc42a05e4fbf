"""The class of each process, judged by its family as one, with the path as the reason. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fleetmem.controller.reclaim.law.anchors import ALIVE, Anchor, anchors, name_of
from fleetmem.controller.reclaim.law.certificates import Certificate, certificate
from fleetmem.controller.reclaim.law.family import (
    LAUNCHED_BY,
    LAUNCHER_OF,
    Family,
    Way,
    families,
    nearest,
    upwards,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from fleetmem.controller.reclaim.law.known import Known


@dataclass(frozen=True)
class Judged:
    """``kind`` is in_use, leftover or detached; ``code`` the certificate's or anchor's."""

    kind: str
    code: str
    why: str


@dataclass(frozen=True)
class Judgement:
    """Every process of the reading, its family, and who has a certificate or is covered."""

    by_pid: Mapping[int, Judged]
    families: Mapping[int, Family]
    abandoned: frozenset[int]


def certified(known: Known) -> dict[int, Certificate]:
    """Certificates of kinds (b) to (d) by pid."""
    rows = ((pid, certificate(known, pid)) for pid, row in known.tied.items() if row["alive"])
    return {pid: found for pid, found in rows if found is not None}


def covered(known: Known, pids: Iterable[int]) -> frozenset[int]:
    """*pids* and everything that they launched."""
    children: dict[int, list[int]] = {}
    for pid, launcher in known.launchers.items():
        if launcher.state == "alive" and launcher.pid is not None:
            children.setdefault(launcher.pid, []).append(pid)
    found, queue = set(pids), list(pids)
    while queue:
        for child in children.get(queue.pop(), ()):
            if child not in found:
                found.add(child)
                queue.append(child)
    return frozenset(found)


def judge(known: Known) -> Judgement:
    """Judge every family of the reading once."""
    proofs = certified(known)
    abandoned = covered(known, proofs)
    together = families(known)
    found: dict[int, Judged] = {}
    for family in {id(one): one for one in together.values()}.values():
        held_by = anchors(known, family, abandoned)
        if held_by:
            found.update(_wanted(known, family, held_by, proofs, abandoned))
        else:
            found.update(_left(known, family, proofs, abandoned))
    return Judgement(found, together, abandoned)


def _left(
    known: Known,
    family: Family,
    proofs: Mapping[int, Certificate],
    abandoned: frozenset[int],
) -> dict[int, Judged]:
    """A family without an anchor."""
    proved = [pid for pid in family.members if pid in proofs]
    if not proved:
        return {pid: _detached(known, pid) for pid in family.members}
    ways = nearest(family, proved)
    found = {}
    for pid in family.members:
        if pid not in abandoned:  # a resource tracker: it ends by itself
            found[pid] = Judged("detached", "helper", "it tracks resources of what is left over")
            continue
        proof = proofs[ways[pid].source]
        end = proof.tail if ways[pid].steps and proof.tail else proof.text
        found[pid] = Judged("leftover", proof.code, _path(known, ways[pid], end))
    return found


def _wanted(
    known: Known,
    family: Family,
    held_by: list[Anchor],
    proofs: Mapping[int, Certificate],
    abandoned: frozenset[int],
) -> dict[int, Judged]:
    """A family with anchors: the strongest decides, the nearest of its kind is named."""
    found: dict[int, Judged] = {}
    for code in ALIVE:
        rows = {row.pid: row for row in held_by if row.code == code}
        ways = nearest(family, rows)
        if code == "launcher":
            # Whoever waits for one child may have nothing to do with another of the family;
            # what has a certificate is spared all the same.
            ways = {
                **upwards(family, rows),
                **{pid: way for pid, way in ways.items() if pid in abandoned},
            }
        for pid, way in ways.items():
            if pid not in found:
                found[pid] = Judged("in_use", code, _path(known, way, rows[way.source].text))
    weak = {row.pid: row for row in held_by if not row.alive}
    near = nearest(family, weak)
    for pid in family.members - found.keys():
        proof, back = proofs.get(pid), near.get(pid)
        if back is None or (weak[back.source].code == "peer" and pid not in abandoned):
            found[pid] = _detached(known, pid)
            continue
        end = weak[back.source]
        begin = f"{proof.text}, but " if proof is not None else ""
        found[pid] = Judged("detached", end.code, begin + _path(known, back, end.text))
    return found


def _detached(known: Known, pid: int) -> Judged:
    launcher = known.launcher(pid)
    if launcher.state == "dead":
        return Judged(
            "detached", "nothing", "launcher dead, nothing more is proved (nohup looks like this)"
        )
    return Judged("detached", "nothing", "nothing is proved of it")


def _path(known: Known, way: Way, end: str) -> str:
    """``<- pipe <- EngineCore 110 <- launcher bash 96 alive``."""
    parts = []
    for step in way.steps:
        if step is None:
            parts.append("<- …")
            continue
        pid, kind = step
        name = name_of(known, pid)
        if kind == LAUNCHED_BY:
            parts.append(f"<- launcher {name}")
        elif kind == LAUNCHER_OF:
            parts.append(f"<- its child {name}")
        else:
            parts.append(f"<- {kind} <- {name}")
    if not parts:
        return end
    if end == "alive":
        return " ".join((*parts, end))
    return " ".join(parts) + (f" {end}" if end.startswith("<- ") else f": {end}")
