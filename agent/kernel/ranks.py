"""Ranks of a collective library (NCCL): who they are, which of their sockets serve only them.

Every rank listens on TCP ports for the others, and rank 0 often on the port of torch's
store; none of that serves a client. Each rank has a datagram socket of an abstract name
(NCCL 2.28, driver 580).
"""

from __future__ import annotations

from fleetmem.agent.kernel import sysroot

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Dict, Iterable, Optional, Set, Tuple

    from fleetmem.agent.kernel.sockets import Sockets

PLACE = "@tmp/nccl-socket-"
RAS_PORT = 28028
"""Where NCCL answers its own diagnosis tool on loopback, if NCCL_RAS_ADDR names no other."""

EPHEMERAL = (32768, 60999)
"""Linux's own range, where the kernel does not tell."""


def find(spaces: Iterable[Sockets], holders: Callable[[int], Set[int]]) -> Set[int]:
    """Pids that hold a rank's socket. *holders*: pids that have a socket open, by inode."""
    found: Set[int] = set()
    for space in spaces:
        for inode, one in space.unix.items():
            if one.name is not None and one.name.startswith(PLACE):
                found |= holders(inode)
    return found


def serving(
    ports: Dict[int, int], space: Sockets, ranks: Set[int], holders: Callable[[int], Set[int]]
) -> Dict[int, int]:
    """Those of a rank's listening *ports* (by inode) that may serve somebody else.

    A port that somebody is connected to serves only ranks where all who are connected are
    ranks of this host; one without connections where the kernel chose its number, or
    where it is the one of NCCL's diagnosis.
    """
    low, high = _ephemeral()
    left: Dict[int, int] = {}
    for inode, port in ports.items():
        connected = space.connected_to(port)
        if connected:
            clients = [holders(peer) if peer else None for peer in connected]
            between = all(one is not None and one <= ranks for one in clients)
        else:
            between = low <= port <= high or port == RAS_PORT
        if not between:
            left[inode] = port
    return left


_range: Optional[Tuple[int, int]] = None


def _ephemeral() -> Tuple[int, int]:
    global _range  # noqa: PLW0603 - read once a process
    if _range is None:
        try:
            words = sysroot.text("/proc/sys/net/ipv4/ip_local_port_range").split()
            _range = int(words[0]), int(words[1])
        except (OSError, ValueError, IndexError):
            _range = EPHEMERAL
    return _range
