"""Every process that touches a GPU gets a class, with the reason. Pure.

Classes: ``protected``, ``foreign``, ``in_use``, ``leftover``, ``detached``; ``None`` for
one of several unrelated candidates that may have inherited a dead process's files. What
they are judged by is in :mod:`fleetmem.controller.reclaim.law`: certificates and anchors of
the whole family. Activity proves nothing, neither idle nor busy; nor does a login's end.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fleetmem.controller.reclaim.law.classes import Judged, Judgement, judge
from fleetmem.controller.reclaim.law.consequences import consequences, serves
from fleetmem.controller.reclaim.law.heirs import Ambiguity, Heirs, heirs
from fleetmem.controller.reclaim.law.known import Known
from fleetmem.controller.reclaim.law.rules import Rules, engine, protection
from fleetmem.controller.reclaim.survey import (
    Survey,
    descends_from,
    heir_like,
    only_opened,
)
from fleetmem.controller.text.process_name import display_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fleetmem.agent.shapes import Identity, Ties

__all__ = ["Ambiguity", "Classified", "Member", "classify"]


@dataclass(frozen=True)
class Member:
    """One classified process. ``held`` has the bytes NVML attributes to it, by GPU index.

    ``code`` names the certificate or anchor that decided, ``why`` says it with the path.
    Of several heirs the first has the dead process's bytes. ``fork_of`` is a live holder it
    was forked from; ``akin`` live holders of which one has forked it, where no ancestor says
    which; ``heir_of`` the dead pids whose files it has; ``may_hold`` GPUs where it may have
    memory that no list names; ``family_gpus`` GPUs that members of its family hold, where it
    is left over with them; ``parts`` MIG instances as (GPU index, gi, ci);
    ``consequences`` say what ending it means where somebody may want it.
    """

    process: Identity
    kind: str | None
    code: str
    why: str
    held: Mapping[int, int | None]
    open_gpus: tuple[int, ...]
    evidence: tuple[str, ...]
    heir_of: tuple[int, ...] = ()
    fork_of: int | None = None
    akin: tuple[int, ...] = ()
    engine: str | None = None
    may_hold: tuple[int, ...] = ()
    family_gpus: tuple[int, ...] = ()
    parts: tuple[tuple[int, int | None, int | None], ...] = ()
    consequences: tuple[str, ...] = ()

    @property
    def pid(self) -> int:
        return self.process["pid"]

    @property
    def key(self) -> tuple[int, int]:
        """The identity within one boot and pid namespace."""
        return self.process["pid"], self.process["start_time"]

    @property
    def name(self) -> str:
        return display_name(self.process)

    @property
    def origins(self) -> tuple[int, ...]:
        """The live holders that it was forked from, or one of which it was forked from."""
        return self.akin if self.fork_of is None else (self.fork_of,)

    @property
    def owner(self) -> str:
        """Who stands behind it, in a few words."""
        process, owner = self.process, self.process["owner"]
        if self.heir_of:
            return f"files of dead {', '.join(map(str, self.heir_of))}"
        if self.origins:
            return f"fork of {' or '.join(map(str, self.origins[:3]))}"
        if owner["kind"] not in ("none", "session") and owner["name"]:
            gone = " has ended" if self.code in ("ended", "invocation") else ""
            return f"{owner['kind'].replace('_', ' ')} {owner['name'][:24]}{gone}"
        if process["launcher_alive"]:
            return f"launcher {process['ppid']}"
        if process["group_leader_alive"]:
            return f"group leader {process['pgid']}"
        return "launcher dead"

    @property
    def listed_gpus(self) -> list[int]:
        """GPUs on whose lists NVML names it, with or without files of the driver."""
        return sorted({part[0] for part in self.parts})

    @property
    def held_bytes(self) -> int | None:
        """Bytes over all GPUs; None where one of them is unknown."""
        known = [size for size in self.held.values() if size is not None]
        return sum(known) if len(known) == len(self.held) else None


@dataclass(frozen=True)
class Classified:
    """All members of a host by pid, and the GPUs whose heirs a person must decide."""

    members: Mapping[int, Member]
    ambiguous: tuple[Ambiguity, ...]


_UNTIED = Judged("detached", "unread", "its ties were not read")


def classify(survey: Survey, rules: Rules) -> Classified:
    """Judge every process of *survey* that has files of the driver or is on a list of NVML,
    and whoever is left over with them."""
    known = Known(_ties(survey), lambda row: engine(row, rules))
    judged = judge(known)
    agent = frozenset(survey.facts["agent_pids"])

    def protected(pid: int) -> bool:
        return protection(survey.processes[pid], agent, rules) is not None

    found = heirs(survey, known, judged.families, judged.abandoned, protected)
    parts, served = _parts(survey), _served(known, judged)
    members = {}
    for pid, process in survey.processes.items():
        if pid not in survey.holders and pid not in survey.listed_pids():
            continue
        kind, code, why = _class(survey, process, rules, agent, found, judged, known)
        members[pid] = Member(
            process=process,
            kind=kind,
            code=code,
            why=why,
            held=found.found[pid].held if pid in found.found else _held(survey, pid),
            open_gpus=tuple(survey.open_gpus(pid)),
            evidence=_evidence(survey, pid, pid in found.found),
            heir_of=found.found[pid].dead if pid in found.found else (),
            fork_of=_fork_of(survey, pid, found),
            akin=() if pid in found.found else found.kin.get(pid, ()),
            engine=engine(process, rules),
            may_hold=_may_hold(survey, pid, found),
            parts=tuple(parts.get(pid, ())),
            consequences=()
            if kind in ("leftover", "protected")
            else _consequences(survey, known, judged, served, pid),
        )
    return Classified(_with_families(survey, rules, members, judged, known, agent), found.ambiguous)


def _ties(survey: Survey) -> Ties:
    """The survey's ties, of processes that are still the same at both looks."""
    ties = survey.ties
    same = [
        row
        for row in ties["processes"]
        if row["pid"] not in survey.processes
        or survey.processes[row["pid"]]["start_time"] == row["start_time"]
    ]
    return ties if len(same) == len(ties["processes"]) else {**ties, "processes": same}


