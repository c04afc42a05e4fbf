"""One command over an SSH connection, as bytes, and the connection around it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import asyncssh

from fleetmem.controller.contact.transport import STDERR_BYTES, Channel, Exit
from fleetmem.controller.errors import CommandFailed, SessionLost

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

_PAUSE_BYTES = 1024 * 1024
_RESUME_BYTES = 256 * 1024
_WINDOW_BYTES = 2 * 1024 * 1024
_PACKET_BYTES = 32 * 1024
_CLOSE_SECONDS = 1.0


class SshChannel(asyncssh.SSHClientSession[bytes]):
    """See :class:`~fleetmem.controller.contact.transport.Channel`."""

    def __init__(self, peer: str) -> None:
        self._peer = peer
        self._chan: asyncssh.SSHClientChannel[bytes] | None = None
        self._out = bytearray()
        self._errors = bytearray()
        self._arrived = asyncio.Event()
        self._ended = False
        self._paused = False
        self._writable = asyncio.Event()
        self._writable.set()
        self._exit: Exit | None = None
        self._exited = asyncio.Event()
        self._lost = False
        self._gone = asyncio.Event()
        self._closing = False

    # What asyncssh calls.

    def connection_made(self, chan: asyncssh.SSHClientChannel[bytes]) -> None:
        """The channel is there."""
        self._chan = chan

    def data_received(self, data: bytes, datatype: int | None) -> None:
        """Some output."""
        if datatype is not None:
            self._errors += data[: STDERR_BYTES - len(self._errors)]
            return
        self._out += data
        self._arrived.set()
        if not self._paused and len(self._out) > _PAUSE_BYTES and self._chan is not None:
            self._paused = True
            self._chan.pause_reading()

    def eof_received(self) -> bool:
        """stdout has ended; stdin stays open."""
        self._ended = True
        self._arrived.set()
        return True

    def pause_writing(self) -> None:
        """The send buffer is full."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """The send buffer has room."""
        self._writable.set()

    def exit_status_received(self, status: int) -> None:
        """The command ended by itself."""
        self._exit = Exit(status)
        self._exited.set()

    def exit_signal_received(self, signal: str, core_dumped: bool, msg: str, lang: str) -> None:
        """The command was ended by a signal."""
        self._exit = Exit(None, signal)
        self._exited.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """The channel is closed, for whatever reason."""
        self._lost = True
        self._ended = True
        for event in (self._arrived, self._exited, self._writable, self._gone):
            event.set()

    # What the contract promises.

    async def read(self, n: int) -> bytes:
        """See :class:`~fleetmem.controller.contact.transport.Channel`."""
        while not self._out and not self._ended and not self._closing:
            self._arrived.clear()
            await self._arrived.wait()
        data = bytes(self._out[:n])
        del self._out[:n]
        if self._paused and len(self._out) < _RESUME_BYTES and self._chan is not None:
            self._paused = False
            self._chan.resume_reading()
        return data

    def write(self, data: bytes) -> None:
        """See :class:`~fleetmem.controller.contact.transport.Channel`."""
        try:
            if self._lost or self._chan is None:
                raise BrokenPipeError
            self._chan.write(data)
        except OSError:
            raise self._loss("no longer accepts input") from None

    async def drain(self) -> None:
        """See :class:`~fleetmem.controller.contact.transport.Channel`."""
        await self._writable.wait()
        if self._lost:
            raise self._loss("no longer accepts input")

    def write_eof(self) -> None:
        """See :class:`~fleetmem.controller.contact.transport.Channel`."""
        if not self._lost and self._chan is not None:
            try:
                self._chan.write_eof()
            except OSError:
                pass

    def stderr(self) -> bytes:
        """See :class:`~fleetmem.controller.contact.transport.Channel`."""
        return bytes(self._errors)

    async def wait(self) -> Exit:
        """See :class:`~fleetmem.controller.contact.transport.Channel`."""
        await self._exited.wait()
        if self._exit is None:
            raise self._loss("ended without exit status and signal")
        return self._exit

    async def close(self) -> None:
        """See :class:`~fleetmem.controller.contact.transport.Channel`."""
        self._closing = True
        self._arrived.set()
        chan = self._chan
        if chan is None or self._lost:
            return
        try:
            if self._paused:
                self._paused = False
                self._out.clear()
                chan.resume_reading()
            chan.close()
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self._gone.wait()
        except TimeoutError:
            chan.abort()
        except OSError:
            pass

    def _loss(self, what: str) -> SessionLost:
        return SessionLost(f"{self._peer}: the session {what}")


class SshConnection:
    """See :class:`~fleetmem.controller.contact.transport.Connection`; *release* gives it back."""

    def __init__(
        self,
        raw: asyncssh.SSHClientConnection,
        peer: str,
        attempts: int,
        release: Callable[[], Awaitable[None]] | None,
    ) -> None:
        self.raw = raw
        self.peer = peer
        self.attempts = attempts
        self._release = release
        self._closed = False

    @property
    def is_closed(self) -> bool:
        """Whether the connection is gone."""
        return self._closed or self.raw.is_closed()

    async def start(self, command: str) -> Channel:
        """See :class:`~fleetmem.controller.contact.transport.Connection`."""
        try:
            _, session = await self.raw.create_session(
                lambda: SshChannel(self.peer),
                command,
                env=None,
                send_env=None,
                request_pty=False,
                x11_forwarding=False,
                encoding=None,
                window=_WINDOW_BYTES,
                max_pktsize=_PACKET_BYTES,
            )
        except asyncssh.ChannelOpenError as error:
            if self.raw.is_closed():
                raise SessionLost(f"{self.peer}: the connection was lost") from None
            raise CommandFailed(
                f"{self.peer}: sshd refused a session: {error.reason}", "check sshd's MaxSessions"
            ) from None
        except (asyncssh.Error, OSError) as error:
            raise SessionLost(f"{self.peer}: the connection was lost: {error}") from None
        assert isinstance(session, SshChannel)
        return session

    async def close(self) -> None:
        """See :class:`~fleetmem.controller.contact.transport.Connection`."""
        if self._closed:
            return
        self._closed = True
        try:
            self.raw.close()
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self.raw.wait_closed()
        except TimeoutError:
            self.raw.abort()
        except (asyncssh.Error, OSError):
            pass
        finally:
            if self._release is not None:
                await self._release()
