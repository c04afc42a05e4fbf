"""Listening sockets, and who holds the other ends of a process's pipes and connections.

A pipe both of whose ends lie in one family proves nothing. An end whose counterpart no
process here holds is asked for again of the kernel, through the pipe itself: it knows of
holders in other pid namespaces and of other users too.
"""

from __future__ import annotations

import os
from select import POLLERR, POLLHUP, POLLIN, POLLOUT, poll

from fleetmem.agent import sysroot
from fleetmem.agent.probes import tasks
from fleetmem.agent.probes.host import namespace
from fleetmem.agent.probes.sockets import Sockets

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Dict, List, Optional, Set, Tuple

    Holding = Tuple[int, bool, bool]
    """pid, may read, may write"""

STANDARD = 2
"""Descriptors up to here are how any shell or supervisor starts a program."""

HELPERS = (b"multiprocessing.resource_tracker", b"multiprocessing.forkserver")
CAN_READ, CAN_WRITE = 0o400, 0o200


class Ends:
    """What ``processes.identity`` says of a process's sockets and pipes."""

    __slots__ = ("listening", "live_peers", "orphaned", "ports")

    def __init__(self) -> None:
        self.listening: Optional[bool] = False
        self.ports: List[int] = []
        self.orphaned: Optional[int] = 0
        self.live_peers: Optional[List[int]] = []


class _Own:
    """Pipes and sockets of one process: inode to (path of the descriptor, its number)."""

    __slots__ = ("net", "pid", "pipes", "sockets")

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.pipes: Dict[int, List[Tuple[str, int]]] = {}
        self.sockets: Dict[int, int] = {}
        self.net: Optional[int] = None


class _Everyone:
    """Who holds what, over all processes; ``complete`` is false where some were not readable."""

    __slots__ = ("complete", "held", "wanted")

    def __init__(self, wanted: Set[str]) -> None:
        self.wanted = wanted
        self.held: Dict[str, List[Holding]] = {}
        self.complete = True

    def scan(self) -> None:
        denied: Set[int] = set()
        for pid in sysroot.pids():
            try:
                proc_fd = sysroot.open_dir("/proc/%d" % pid)
            except OSError:
                continue
            try:
                for _, place, names in tasks.tables(pid, proc_fd, denied):
                    if not self._table(pid, place, names):
                        denied.add(pid)
            finally:
                os.close(proc_fd)
        self.complete = not denied

    def _table(self, pid: int, place: int, names: List[str]) -> bool:
        wanted = self.wanted
        for name in names:
            try:
                link = os.readlink(name, dir_fd=place)
                if link in wanted:
                    # The link's own mode says how the file was opened.
                    mode = os.stat(name, dir_fd=place, follow_symlinks=False).st_mode
                    row = (pid, bool(mode & CAN_READ), bool(mode & CAN_WRITE))
                    self.held.setdefault(link, []).append(row)
            except PermissionError:
                return False
            except OSError:
                continue
        return True


class Families:
    """Processes that stand or fall together with one, so that ties among them say nothing."""

    __slots__ = ("_children", "_launcher_dead", "_sessions", "_table")

    def __init__(self, table: tasks.Table, launcher_dead: Callable[[tasks.Stat], bool]) -> None:
        self._table = table
        self._launcher_dead = launcher_dead
        self._sessions: Dict[int, Set[int]] = {}
        self._children: Dict[int, List[int]] = {}

    def of(self, one: tasks.Stat) -> Set[int]:
        """*one*, its session's processes without a launcher and their helpers, all descendants."""
        if not self._children:
            for other in self._table.everyone():
                self._children.setdefault(other.ppid, []).append(other.pid)
        if one.sid not in self._sessions:
            self._sessions[one.sid] = self._session(one.sid)
        found = set(self._sessions[one.sid])
        found.add(one.pid)
        left = list(found)
        while left:
            for child in self._children.get(left.pop(), ()):
                if child not in found:
                    found.add(child)
                    left.append(child)
        return found

    def _session(self, sid: int) -> Set[int]:
        if sid == 0:  # led from outside this pid namespace: not one session
            return set()
        return {
            other.pid
            for other in self._table.everyone()
            if other.sid == sid
            and other.state not in tasks.ENDED
            and (self._launcher_dead(other) or _helper(other.pid))
        }


def _helper(pid: int) -> bool:
    try:
        title = sysroot.read("/proc/%d/cmdline" % pid, 1024)
    except OSError:
        return False
    return any(name in title for name in HELPERS)


def look(
    table: tasks.Table,
    wanted: List[tasks.Stat],
    launcher_dead: Callable[[tasks.Stat], bool],
) -> Dict[int, Ends]:
    """Ends of each process in *wanted*; a process whose files cannot be read has none."""
    owned = {}
    for one in wanted:
        own = _own(one.pid)
        if own is not None:
            owned[one.pid] = own
    spaces = _spaces(list(owned.values()))
    everyone = _Everyone(_links(owned, spaces))
    if everyone.wanted:
        everyone.scan()
    families = Families(table, launcher_dead)
    found = {}
    for one in wanted:
        own = owned.get(one.pid)
        if own is not None:
            space = spaces.get(own.net)
            found[one.pid] = _judge(one, own, space, everyone, families)
    return found