def _parts(survey: Survey) -> dict[int, list[tuple[int, int | None, int | None]]]:
    found: dict[int, list[tuple[int, int | None, int | None]]] = {}
    for gpu in sorted(survey.gpus):
        for row in survey.listed[gpu]:
            found.setdefault(row["pid"], []).append((gpu, row["gi"], row["ci"]))
    return found


def _served(known: Known, judged: Judgement) -> dict[int, tuple[str, ...]]:
    """What each family serves, by the family's identity."""
    families = {id(family): family for family in judged.families.values()}
    return {key: tuple(serves(known, family)) for key, family in families.items()}


def _consequences(
    survey: Survey, known: Known, judged: Judgement, served: Mapping[int, tuple[str, ...]], pid: int
) -> tuple[str, ...]:
    """What ending it means; clients of MPS share a server, and an end can reach the others."""
    family = judged.families.get(pid)
    said = consequences(known, served[id(family)], pid) if family is not None else ()
    shared = [pids for pids in survey.mps_clients if pid in pids]
    others = frozenset().union(*shared) - {pid} if shared else frozenset()
    if others:
        who = ", ".join(map(str, sorted(others)[:4]))
        said = (*said, f"it shares an MPS server with {who}")
    return said


def _held(survey: Survey, pid: int) -> dict[int, int | None]:
    if pid not in survey.holders or not survey.processes[pid]["alive"]:
        return {}  # a number alone is no proof: it must have files of the driver
    if not survey.numbers_count:
        return dict.fromkeys(survey.context_gpus(pid))
    return {gpu: survey.held(gpu)[pid] for gpu in sorted(survey.gpus) if pid in survey.held(gpu)}


def _may_hold(survey: Survey, pid: int, found: Heirs) -> tuple[int, ...]:
    """GPUs of which *pid* may have memory: as one candidate of several, or as the holder of
    exported memory, which shows as one open file and nothing else."""
    named = {row.gpu for row in found.ambiguous if pid in row.candidates}
    if only_opened(survey, pid):
        named |= {gpu for gpu in survey.gpus if survey.has_unlisted(gpu)}
    return tuple(sorted(named))


