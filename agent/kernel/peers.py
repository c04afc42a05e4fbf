"""Listening sockets, and who holds the other ends of a process's pipes and connections.

A pipe both of whose ends lie in one family proves nothing. An end whose counterpart no
process here holds is asked for again of the kernel, through the pipe itself: it knows of
holders in other pid namespaces and of other users too.
"""

from __future__ import annotations

import os
from select import POLLERR, POLLHUP, POLLIN, POLLOUT, poll

from fleetmem.agent.kernel import ranks, sysroot, tasks
from fleetmem.agent.kernel.sockets import Sockets
from fleetmem.agent.kernel.tasks import namespace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Dict, Iterable, List, Optional, Set, Tuple

    Holding = Tuple[int, bool, bool]
    """pid, may read, may write"""
    Where = Tuple[int, int, int]
    """pid, task, number of a descriptor"""

STANDARD = 2
"""Descriptors up to here are how any shell or supervisor starts a program."""

HELPERS = (b"multiprocessing.resource_tracker", b"multiprocessing.forkserver")
CAN_READ, CAN_WRITE = 0o400, 0o200


class PeerEnds:
    """What ``processes.identity`` says of a process's sockets and pipes."""

    __slots__ = ("listening", "live_peers", "orphaned", "ports")

    def __init__(self) -> None:
        self.listening: Optional[bool] = False
        self.ports: List[int] = []
        self.orphaned: Optional[int] = 0
        self.live_peers: Optional[List[int]] = []


class _Own:
    """Pipes and sockets of one process, by inode; ``task`` is one that has them open."""

    __slots__ = ("net", "pipes", "sockets", "task")

    def __init__(self) -> None:
        self.pipes: Dict[int, List[Where]] = {}
        self.sockets: Dict[int, int] = {}
        self.net: Optional[int] = None
        self.task = 0


class _Everyone:
    """Who holds which pipe or socket, over all tables of open files of all processes."""

    __slots__ = ("denied", "held")

    def __init__(self) -> None:
        self.held: Dict[str, List[Where]] = {}
        self.denied: Set[int] = set()

    def scan(self, pids: Iterable[int]) -> None:
        for pid in pids:
            try:
                proc_fd = sysroot.open_dir("/proc/%d" % pid)
            except OSError:
                continue
            try:
                for tid, place, names in tasks.tables(pid, proc_fd, self.denied):
                    self._table(pid, tid, place, names)
            finally:
                os.close(proc_fd)

    def _table(self, pid: int, tid: int, place: int, names: List[str]) -> None:
        held = self.held
        for name in names:
            try:
                link = os.readlink(name, dir_fd=place)
            except PermissionError:
                self.denied.add(pid)
                return
            except OSError:
                continue
            if link[0] in "ps":  # pipe:[…] or socket:[…], else a path or anon_inode:…
                where = (pid, tid, int(name))
                if link in held:
                    held[link].append(where)
                else:
                    held[link] = [where]

    def own(self, pids: Set[int]) -> Dict[int, _Own]:
        """The same by process, for those in *pids* that could be read."""
        found = {pid: _Own() for pid in pids if pid not in self.denied}
        for link, rows in self.held.items():
            for row in rows:
                own = found.get(row[0])
                if own is None:
                    continue
                if link.startswith("pipe:["):
                    own.pipes.setdefault(int(link[6:-1]), []).append(row)
                elif link.startswith("socket:["):
                    inode = int(link[8:-1])
                    own.sockets[inode] = max(row[2], own.sockets.get(inode, 0))
                    own.task = row[1]
        return found

    def socket_holders(self, inode: int) -> Set[int]:
        """Pids that have a socket open."""
        return {where[0] for where in self.held.get("socket:[%d]" % inode, ())}

    def holdings(self, link: str) -> List[Holding]:
        """(pid, may read, may write) of each descriptor: the link's own mode says how."""
        found = []
        for pid, tid, number in self.held.get(link, ()):
            try:
                mode = sysroot.link_mode("/proc/%d/task/%d/fd/%d" % (pid, tid, number))
            except OSError:
                continue
            found.append((pid, bool(mode & CAN_READ), bool(mode & CAN_WRITE)))
        return found


