"""Ways to a host: one contract, kept by :mod:`ssh <.ssh>` and :mod:`command <.command>`.

``connect`` raises errors of :mod:`fleetmem.controller.errors` only. The conformance suite in
``tests/contract/test_transport.py`` holds every transport to what is written here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from fleetmem.controller.answer.step import DIRECT, Reach

if TYPE_CHECKING:
    from collections.abc import Callable

STDERR_BYTES = 64 * 1024
"""How much of a command's stderr is kept; the rest is read and dropped."""


@dataclass(frozen=True)
class Exit:
    """How a command ended: a status, or the name of a signal without SIG."""

    status: int | None
    signal: str | None = None


@dataclass(frozen=True)
class ConnectSettings:
    """What is the same for every connection of a run; spans in seconds.

    ``on_new_host_key`` is called with (host name, fingerprint, known_hosts path) for each key
    accepted under ``accept_new_host_key``. ``retry_seconds`` bounds the retries of connections
    that a busy sshd drops; ``endpoint_limit`` is how many handshakes one address and port get
    at a time. ``reach`` is what commands in
    hints repeat. ``config_files`` None means ``~/.ssh/config`` where there is one. ``shared`` is
    the transports' own: what is parsed once, and the connections to jump hosts.
    """

    accept_new_host_key: bool = False
    reach: Reach = DIRECT
    on_new_host_key: Callable[[str, str, str], None] | None = None
    login_timeout_seconds: float = 60.0
    retry_seconds: float = 60.0
    endpoint_limit: int = 8
    config_files: tuple[str, ...] | None = None
    shared: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)


class Channel(Protocol):
    """One running command."""

    async def read(self, n: int) -> bytes:
        """Up to *n* bytes of stdout as soon as there are any; ``b""`` at its end, for good.

        A lost session ends stdout too; :meth:`wait` tells the difference.
        """
        ...

    def write(self, data: bytes) -> None:
        """Queue *data* for stdin; SessionLost where the command takes none any more."""
        ...

    async def drain(self) -> None:
        """Return when the queue is short enough to write more; SessionLost when it never is."""
        ...

    def write_eof(self) -> None:
        """End stdin after what is queued. May be called twice."""
        ...

    def stderr(self) -> bytes:
        """What arrived on stderr so far, at most 64 KiB; it never blocks the command."""
        ...

    async def wait(self) -> Exit:
        """How the command ended; SessionLost where that was never said. May be called again."""
        ...

    async def close(self) -> None:
        """Give the channel up, within seconds. The second call does nothing; never raises."""
        ...


class Connection(Protocol):
    """A way to one host, good for many commands. ``peer`` says where it leads."""

    peer: str
    attempts: int

    async def start(self, command: str) -> Channel:
        """Run *command* in the host's shell, without a terminal."""
        ...

    async def close(self) -> None:
        """End the connection and its channels, within seconds. Twice is fine; never raises."""
        ...
