"""Sockets of every network namespace: TCP from /proc, Unix sockets and their peers from sock_diag.

A socket's inode is unique over the whole host, so one table holds them all, whichever
namespace they live in. What could not be read is kept: absence from a table that was not
read says nothing.
"""

from __future__ import annotations

import os
from sys import byteorder

from fleetmem.agent.kernel import sysroot

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket
    from typing import Dict, Iterator, List, Optional, Set, Tuple

    Address = Tuple[str, int]
    """text of an address, port"""
    Pair = Tuple[bytes, bytes]

LISTEN = b"0A"
GONE_STATES = (b"06", b"07", b"08", b"09", b"0B")
"""TIME_WAIT, CLOSE, CLOSE_WAIT, LAST_ACK, CLOSING: the other end sends no more."""

UNIX_LISTENS = 10
CONNECTION_TYPES = (1, 5)
"""SOCK_STREAM and SOCK_SEQPACKET: they know when the other side has closed."""
RECEIVES_NO_MORE, SENDS_NO_MORE, NEITHER = 1, 2, 3

MAPPED = b"0000000000000000FFFF0000" if byteorder == "little" else b"00000000000000000000FFFF"
"""What stands before an IPv4 address in the table of IPv6."""

CLONE_NEWNET = 0x40000000
AF_NETLINK, NETLINK_SOCK_DIAG = 16, 4
SOCK_DIAG_BY_FAMILY = 20
DUMP_REQUEST = 0x301  # NLM_F_REQUEST | NLM_F_DUMP
NLMSG_ERROR, NLMSG_DONE = 2, 3
SHOW = 0x1 | 0x2 | 0x4 | 0x8  # name, file, peer, connections that wait to be accepted
NAME, FILE, PEER, WAITING, SHUTDOWN = 0, 1, 2, 3, 6


class Unix:
    """One Unix socket.

    ``peer`` is the other end's inode, 0 where it has none (now). ``key`` is the same for a
    listener and all that came in through it. ``closed``: it was connected, and the other
    end was closed by all who held it. ``connects``: connected, though its peer is unknown.
    """

    __slots__ = ("closed", "connects", "key", "listens", "name", "peer", "shut", "waiting")

    def __init__(self) -> None:
        self.name: Optional[str] = None
        self.key: Optional[Tuple[object, ...]] = None
        self.peer = 0
        self.shut = 0
        self.closed = self.connects = self.listens = False
        self.waiting: Tuple[int, ...] = ()


class Tcp:
    """One TCP socket of a process; ends as the kernel prints them."""

    __slots__ = ("local", "net", "remote", "state")

    def __init__(self, net: Net, local: bytes, remote: bytes, state: bytes) -> None:
        self.net = net
        self.local = local
        self.remote = remote
        self.state = state


class Net:
    """One network namespace, read through ``where``: a process in it."""

    __slots__ = ("_addresses", "listeners", "pairs", "ports", "where")

    def __init__(self, where: str) -> None:
        self.where = where
        self.pairs: Dict[Pair, int] = {}  # inode 0: nobody has it as a file (yet, or any more)
        self.listeners: List[Tuple[bytes, int]] = []
        self._addresses: Optional[Set[str]] = None
        self.ports: Optional[Tuple[int, int]] = None

    def ephemeral(self, port: int) -> Optional[bool]:
        """Whether the kernel itself may have chosen *port* here; ``None`` where it is not told."""
        return None if self.ports is None else self.ports[0] <= port <= self.ports[1]

    def is_local(self, address: str) -> bool:
        """Whether *address* is one of this namespace's own."""
        if address.startswith("127.") or address == "::1":
            return True
        if self._addresses is None:
            self._addresses = _addresses(self.where)
        return address in self._addresses

    def waits_at(self, end: bytes) -> List[int]:
        """Inodes of the listening sockets that take connections to *end*."""
        address, _, port = end.rpartition(b":")
        return [
            inode
            for bound, inode in self.listeners
            if bound.endswith(b":" + port)
            and (bound.startswith(address + b":") or not bound.rpartition(b":")[0].strip(b"0"))
        ]