def _own(pid: int) -> Optional[_Own]:
    own = _Own(pid)
    denied: Set[int] = set()
    try:
        proc_fd = sysroot.open_dir("/proc/%d" % pid)
    except OSError:
        return own
    try:
        for tid, place, names in tasks.tables(pid, proc_fd, denied):
            for name in names:
                try:
                    link = os.readlink(name, dir_fd=place)
                except PermissionError:
                    denied.add(pid)
                    break
                except OSError:
                    continue
                number = int(name)
                if link.startswith("pipe:["):
                    where = "/proc/%d/task/%d/fd/%s" % (pid, tid, name)
                    own.pipes.setdefault(int(link[6:-1]), []).append((where, number))
                elif link.startswith("socket:["):
                    inode = int(link[8:-1])
                    own.sockets[inode] = max(number, own.sockets.get(inode, 0))
    finally:
        os.close(proc_fd)
    if denied:
        return None
    if own.sockets:
        own.net = namespace(str(pid), "net")
    return own


def _spaces(owned: List[_Own]) -> Dict[Optional[int], Sockets]:
    """The sockets of each network namespace that a process with sockets lives in."""
    here = namespace("self", "net")
    found: Dict[Optional[int], Sockets] = {}
    for own in owned:
        if own.sockets and own.net not in found:
            found[own.net] = Sockets(own.pid, own.net == here)
    return found


def _links(owned: Dict[int, _Own], spaces: Dict[Optional[int], Sockets]) -> Set[str]:
    """The links to look for in everybody's descriptors."""
    wanted = set()
    for own in owned.values():
        for inode, ends in own.pipes.items():
            if any(number > STANDARD for _, number in ends):
                wanted.add("pipe:[%d]" % inode)
        space = spaces.get(own.net)
        if space is None:
            continue
        for inode, number in own.sockets.items():
            if number <= STANDARD:
                continue
            one = space.unix.get(inode)
            peer = one.peer if one is not None else space.tcp_peer(inode)
            if peer:
                wanted.add("socket:[%d]" % peer)
    return wanted


def _judge(
    one: tasks.Stat,
    own: _Own,
    space: Optional[Sockets],
    everyone: _Everyone,
    families: Families,
) -> Ends:
    ends = Ends()
    peers: Set[int] = set()
    unknown = False  # an end whose other side somebody may hold, who cannot be named
    orphaned: Optional[int] = 0
    beyond = [
        inode for inode, where in own.pipes.items() if any(number > STANDARD for _, number in where)
    ]
    connected = [inode for inode, number in own.sockets.items() if number > STANDARD]
    family = families.of(one) if beyond or connected else set()
    for inode in beyond:
        alone, others = _pipe(inode, own, everyone, family)
        peers.update(others)
        if alone is None:
            unknown = True
        elif alone and orphaned is not None:
            orphaned += 1
    if unknown:
        orphaned = None
    if space is not None:
        ends.ports = sorted(
            {
                space.listening_ports[inode]
                for inode in own.sockets
                if inode in space.listening_ports
            }
        )
        ends.listening = bool(ends.ports) or any(
            inode in space.unix and space.unix[inode].listens for inode in own.sockets
        )
        for inode in connected:
            closed, others = _socket_end(inode, space, everyone, family)
            peers.update(others)
            if closed is None:
                unknown, orphaned = True, None
            elif closed and orphaned is not None:
                orphaned += 1
    ends.orphaned = orphaned
    ends.live_peers = None if unknown and not peers else sorted(peers)
    return ends


def _pipe(
    inode: int, own: _Own, everyone: _Everyone, family: Set[int]
) -> Tuple[Optional[bool], Set[int]]:
    """(nobody holds the other end, outsiders that do) of one pipe; ``None``: not known."""
    rows = everyone.held.get("pipe:[%d]" % inode, [])
    reads = any(row[1] for row in rows if row[0] == own.pid)
    writes = any(row[2] for row in rows if row[0] == own.pid)
    others = {
        pid
        for pid, may_read, may_write in rows
        if pid not in family and ((writes and may_read) or (reads and may_write))
    }
    if others:
        return False, others
    within = [row for row in rows if row[0] in family]
    if (reads and any(row[2] for row in within)) or (writes and any(row[1] for row in within)):
        return False, set()
    if not (reads or writes):  # closed meanwhile
        return False, set()
    told = _told_by_pipe(own.pipes[inode], reads)
    if told is True:
        return True, set()
    if told is False:  # held where this agent cannot see
        return None, set()
    return (True if everyone.complete else None), set()


def _told_by_pipe(ends: List[Tuple[str, int]], reads: bool) -> Optional[bool]:
    """Ask the pipe whether its other end is closed everywhere; ``None`` where it is not told.

    Opening another process's end adds a second holder on the same side for a moment, which
    neither side notices.
    """
    name = sysroot.path(ends[0][0])
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


def _socket_end(
    inode: int, space: Sockets, everyone: _Everyone, family: Set[int]
) -> Tuple[Optional[bool], Set[int]]:
    """(the other end is closed, outsiders that hold it) of one socket; ``None``: not known."""
    one = space.unix.get(inode)
    if one is None:
        peer = space.tcp_peer(inode)
        if not peer:
            return False, set()
        return False, _outside(peer, everyone, family)
    if one.listens:
        return False, set()
    if not space.unix_peers_known:
        return None, set()
    if one.peer:
        if space.of_system(inode):
            return False, set()
        return False, _outside(one.peer, everyone, family)
    return one.closed, set()


def _outside(peer: int, everyone: _Everyone, family: Set[int]) -> Set[int]:
    rows = everyone.held.get("socket:[%d]" % peer, [])
    return {pid for pid, _, _ in rows if pid not in family}
