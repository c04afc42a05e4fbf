"""A host and an inventory as values."""

from __future__ import annotations

from dataclasses import dataclass, field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

CONNECT_TIMEOUT_SECONDS = 10.0


@dataclass(frozen=True)
class Host:
    """One host and how to reach it.

    ``user`` and ``port`` are None where ``~/.ssh/config`` or SSH's own default decides,
    ``known_hosts`` None means the user's and the machine's files. ``jump`` holds the hosts
    on the way, the first hop first. ``serves`` names the model whose hosts are one transaction.
    """

    name: str
    address: str
    port: int | None = None
    user: str | None = None
    identities: tuple[str, ...] = ()
    known_hosts: str | None = None
    jump: tuple[Host, ...] = ()
    python: str | None = None
    sudo: bool = False
    transport: str = "ssh"
    command: tuple[str, ...] = ()
    connect_timeout_seconds: float = CONNECT_TIMEOUT_SECONDS
    labels: tuple[tuple[str, str], ...] = ()
    groups: tuple[str, ...] = ()
    serves: str | None = None


@dataclass(frozen=True)
class Inventory:
    """All hosts by name, in the order of the file, and the groups' member names.

    ``file`` is None where there is none; ``template`` is what a host that is not listed
    gets from ``defaults``. ``warnings`` are lines for a person.
    """

    file: str | None = None
    hosts: Mapping[str, Host] = field(default_factory=dict)
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    template: Host = Host("", "")
    warnings: tuple[str, ...] = ()
