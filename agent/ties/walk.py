"""One walk over /proc: every process, and every descriptor of a pipe or a socket.

It is bounded. A user whose processes have more open files than a host has room to read
costs only that user's rows: what was left out is counted, by name of the user.
"""

from __future__ import annotations

import os
from time import monotonic

from fleetmem.agent.kernel import sysroot, tasks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Iterable, List, Optional, Set, Tuple

    from fleetmem.agent.shapes import Unseen

    Where = Tuple[int, int, int]
    """pid, task, number of a descriptor"""
    Holding = Tuple[int, bool, bool, int]
    """pid, may read, may write, number"""

CAN_READ, CAN_WRITE = 0o400, 0o200


class Walk:
    """Who has which pipe or socket open, over all tables of open files of all processes.

    ``denied`` are processes whose files the kernel does not show to this user; ``late`` those
    that the time did not reach; the budget's ``cut`` those with too many.
    """

    __slots__ = ("budget", "deadline", "denied", "held", "late", "of", "table")

    def __init__(self, deadline: float) -> None:
        self.table = tasks.Table()
        self.deadline = deadline
        self.held: Dict[str, List[Where]] = {}
        self.of: Dict[int, Set[str]] = {}
        self.denied: Set[int] = set()
        self.late: Set[int] = set()
        self.budget = tasks.Budget()

    def files(self, first: Iterable[int]) -> None:
        """Read everybody's descriptors, those of *first* before all others."""
        for pid in self.order(first):
            if monotonic() > self.deadline:
                self.late.add(pid)
                continue
            one = self.table.get(pid)
            if one is None or one.flags & tasks.KTHREAD:
                continue
            try:
                proc_fd = sysroot.open_dir("/proc/%d" % pid)
            except OSError:
                continue
            try:
                self._process(pid, proc_fd)
            finally:
                os.close(proc_fd)

    def order(self, first: Iterable[int]) -> List[int]:
        """*first*, then all others, those with very many files last: where the time is over
        before the end, it is theirs that were not read."""
        ahead = list(first)
        few: List[int] = []
        many: List[Tuple[int, int]] = []
        for one in self.table.everyone():
            try:
                size = os.stat(sysroot.path("/proc/%d/fd" % one.pid)).st_size
            except OSError:
                size = 0
            if size > tasks.FEW_FILES:
                many.append((size, one.pid))
            else:
                few.append(one.pid)
        rest = few + [pid for _, pid in sorted(many)]
        seen = set(ahead)
        return ahead + [pid for pid in rest if pid not in seen]

    def _process(self, pid: int, proc_fd: int) -> None:
        for tid, place, names in self.budget.tables(pid, proc_fd, self.denied):
            self._descriptors(pid, tid, place, names)

    def _descriptors(self, pid: int, tid: int, place: int, names: List[str]) -> None:
        held = self.held
        mine = self.of.setdefault(pid, set())
        for name in names:
            try:
                link = os.readlink(name, dir_fd=place)
            except PermissionError:
                self.denied.add(pid)
                return
            except OSError:
                continue
            # pipe:[…] or socket:[…], else a path, anon_inode:… or pidfd:…
            if link[0] in "ps" and link[-1] == "]" and link[1] in "io":
                mine.add(link)
                where = (pid, tid, int(name))
                if link in held:
                    held[link].append(where)
                else:
                    held[link] = [where]

    def complete(self) -> bool:
        """Whether every process of this /proc showed all its descriptors."""
        return not (self.denied or self.budget.cut or self.late)

    def pids_of(self, link: str) -> List[int]:
        """Processes that have a pipe or socket open, in the order of the walk."""
        return list(dict.fromkeys(where[0] for where in self.held.get(link, ())))

    def numbers(self, link: str, pid: int) -> List[int]:
        """Under which numbers *pid* has it open."""
        return [where[2] for where in self.held.get(link, ()) if where[0] == pid]

    def holdings(self, link: str) -> List[Holding]:
        """(pid, may read, may write, number) of each descriptor: the link's own mode says how."""
        found = []
        for pid, tid, number in self.held.get(link, ()):
            try:
                mode = sysroot.link_mode("/proc/%d/task/%d/fd/%d" % (pid, tid, number))
            except OSError:
                continue
            found.append((pid, bool(mode & CAN_READ), bool(mode & CAN_WRITE), number))
        return found

    def children(self) -> Dict[int, List[int]]:
        """Children of every process."""
        found: Dict[int, List[int]] = {}
        for one in self.table.everyone():
            found.setdefault(one.ppid, []).append(one.pid)
        return found

    def kin(self) -> Dict[Tuple[bytes, ...], List[int]]:
        """Processes forked from each other without an exec between, oldest first."""
        found: Dict[Tuple[bytes, ...], List[int]] = {}
        for one in sorted(self.table.everyone(), key=lambda one: one.start_time):
            if one.layout is not None:
                found.setdefault(one.layout, []).append(one.pid)
        return found

    def unseen(self) -> List[Unseen]:
        """What the walk left out, by user and reason."""
        from fleetmem.agent.words import reader

        rows: List[Unseen] = []
        if self.denied:
            why = "their files cannot be read %s" % reader()
            rows.append({"what": "files", "count": len(self.denied), "user": None, "why": why})
        for count, user, why in self.budget.reasons():
            rows.append({"what": "files", "count": count, "user": user, "why": why})
        if self.late:
            why = "the time for reading open files was over"
            rows.append({"what": "files", "count": len(self.late), "user": None, "why": why})
        return rows

    def told(self, where: Optional[Where], reads: bool) -> Optional[bool]:
        """Ask a pipe itself whether its other end is closed everywhere; ``None``: not told.

        The kernel knows of holders in other pid namespaces and of other users too. Opening
        another process's end adds a second holder on the same side for a moment, which
        neither side notices.
        """
        if where is None:
            return None
        from select import POLLERR, POLLHUP, POLLIN, POLLOUT, poll

        name = sysroot.path("/proc/%d/task/%d/fd/%d" % where)
        try:
            fd = os.open(name, (os.O_RDONLY if reads else os.O_WRONLY) | os.O_NONBLOCK)
        except OSError:
            return None
        try:
            watch = poll()
            watch.register(fd, POLLIN if reads else POLLOUT)
            events = watch.poll(0)
        finally:
            os.close(fd)
        return bool(events and events[0][1] & (POLLHUP if reads else POLLERR))
