"""The command line that starts an agent, and what a session makes of bytes and silence."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import time
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest

from fleetmem.agent import wire
from fleetmem.controller import errors
from fleetmem.controller.contact import session as session_module
from fleetmem.controller.contact.launch import (
    LaunchWay,
    command_line,
    ended_before_start,
    lost,
    sudo_prompt,
)
from fleetmem.controller.contact.payload import payload
from fleetmem.controller.contact.session import Session, as_result
from fleetmem.controller.contact.transport import Channel, Connection, Exit

# --- the command line ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "way", [LaunchWay(), LaunchWay(python="/opt/my python/bin/python3"), LaunchWay(sudo=True)]
)
def test_one_word_that_every_shell_reads_alike(way: LaunchWay) -> None:
    line = command_line(payload(), "a1:b2", way)
    assert line.count("'") == 2
    assert "\n" not in line
    assert "!" not in line
    assert line.startswith("exec ")
    assert "b2a1" not in line  # an echoed command line is no answer
    assert len(line) < 8000


@pytest.mark.parametrize("shell", ["sh", "bash", "dash", "zsh", "ksh", "csh", "tcsh", "fish"])
def test_shells(shell: str) -> None:
    """Shells that are installed start the agent; where there is no Python they say so."""
    found = shutil.which(shell)
    command = [
        found or "/bin/sh",
        "-c",
        command_line(payload(), "a1:b2", LaunchWay(python="/no/py")),
    ]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert (done.returncode, done.stdout) == (69, "b2a1 python_missing /no/py\n")


def test_sudo() -> None:
    plain = command_line(payload(), "a1:b2", LaunchWay(sudo=True))
    assert plain.startswith("exec sudo -n -- /bin/sh -c ")
    asked = command_line(payload(), "a1:b2", LaunchWay(sudo=True, sudo_password="secret"))
    assert asked.startswith(f"exec sudo -k -S -p {sudo_prompt('a1:b2')} -- /bin/sh -c ")
    assert "secret" not in asked


# --- what went wrong -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "stderr", "code"),
    [
        (None, b"", "session_lost"),
        (1, b"sudo: a password is required\n", "sudo_password_required"),
        (1, b"sudo: sorry, you must have a tty to run sudo\n", "sudo_tty_required"),
        (1, b"Sorry, try again.\nsudo: 1 incorrect password attempt\n", "sudo_password_wrong"),
        (1, b"sudo: unknown user: x\n", "sudo_denied"),
        (1, b"ops is not in the sudoers file.\n", "sudo_denied"),
        (127, b"sh: 1: exec: sudo: not found\n", "sudo_denied"),
        (1, b"ModuleNotFoundError: No module named 'ctypes'\n", "python_incomplete"),
        (1, b"This account is currently not available.\n", "agent_failed"),
        (255, b"", "agent_failed"),
    ],
)
def test_why_there_is_no_agent(status: int | None, stderr: bytes, code: str) -> None:
    error = ended_before_start(status, stderr, b"")
    assert error.code == code
    if stderr:
        assert "\n" not in error.message


def test_neither_status_nor_signal_is_a_lost_session() -> None:
    assert lost(None, None, b"").code == "session_lost"
    assert lost(0, None, b"").code == "agent_failed"
    error = lost(None, "KILL", b"a\nlast words\n")
    assert (error.code, error.message) == (
        "agent_failed",
        "the agent ended (signal KILL): last words",
    )


@pytest.mark.parametrize(
    "message", [{}, {"outcome": 7}, {"outcome": None, "reading": {}}, {"seconds": "x"}]
)
def test_a_result_without_outcome_failed(message: dict[str, Any]) -> None:
    found = as_result({"type": "result", **message})
    assert (found.outcome, found.reading) == ("failed", None)


def test_a_result_is_taken_as_it_is() -> None:
    found = as_result({"outcome": "ok", "reason": None, "reading": [1], "seconds": 2})
    assert (found.outcome, found.reason, found.reading, found.seconds) == ("ok", None, [1], 2.0)


# --- a session over a channel of the test's own --------------------------------------------


class Pipe:
    """A channel whose other end the test plays."""

    def __init__(self) -> None:
        self.up: asyncio.Queue[bytes] = asyncio.Queue()
        self.down: list[bytes] = []
        self.ended = Exit(None)
        self.closed = False

    async def read(self, n: int) -> bytes:
        return await self.up.get()

    def write(self, data: bytes) -> None:
        self.down.append(data)

    async def drain(self) -> None:
        pass

    def write_eof(self) -> None:
        self.up.put_nowait(b"")

    def stderr(self) -> bytes:
        return b""

    async def wait(self) -> Exit:
        return self.ended

    async def close(self) -> None:
        self.closed = True

    def say(self, **message: Any) -> None:
        self.up.put_nowait(wire.encode(message))

    def sent(self) -> list[dict[str, Any]]:
        """Messages so far, without the parts."""
        frames = [data for data in self.down if data[4:5] == b"{"]
        return list(wire.Decoder().feed(b"".join(frames)))


class Line:
    """A connection that hands out one pipe and plays the start of an agent."""

    peer = "test"
    attempts = 1

    def __init__(self, pipe: Pipe, answer: str) -> None:
        self.pipe = pipe
        self.answer = answer

    async def start(self, command: str) -> Channel:
        half = command.partition(payload().bootstrap)[2].split(maxsplit=1)[0].split(":")
        text = self.answer.replace("MARK", half[1] + half[0])
        self.pipe.up.put_nowait(text.encode())
        return cast(Channel, self.pipe)

    async def close(self) -> None:
        pass


LEASE = 2.0
"""Seconds: much longer than a busy machine lets this process wait."""

HELLO = {"type": "hello", "protocol": wire.PROTOCOL, "schema": wire.SCHEMA, "version": "0.2.0"}


def over(
    work: Callable[[Session, Pipe], Coroutine[Any, Any, None]],
    answer: str = "MARK ok 3.11.2 \n",
    **hello: Any,
) -> Pipe:
    """Run *work* with a session whose agent the test plays."""
    pipe = Pipe()

    async def run() -> None:
        async with asyncio.timeout(60):
            line = cast(Connection, Line(pipe, answer))
            opening = asyncio.create_task(Session.open(line, payload(), LaunchWay()))
            await asyncio.sleep(0)
            await asyncio.sleep(0.01)
            pipe.say(**{**HELLO, **hello})
            session = await opening
            try:
                await work(session, pipe)
            finally:
                await session.close()

    asyncio.run(run())
    return pipe


def test_only_missing_parts_travel() -> None:
    async def nothing(session: Session, pipe: Pipe) -> None:
        assert session.python == "3.11.2"

    parts = payload().parts
    for need, wanted in (("", 0), ("nvml", 1), ("core,nvml", 2), ("other", 0)):
        pipe = over(nothing, f"MARK ok 3.11.2 {need}\n")
        assert sum(part.compressed in b"".join(pipe.down) for part in parts) == wanted
        assert pipe.closed
        assert pipe.sent()[-1] == {"type": "bye"}


def test_noise_is_kept_apart() -> None:
    async def nothing(session: Session, pipe: Pipe) -> None:
        assert session.noise == b"Welcome\nMARX ok"

    over(nothing, "Welcome\nMARX okMARK ok 3.8.1 \n")


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ("MARK python_missing python3,python\n", "python_missing"),
        ("MARK python_too_old 3.6.15 /usr/bin/python3\n", "python_too_old"),
        ("MARK python_incomplete No module named 'zlib' /usr/bin/python3\n", "python_incomplete"),
        ("MARK huh\n", "protocol_mismatch"),
    ],
)
def test_starts_that_fail(answer: str, code: str) -> None:
    async def nothing(session: Session, pipe: Pipe) -> None:
        raise AssertionError("it must not open")

    with pytest.raises(errors.FleetError) as caught:
        over(nothing, answer)
    assert caught.value.code == code


def test_another_protocol_is_refused() -> None:
    async def nothing(session: Session, pipe: Pipe) -> None:
        raise AssertionError("it must not open")

    with pytest.raises(errors.ProtocolMismatch):
        over(nothing, protocol=wire.PROTOCOL + 1)


def test_answers_find_their_calls() -> None:
    async def work(session: Session, pipe: Pipe) -> None:
        heard: list[Any] = []
        one = asyncio.create_task(session.call("a", {"x": 1}, timeout_seconds=2.5))
        two = asyncio.create_task(session.call("b", on_chunk=heard.append))
        await asyncio.sleep(0.01)
        assert pipe.sent() == [
            {"type": "call", "name": "a", "args": {"x": 1}, "timeout_seconds": 2.5, "id": 1},
            {"type": "call", "name": "b", "args": {}, "id": 2},
        ]
        assert len(pipe.down) == 1  # made at once, sent at once
        pipe.say(type="result", id=99, outcome="ok")  # nobody asked
        pipe.say(type="result", id="2", outcome="ok")
        pipe.say(type="chunk", id=2, data=5)
        pipe.say(type="chunk", id=1, data=6)
        pipe.say(type="strange")
        pipe.say(type="result", id=2, outcome="ok", reading=2, seconds=0.5)
        pipe.say(type="result", id=1, outcome="denied", reason="no")
        assert ((await two).reading, (await one).outcome) == (2, "denied")
        assert heard == [5]

    over(work)


@pytest.mark.parametrize(
    ("data", "ended", "code"),
    [
        (b"", Exit(None), "session_lost"),
        (b"", Exit(0), "agent_failed"),
        (b"", Exit(None, "KILL"), "agent_failed"),
        (b"\xff\xff\xff\xff", Exit(0), "protocol_mismatch"),
        (b"\0\0\0\x02{]", Exit(0), "protocol_mismatch"),
        (b"\0\0\0\x02[]", Exit(0), "protocol_mismatch"),
    ],
)
def test_every_open_call_fails_with_the_session(data: bytes, ended: Exit, code: str) -> None:
    async def work(session: Session, pipe: Pipe) -> None:
        calls = [asyncio.create_task(session.call("a")) for _ in range(2)]
        await asyncio.sleep(0.01)
        pipe.ended = ended
        pipe.up.put_nowait(data)
        found = await asyncio.gather(*calls, return_exceptions=True)
        assert [cast(errors.FleetError, one).code for one in found] == [code, code]
        assert session.lost
        with pytest.raises(errors.FleetError):
            await session.call("b")

    over(work)


@pytest.mark.parametrize("error", [errors.SessionLost("no more"), RuntimeError("no more")])
def test_calls_fail_where_nothing_can_be_sent(error: Exception) -> None:
    async def work(session: Session, pipe: Pipe) -> None:
        def refuse(data: bytes) -> None:
            raise error

        pipe.write = refuse  # type: ignore[method-assign]
        calls = [asyncio.create_task(session.call("a")) for _ in range(2)]
        for one in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(one, errors.SessionLost)
            assert "no more" in one.message
        assert session.lost

    over(work)


def test_a_mute_agent_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "BEAT_SECONDS", 0.02)
    monkeypatch.setattr(wire, "LEASE_SECONDS", LEASE)

    async def work(session: Session, pipe: Pipe) -> None:
        with pytest.raises(errors.SessionLost, match="no message for"):
            await session.call("a")
        beats = [message for message in pipe.sent() if message == {"type": "beat"}]
        assert len(beats) > 3

    over(work)


def test_an_agent_that_beats_and_never_answers_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A call is given up after its span, those before it, and a grace; the session lives on."""
    monkeypatch.setattr(session_module, "GRACE_SECONDS", 0.2)

    async def work(session: Session, pipe: Pipe) -> None:
        began = time.monotonic()
        first = asyncio.create_task(session.call("a", timeout_seconds=0.3))
        second = asyncio.create_task(session.call("b", timeout_seconds=0.5))
        found = await first
        assert time.monotonic() - began >= 0.5
        assert (found.outcome, found.code, found.reading) == ("timed_out", "no_answer", None)
        assert not second.done()
        pipe.say(type="result", id=1, outcome="ok", reading="late")
        pipe.say(type="result", id=2, outcome="ok", reading="in time")
        assert (await second).reading == "in time"
        assert {"type": "cancel", "id": 1} in pipe.sent()
        assert not session.lost

    over(work)


def test_beats_keep_a_session() -> None:
    async def work(session: Session, pipe: Pipe) -> None:
        call = asyncio.create_task(session.call("a"))
        began = time.monotonic()
        while time.monotonic() - began < 1.2 * LEASE:
            pipe.say(type="beat")
            await asyncio.sleep(0.02)
        assert not call.done()
        pipe.say(type="result", id=1, outcome="ok")
        assert (await call).outcome == "ok"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wire, "BEAT_SECONDS", 0.02)
        patch.setattr(wire, "LEASE_SECONDS", LEASE)
        over(work)


def test_a_session_that_never_says_how_it_ended_ends_its_calls() -> None:
    """The transport raises where there is neither status nor signal; nobody may wait on."""

    async def cut(session: Session, pipe: Pipe) -> None:
        async def wait() -> Exit:
            raise errors.SessionLost("a: the session ended without exit status and signal")

        pipe.wait = wait  # type: ignore[method-assign]
        call = asyncio.create_task(session.call("host.facts"))
        await asyncio.sleep(0.01)
        pipe.up.put_nowait(b"")
        with pytest.raises(errors.SessionLost):
            await call
        assert session.lost

    over(cut)