def _fork_of(survey: Survey, pid: int, found: Heirs) -> int | None:
    """The live, listed process above *pid* that it was forked from, nearest first."""
    if pid in found.found or not heir_like(survey, pid):
        return None
    process = survey.processes[pid]
    listed = survey.listed_pids()
    for ancestor in process["ancestors"]:
        other = survey.processes.get(ancestor["pid"])
        if other is not None and other["pid"] in listed and descends_from(process, other):
            return other["pid"]
    return None


def _evidence(survey: Survey, pid: int, heir: bool) -> tuple[str, ...]:
    holder = survey.holders.get(pid)
    found = []
    if pid in survey.listed_pids():
        found.append("nvml")
    if holder is not None:
        if holder["ctl_fds"] or holder["uvm_fds"] or any(f["fds"] for f in holder["gpus"]):
            found.append("fd")
        mapped = holder["ctl_map_bytes"] or holder["uvm_map_bytes"]
        if mapped or any(f["map_bytes"] for f in holder["gpus"]):
            found.append("mapping")
    if heir:
        found.append("heir")
    return tuple(found)


def _class(
    survey: Survey,
    process: Identity,
    rules: Rules,
    agent: frozenset[int],
    found: Heirs,
    judged: Judgement,
    known: Known,
) -> tuple[str | None, str, str]:
    pid = process["pid"]
    outside = _outside(survey, process, rules, agent)
    if outside is not None:
        return outside
    if pid in found.found:
        dead = ", ".join(map(str, found.found[pid].dead))
        return "leftover", "heir", f"inherited the files of dead process {dead}"
    one = judged.by_pid.get(pid, _UNTIED)
    for row in found.ambiguous:
        if pid in row.candidates:
            dead = ", ".join(map(str, row.dead))
            others = len(row.candidates) - 1
            if row.one_family and one.kind != "leftover":
                return one.kind, one.code, f"it may have the files of dead {dead}; {one.why}"
            if row.one_family:
                return None, "heir", f"whether it has the files of dead {dead} cannot be told"
            many = f"it or {others} unrelated other{'s' if others > 1 else ''}"
            return None, "heir", f"{many} may have the files of dead {dead}"
    if not process["alive"] or pid not in known.tied:
        one = _UNTIED
    return one.kind, one.code, one.why


def _outside(
    survey: Survey, process: Identity, rules: Rules, agent: frozenset[int]
) -> tuple[str, str, str] | None:
    """What is never judged by its ties: the protected, and other users' where not root."""
    why = protection(process, agent, rules)
    if why:
        return "protected", "protected", why
    if survey.facts["uid"] not in (0, process["uid"]):
        return "foreign", "foreign", f"belongs to user {process['user'] or process['uid']}"
    return None


def _with_families(
    survey: Survey,
    rules: Rules,
    members: dict[int, Member],
    judged: Judgement,
    known: Known,
    agent: frozenset[int],
) -> dict[int, Member]:
    """Those who are left over with a holder and hold nothing themselves, the engine core that
    only keeps workers alive among them."""
    gpus: dict[int, set[int]] = {}
    for member in members.values():
        if member.kind == "leftover" and member.held and member.pid in judged.families:
            gpus.setdefault(id(judged.families[member.pid]), set()).update(member.held)
    found = dict(members)
    for pid, family in judged.families.items():
        process = survey.processes.get(pid)
        one = judged.by_pid[pid]
        with_gpus = tuple(sorted(gpus.get(id(family), ())))
        if not with_gpus or one.kind != "leftover" or process is None:
            continue
        if pid in members and members[pid].kind == "leftover" and not members[pid].held:
            found[pid] = replace(members[pid], family_gpus=with_gpus)
        elif pid in members or pid not in known.workers:
            continue
        elif _outside(survey, process, rules, agent) is None:
            found[pid] = Member(
                process=process,
                kind=one.kind,
                code=one.code,
                why=one.why,
                held={},
                open_gpus=(),
                evidence=("family",),
                engine=engine(process, rules),
                family_gpus=with_gpus,
            )
    return found
