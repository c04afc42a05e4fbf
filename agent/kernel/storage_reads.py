"""What processes and disks have read from storage so far: /proc/PID/io and /proc/diskstats."""

from __future__ import annotations

import os

from fleetmem.agent.kernel import sockets, sysroot, tasks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Optional, Set

    from fleetmem.agent.shapes import RequestDisk, RequestProcess

SECTOR_BYTES = 512


class Processes:
    """Who listens on a port, its process group and all descendants, with their reads so far."""

    def __init__(self, port: int) -> None:
        self._listeners = _listeners(port)
        self.listening = sorted(self._listeners)
        self._seen = set(self.listening)
        self._refused: Set[int] = set()
        self._names: Dict[int, str] = {}
        self._before = self._reads()
        self._after: Dict[int, int] = {}

    def _reads(self) -> Dict[int, int]:
        """Bytes that each has read from storage; those that may not be looked at are left out."""
        found: Dict[int, int] = {}
        for one in _family(self._seen, tasks.Table()):
            self._seen.add(one.pid)
            self._names[one.pid] = sysroot.clean(one.comm)
            try:
                found[one.pid] = _read_bytes(one.pid)
            except PermissionError:
                self._refused.add(one.pid)
            except (OSError, ValueError):
                continue
        return found

    @property
    def denied(self) -> int:
        """Processes that this user may not look at."""
        return len(self._refused)

    def rows(self) -> List[RequestProcess]:
        """Each with what it read since, the most first. One that began meanwhile began at 0."""
        self._after = self._reads()
        found: List[RequestProcess] = [
            {
                "pid": pid,
                "comm": self._names[pid],
                "listens": pid in self._listeners,
                "read_bytes": max(0, self._after[pid] - self._before.get(pid, 0))
                if pid in self._after
                else None,
            }
            for pid in sorted(self._seen & set(self._names))
        ]
        found.sort(key=lambda row: -(row["read_bytes"] or 0))
        return found

    def total(self) -> int:
        """What all read together: the kernel adds a child's reads to its parent at its end."""
        return max(0, sum(self._after.values()) - sum(self._before.values()))


def _listeners(port: int) -> Set[int]:
    """Processes that hold a socket listening on *port* in this network namespace."""
    table = sockets.Sockets("self", True)
    wanted = {
        "socket:[%d]" % inode for inode, number in table.listening_ports.items() if number == port
    }
    found = set()
    for pid in sysroot.pids() if wanted else ():
        place = "/proc/%d/fd" % pid
        try:
            names = sysroot.names(place)
        except OSError:
            continue
        for name in names:
            try:
                if sysroot.link("%s/%s" % (place, name)) in wanted:
                    found.add(pid)
                    break
            except OSError:
                continue
    return found


def _family(first: Set[int], table: tasks.Table) -> List[tasks.Stat]:
    """*first*, the process groups of these, and all that descends from them."""
    everyone = {one.pid: one for one in table.everyone()}
    groups = {everyone[pid].pgid for pid in first if pid in everyone} - {0}
    own = os.getpid()
    chosen = {pid for pid, one in everyone.items() if one.pgid in groups} | (first & set(everyone))
    children: Dict[int, List[int]] = {}
    for one in everyone.values():
        children.setdefault(one.ppid, []).append(one.pid)
    stack = list(chosen)
    while stack:
        for pid in children.get(stack.pop(), ()):
            if pid not in chosen:
                chosen.add(pid)
                stack.append(pid)
    return [everyone[pid] for pid in sorted(chosen - {own})]


def _read_bytes(pid: int) -> int:
    """Bytes that a process caused to be read from storage; ValueError where that is not told."""
    for line in sysroot.text("/proc/%d/io" % pid).splitlines():
        name, _, value = line.partition(":")
        if name == "read_bytes":
            return int(value)
    raise ValueError("no read_bytes")


def disks() -> Optional[Dict[str, int]]:
    """Bytes read so far from each whole disk, ``None`` where the kernel does not say."""
    try:
        whole = set(sysroot.names("/sys/block"))
        lines = sysroot.text("/proc/diskstats", sysroot.LARGE).splitlines()
    except OSError:
        return None
    found = {}
    for line in lines:
        words = line.split()
        if len(words) > 5 and words[2].replace("/", "!") in whole:
            found[words[2]] = int(words[5]) * SECTOR_BYTES
    return found


def since(
    before: Optional[Dict[str, int]], after: Optional[Dict[str, int]]
) -> Optional[List[RequestDisk]]:
    """Disks that were read from meanwhile. A stacked one hands its reads to others."""
    if before is None or after is None:
        return None
    rows: List[RequestDisk] = []
    for name in sorted(after):
        size = after[name] - before.get(name, 0)
        if size > 0:
            rows.append(
                {"name": sysroot.clean(name), "read_bytes": size, "stacked": _stacked(name)}
            )
    return rows


def _stacked(name: str) -> bool:
    """Whether a device lies on other devices (dm, md), on a file or in memory."""
    if name.startswith(("loop", "ram", "zram")):
        return True
    try:
        return bool(sysroot.names("/sys/block/%s/slaves" % name.replace("/", "!")))
    except OSError:
        return False
