"""Sockets of a network namespace: TCP from /proc, unix sockets and their peers from sock_diag."""

from __future__ import annotations

import os
from sys import byteorder

from fleetmem.agent.kernel import sysroot

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket
    from typing import Dict, Iterator, List, Optional, Tuple

    Pair = Tuple[bytes, bytes]

TCP_ESTABLISHED = b"01"
TCP_LISTEN = b"0A"
UNIX_LISTEN = 10
CONNECTION_TYPES = (1, 5)
"""SOCK_STREAM and SOCK_SEQPACKET: they know when the other side has closed."""

SYSTEM_PLACES = ("/run/", "/var/run/", "/dev/")
"""Where services of the system listen: a connection there says nothing about an owner."""

DRIVER_PLACE = "@cuda-uvmfd-"
"""Where every process listens that started CUDA, and its forks (driver 580): it serves nobody."""

MAPPED = b"0000000000000000FFFF0000"
"""What stands before an IPv4 address in the table of IPv6."""

CLONE_NEWNET = 0x40000000
AF_NETLINK, NETLINK_SOCK_DIAG = 16, 4
SOCK_DIAG_BY_FAMILY = 20
DUMP_REQUEST = 0x301  # NLM_F_REQUEST | NLM_F_DUMP
NLMSG_ERROR, NLMSG_DONE = 2, 3
UDIAG_SHOW_NAME_AND_PEER = 0x5
ATTRIBUTE_NAME, ATTRIBUTE_PEER, ATTRIBUTE_SHUTDOWN = 0, 2, 6
SHUT_BOTH_WAYS = 3


class UnixTable:
    """One unix socket. ``peer`` is the other end's inode, 0 where it has none (now).

    ``closed``: it was connected, and the other end was closed by all who held it.
    """

    __slots__ = ("closed", "listens", "name", "peer")

    def __init__(self, name: Optional[str], peer: int, closed: bool, listens: bool) -> None:
        self.name = name
        self.peer = peer
        self.closed = closed
        self.listens = listens


class Sockets:
    """The sockets of one network namespace, by inode."""

    __slots__ = (
        "complete",
        "listening_ports",
        "pairs",
        "tcp_inodes",
        "unaccepted",
        "unix",
        "unix_peers_known",
    )

    def __init__(self, where: str, inside: bool) -> None:
        """*where*: a process in the namespace, or one of its tasks as ``PID/task/TID``.

        *inside* is true where it is our own. ``complete`` is false where a table could not be
        read: a socket that is not in it may then listen all the same.
        """
        self.listening_ports: Dict[int, int] = {}
        self.pairs: Dict[int, Pair] = {}
        self.unaccepted: List[Pair] = []  # nobody has taken the connection: it has no inode yet
        self.tcp_inodes: Dict[Pair, int] = {}
        self.complete = self._tcp("/proc/%s/net/tcp" % where)
        if sysroot.exists("/proc/%s/net/tcp6" % where):  # not where IPv6 is switched off
            self.complete = self._tcp("/proc/%s/net/tcp6" % where) and self.complete
        found = _by_diag(where, inside)
        self.unix_peers_known = found is not None
        known = _by_proc(where) if found is None else found
        self.complete = self.complete and known is not None
        self.unix: Dict[int, UnixTable] = known or {}

    def _tcp(self, name: str) -> bool:
        """Take one table; false where it cannot be read."""
        try:
            lines = sysroot.read(name, sysroot.LARGE).split(b"\n")
        except OSError:
            return False
        for line in lines[1:]:
            parts = line.split(None, 10)
            if len(parts) < 10:
                continue
            state = parts[3]
            if state == TCP_LISTEN:
                self.listening_ports[int(parts[9])] = int(parts[1].rpartition(b":")[2], 16)
            elif state == TCP_ESTABLISHED:
                pair = (_bare(parts[1]), _bare(parts[2]))
                inode = int(parts[9])
                if inode:
                    self.pairs[inode] = pair
                else:
                    self.unaccepted.append(pair)
                self.tcp_inodes[pair] = inode
        return True

    def tcp_peer(self, inode: int) -> int:
        """Inode of the other end of a connection within this host, 0 where it has none here."""
        pair = self.pairs.get(inode)
        return self.tcp_inodes.get((pair[1], pair[0]), 0) if pair else 0

    def connected_to(self, port: int) -> List[int]:
        """The other ends of connections to a listening *port*: inodes, 0 for one elsewhere."""
        end = b":%04X" % port
        return [
            self.tcp_inodes.get((pair[1], pair[0]), 0)
            for pair in (*self.pairs.values(), *self.unaccepted)
            if pair[0].endswith(end)
        ]

    def listens_for_others(self, inode: int) -> bool:
        """Whether a unix socket listens, other than the one that CUDA keeps for itself."""
        one = self.unix.get(inode)
        if one is None or not one.listens:
            return False
        return one.name is None or not one.name.startswith(DRIVER_PLACE)

    def of_system(self, inode: int) -> bool:
        """Whether one end of a unix connection is an endpoint of the system's own services."""
        one = self.unix.get(inode)
        other = self.unix.get(one.peer) if one is not None and one.peer else None
        return any(
            end is not None and end.name is not None and end.name.startswith(SYSTEM_PLACES)
            for end in (one, other)
        )


