"""``processes.identity``: all that is needed to classify a process and to find it again."""

from __future__ import annotations

import os

from fleetmem.agent.declare import probe
from fleetmem.agent.kernel import cgroups, launchers, peers, sysroot, tasks
from fleetmem.agent.kernel.tasks import namespace, user_name
from fleetmem.agent.model import PARTIAL, Trouble
from fleetmem.agent.probes.host import uptime_seconds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Optional, Tuple

    from fleetmem.agent.shapes import Ancestor, Identities, Identity

MOST_ANCESTORS = 64


class _Status:
    """Fields of /proc/PID/status; sizes in bytes, ``None`` where the kernel does not say."""

    __slots__ = ("nspids", "pinned", "resident", "uid")

    def __init__(self, text: bytes) -> None:
        fields: Dict[bytes, bytes] = {}
        for line in text.split(b"\n"):
            name, _, value = line.partition(b":")
            fields[name] = value
        self.uid = int((fields.get(b"Uid") or b"-1").split()[0])
        self.nspids = [int(number) for number in (fields.get(b"NSpid") or b"").split()]
        self.resident = _bytes(fields.get(b"VmRSS"))
        shmem = _bytes(fields.get(b"RssShmem"))
        locked = max(_bytes(fields.get(b"VmLck")) or 0, _bytes(fields.get(b"VmPin")) or 0)
        # Memory pinned by the driver shows as shmem; what is locked lies outside of it.
        self.pinned = None if shmem is None else shmem + locked


def _bytes(value: Optional[bytes]) -> Optional[int]:
    words = (value or b"").split()
    return int(words[0]) * 1024 if words else None


class _Work:
    """One call: what is read once for all processes."""

    __slots__ = (
        "_launched",
        "_places",
        "_statuses",
        "_users",
        "boot_seconds",
        "denied",
        "owners",
        "table",
        "ticks",
    )

    def __init__(self) -> None:
        self.table = tasks.Table()
        self.owners = cgroups.CgroupOwners(self.table)
        self.ticks = os.sysconf("SC_CLK_TCK")
        self.boot_seconds = uptime_seconds()
        self.denied = 0
        self._users: Dict[int, Optional[str]] = {}
        self._statuses: Dict[int, Optional[_Status]] = {}
        self._places: Dict[int, cgroups.Place] = {}
        self._launched: Dict[int, bool] = {}

    def user(self, uid: int) -> Optional[str]:
        if uid not in self._users:
            self._users[uid] = user_name(uid)
        return self._users[uid]

    def status(self, pid: int) -> Optional[_Status]:
        if pid not in self._statuses:
            try:
                self._statuses[pid] = _Status(sysroot.read("/proc/%d/status" % pid))
            except (OSError, ValueError):
                self._statuses[pid] = None
        return self._statuses[pid]

    def nspids(self, pid: int) -> List[int]:
        status = self.status(pid)
        return status.nspids if status else []

    def place(self, pid: int) -> cgroups.Place:
        if pid not in self._places:
            try:
                text = sysroot.text("/proc/%d/cgroup" % pid)
            except OSError:
                text = ""
            self._places[pid] = cgroups.read(text)
        return self._places[pid]

    def launcher_alive(self, of: tasks.Stat) -> bool:
        if of.pid not in self._launched:
            self._launched[of.pid] = _launcher_alive(self, of)
        return self._launched[of.pid]

    def ancestors(self, of: tasks.Stat) -> List[Ancestor]:
        line: List[Ancestor] = []
        pid = of.ppid
        while pid and len(line) < MOST_ANCESTORS:
            found = self.table.get(pid)
            if found is None:
                break
            line.append({"pid": pid, "start_time": found.start_time, "comm": found.comm})
            pid = found.ppid
        return line


def _exe(place: str) -> Tuple[Optional[str], bool]:
    """(path, whether reading it was refused)."""
    try:
        return sysroot.clean(sysroot.link(place + "exe")), False
    except PermissionError:
        return None, True
    except OSError:
        return None, False


class _Found:
    """What the first look at a process gave."""

    __slots__ = ("live", "place", "stat", "status")

    def __init__(
        self, stat: tasks.Stat, live: Optional[int], status: _Status, place: cgroups.Place
    ) -> None:
        self.stat = stat
        self.live = live
        self.status = status
        self.place = place


