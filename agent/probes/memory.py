"""``processes.memory``: each process by backing; shares, driver memory and nodes of the largest."""

from __future__ import annotations

import os
import time

from fleetmem.agent import isolate as apart
from fleetmem.agent.declare import probe
from fleetmem.agent.kernel import cgroups, sysroot, tasks
from fleetmem.agent.kernel import smaps as memory_deep
from fleetmem.agent.kernel.tasks import user_name
from fleetmem.agent.model import PARTIAL, Trouble

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, List, Optional, Tuple

    from fleetmem.agent.shapes import ProcessesMemory, ProcessMemory, ProcessTotals

DEEP_SECONDS = 6.0


class Status:
    """Fields of /proc/PID/status; sizes in bytes."""

    __slots__ = ("fields", "pid")

    def __init__(self, pid: int, data: bytes) -> None:
        self.pid = pid
        self.fields: Dict[bytes, bytes] = {}
        for line in data.split(b"\n"):
            name, _, value = line.partition(b":")
            self.fields[name] = value.strip()

    def size(self, name: bytes) -> Optional[int]:
        """A size in bytes, ``None`` where the kernel does not say."""
        words = self.fields.get(name, b"").split()
        return int(words[0]) * 1024 if words else None

    @property
    def weight(self) -> int:
        """What the process is sorted by: resident, swapped and huge pages."""
        names = (b"VmRSS", b"VmSwap", b"HugetlbPages")
        return sum(self.size(name) or 0 for name in names)


def read_status(pid: int) -> Optional[Status]:
    """One process with memory, ``None`` for a kernel thread or one that is gone.

    Where the leader has exited, another task still shows the memory.
    """
    try:
        found = Status(pid, sysroot.read("/proc/%d/status" % pid))
        if b"VmRSS" not in found.fields and found.fields.get(b"Threads", b"1") != b"1":
            for tid in tasks.task_ids(pid):
                other = Status(pid, sysroot.read("/proc/%d/task/%d/status" % (pid, tid)))
                if b"VmRSS" in other.fields:
                    return other
    except (OSError, ValueError):
        return None
    return found if b"VmRSS" in found.fields else None


@probe("processes.memory")
def processes_memory(
    *,
    pids: Tuple[int, ...] = (),
    rows: int = 200,
    largest: int = 32,
    numa: int = 0,
    seconds: float = 20.0,
) -> ProcessesMemory:
    """Processes by resident, swapped and huge pages, largest first (*rows* of them, and *pids*).

    The *largest* (and *pids*) get proportional sizes, shared objects and the driver's
    mappings; *numa* of them their pages by NUMA node and their policies as well.
    """
    deadline = time.monotonic() + seconds
    found = [row for row in map(read_status, sysroot.pids()) if row is not None]
    found.sort(key=lambda row: -row.weight)
    asked = set(pids)
    chosen = found[:rows] + [row for row in found[rows:] if row.pid in asked]
    deep = [row.pid for at, row in enumerate(chosen) if at < largest or row.pid in asked]
    facts, denied, stopped = _deep(deep, numa, deadline)
    users: Dict[int, Optional[str]] = {}
    reading: ProcessesMemory = {
        "processes": [
            row
            for row in (_row(status, facts.get(status.pid), users) for status in chosen)
            if row is not None
        ],
        "totals": _totals(found),
        "denied": denied,
        "complete": stopped is None,
    }
    why = []
    if denied:
        from fleetmem.agent.words import count, reader

        who = count(denied, "process", len(deep))
        why.append("%s could not be read in full %s" % (who, reader()))
    if stopped:
        why.append(stopped)
    if why:
        raise Trouble(PARTIAL, "; ".join(why), reading)
    return reading


def _deep(
    pids: List[int], numa: int, deadline: float
) -> Tuple[Dict[int, Dict[str, Any]], int, Optional[str]]:
    """Facts of smaps and maps, in a child: a process that is stuck keeps its readers waiting."""
    with_nodes = set(pids[:numa])
    facts: Dict[int, Dict[str, Any]] = {}
    denied = 0
    stopped: Optional[str] = None

    def work(pid: int) -> Iterator[object]:
        return memory_deep.look(pid, pid in with_nodes)

    for at, value, problem in apart.run(pids, work, str, DEEP_SECONDS, deadline, set()):
        if problem == apart.SILENT:
            stopped = "process %d could not be read" % pids[at]
        elif problem is not None:
            stopped = problem
        elif value == "denied":
            denied += 1
        elif value is not None:
            facts[pids[at]] = value
    return facts, denied, stopped


def _row(
    status: Status, facts: Optional[Dict[str, Any]], users: Dict[int, Optional[str]]
) -> Optional[ProcessMemory]:
    pid, size = status.pid, status.size
    known = tasks.stat(pid)
    if known is None:
        return None
    uid = int(status.fields.get(b"Uid", b"-1").split()[0])
    if uid not in users:
        users[uid] = user_name(uid)
    nodes = status.fields.get(b"Mems_allowed_list")
    return {
        "pid": pid,
        "start_time": known.start_time,
        "comm": known.comm,
        "title": tasks.title("/proc/%d/" % pid),
        "uid": uid,
        "user": users[uid],
        "cgroup": _cgroup(pid),
        "virtual_bytes": size(b"VmSize") or 0,
        "resident_bytes": size(b"VmRSS") or 0,
        "anon_bytes": size(b"RssAnon"),
        "file_bytes": size(b"RssFile"),
        "shmem_bytes": size(b"RssShmem"),
        "swap_bytes": size(b"VmSwap") or 0,
        "locked_bytes": size(b"VmLck") or 0,
        "pinned_bytes": size(b"VmPin") or 0,
        "hugetlb_bytes": size(b"HugetlbPages") or 0,
        "page_tables_bytes": size(b"VmPTE") or 0,
        "allowed_numa_nodes": nodes.decode("ascii", "replace") if nodes else None,
        "proportional": facts["proportional"] if facts else None,
        "shared": facts["shared"] if facts else [],
        "driver": facts["driver"] if facts else None,
        "numa": facts["numa"] if facts else None,
    }


def _cgroup(pid: int) -> Optional[str]:
    try:
        found = cgroups.paths(sysroot.text("/proc/%d/cgroup" % pid))
    except OSError:
        return None
    return sysroot.clean(os.fsdecode(found[0])) if found else "/"


def _totals(found: List[Status]) -> ProcessTotals:
    def total(name: bytes) -> int:
        return sum(row.size(name) or 0 for row in found)

    return {
        "processes": len(found),
        "resident_bytes": total(b"VmRSS"),
        "anon_bytes": total(b"RssAnon"),
        "swap_bytes": total(b"VmSwap"),
        "locked_bytes": total(b"VmLck"),
        "hugetlb_bytes": total(b"HugetlbPages"),
    }