def _bare(address: bytes) -> bytes:
    """An IPv4 address in the form of IPv6 as the IPv4 address that it is."""
    return address[len(MAPPED) :] if address.startswith(MAPPED) else address


def _by_proc(where: str) -> Optional[Dict[int, UnixTable]]:
    """UnixTable sockets without their peers, which /proc does not tell; ``None`` where refused."""
    found: Dict[int, UnixTable] = {}
    try:
        lines = sysroot.read("/proc/%s/net/unix" % where, sysroot.LARGE).split(b"\n")
    except OSError:
        return None
    for line in lines[1:]:
        parts = line.split(None, 7)
        if len(parts) < 7:
            continue
        name = parts[7].decode("utf-8", "replace") if len(parts) > 7 else None
        listens = bool(int(parts[3], 16) & 0x10000)
        found[int(parts[6])] = UnixTable(name, 0, False, listens)
    return found


def _channel() -> _socket.socket:
    import _socket

    return _socket.socket(AF_NETLINK, _socket.SOCK_RAW, NETLINK_SOCK_DIAG)


def _by_diag(where: str, inside: bool) -> Optional[Dict[int, UnixTable]]:
    """All unix sockets of a network namespace, ``None`` where the kernel does not tell."""
    try:
        channel = _channel() if inside else _elsewhere(where)
    except (ImportError, OSError):
        return None
    try:
        channel.settimeout(1.0)
        return dict(_dump(channel))
    except (OSError, ValueError):
        return None
    finally:
        channel.close()


def _elsewhere(where: str) -> _socket.socket:
    """A netlink socket in another process's network namespace; OSError where refused."""
    from fleetmem.agent.kernel import clib

    enter = clib.function("setns")
    home = os.open("/proc/self/ns/net", os.O_RDONLY)
    try:
        there = os.open(sysroot.path("/proc/%s/ns/net" % where), os.O_RDONLY)
        try:
            if enter(there, CLONE_NEWNET):
                raise OSError(clib.get_errno(), "setns")
        finally:
            os.close(there)
        try:
            return _channel()
        finally:
            if enter(home, CLONE_NEWNET):
                raise SystemExit("cannot return to the own network namespace")
    finally:
        os.close(home)


def _dump(channel: _socket.socket) -> Iterator[Tuple[int, UnixTable]]:
    request = (
        bytes((1, 0, 0, 0))  # AF_UNIX
        + b"\xff\xff\xff\xff"  # every state
        + bytes(4)
        + UDIAG_SHOW_NAME_AND_PEER.to_bytes(4, byteorder)
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
            yield _one(data[at + 16 : at + size])
            at += (size + 3) & ~3


def _one(body: bytes) -> Tuple[int, UnixTable]:
    inode = int.from_bytes(body[4:8], byteorder)
    name: Optional[str] = None
    peer = shutdown = 0
    at = 16
    while at + 4 <= len(body):
        size = int.from_bytes(body[at : at + 2], byteorder)
        kind = int.from_bytes(body[at + 2 : at + 4], byteorder)
        if size < 4:
            break
        value = body[at + 4 : at + size]
        if kind == ATTRIBUTE_PEER:
            peer = int.from_bytes(value[:4], byteorder)
        elif kind == ATTRIBUTE_NAME:
            name = value.rstrip(b"\0").replace(b"\0", b"@").decode("utf-8", "replace")
        elif kind == ATTRIBUTE_SHUTDOWN:
            shutdown = value[0]
        at += (size + 3) & ~3
    # A connection that was not accepted yet has no inode at its other end either.
    closed = not peer and body[1] in CONNECTION_TYPES and shutdown == SHUT_BOTH_WAYS
    return inode, UnixTable(name, peer, closed, body[2] == UNIX_LISTEN)
