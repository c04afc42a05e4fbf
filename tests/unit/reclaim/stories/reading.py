"""What an agent would read on a :class:`Host`: the survey that fleetmem judges.

Follows the shape of ``processes.ties`` from the kernel's side: whoever looks at the files of
a process sees them, and where somebody's could not be looked at, nobody is certain.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from tests.unit.reclaim.reclaim_world import device, holder, identity
from tests.unit.reclaim.reclaim_world import survey as world

if TYPE_CHECKING:
    from fleetmem.controller.reclaim.survey import Survey
    from tests.unit.reclaim.stories.host import File, Host, Owner, Process

STRANGER = 5_000_000


class Look:
    """One look at a host; ``tied`` and ``links`` are rows of the reading."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.users: dict[File, list[tuple[Process, str, bool]]] = defaultdict(list)
        self.blind = any("files" in p.hidden for p in host.processes.values())
        for one in host.processes.values():
            if "files" not in one.hidden:
                for end in one.ends:
                    self.users[end.file].append((one, end.side, end.standard))
        self.touching = [
            p for p in host.processes.values() if any(e.file.kind == "driver" for e in p.ends)
        ]
        self.queue: list[Process] = []
        self.seen: dict[int, Process] = {}
        self.walked: set[int] = set()
        self.links: dict[tuple[Any, ...], dict[str, Any]] = {}
        self.listeners: list[dict[str, Any]] = []
        self.places: dict[File, int] = {}
        self.owners: list[Owner] = []
        self.by_image: dict[int, list[Process]] = defaultdict(list)
        for one in host.processes.values():
            self.by_image[id(one.image)].append(one)

    def ties(self) -> dict[str, Any]:
        for one in self.touching:
            self._reach(one)
        while self.queue:
            one = self.queue.pop()
            if one.pid in self.walked or one.system or one.known_adopter:
                continue
            self.walked.add(one.pid)
            self._walk(one)
        return {
            "boot_id": "boot-1",
            "initial_pid_namespace": self.host.initial_namespace,
            "complete": True,
            "bound": None,
            "processes": [self._row(p) for p in self.seen.values()],
            "links": list(self.links.values()),
            "listeners": self.listeners,
            "owners": [_owner(one) for one in self.owners],
            "unseen": [],
            "gone": [],
        }

    def _reach(self, one: Process, *, walk: bool = True) -> None:
        self.seen.setdefault(one.pid, one)
        if walk:
            self.queue.append(one)

    def _link(
        self, kind: str, one: Process, other: Process | None, where: str, **more: Any
    ) -> None:
        row: dict[str, Any] = {
            "kind": kind,
            "pid": one.pid,
            "other": other.pid if other is not None else None,
            "where": where,
            "standard": False,
            "reads": False,
            "writes": False,
            "closed": False,
            "address": None,
            "port": None,
            "local_port": None,
            "path": None,
            "listener": None,
            **more,
        }
        key = tuple(row.values())
        if key in self.links:
            self.links[key]["count"] += 1
        else:
            self.links[key] = {**row, "count": 1}

    def _walk(self, one: Process) -> None:
        host = self.host
        if "status" in one.hidden:
            return
        parent = one.parent
        if parent is None:
            pass
        elif parent.alive:
            self._link("parent", one, parent, "here")
            self._reach(parent)
        for kind, number in (("session", one.sid), ("group", one.pgid)):
            if number == one.pid:
                continue
            leader = host.processes.get(number)
            self._link(kind, one, leader, "here" if leader else "nobody")
            if leader is not None:
                self._reach(leader)
        if one.tracer and one.tracer in host.processes:
            self._link("tracer", one, host.processes[one.tracer], "here")
            self._reach(host.processes[one.tracer])
        if one in self.touching:
            for child in host.children(one):
                self._reach(child)
        if "layout" not in one.hidden:
            alike = [p for p in self.by_image[id(one.image)] if "layout" not in p.hidden]
            for other in alike[:1] if one is not alike[0] else alike[1:2]:
                self._link("fork", one, other, "here")
                self._reach(other)
        if "files" not in one.hidden:
            for file in dict.fromkeys(end.file for end in one.ends):
                self._file(one, file)

    def _file(self, one: Process, file: File) -> None:
        mine = [(side, std) for p, side, std in self.users[file] if p is one]
        others = [(p, side, std) for p, side, std in self.users[file] if p is not one]
        if file.kind == "listen":
            self._place(file)
        elif file.kind == "pipe":
            self._pipe(one, file, mine, others)
        elif file.kind in ("unix", "tcp"):
            self._socket(one, file, mine, others)

    def _place(self, file: File) -> int:
        if file not in self.places:
            self.places[file] = len(self.listeners)
            self.listeners.append(
                {
                    "kind": "unix" if file.path else "tcp",
                    "pids": sorted(p.pid for p, _, _ in self.users[file]),
                    "address": file.address,
                    "port": file.port,
                    "path": file.path,
                    "ephemeral": None if file.path else file.ephemeral,
                }
            )
        return self.places[file]

    def _pipe(self, one: Process, file: File, mine: list[Any], others: list[Any]) -> None:
        reads, writes = any(s == "r" for s, _ in mine), any(s == "w" for s, _ in mine)
        standard = all(std for _, std in mine)
        how = {"reads": reads, "writes": writes, "standard": standard}
        met = [p for p, side, _ in others if (side == "w" and reads) or (side == "r" and writes)]
        for other in dict.fromkeys(met):
            self._link("pipe", one, other, "here", **how)
            mere = standard and writes and not reads
            self._reach(other, walk=not mere)
        if not met and not (reads and writes):
            self._link("pipe", one, None, "unreadable" if self.blind else "nobody", **how)

    def _socket(self, one: Process, file: File, mine: list[Any], others: list[Any]) -> None:
        sides = {side for side, _ in mine}
        more: dict[str, Any] = {"reads": True, "writes": True, "path": file.path}
        if file.kind == "tcp":
            more.update(address=file.address, port=file.port)
            if file.accepted_by is not None and "b" in sides:
                more["listener"] = self._place(file.accepted_by)
        if file.beyond:
            self._link(file.kind, one, None, file.beyond, **more)
            return
        met = [p for p, side, _ in others if side not in sides]
        for other in dict.fromkeys(met):
            self._link(file.kind, one, other, "here", **more)
            self._reach(other)
        if not met:
            self._link(file.kind, one, None, "unreadable" if self.blind else "nobody", **more)

    def _row(self, one: Process) -> dict[str, Any]:
        refs = []
        if one.owner is not None and "cgroup" not in one.hidden:
            refs.append({"owner": self._owner(one.owner), "source": "cgroup"})
        for owner in self.host.owners:
            if owner.kind == "job" and one.env.get("SLURM_JOB_ID") == owner.name:
                refs.append({"owner": self._owner(owner), "source": "environment"})
        adopter = one.known_adopter
        return {
            "pid": one.pid,
            "start_time": one.start,
            "asked": one in self.touching,
            "ppid": one.parent.pid if one.parent else 0,
            "pgid": one.pgid,
            "sid": one.sid,
            "uid": one.uid,
            "user": "root" if one.uid == 0 else "ops",
            "comm": one.comm,
            "title": one.title,
            "exe": one.exe,
            "state": one.state,
            "alive": True,
            "kernel_thread": False,
            "tty": one.tty,
            "tracer_pid": None if "status" in one.hidden else one.tracer,
            "pids_inside": [],
            "pid_namespace": 1,
            "net_namespace": one.net,
            "adopter": adopter,
            "system": one.system,
            "layout": None if "layout" in one.hidden else f"{id(one.image):x}",
            "cgroup": one.owner.name if one.owner else "/",
            "cgroup_shared": one.owner.shared if one.owner else True,
            "owners": refs,
            "environment": None if "environment" in one.hidden else _environment(one),
            "term": "default",
            "unreadable": sorted(one.hidden),
        }

    def _owner(self, owner: Owner) -> int:
        if owner not in self.owners:
            self.owners.append(owner)
        return self.owners.index(owner)


