"""The other ends of what a process has open: pipes, Unix sockets, TCP connections."""

from __future__ import annotations

from fleetmem.agent.ties import fifos, unlisted
from fleetmem.agent.ties.tables import (
    GONE_STATES,
    LISTEN,
    RECEIVES_NO_MORE,
    SENDS_NO_MORE,
    Tables,
    Tcp,
    Unix,
    address,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterable, List, Optional, Set, Tuple

    from fleetmem.agent.shapes import Link, Listener
    from fleetmem.agent.ties.walk import Walk

    Key = Tuple[object, ...]

STANDARD = 2
"""Descriptors up to here are how any shell or supervisor starts a program."""

MOST_ENDS = 64
"""Rows for one socket that many processes share: the rest are tied to those as forks."""

DRIVER_PLACE = "@cuda-uvmfd-"
"""Where every process listens that started CUDA, and its forks (driver 580): it serves nobody."""

CONNECTED = ("TCP", "TCPv6", "MPTCP", "MPTCPv6", "SMC", "SMC6", "VSOCK", "SCTP", "SCTPv6", "RDS")


class Links:
    """Ties that were found; equal ones are counted in one row."""

    __slots__ = ("_rows", "listeners", "reached")

    def __init__(self) -> None:
        self._rows: Dict[Key, Link] = {}
        self.listeners: Dict[Key, Listener] = {}
        self.reached: List[Tuple[int, bool]] = []
        """(other, whether to go on from there) since it was last emptied."""

    def add(
        self, kind: str, pid: int, where: str, other: Optional[int] = None, **more: Any
    ) -> None:
        """One more tie; *more* are fields that differ from those of a plain one."""
        row: Any = {
            "kind": kind,
            "pid": pid,
            "other": other,
            "where": where,
            "count": 0,
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
        key = tuple(
            value for name, value in row.items() if name not in ("address", "port", "local_port")
        )
        self._rows.setdefault(key, row)["count"] += 1
        if other is not None:
            mere_reader = row["standard"] and row["writes"] and not row["reads"]
            self.reached.append((other, not mere_reader))

    def rows(self) -> List[Link]:
        """All of them, with the places of their listeners."""
        places = {key: place for place, key in enumerate(self.listeners)}
        found = []
        for row in self._rows.values():
            key: Any = row["listener"]
            row["listener"] = places.get(key)
            found.append(row)
        return found


class Ends:
    """Finds the other ends, of one process after the other."""

    __slots__ = ("_ways", "links", "seen_all", "tables", "walk")

    def __init__(self, walk: Walk, tables: Tables, links: Links, seen_all: bool) -> None:
        """*seen_all*: this /proc shows every process of the machine."""
        self.walk = walk
        self.tables = tables
        self.links = links
        self.seen_all = seen_all
        self._ways: Dict[str, Dict[int, Tuple[bool, bool, bool]]] = {}

    def of(self, pid: int) -> List[str]:
        """Add the ties of one process; codes of what could not be read."""
        unreadable: Set[str] = set()
        if pid in self.walk.denied or pid in self.walk.budget.cut or pid in self.walk.late:
            unreadable.add("files")
        for link in sorted(self.walk.of.get(pid, ())):
            if link.startswith("pipe:["):
                self._pipe(pid, link)
            elif link.startswith("socket:["):
                self._socket(pid, link, unreadable)
        self._named_pipes(pid)
        return sorted(unreadable)

    # --- pipes -----------------------------------------------------------------------------

    def _pipe(self, pid: int, link: str, path: Optional[str] = None) -> None:
        """Each writer has a row to the first reader, the first reader one to each writer, and
        the other way round: enough to connect all, however many share the pipe."""
        ways = self._ways.get(link)
        if ways is None:
            ways = self._ways[link] = {}
            for one, reads, writes, number in self.walk.holdings(link):
                before = ways.get(one, (False, False, True))
                standard = before[2] and number <= STANDARD
                ways[one] = (before[0] or reads, before[1] or writes, standard)
        if pid not in ways:  # closed meanwhile
            return
        reads, writes, standard = ways[pid]
        more: Dict[str, Any] = {
            "standard": standard,
            "reads": reads,
            "writes": writes,
            "path": path,
        }
        others: Dict[int, None] = {}
        for mine, side, far in ((writes, 1, 0), (reads, 0, 1)):
            if mine:
                theirs = [one for one, way in ways.items() if way[far] and one != pid]
                first = next(one for one, way in ways.items() if way[side]) == pid
                others.update(dict.fromkeys(theirs if first else theirs[:1]))
        if others:
            self._rows("pipe", pid, others, **more)
        elif not (reads and writes):
            self.links.add("pipe", pid, self._nobody(pid, link, reads), **more)

    def _nobody(self, pid: int, link: str, reads: bool) -> str:
        """Nobody here has the other end of a pipe: what does the kernel itself say?"""
        place = next((one for one in self.walk.held.get(link, ()) if one[0] == pid), None)
        told = self.walk.told(place, reads)
        if told is None and self.seen_all and self.walk.complete():
            return "nobody"
        return "nobody" if told else "unreadable"

    def _named_pipes(self, pid: int) -> None:
        """FIFOs are files: found by their numbers, since a name differs between mounts."""
        for name, number in fifos.open_by(pid):
            link = "fifo:%d:%d:%d" % number
            if link not in self.walk.held:
                base = name.rpartition("/")[2]
                self.walk.held[link] = [
                    where
                    for other in self.walk.table.everyone()
                    for where in fifos.places(other.pid, base, number)
                ]
            self._pipe(pid, link, name)

    # --- sockets ---------------------------------------------------------------------------

    def _socket(self, pid: int, link: str, unreadable: Set[str]) -> None:
        inode = int(link[8:-1])
        standard = all(number <= STANDARD for number in self.walk.numbers(link, pid))
        unix = self.tables.unix.get(inode)
        if unix is not None:
            self._unix(pid, inode, unix, standard, unreadable)
            return
        tcp = self.tables.tcp.get(inode)
        if tcp is not None:
            self._tcp(pid, inode, tcp, standard, unreadable)
            return
        protocol = unlisted.protocol(self.walk, pid, link)
        if protocol == "":
            return  # closed meanwhile
        if protocol is None:
            if self.tables.unread:
                unreadable.add("sockets")
        elif protocol.startswith("UNIX"):
            unreadable.add("unix_peers")
            self.links.add("unix", pid, "unreadable", standard=standard, reads=True, writes=True)
        elif protocol in CONNECTED or protocol.startswith("UDP"):
            # A TCP socket without connection stands in no table: here every table was read. The
            # far end of a connected UDP socket is not looked for: it may be anywhere.
            listed = protocol.startswith("TCP") and "tcp" not in self.tables.unread
            asked = protocol.startswith(("TCP", "UDP"))
            if listed or (asked and unlisted.unconnected(pid, self.walk.numbers(link, pid)[0])):
                return
            unreadable.add("tcp")
            self.links.add("tcp", pid, "unreadable", standard=standard, reads=True, writes=True)

    def _unix(self, pid: int, inode: int, one: Unix, standard: bool, unreadable: Set[str]) -> None:
        if one.listens:
            if one.name is None or not one.name.startswith(DRIVER_PLACE):
                self._listens(("unix", one.key or inode), inode, "unix", path=one.name)
                for client in one.waiting:  # connected, and not accepted yet
                    self._rows(
                        "unix",
                        pid,
                        self._holders(client, pid),
                        path=one.name,
                        listener=("unix", one.key or inode),
                        reads=True,
                        writes=True,
                    )
            return
        peers = self.tables.unix_others(inode)
        listener = ("unix", one.key) if one.key is not None else None
        path = one.name
        for peer in peers:
            other = self.tables.unix.get(peer)
            if path is None and other is not None:
                path = other.name
        more: Dict[str, Any] = {
            "standard": standard,
            "reads": not one.shut & RECEIVES_NO_MORE,
            "writes": not one.shut & SENDS_NO_MORE,
            "path": path,
            "listener": listener,
        }
        if peers:
            for peer in peers:
                own = pid in self.walk.pids_of("socket:[%d]" % peer)
                holders = self._holders(peer, pid)
                if holders:
                    self._rows("unix", pid, holders, **more)
                elif not own:
                    unreadable.add("unix_peers")
                    self.links.add("unix", pid, "unreadable", **more)
            return
        if not one.connects:
            return  # a datagram socket that sends to whom it likes, or one not used yet
        at = self.tables.listener_that_holds(inode)
        if at is not None:
            self._rows("unix", pid, self._holders(at, pid), **more)
        elif one.closed:
            self.links.add("unix", pid, "nobody", closed=True, **more)
        else:
            unreadable.add("unix_peers")
            self.links.add("unix", pid, "unreadable", **more)

    def _tcp(self, pid: int, inode: int, one: Tcp, standard: bool, unreadable: Set[str]) -> None:
        here, port = address(one.local)
        if one.state == LISTEN:
            key = ("tcp", id(one.net), one.local)
            self._listens(
                key, inode, "tcp", address=here, port=port, ephemeral=one.net.ephemeral(port)
            )
            for (local, remote), taken in list(one.net.pairs.items()):
                if not taken and local.endswith(one.local.rpartition(b":")[2]):
                    self._waiting(pid, key, one, local, remote)
            return
        there, remote_port = address(one.remote)
        at = [end for end, _ in one.net.listeners if end.endswith(b":%04X" % port)]
        more: Dict[str, Any] = {
            "standard": standard,
            "reads": True,
            "writes": True,
            "closed": one.state in GONE_STATES,
            "address": there,
            "port": remote_port,
            "local_port": port,
            "listener": ("tcp", id(one.net), at[0]) if at else None,
        }
        where, holders = self._far_end(pid, one, there)
        if holders:
            self._rows("tcp", pid, holders, where or "here", **more)
        elif where is not None:
            if where == "unreadable":
                unreadable.add("tcp")
            self.links.add("tcp", pid, where, **more)

    def _far_end(self, pid: int, one: Tcp, there: str) -> Tuple[Optional[str], List[int]]:
        """(where the other end is, who holds it; ``None``: the process itself does)."""
        back = (one.remote, one.local)
        inode = one.net.pairs.get(back)
        if inode:
            link = "socket:[%d]" % inode
            holders = self._holders(inode, pid)
            if holders:
                return "here", holders
            return (None if pid in self.walk.pids_of(link) else "unreadable"), []
        if inode == 0 and one.state not in GONE_STATES:
            waits = [at for at in one.net.waits_at(one.remote) if at]
            holders = [other for at in waits for other in self._holders(at, pid)]
            if holders:
                return "here", holders
            if any(pid in self.walk.pids_of("socket:[%d]" % at) for at in waits):
                return None, []
        if one.net.is_local(there):
            if one.state in GONE_STATES:
                return "nobody", []
            return "unreadable", []
        for net in self.tables.nets.values():
            if net is not one.net and back in net.pairs:
                return "other_namespace", self._holders(net.pairs[back], pid)
        if "tcp" in self.tables.unread and one.net.where == "":
            return "unreadable", []
        return "elsewhere", []

    def _waiting(self, pid: int, key: Key, one: Tcp, local: bytes, remote: bytes) -> None:
        """A connection to a listener of *pid* that nobody has accepted yet."""
        there, port = address(remote)
        more: Dict[str, Any] = {
            "reads": True,
            "writes": True,
            "address": there,
            "port": port,
            "local_port": address(local)[1],
            "listener": key,
        }
        inode = one.net.pairs.get((remote, local))
        holders = self._holders(inode, pid) if inode else []
        if holders:
            self._rows("tcp", pid, holders, **more)
        elif inode is None and not one.net.is_local(there):
            self.links.add("tcp", pid, "elsewhere", **more)

    def _listens(self, key: Key, inode: int, kind: str, **more: Any) -> None:
        pids = self.walk.pids_of("socket:[%d]" % inode)
        row = self.links.listeners.get(key)
        if row is None:
            fresh: Any = {
                "kind": kind,
                "pids": pids,
                "address": None,
                "port": None,
                "path": None,
                "ephemeral": None,
                **more,
            }
            self.links.listeners[key] = fresh
        else:  # several sockets of one address (SO_REUSEPORT)
            row["pids"] = list(dict.fromkeys(row["pids"] + pids))

    def _holders(self, inode: int, pid: int) -> List[int]:
        return [other for other in self.walk.pids_of("socket:[%d]" % inode) if other != pid]

    def _rows(
        self, kind: str, pid: int, others: Iterable[int], where: str = "here", **more: Any
    ) -> None:
        for other in others if kind == "pipe" else list(others)[:MOST_ENDS]:
            self.links.add(kind, pid, where, other, **more)
