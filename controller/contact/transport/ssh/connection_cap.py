"""Sharing between connections: turns at one sshd, and the ways through jump hosts."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fleetmem.controller.errors import FleetError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import asyncssh

    from fleetmem.controller.hosts.host import Host

TUNNELS_PER_CONNECTION = 32
"""A connection to a jump host carries this many others before a second one is opened."""


class Gate:
    """How many handshakes one sshd gets at a time; halves whenever it drops one.

    sshd's MaxStartups counts connections that have not logged in yet, over all names that
    lead to it.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._active = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def __aenter__(self) -> None:
        if self._active >= self.limit:
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._leave()
                elif turn in self._waiting:
                    self._waiting.remove(turn)
                raise
        else:
            self._active += 1

    async def __aexit__(self, *_: object) -> None:
        self._leave()

    def dropped(self) -> None:
        """sshd closed a connection during the handshake."""
        self.limit = max(1, self.limit // 2)

    def _leave(self) -> None:
        self._active -= 1
        while self._waiting and self._active < self.limit:
            turn = self._waiting.popleft()
            if not turn.done():
                self._active += 1
                turn.set_result(None)


@dataclass
class Jump:
    """One connection to the last host of a way, with the number of those who use it."""

    way: tuple[Host, ...]
    opening: asyncio.Task[Any]
    users: int = 0

    @property
    def usable(self) -> bool:
        """Whether another connection may go through."""
        if self.users >= TUNNELS_PER_CONNECTION:
            return False
        if not self.opening.done():
            return True
        if self.opening.cancelled() or self.opening.exception() is not None:
            return False
        return not self.opening.result().is_closed


@dataclass
class Jumps:
    """Connections to jump hosts, shared by all that go the same way."""

    _open: dict[tuple[Host, ...], list[Jump]] = field(default_factory=dict)

    async def lease(
        self, way: tuple[Host, ...], opener: Callable[[], Awaitable[Any]]
    ) -> tuple[Jump, asyncssh.SSHClientConnection]:
        """A connection along *way*, opened by *opener* where none has room.

        All who wait for one attempt get its error. Give the lease back with :meth:`release`.
        """
        jumps = self._open.setdefault(way, [])
        jumps[:] = [one for one in jumps if one.users or one.usable]
        jump = next((one for one in jumps if one.usable), None)
        if jump is None:
            jump = Jump(way, asyncio.ensure_future(_started(opener)))
            jumps.append(jump)
        jump.users += 1
        try:
            opened = await asyncio.shield(jump.opening)
        except BaseException as error:
            await self.release(jump)
            if isinstance(error, FleetError):
                told = type(error)(error.message, error.hint)  # one for each that waits
                told.at_hop = error.at_hop
                raise told from None
            raise
        return jump, opened.raw

    async def release(self, jump: Jump) -> None:
        """Give a lease back; the last one out closes the connection."""
        jump.users -= 1
        if jump.users > 0:
            return
        jumps = self._open.get(jump.way, [])
        if jump in jumps:
            jumps.remove(jump)
        if not jump.opening.done():
            jump.opening.cancel()
            return
        if not jump.opening.cancelled() and jump.opening.exception() is None:
            await jump.opening.result().close()

    async def close(self) -> None:
        """Close what is still open, whoever uses it."""
        jumps = [jump for way in self._open.values() for jump in way]
        self._open.clear()
        for jump in jumps:
            if not jump.opening.done():
                jump.opening.cancel()
            elif not jump.opening.cancelled() and jump.opening.exception() is None:
                await jump.opening.result().close()


async def _started(opener: Callable[[], Awaitable[Any]]) -> Any:
    return await opener()
