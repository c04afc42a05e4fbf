"""Whether two entries mean the same machine: what ``-x`` goes by, whatever ``-H`` calls it.

A machine is known by its inventory name, or by where SSH leads: address, port, the way there.
The user is not part of that. Two inventory names are compared by what the inventory says. A host
that was typed as an address or another name is compared with ``~/.ssh/config`` and DNS, too; what
cannot be looked up is unknown, which is never taken for "another machine".
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address

from fleetmem.controller.hosts.host import Host

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Locate = Callable[[Host], tuple[str, int]]
    Lookup = Callable[[str], frozenset[str]]

SSH_PORT = 22
_LOOPBACK = "loopback"


@dataclass(frozen=True)
class HostPlace:
    """Where a host is: its address in one spelling, its port (None: any), the hosts on the way."""

    address: str
    port: int | None
    way: tuple[str, ...] | None

    def meets(self, other: HostPlace) -> bool:
        """Whether both lead to one machine, as far as port and way can say."""
        if None not in (self.port, other.port) and self.port != other.port:
            return False
        return None in (self.way, other.way) or self.way == other.way


class Atlas:
    """Places of hosts, each found once. *listed*: names of the inventory."""

    def __init__(self, listed: frozenset[str], locate: Locate, lookup: Lookup) -> None:
        self._listed = listed
        self._locate = locate
        self._lookup = lookup
        self._places: dict[Host, HostPlace] = {}
        self._found: dict[str, frozenset[str]] = {}

    def is_listed(self, host: Host) -> bool:
        """Whether the inventory has *host*."""
        return host.name in self._listed

    def place(self, host: Host) -> HostPlace:
        """Where *host* is, by the inventory and ``~/.ssh/config``."""
        if host not in self._places:
            self._places[host] = self._place(host)
        return self._places[host]

    def _place(self, host: Host) -> HostPlace:
        if host.transport == "command":
            away = f"by command: {host.name}"
            return HostPlace(
                away if host.address == host.name else spelled(host.address), None, None
            )
        if host.transport == "local":
            return HostPlace(_LOOPBACK, None, None)
        address, port = self._locate(host)
        typed = not self.is_listed(host)
        return HostPlace(
            spelled(address),
            None if typed and host.port is None else port,
            None if typed else tuple(hop.name for hop in host.jump),
        )

    def same(self, one: Host, other: Host) -> bool | None:
        """Whether both are one machine; None where a name could not be looked up."""
        if one.name == other.name:
            return True
        a, b = self.place(one), self.place(other)
        if not a.meets(b):
            return False
        if a.address == b.address:
            return True
        if self.is_listed(one) and self.is_listed(other):
            return False
        if _is_number(a.address) and _is_number(b.address):
            return False
        mine, theirs = self._addresses(a.address), self._addresses(b.address)
        return bool(mine & theirs) if mine and theirs else None

    def _addresses(self, address: str) -> frozenset[str]:
        if _is_number(address):
            return frozenset([address])
        if address not in self._found:
            self._found[address] = frozenset(map(spelled, self._lookup(address)))
        return self._found[address]


def spelled(address: str) -> str:
    """*address* in one spelling; this machine's own has one name."""
    text = address.strip("[]").rstrip(".").lower()
    try:
        number = ip_address(text)
    except ValueError:
        return _LOOPBACK if text == "localhost" else text
    found = str(getattr(number, "ipv4_mapped", None) or number)
    return _LOOPBACK if found in ("127.0.0.1", "::1") else found


def _is_number(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return text == _LOOPBACK
    return True


def written(host: Host) -> tuple[str, int]:
    """Address and port as the inventory or the command line has them."""
    return host.address, host.port or SSH_PORT


def resolved(name: str) -> frozenset[str]:
    """The addresses that this machine finds for *name*; none where it finds none."""
    import socket

    try:
        rows = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return frozenset()
    return frozenset(str(row[4][0]) for row in rows)
