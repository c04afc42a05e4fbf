"""Commands through a program on this machine: a template, or this machine's own shell."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from asyncio.subprocess import PIPE, Process
from typing import TYPE_CHECKING

from fleetmem.controller.contact.transport import STDERR_BYTES, Channel, Exit
from fleetmem.controller.errors import CommandFailed, SessionLost

if TYPE_CHECKING:
    from fleetmem.controller.contact.transport import Connection, ConnectSettings
    from fleetmem.controller.hosts.host import Host

LOCAL = ("/bin/sh", "-c", "{command}")
_BUFFER_BYTES = 256 * 1024
_GRACE_SECONDS = 2.0


async def connect(host: Host, settings: ConnectSettings) -> Connection:
    """The connection of *host*; nothing runs before the first command."""
    return CommandConnection(host.command or LOCAL, host.name)


class CommandConnection:
    """Starts ``template`` with ``{command}`` replaced, each in a session of its own."""

    attempts = 1

    def __init__(self, template: tuple[str, ...], peer: str) -> None:
        self.peer = peer
        self._template = template
        self._channels: list[CommandChannel] = []

    async def start(self, command: str) -> Channel:
        """See :class:`Connection`; CommandFailed where the program cannot be started."""
        argv = [word.replace("{command}", command) for word in self._template]
        starting = asyncio.ensure_future(
            asyncio.create_subprocess_exec(
                *argv,
                stdin=PIPE,
                stdout=PIPE,
                stderr=PIPE,
                start_new_session=True,
                limit=_BUFFER_BYTES,
            )
        )
        cut_off = False
        try:
            while not starting.done():
                try:
                    await asyncio.shield(starting)
                except asyncio.CancelledError:  # it runs already: only its session ends it whole
                    cut_off = True
            process = starting.result()
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise CommandFailed(f"{self.peer}: {argv[0]}: {reason}") from None
        channel = CommandChannel(process, self.peer)
        if cut_off:
            channel.kill()
            await channel.close()
            raise asyncio.CancelledError
        self._channels.append(channel)
        return channel

    async def close(self) -> None:
        """See :class:`Connection`."""
        channels, self._channels = self._channels, []
        await asyncio.gather(*(channel.close() for channel in channels))


class CommandChannel:
    """One child process."""

    def __init__(self, process: Process, peer: str) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._process = process
        self._stdin, self._stdout = process.stdin, process.stdout
        self._peer = peer
        self._errors = bytearray()
        self._drainer = asyncio.create_task(self._collect(process.stderr))
        self._closing: asyncio.Task[None] | None = None

    async def _collect(self, stream: asyncio.StreamReader) -> None:
        while data := await stream.read(_BUFFER_BYTES):
            self._errors += data[: STDERR_BYTES - len(self._errors)]

    async def read(self, n: int) -> bytes:
        """See :class:`Channel`."""
        if self._closing is not None:
            return b""
        return await self._stdout.read(n)

    def write(self, data: bytes) -> None:
        """See :class:`Channel`."""
        if self._stdin.is_closing():
            raise SessionLost(f"{self._peer}: the command no longer accepts input")
        self._stdin.write(data)

    async def drain(self) -> None:
        """See :class:`Channel`."""
        try:
            await self._stdin.drain()
        except (ConnectionError, BrokenPipeError):
            raise SessionLost(f"{self._peer}: the command no longer accepts input") from None

    def write_eof(self) -> None:
        """See :class:`Channel`."""
        self._stdin.close()

    def stderr(self) -> bytes:
        """See :class:`Channel`."""
        return bytes(self._errors)

    async def wait(self) -> Exit:
        """See :class:`Channel`."""
        status = await self._process.wait()
        if not self._drainer.done():  # what the command itself wrote is there already
            await asyncio.wait({self._drainer}, timeout=0.05)
        if status >= 0:
            return Exit(status)
        try:
            name = signal.Signals(-status).name.removeprefix("SIG")
        except ValueError:
            name = str(-status)
        return Exit(None, name)

    def kill(self) -> None:
        """End the command and all that it started, at once."""
        if self._process.returncode is None:
            self._signal_group(signal.SIGKILL)

    async def close(self) -> None:
        """See :class:`Channel`."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        """Let the command end by itself, then with TERM; the last word is KILL, also where this is
        cut off because the whole run ends."""
        self._stdin.close()
        try:
            for number in (None, signal.SIGTERM, signal.SIGKILL):
                if self._process.returncode is not None:
                    break
                if number is not None:
                    self._signal_group(number)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_GRACE_SECONDS):
                        await self._process.wait()
        finally:
            self.kill()
            self._drainer.cancel()
            # Children that outlive the command may hold the pipes; they are not waited for.
            transport = getattr(self._process, "_transport", None)
            if transport is not None:
                transport.close()

    def _signal_group(self, number: int) -> None:
        """Signal the session this channel started, while its leader is not reaped."""
        try:
            os.killpg(self._process.pid, number)
        except (ProcessLookupError, PermissionError):
            pass