class Tables:
    """All sockets by inode. ``unread`` has what was not read: ``tcp unix_peers unix``."""

    __slots__ = ("_others", "nets", "tcp", "unix", "unread")

    def __init__(self) -> None:
        self.tcp: Dict[int, Tcp] = {}
        self.unix: Dict[int, Unix] = {}
        self.nets: Dict[int, Net] = {}
        self.unread: Set[str] = set()
        self._others: Optional[Dict[int, List[int]]] = None

    def read(self, namespace: int, where: str, inside: bool) -> None:
        """Take the tables of one namespace; *inside* is true where it is the reader's own."""
        net = self.nets[namespace] = Net(where)
        if not self._tcp(net, "/proc/%s/net/tcp" % where):
            self.unread.add("tcp")
        six = "/proc/%s/net/tcp6" % where
        if sysroot.exists(six) and not self._tcp(net, six):  # not where IPv6 is switched off
            self.unread.add("tcp")
        found = None
        with _Inside(where, inside) as entered:
            if entered:  # also for this file: it is the reader's own namespace's
                net.ports = _port_range()
                found = by_diag(where)
        if found is None:
            self.unread.add("unix_peers")
            found = _by_proc(where)
            if found is None:
                self.unread.add("unix")
        self.unix.update(found or {})

    def _tcp(self, net: Net, name: str) -> bool:
        try:
            data = sysroot.read(name, sysroot.LARGE)
        except OSError:
            return False
        for line in data.split(b"\n")[1:]:
            parts = line.split(None, 10)
            if len(parts) < 10:
                continue
            local, remote, state, inode = _bare(parts[1]), _bare(parts[2]), parts[3], int(parts[9])
            if state == LISTEN:
                net.listeners.append((local, inode))
            else:
                net.pairs[(local, remote)] = inode
            if inode:
                self.tcp[inode] = Tcp(net, local, remote, state)
        return len(data) < sysroot.LARGE

    def unix_others(self, inode: int) -> List[int]:
        """The other ends of a Unix socket: its peer, and datagram sockets connected to it."""
        if self._others is None:
            self._others = {}
            for other, one in self.unix.items():
                if one.peer:
                    self._others.setdefault(one.peer, []).append(other)
        found = list(self._others.get(inode, ()))
        mine = self.unix.get(inode)
        if mine is not None and mine.peer and mine.peer not in found:
            found.append(mine.peer)
        return found

    def listener_that_holds(self, inode: int) -> Optional[int]:
        """The Unix listener at which a connection waits to be accepted."""
        for listener, one in self.unix.items():
            if inode in one.waiting:
                return listener
        return None


def address(end: bytes) -> Address:
    """An end of a connection as people write it."""
    import _socket

    text, _, port = end.rpartition(b":")
    words = [int(text[at : at + 8], 16).to_bytes(4, byteorder) for at in range(0, len(text), 8)]
    family = _socket.AF_INET if len(words) == 1 else _socket.AF_INET6
    return _socket.inet_ntop(family, b"".join(words)), int(port, 16)


def _bare(end: bytes) -> bytes:
    """An IPv4 address in the form of IPv6 as the IPv4 address that it is."""
    return end[len(MAPPED) :] if end.startswith(MAPPED) else end


def _addresses(where: str) -> Set[str]:
    """The namespace's own addresses, from its routing table of local ones."""
    found: Set[str] = set()
    last = ""
    try:
        for line in sysroot.text("/proc/%s/net/fib_trie" % where, sysroot.LARGE).splitlines():
            words = line.split()
            if len(words) == 2 and words[0] == "|--":
                last = words[1]
            elif words[-2:] == ["host", "LOCAL"]:
                found.add(last)
    except OSError:
        pass
    try:
        import _socket

        for line in sysroot.text("/proc/%s/net/if_inet6" % where, sysroot.LARGE).splitlines():
            digits = line.split(None, 1)[0]
            found.add(_socket.inet_ntop(_socket.AF_INET6, bytes.fromhex(digits)))
    except (OSError, ValueError, IndexError):
        pass
    return found


# --- Unix sockets --------------------------------------------------------------------------


def _by_proc(where: str) -> Optional[Dict[int, Unix]]:
    """Unix sockets without their peers, which /proc does not tell; ``None`` where refused."""
    found: Dict[int, Unix] = {}
    try:
        lines = sysroot.read("/proc/%s/net/unix" % where, sysroot.LARGE).split(b"\n")
    except OSError:
        return None
    for line in lines[1:]:
        parts = line.split(None, 7)
        if len(parts) < 7:
            continue
        one = found[int(parts[6])] = Unix()
        if len(parts) > 7:
            one.name = parts[7].decode("utf-8", "replace")
            one.key = (where, one.name)
        one.listens = bool(int(parts[3], 16) & 0x10000)
        one.connects = not one.listens and parts[5] == b"03"
    return found


