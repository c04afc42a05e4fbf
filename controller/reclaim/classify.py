"""Every process that touches a GPU gets a class, with the reason. Pure.

Classes: ``protected``, ``foreign``, ``in_use``, ``leftover``, ``detached``; ``None`` for
one of several unrelated candidates that may have inherited a dead process's files.
Activity proves nothing, neither idle nor busy; a login session's end proves nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fleetmem.controller.reclaim.rules import Rules, engine, protection
from fleetmem.controller.reclaim.survey import (
    Survey,
    descends_from,
    heir_like,
    may_hold,
    one_family,
)
from fleetmem.controller.text.process_name import display_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fleetmem.agent.shapes import Identity


@dataclass(frozen=True)
class Member:
    """One classified process. ``held`` has the bytes NVML attributes to it, by GPU index.

    For an heir they are the dead process's. ``fork_of`` is a live holder it was forked
    from; ``akin`` live holders of which one has forked it, where no ancestor says which;
    ``heir_of`` the dead pids whose files it has; ``may_hold`` GPUs where it is one of
    several unrelated candidates; ``parts`` MIG instances as (GPU index, gi, ci).
    """

    process: Identity
    kind: str | None
    why: str
    held: Mapping[int, int | None]
    open_gpus: tuple[int, ...]
    evidence: tuple[str, ...]
    heir_of: tuple[int, ...] = ()
    fork_of: int | None = None
    akin: tuple[int, ...] = ()
    engine: str | None = None
    may_hold: tuple[int, ...] = ()
    parts: tuple[tuple[int, int | None, int | None], ...] = ()

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
            gone = " is gone" if owner["state"] == "gone" else ""
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
class Ambiguity:
    """A GPU on which NVML names dead pids and several families could have their files."""

    gpu: int
    dead: tuple[int, ...]
    candidates: tuple[int, ...]


@dataclass(frozen=True)
class Classified:
    """All members of a host by pid, and the GPUs whose heirs a person must decide."""

    members: Mapping[int, Member]
    ambiguous: tuple[Ambiguity, ...]


def classify(survey: Survey, rules: Rules) -> Classified:
    """Judge every process of *survey* that has files of the driver or is on a list of NVML."""
    agent = frozenset(survey.facts["agent_pids"])
    heirs, ambiguous = _heirs(survey, rules, agent)
    forks = _forks(survey, set(heirs))
    members = {}
    for pid, process in survey.processes.items():
        if not process["alive"] and pid not in survey.holders:
            continue
        if pid not in survey.holders and pid not in survey.listed_pids():
            continue
        kind, why, what = _class(survey, process, rules, agent, heirs, ambiguous)
        members[pid] = Member(
            process=process,
            kind=kind,
            why=why,
            held=heirs[pid].held if pid in heirs else _held(survey, pid),
            open_gpus=tuple(survey.open_gpus(pid)),
            evidence=_evidence(survey, pid, pid in heirs),
            heir_of=heirs[pid].dead if pid in heirs else (),
            fork_of=forks.get(pid),
            akin=() if pid in forks or pid in heirs else _akin(survey, pid),
            engine=what,
            may_hold=tuple(row.gpu for row in ambiguous if pid in row.candidates),
            parts=tuple(
                (gpu, row["gi"], row["ci"])
                for gpu in sorted(survey.gpus)
                for row in survey.listed[gpu]
                if row["pid"] == pid
            ),
        )
    return Classified(members, tuple(ambiguous))


def _held(survey: Survey, pid: int) -> dict[int, int | None]:
    if pid not in survey.holders:
        return {}  # a number alone is no proof: it must have files of the driver
    return {
        gpu: used
        for gpu in sorted(survey.gpus)
        for other, used in survey.held(gpu).items()
        if other == pid and survey.processes[pid]["alive"]
    }


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


# --- heirs ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Inheritance:
    dead: tuple[int, ...]
    held: Mapping[int, int | None]


def _heirs(
    survey: Survey, rules: Rules, agent: frozenset[int]
) -> tuple[dict[int, _Inheritance], list[Ambiguity]]:
    """Who has the files of the dead pids that NVML still names; ambiguous where unclear.

    With one family on the host all its members count for every such GPU: which fork keeps
    which memory is not visible, and ending all of them frees all of it.
    """
    heirs: dict[int, _Inheritance] = {}
    ambiguous = []
    candidates = [
        pid
        for pid in survey.processes
        if heir_like(survey, pid)
        and protection(survey.processes[pid], agent, rules) is None
        and not _fork_of_live(survey, pid)
    ]
    for gpu in sorted(survey.gpus):
        dead = survey.dead(gpu)
        if not dead or not candidates:
            continue
        opened = [pid for pid in candidates if may_hold(survey, pid, gpu)]
        if not opened:
            continue
        if not one_family([survey.processes[pid] for pid in opened]):
            ambiguous.append(Ambiguity(gpu, tuple(sorted(dead)), tuple(sorted(opened))))
            continue
        sizes = [size for size in dead.values() if size is not None]
        total = sum(sizes) if len(sizes) == len(dead) else None
        for pid in opened:
            before = heirs.get(pid)
            heirs[pid] = _Inheritance(
                tuple(sorted({*dead, *(before.dead if before else ())})),
                {**(before.held if before else {}), gpu: total},
            )
    unclear = {pid for row in ambiguous for pid in row.candidates}
    return {pid: row for pid, row in heirs.items() if pid not in unclear}, ambiguous


def _fork_of_live(survey: Survey, pid: int) -> int | None:
    """The live, listed process that *pid* was forked from, nearest first."""
    process = survey.processes[pid]
    listed = survey.listed_pids()
    for ancestor in process["ancestors"]:
        other = survey.processes.get(ancestor["pid"])
        if other is not None and other["pid"] in listed and descends_from(process, other):
            return other["pid"]
    return None


def _forks(survey: Survey, heirs: set[int]) -> dict[int, int]:
    forks = {}
    for pid in survey.processes:
        if pid in heirs or not heir_like(survey, pid):
            continue
        parent = _fork_of_live(survey, pid)
        if parent is not None:
            forks[pid] = parent
    return forks


def _akin(survey: Survey, pid: int) -> tuple[int, ...]:
    """Live holders that an orphan with a context's files can have come from.

    Whoever forked it lives: else a list would go on naming the dead pid. The closest tie
    decides: one session or group, else the command line that a fork keeps, else one family.
    """
    if not heir_like(survey, pid):
        return ()
    mine = [gpu for gpu in survey.gpus if may_hold(survey, pid, gpu)]
    if any(survey.dead(gpu) for gpu in mine):
        return ()
    process = survey.processes[pid]
    older = [
        survey.processes[other]
        for other in sorted({p for gpu in mine for p in survey.held(gpu)})
        if other in survey.holders
        and survey.processes[other]["alive"]
        and survey.processes[other]["start_time"] <= process["start_time"]
        and one_family([process, survey.processes[other]])
    ]
    for tie in (_one_group, _one_command):
        close = [other for other in older if tie(process, other)]
        if close:
            older = close
            break
    return tuple(other["pid"] for other in older)


def _one_group(a: Identity, b: Identity) -> bool:
    return a["sid"] == b["sid"] != 0 or a["pgid"] == b["pgid"] != 0


def _one_command(a: Identity, b: Identity) -> bool:
    return (a["uid"], a["exe"], a["title"]) == (b["uid"], b["exe"], b["title"])


# --- classes -------------------------------------------------------------------------------


def _class(
    survey: Survey,
    process: Identity,
    rules: Rules,
    agent: frozenset[int],
    heirs: Mapping[int, _Inheritance],
    ambiguous: list[Ambiguity],
) -> tuple[str | None, str, str | None]:
    pid = process["pid"]
    what = engine(process, rules)
    protected = protection(process, agent, rules)
    if protected:
        return "protected", protected, what
    uid = survey.facts["uid"]
    if uid not in (0, process["uid"]):
        return "foreign", f"belongs to user {process['user'] or process['uid']}", what
    if pid in heirs:
        dead = ", ".join(map(str, heirs[pid].dead))
        return "leftover", f"inherited the files of dead process {dead}", what
    for row in ambiguous:
        if pid in row.candidates:
            dead = ", ".join(map(str, row.dead))
            others = len(row.candidates) - 1
            return None, f"it or {others} unrelated other may have the files of dead {dead}", what
    owner = process["owner"]
    owned = owner["kind"] in ("unit", "user_unit", "container", "pod", "job")
    if owned and owner["state"] == "live":
        return "in_use", f"its {owner['kind'].replace('_', ' ')} {owner['name']} is live", what
    if process["launcher_alive"]:
        return "in_use", f"its launcher {process['ppid']} is alive", what
    if process["group_leader_alive"]:
        return "in_use", f"its group's leader {process['pgid']} is alive", what
    return *_abandoned(process, owned, what), what


def _abandoned(process: Identity, owned: bool, what: str | None) -> tuple[str, str]:
    """Launcher and group leader are dead: is there proof that nobody wants it any more?"""
    owner = process["owner"]
    if process["listening"]:
        ports = ", ".join(map(str, process["listening_ports"])) or "a socket"
        return "detached", f"launcher dead, but it listens on {ports}"
    if owned and owner["state"] == "gone":
        return "leftover", f"its {owner['kind'].replace('_', ' ')} {owner['name']} is gone"
    if what is None:
        return "detached", "launcher dead, nothing more is proved (nohup looks like this)"
    if process["listening"] is None or process["live_peers"] is None:
        return "detached", f"{what} worker, launcher dead, but its sockets cannot be read"
    if process["live_peers"]:
        peers = ", ".join(map(str, process["live_peers"][:4]))
        return "detached", f"{what} worker, launcher dead, but process {peers} still talks to it"
    if not process["orphaned_pipes"]:
        return "detached", f"{what} worker, launcher dead, but no pipe to it is orphaned"
    return "leftover", f"{what} worker, launcher dead, its pipes to it are held by nobody"