def _environment(one: Process) -> dict[str, Any]:
    return {
        "invocation_id": one.env.get("INVOCATION_ID"),
        "slurm_job_id": one.env.get("SLURM_JOB_ID"),
        "pod_uid": None,
        "values": {},
    }


def _owner(one: Owner) -> dict[str, Any]:
    return {
        "kind": one.kind,
        "id": one.name,
        "name": one.name,
        "runtime": None,
        "manager": one.manager,
        "state": one.state if one.manager else "unknown",
        "detail": None,
        "invocation_id": one.invocation,
        "invocation_started": one.invocation_started,
        "kill_mode": one.kill_mode,
        "send_sigkill": one.send_sigkill,
        "main_pid": one.main.pid if one.main is not None else None,
        "restart": one.restart,
        "restart_seconds": None,
        "stop_command": None,
    }


def survey(host: Host) -> Survey:
    """The readings of one look, joined."""
    look = Look(host)
    ties = look.ties()
    lists: dict[int, list[Any]] = {0: [], 1: []}
    used = {0: 0, 1: 0}
    for charge in host.charges:
        used[charge.gpu] += charge.size
        pid = charge.pid if host.initial_namespace else STRANGER + charge.pid
        state = "alive" if pid in host.processes else "dead"
        row = {"pid": pid, "lists": ["compute"], "used_bytes": charge.size}
        lists[charge.gpu].append({**row, "gi": None, "ci": None, "state": state, "why": None})
    people = [_identity(p) for p in host.processes.values() if p in look.touching]
    seen = {p["pid"] for p in people}
    people += [_identity(p) for pid, p in look.seen.items() if pid not in seen]
    found = world(
        *cast("list[Any]", people),
        holders=tuple(_files(host, p) for p in look.touching),
        lists=lists,
    )
    return replace(
        found,
        facts={
            **found.facts,
            "init_pid_namespace": host.initial_namespace,
            "agent_pids": [],
        },
        gpus={gpu: device(gpu, used[gpu]) for gpu in (0, 1)},
        ties=cast("Any", ties),
    )


def _identity(one: Process) -> Any:
    line, above = [], one.parent
    while above is not None and above.alive:
        line.append({"pid": above.pid, "start_time": above.start, "comm": above.comm})
        above = above.parent
    return identity(
        one.pid,
        start_time=one.start,
        ppid=one.parent.pid if one.parent else 0,
        pgid=one.pgid,
        sid=one.sid,
        uid=one.uid,
        comm=one.comm,
        title=one.title,
        exe=one.exe,
        cgroup=one.owner.name if one.owner else "/",
        ancestors=line,
    )


def _files(host: Host, one: Process) -> Any:
    """A context maps uvm; a fork of one has the rest of it. Only what it was forked with counts."""
    own = {c.gpu for c in host.charges if c.pid == one.pid}
    inherited = {c.gpu for c in host.charges if one.has(c.files) and c.pid != one.pid}
    gpus = [
        {"minor": gpu, "fds": 23, "map_bytes": 2 << 20 if gpu in own | inherited else 128 << 10}
        for gpu in (0, 1)
    ]
    return {
        **holder(one.pid),
        "start_time": one.start,
        "gpus": gpus,
        "ctl_map_bytes": 4096 if one.opened else 70 << 20,
        "uvm_map_bytes": 2 << 20 if one.context else 0,
    }