def _first_look(work: _Work, pid: int) -> Optional[_Found]:
    stat = work.table.get(pid)
    status = work.status(pid)
    if stat is None or status is None:
        return None
    live = tasks.live_task(stat)
    if live not in (None, pid):
        # The leader has exited and with it its memory; another task still shows it.
        other = work.status(live or pid)
        if other is not None:
            status.resident, status.pinned = other.resident, other.pinned
    return _Found(stat, live, status, work.place(pid))


def _launcher_alive(work: _Work, child: tasks.Stat) -> bool:
    parent = work.table.get(child.ppid) if child.ppid else None
    place = work.place(child.pid)

    def starts_units() -> Optional[bool]:
        if place.kind == "unit" and work.owners.answered:
            return child.pid in work.owners.mains
        return None if place.kind in ("unit", "user_unit") else False

    return launchers.launcher_alive(
        child,
        parent,
        parent_alive=parent is not None and work.table.alive(parent.pid),
        parent_nspids=work.nspids(parent.pid) if parent is not None else [],
        child_nspids=work.nspids(child.pid),
        starts_units=starts_units,
    )


def _group_leader_alive(work: _Work, stat: tasks.Stat) -> Optional[bool]:
    if stat.pgid in (0, stat.pid):
        return None
    return work.table.alive(stat.pgid)


def _identity(work: _Work, found: _Found, links: Optional[peers.PeerEnds]) -> Identity:
    stat, status = found.stat, found.status
    place = "/proc/%d/" % (found.live or stat.pid)
    exe, refused = _exe(place)
    if refused or links is None:
        work.denied += 1
    owner = work.owners.owner(found.place)
    return {
        "pid": stat.pid,
        "start_time": stat.start_time,
        "alive": found.live is not None,
        "state": stat.state,
        "tasks": stat.threads,
        "age_seconds": round(max(0.0, work.boot_seconds - stat.start_time / work.ticks), 2),
        "ppid": stat.ppid,
        "pgid": stat.pgid,
        "sid": stat.sid,
        "uid": status.uid,
        "user": work.user(status.uid),
        "comm": stat.comm,
        "title": tasks.title(place),
        "exe": exe,
        "kernel_thread": bool(stat.flags & tasks.KTHREAD),
        "nspids": status.nspids,
        "pid_namespace": namespace(str(stat.pid), "pid"),
        "cgroup": found.place.path or None,
        "owner": owner,
        "ancestors": work.ancestors(stat),
        "launcher_alive": work.launcher_alive(stat),
        "group_leader_alive": _group_leader_alive(work, stat),
        "listening": None if links is None else links.listening,
        "listening_ports": [] if links is None else links.ports,
        "orphaned_pipes": None if links is None else links.orphaned,
        "live_peers": None if links is None else links.live_peers,
        "resident_bytes": status.resident,
        "pinned_bytes": status.pinned,
    }


@probe("processes.identity")
def processes_identity(*, pids: Optional[List[int]] = None) -> Identities:
    """Who each process is: owner, ancestry, launcher, sockets and pipes, memory it pins.

    Without *pids* all processes that hold files of the GPU driver. ``gone`` are numbers that
    no process here has. Partial where files of others cannot be read.
    """
    if not pids:
        from fleetmem.agent.probes.holders import scan

        pids = [holder["pid"] for holder in scan()["holders"]]
    work = _Work()
    here = set(sysroot.pids())
    looked = []
    gone = []
    for pid in dict.fromkeys(pids):
        found = _first_look(work, pid) if pid in here else None
        if found is not None:
            looked.append(found)
        elif tasks.hidden(pid) or (pid in here and sysroot.exists("/proc/%d/stat" % pid)):
            work.denied += 1
        else:
            gone.append(pid)
    work.owners.prepare([found.place for found in looked])
    ends = peers.look(
        work.table,
        [found.stat for found in looked],
        lambda stat: not work.launcher_alive(stat),
    )
    reading: Identities = {
        "processes": [_identity(work, found, ends.get(found.stat.pid)) for found in looked],
        "gone": gone,
        "denied": work.denied,
    }
    if work.denied:
        from fleetmem.agent.words import count, reader

        who = count(work.denied, "process", len(pids))
        raise Trouble(PARTIAL, "%s cannot be read in full %s" % (who, reader()), reading)
    return reading