class _Inside:
    """Work in the network namespace of another process, and return from it."""

    __slots__ = ("_home", "_inside", "_where")

    def __init__(self, where: str, inside: bool) -> None:
        self._where = where
        self._inside = inside
        self._home: Optional[int] = None

    def __enter__(self) -> bool:
        if self._inside:
            return True
        try:
            home = os.open("/proc/self/ns/net", os.O_RDONLY)
            there = os.open(sysroot.path("/proc/%s/ns/net" % self._where), os.O_RDONLY)
        except OSError:
            return False
        if _enter(there):
            self._home = home
            return True
        os.close(home)
        return False

    def __exit__(self, *_: object) -> None:
        if self._home is not None and not _enter(self._home):
            raise SystemExit("cannot return to the own network namespace")


def _enter(namespace: int) -> bool:
    from fleetmem.agent.kernel import clib

    try:
        return not clib.function("setns")(namespace, CLONE_NEWNET)
    finally:
        os.close(namespace)


def _port_range() -> Optional[Tuple[int, int]]:
    try:
        words = sysroot.text("/proc/sys/net/ipv4/ip_local_port_range").split()
        return int(words[0]), int(words[1])
    except (OSError, ValueError, IndexError):
        return None


def by_diag(where: str) -> Optional[Dict[int, Unix]]:
    """All Unix sockets of this network namespace, ``None`` where the kernel does not tell."""
    try:
        import _socket

        channel = _socket.socket(AF_NETLINK, _socket.SOCK_RAW, NETLINK_SOCK_DIAG)
    except (ImportError, OSError):
        return None
    try:
        channel.settimeout(2.0)
        return dict(_dump(channel, where))
    except (OSError, ValueError):
        return None
    finally:
        channel.close()


def _dump(channel: _socket.socket, where: str) -> Iterator[Tuple[int, Unix]]:
    request = (
        bytes((1, 0, 0, 0))  # AF_UNIX
        + b"\xff\xff\xff\xff"  # every state
        + bytes(4)
        + SHOW.to_bytes(4, byteorder)
        + b"\xff" * 8
    )
    head = (
        (16 + len(request)).to_bytes(4, byteorder)
        + SOCK_DIAG_BY_FAMILY.to_bytes(2, byteorder)
        + DUMP_REQUEST.to_bytes(2, byteorder)
        + bytes(8)
    )
    channel.send(head + request)
    while True:
        data = channel.recv(1 << 17)
        at = 0
        while at + 16 <= len(data):
            size = int.from_bytes(data[at : at + 4], byteorder)
            kind = int.from_bytes(data[at + 4 : at + 6], byteorder)
            if kind == NLMSG_DONE:
                return
            if kind == NLMSG_ERROR or size < 32:
                raise ValueError("sock_diag refused")
            yield _one(data[at + 16 : at + size], where)
            at += (size + 3) & ~3


def _one(body: bytes, where: str) -> Tuple[int, Unix]:
    inode = int.from_bytes(body[4:8], byteorder)
    one = Unix()
    at = 16
    while at + 4 <= len(body):
        size = int.from_bytes(body[at : at + 2], byteorder)
        kind = int.from_bytes(body[at + 2 : at + 4], byteorder)
        if size < 4:
            break
        value = body[at + 4 : at + size]
        if kind == PEER:
            one.peer = int.from_bytes(value[:4], byteorder)
        elif kind == NAME:
            one.name = value.rstrip(b"\0").replace(b"\0", b"@").decode("utf-8", "replace")
            if one.key is None:
                one.key = (where, one.name)
        elif kind == FILE:
            one.key = (value[:8],)  # the same file, in whichever namespace it has a name
        elif kind == WAITING:
            one.waiting = tuple(
                int.from_bytes(value[n : n + 4], byteorder) for n in range(0, len(value), 4)
            )
        elif kind == SHUTDOWN:
            one.shut = value[0]
        at += (size + 3) & ~3
    one.listens = body[2] == UNIX_LISTENS
    one.connects = not one.listens and (bool(one.peer) or body[2] == 1)
    # A connection that was not accepted yet has no inode at its other end either.
    one.closed = not one.peer and body[1] in CONNECTION_TYPES and one.shut == NEITHER
    return inode, one