class Families:
    """Processes that stand or fall together with one, so that ties among them say nothing."""

    __slots__ = ("_children", "_launcher_dead", "_sessions", "_table")

    def __init__(self, table: tasks.Table, launcher_dead: Callable[[tasks.Stat], bool]) -> None:
        self._table = table
        self._launcher_dead = launcher_dead
        self._sessions: Dict[int, Set[int]] = {}
        self._children: Dict[int, List[int]] = {}

    def of(self, one: tasks.Stat) -> Set[int]:
        """*one*, its session's processes without a launcher and their helpers, all descendants.

        Never its ancestors: what ties it to them is what the answer is about.
        """
        if not self._children:
            for other in self._table.everyone():
                self._children.setdefault(other.ppid, []).append(other.pid)
        if one.sid not in self._sessions:
            self._sessions[one.sid] = self._session(one.sid)
        found = self._sessions[one.sid] - self._above(one)
        found.add(one.pid)
        left = list(found)
        while left:
            for child in self._children.get(left.pop(), ()):
                if child not in found:
                    found.add(child)
                    left.append(child)
        return found

    def of_ranks(self, one: tasks.Stat, pids: Set[int]) -> Set[int]:
        """The families of those in *pids* whose launchers are dead; no ancestor of *one*."""
        found: Set[int] = set()
        for pid in pids:
            other = self._table.get(pid)
            if other is not None and self._launcher_dead(other):
                found |= self.of(other)
        return found - self._above(one)

    def _above(self, one: tasks.Stat) -> Set[int]:
        found: Set[int] = set()
        pid = one.ppid
        while pid and pid not in found:
            found.add(pid)
            above = self._table.get(pid)
            pid = above.ppid if above is not None else 0
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
) -> Dict[int, PeerEnds]:
    """PeerEnds of each process in *wanted*; a process whose files cannot be read has none."""
    everyone = _Everyone()
    asked = {one.pid for one in wanted}
    everyone.scan(asked)
    if any(where[2] > STANDARD for rows in everyone.held.values() for where in rows):
        everyone.scan(pid for pid in sysroot.pids() if pid not in asked)
    owned = everyone.own(asked)
    spaces = _spaces(owned)
    families = Families(table, launcher_dead)
    members = ranks.find(spaces.values(), everyone.socket_holders)
    return {
        one.pid: _judge(one, owned[one.pid], spaces, everyone, families, members)
        for one in wanted
        if one.pid in owned
    }


def _spaces(owned: Dict[int, _Own]) -> Dict[Optional[int], Sockets]:
    """The sockets of each network namespace that a process with sockets lives in."""
    here = namespace("self", "net")
    found: Dict[Optional[int], Sockets] = {}
    for pid, own in owned.items():
        if own.sockets:
            where = "%d/task/%d" % (pid, own.task)  # its main thread may have ended, or end now
            own.net = namespace(where, "net")
            if own.net not in found:
                found[own.net] = Sockets(where, own.net == here)
    return found


def _judge(
    one: tasks.Stat,
    own: _Own,
    spaces: Dict[Optional[int], Sockets],
    everyone: _Everyone,
    families: Families,
    members: Set[int],
) -> PeerEnds:
    """*members*: ranks of a collective library; ties among ranks without launchers say nothing."""
    ends = PeerEnds()
    space = spaces.get(own.net)
    peers: Set[int] = set()
    unknown = False  # an end whose other side somebody may hold, who cannot be named
    orphaned: Optional[int] = 0
    beyond = [
        inode
        for inode, where in own.pipes.items()
        if any(number > STANDARD for _, _, number in where)
    ]
    connected = [inode for inode, number in own.sockets.items() if number > STANDARD]
    family = families.of(one) if beyond or connected else set()
    if family and one.pid in members:
        family |= families.of_ranks(one, members)
    for inode in beyond:
        alone, others = _pipe(inode, one.pid, everyone, family)
        peers.update(others)
        if alone is None:
            unknown = True
        elif alone and orphaned is not None:
            orphaned += 1
    if unknown:
        orphaned = None
    if space is not None:
        ports = {
            inode: space.listening_ports[inode]
            for inode in own.sockets
            if inode in space.listening_ports
        }
        if one.pid in members:
            ports = ranks.serving(ports, space, members | family, everyone.socket_holders)
        ends.ports = sorted(set(ports.values()))
        ends.listening = bool(ports) or any(map(space.listens_for_others, own.sockets))
        if not ends.listening and not space.complete:
            ends.listening = None
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
    inode: int, pid: int, everyone: _Everyone, family: Set[int]
) -> Tuple[Optional[bool], Set[int]]:
    """(nobody holds the other end, outsiders that do) of one pipe; ``None``: not known."""
    link = "pipe:[%d]" % inode
    rows = everyone.holdings(link)
    reads = any(row[1] for row in rows if row[0] == pid)
    writes = any(row[2] for row in rows if row[0] == pid)
    others = {
        other
        for other, may_read, may_write in rows
        if other not in family and ((writes and may_read) or (reads and may_write))
    }
    if others:
        return False, others
    within = [row for row in rows if row[0] in family]
    if (reads and any(row[2] for row in within)) or (writes and any(row[1] for row in within)):
        return False, set()
    if not (reads or writes):  # closed meanwhile
        return False, set()
    ends = [where for where in everyone.held[link] if where[0] == pid]
    told = _told_by_pipe(ends[0], reads)
    if told is True:
        return True, set()
    if told is False:  # held where this agent cannot see
        return None, set()
    return (None if everyone.denied else True), set()


def _told_by_pipe(where: Where, reads: bool) -> Optional[bool]:
    """Ask the pipe whether its other end is closed everywhere; ``None`` where it is not told.

    Opening another process's end adds a second holder on the same side for a moment, which
    neither side notices.
    """
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
    return everyone.socket_holders(peer) - family
