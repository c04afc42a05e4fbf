"""One host, one channel, many calls.

Opening costs one round trip when the host has the agent's parts and two when it has not;
each call after that costs one. Beats go both ways every 5 s, also while a person thinks.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fleetmem.agent import wire
from fleetmem.agent.declare import CALLS
from fleetmem.controller import errors
from fleetmem.controller.contact.launch import (
    LaunchWay,
    command_line,
    ended_before_start,
    lost,
    one_line,
    start_error,
    sudo_prompt,
)

if TYPE_CHECKING:
    from fleetmem.controller.contact.agent_parts import Payload
    from fleetmem.controller.contact.transport import Channel, Connection

_NOISE_LIMIT_BYTES = 1 << 20
_LOCK_SECONDS = 10.0
GRACE_SECONDS = 20.0
"""What a call may take beyond its own span and those of the calls before it: an agent that keeps
to its spans answers long before, so whoever beats on without an answer is not waited for."""

_CODE = re.compile(r"[a-z][a-z0-9_]{0,40}\Z")


@dataclass(frozen=True)
class Result:
    """What one call gave. Its reason is a code and a text; ``seconds`` were measured there."""

    outcome: str
    reason: str | None
    reading: Any
    seconds: float
    code: str | None = None


Chunk = Callable[[Any], None]


class Session:
    """A running agent. Not shared between tasks that call the same id; calls may overlap."""

    def __init__(self, channel: Channel, connection: Connection) -> None:
        self._channel = channel
        self._connection = connection
        self._decoder = wire.Decoder()
        self._waiting: dict[int, asyncio.Future[Result]] = {}
        self._chunks: dict[int, Chunk] = {}
        self._spans: dict[int, float] = {}
        self._unsent: list[bytes] = []
        self._next_id = 1
        self._heard = time.monotonic()
        self._error: errors.FleetError | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._goodbye = False
        self.hello: dict[str, Any] = {}
        self.noise = b""
        self._prompt = b""
        self.python = ""
        self.sent_parts: tuple[str, ...] = ()

    # --- life ------------------------------------------------------------------------------

    @classmethod
    async def open(cls, connection: Connection, payload: Payload, way: LaunchWay) -> Session:
        """Start the agent over *connection*; FleetError (HostFailed) where it cannot be.

        The caller bounds the time. On any error the channel is closed.
        """
        token = f"{secrets.token_hex(8)}:{secrets.token_hex(8)}"
        channel = await connection.start(command_line(payload, token, way))
        session = cls(channel, connection)
        try:
            await session._begin(payload, token, way)
        except BaseException:
            await session.close()
            raise
        return session

    async def _begin(self, payload: Payload, token: str, way: LaunchWay) -> None:
        head, _, tail = token.partition(":")
        self._prompt = sudo_prompt(token).encode()
        marker = (tail + head + " ").encode()
        line = await self._first_line(marker, way)
        while line == "boot":  # nothing is cached there; a newer interpreter asks again
            self._send_part(payload.stage0)
            await self._channel.drain()
            line = await self._ready_line(marker)
        word, _, rest = line.partition(" ")
        if word != "ok":
            raise start_error(word, rest)
        self.python, _, need = rest.partition(" ")
        self.sent_parts = tuple(name for name in need.split(",") if name)
        for part in payload.parts:
            if part.name in self.sent_parts:
                self._send_part(part.compressed)
        await self._channel.drain()
        hello = asyncio.get_running_loop().create_future()
        self._waiting[0] = hello
        self._tasks.append(asyncio.create_task(self._read()))
        await hello
        if (self.hello["protocol"], self.hello["schema"]) != (wire.PROTOCOL, wire.SCHEMA):
            raise errors.ProtocolMismatch(
                "the agent speaks a different protocol from this fleetmem"
            )
        self._tasks.append(asyncio.create_task(self._beat()))

    def _send_part(self, data: bytes) -> None:
        self._channel.write(len(data).to_bytes(4, "big") + data)

    async def _ready_line(self, marker: bytes) -> str:
        """The agent's first line; whatever a login shell printed before it is kept apart."""
        data, self._early = self._early, b""
        while True:
            at = data.find(marker)
            end = data.find(b"\n", at) if at >= 0 else -1
            if end >= 0:
                self.noise += data[:at]
                self._early = data[end + 1 :]
                return data[at + len(marker) : end].decode("utf-8", "replace")
            if len(data) > _NOISE_LIMIT_BYTES:
                raise errors.ProtocolMismatch(
                    "the host printed over 1 MiB without starting the agent"
                )
            more = await self._channel.read(65536)
            if not more:
                status = await self._channel.wait()
                raise ended_before_start(status.status, self._channel.stderr(), data)
            data += more

    _early = b""

    async def _first_line(self, marker: bytes, way: LaunchWay) -> str:
        """The ready line, with sudo's question answered on the way where it asks one."""
        if not way.sudo or way.sudo_password is None:
            return await self._ready_line(marker)
        line = asyncio.ensure_future(self._ready_line(marker))
        answer = asyncio.ensure_future(self._answer_sudo(way.sudo_password))
        try:
            await asyncio.wait({line, answer}, return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                answer.result()  # raises where the password was wrong
            return await line
        finally:
            for task in (line, answer):
                task.cancel()
            await asyncio.gather(line, answer, return_exceptions=True)

    async def _answer_sudo(self, password: str) -> None:
        """Send the password once, and only after sudo's own prompt has appeared."""
        sent = False
        while True:
            asked = self._channel.stderr().count(self._prompt)
            if asked > 1:
                raise errors.SudoPasswordWrong("sudo on the host rejected the password")
            if asked and not sent:
                self._channel.write(password.encode() + b"\n")
                sent = True
            await asyncio.sleep(0.01)

    async def close(self) -> None:
        """Say goodbye and close the channel; calls still open fail. Never raises."""
        self._goodbye = True
        if self._error is None and self._tasks:
            with contextlib.suppress(Exception):  # it may be gone already
                self._channel.write(wire.encode({"type": "bye"}))
                self._channel.write_eof()
            with contextlib.suppress(Exception):
                await asyncio.wait_for(self._channel.wait(), 3.0)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._fail(errors.SessionLost("the session was closed"))
        await self._channel.close()

    @property
    def said(self) -> str:
        """What the host printed beside the agent, as one line: at login, and on stderr since."""
        text = self.noise + b"\n" + self._channel.stderr().replace(self._prompt or b"\0", b"")
        return one_line(text.decode("utf-8", "replace"))

    @property
    def lost(self) -> bool:
        """Whether the session has ended, for whatever reason."""
        return self._error is not None

    # --- calls -----------------------------------------------------------------------------

    async def call(
        self,
        name: str,
        args: dict[str, Any] | None = None,
        *,
        timeout_seconds: float | None = None,
        on_chunk: Chunk | None = None,
        share: str | None = None,
    ) -> Result:
        """Run one probe or action. SessionLost where the connection ends before its result.

        The agent owns the call's timeout; without one it takes what the call declares. Probes
        with the same *share* run one after another in one process, which saves the host CPU.
        An agent that gives no answer at all is not waited for: ``timed_out``.
        """
        row = CALLS.get(name)
        span = timeout_seconds or (row.span_seconds if row else _LOCK_SECONDS)
        message: dict[str, Any] = {"type": "call", "name": name, "args": args or {}}
        if timeout_seconds is not None:
            message["timeout_seconds"] = timeout_seconds
        if share is not None:
            message["share"] = share
        return await self._ask(message, span, on_chunk)

    async def lock(self, operation: str) -> Result:
        """Take the host's lock; ``reading`` is ``{"epoch": N}``."""
        return await self._ask({"type": "lock", "operation": operation}, _LOCK_SECONDS)

    async def unlock(self) -> Result:
        """Give the host's lock back."""
        return await self._ask({"type": "unlock"}, _LOCK_SECONDS)

    async def _ask(
        self, message: dict[str, Any], span: float, on_chunk: Chunk | None = None
    ) -> Result:
        if self._error is not None:
            raise self._error
        number = self._next_id
        self._next_id += 1
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        if on_chunk is not None:
            self._chunks[number] = on_chunk
        try:
            if not self._unsent:
                asyncio.get_running_loop().call_soon(self._send)
            self._unsent.append(wire.encode({**message, "id": number}))
            self._spans[number] = span
            allowed = sum(self._spans.values()) + GRACE_SECONDS
            async with asyncio.timeout(allowed) as bound:
                return await future
        except TimeoutError:
            if not bound.expired():
                raise
            self._unsent.append(wire.encode({"type": "cancel", "id": number}))
            self._send()
            return Result("timed_out", f"no answer in {allowed:.0f} s", None, allowed, "no_answer")
        finally:
            self._spans.pop(number, None)
            self._waiting.pop(number, None)
            self._chunks.pop(number, None)

    def _send(self) -> None:
        """Send the calls of one turn of the loop: one packet, not one each."""
        data = b"".join(self._unsent)
        self._unsent.clear()
        try:
            self._channel.write(data)
        except Exception as error:  # noqa: BLE001  whatever the transport does
            if not isinstance(error, errors.FleetError):
                error = errors.SessionLost(f"the connection failed: {error}")
            asyncio.get_running_loop().call_later(1.0, self._fail, error)  # the reader may know why

    # --- the two tasks ---------------------------------------------------------------------

    async def _read(self) -> None:
        try:
            data = self._early
            while True:
                for message in self._decoder.feed(data):
                    self._heard = time.monotonic()
                    self._take(message)
                data = await self._channel.read(65536)
                if not data:
                    break
        except wire.WireError as error:
            self._fail(errors.ProtocolMismatch(f"the agent sent a malformed frame: {error}"))
            return
        except errors.FleetError as error:
            self._fail(error)
            return
        except Exception as error:  # noqa: BLE001  whatever the transport does, one host's row
            self._fail(errors.SessionLost(f"the connection failed: {error}"))
            return
        if self._goodbye:
            self._fail(errors.SessionLost("the session was closed"))
            return
        try:
            status = await self._channel.wait()
        except errors.FleetError as error:  # it never said how it ended
            self._fail(error)
            return
        self._fail(lost(status.status, status.signal, self._channel.stderr()))

    def _take(self, message: dict[str, Any]) -> None:
        kind = message["type"]
        number = message.get("id")
        if kind == "result" and isinstance(number, int):
            future = self._waiting.get(number)
            if future is not None and not future.done():
                future.set_result(as_result(message))
        elif kind == "chunk" and isinstance(number, int):
            on_chunk = self._chunks.get(number)
            if on_chunk is not None:
                on_chunk(message.get("data"))
        elif kind == "hello" and 0 in self._waiting and not self._waiting[0].done():
            self.hello = {
                "protocol": message.get("protocol"),
                "schema": message.get("schema"),
                "version": one_line(str(message.get("version"))),
                "uid": message.get("uid"),
                "cached": bool(message.get("cached")),
            }
            self._waiting[0].set_result(Result("ok", None, None, 0.0))

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(wire.BEAT_SECONDS)
            if time.monotonic() - self._heard > wire.LEASE_SECONDS:
                self._fail(errors.SessionLost(f"no message for {wire.LEASE_SECONDS:.0f} s"))
                return
            try:
                self._channel.write(wire.encode({"type": "beat"}))
            except Exception as error:  # noqa: BLE001  whatever the transport does
                self._fail(errors.SessionLost(f"the connection failed: {error}"))
                return

    def _fail(self, error: errors.FleetError) -> None:
        self._error = self._error or error
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(self._error)
                future.exception()  # somebody may have stopped waiting


def as_result(message: dict[str, Any]) -> Result:
    """A result as the host sent it, with its frame checked."""
    outcome, reason = message.get("outcome"), message.get("reason")
    seconds = message.get("seconds")
    if not isinstance(outcome, str):
        return Result(
            "failed", "the agent sent a result without an outcome", None, 0.0, "untrusted_output"
        )
    code = message.get("code")
    return Result(
        outcome,
        None if reason is None else one_line(str(reason)),
        message.get("reading"),
        float(seconds) if isinstance(seconds, int | float) and 0 <= seconds < 1e9 else 0.0,
        code if isinstance(code, str) and _CODE.match(code) else None,
    )
