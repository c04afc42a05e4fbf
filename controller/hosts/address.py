"""``user@host:port`` in all its forms, IPv6 included."""

from __future__ import annotations

import re
from ipaddress import IPv6Address
from typing import NamedTuple

from fleetmem.controller.errors import UsageError
from fleetmem.controller.hosts.nodeset import short

_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+\\-]*\$?\Z")


class Address(NamedTuple):
    """One written address; ``user`` and ``port`` are None where not given."""

    user: str | None
    host: str
    port: int | None

    @property
    def is_plain(self) -> bool:
        """Whether only a name was given."""
        return self.user is None and self.port is None

    def __str__(self) -> str:
        """The shortest spelling that reads back as the same target."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        user = f"{self.user}@" if self.user is not None else ""
        return user + host + (f":{self.port}" if self.port is not None else "")


def parse_target(text: str) -> Address:
    """*text* in its parts: ``host``, ``user@host:22``, ``[::1]:22``, ``root@fe80::1``.

    The host may be a node set. UsageError where the parts make no sense.
    """
    user, at, rest = text.rpartition("@")
    if at and not _USER.match(user):
        raise UsageError(f'"{short(text)}": "{short(user)}" is not a user name')
    host, port = _split_port(rest)
    if not host or host[0] == "-":
        raise UsageError(f'"{short(text)}" matches no host')
    if port is None:
        return Address(user if at else None, host, None)
    if not port.isascii() or not port.isdigit() or not 1 <= int(port[:6]) <= 65535:
        raise UsageError(f'"{short(text)}": "{short(port)}" is not a port from 1 to 65535')
    return Address(user if at else None, host, int(port))


def is_ipv6(text: str) -> bool:
    """Whether *text* is an IPv6 address, a zone allowed, no brackets."""
    try:
        IPv6Address(text)
    except ValueError:
        return False
    return True


def _split_port(text: str) -> tuple[str, str | None]:
    """(host, port text); brackets around an IPv6 address are dropped."""
    if text.startswith("["):
        inside, closed, tail = text[1:].partition("]")
        if closed and is_ipv6(inside):
            if not tail:
                return inside, None
            if tail.startswith(":"):
                return inside, tail[1:]
            raise UsageError(f'"{short(text)}": after ] only :port can follow')
    if is_ipv6(text):
        return text, None
    host, colon, port = text.rpartition(":")
    if not colon:
        return text, None
    if ":" in host:
        raise UsageError(f'"{short(text)}" is neither a name nor an IPv6 address')
    return host, port
