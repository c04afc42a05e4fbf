"""The agent by itself: started through the local transport, under every Python of this machine."""

from __future__ import annotations

import asyncio
import glob
import json
import os
import secrets
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from fleetmem.agent import wire
from fleetmem.controller import errors
from fleetmem.controller.contact.launch import LaunchWay, command_line
from fleetmem.controller.contact.session import Session
from fleetmem.controller.hosts.host import Host
from tests.contract import agent_trial as trial


def pythons() -> list[str]:
    """This interpreter, and those of 3.8 and later that pyenv keeps."""
    found = sorted(glob.glob(os.path.expanduser("~/.pyenv/versions/3.*/bin/python3")))
    newer = [path for path in found if _version(path) >= (3, 8)]
    return [sys.executable, *newer]


def _version(path: str) -> tuple[int, ...]:
    return tuple(
        int(part) for part in path.split("/versions/")[1].split("/", maxsplit=1)[0].split(".")[:2]
    )


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(180):
            await work()

    asyncio.run(bounded())


def mark() -> str:
    """A span for sleep(1) that no other process has."""
    return f"600.{secrets.randbelow(10**9):09d}"


# --- starting ------------------------------------------------------------------------------


@pytest.mark.parametrize("python", pythons())
def test_every_python(python: str) -> None:
    async def work() -> None:
        async with trial.session(python) as agent:
            assert (agent.hello["protocol"], agent.hello["schema"]) == (wire.PROTOCOL, wire.SCHEMA)
            assert agent.hello["uid"] == os.geteuid()
            assert agent.sent_parts == ("core", "nvml")
            text = 'é\u2028"\\ \x00 🙂'
            result = await agent.call("trial.echo", {"value": [text, 1.5, None, True, 2**53]})
            assert result.outcome == "ok", result
            assert result.reading["value"] == [text, 1.5, None, True, 2**53]
            facts = await agent.call("host.facts")
            assert facts.outcome == "ok", facts
            assert facts.reading["hostname"] == os.uname().nodename
            assert python.startswith(sys.prefix) or facts.reading["python"] in python
            holders = await agent.call("gpu.holders")
            assert holders.outcome in ("ok", "partial", "unsupported"), holders
            named = await agent.call("processes.identity", {"pids": [os.getpid()]})
            assert named.outcome == "ok", named
            assert named.reading["processes"][0]["pid"] == os.getpid()

    run(work)


def test_unknown_call_and_failing_call() -> None:
    async def work() -> None:
        async with trial.session() as agent:
            absent = await agent.call("trial.absent")
            assert (absent.outcome, absent.reading) == ("unsupported", None)
            assert "trial.absent" in (absent.reason or "")
            failed = await agent.call("trial.fail")
            assert failed.outcome == "failed"
            assert failed.reason is not None
            assert failed.reason.startswith(
                "KeyError: 'nothing there' (fleetmem.agent.probes.trial:"
            )
            wrong = await agent.call("trial.echo", {"wrong": 1})
            assert wrong.outcome == "failed"
            assert "wrong" in (wrong.reason or "")
            assert (await agent.call("trial.echo")).outcome == "ok"

    run(work)


@pytest.mark.parametrize("version", ["3.6", "3.7"])
def test_too_old(version: str, tmp_path: Path) -> None:
    """An interpreter that says it is older ends with one line; real ones where there are any."""
    found = glob.glob(os.path.expanduser(f"~/.pyenv/versions/{version}.*/bin/python3"))
    python = found[0] if found else str(_pretend(tmp_path, version))

    async def work() -> None:
        with pytest.raises(errors.PythonTooOld) as caught:
            async with trial.session(python):
                pass
        assert version in caught.value.message
        assert "3.8" in caught.value.message

    run(work)


def _pretend(folder: Path, version: str) -> Path:
    """This Python with another version number, where no old one is installed."""
    major, minor = version.split(".")
    path = folder / "python-old"
    path.write_text(
        f"#!{sys.executable}\nimport sys\nsys.argv = ['-c', *sys.argv[5:]]\n"
        f"sys.version_info = ({major}, {minor}, 9, 'final', 0)\n"
        "import zlib, binascii\nexec(zlib.decompress(binascii.a2b_base64(sys.argv[1])))\n"
    )
    path.chmod(0o755)
    return path


def test_no_python() -> None:
    async def work() -> None:
        with pytest.raises(errors.PythonMissing) as caught:
            async with trial.session("/nonexistent/python3"):
                pass
        assert "/nonexistent/python3" in caught.value.message

    run(work)


def test_noise_before_the_marker() -> None:
    """What a login shell prints is kept apart, also where it repeats our command line."""

    async def work() -> None:
        command = ("/bin/sh", "-c", 'set -v; echo Welcome; printf "no newline"; {command}')
        host = Host("noisy", "noisy", transport="command", command=command)
        async with trial.session(host=host) as agent:
            assert agent.noise.endswith(b"no newline")
            assert b"Welcome" in agent.noise
            assert (await agent.call("trial.echo", {"value": 1})).reading["value"] == 1

    run(work)


def test_a_login_that_prints_only() -> None:
    async def work() -> None:
        command = ("/bin/sh", "-c", 'echo "This account is not available"; exit 1; {command}')
        host = Host("closed", "closed", transport="command", command=command)
        with pytest.raises(errors.AgentFailed) as caught:
            async with trial.session(host=host):
                pass
        assert "This account is not available" in caught.value.message

    run(work)


# --- the cache -----------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A cache of its own: the account's home in a mount namespace would need root, so the
    folder is found by a pwd module that says so."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "home").mkdir()
    (tmp_path / "lib" / "start.py").write_text(
        "import pwd, sys, zlib, binascii\n"
        "real = pwd.getpwuid\n"
        "class Row:\n"
        f"    pw_dir = {str(tmp_path / 'home')!r}\n"
        "    def __init__(self, row):\n"
        "        self.pw_name = row.pw_name\n"
        "pwd.getpwuid = lambda uid: Row(real(uid))\n"
        "sys.argv = sys.argv[4:]\n"
        "exec(zlib.decompress(binascii.a2b_base64(sys.argv[1])))\n"
    )
    python = tmp_path / "python3"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S {tmp_path}/lib/start.py "$@"\n')
    python.chmod(0o755)
    return tmp_path / "home"


def contact(home: Path) -> tuple[str, ...]:
    """The parts that one contact had to send."""
    sent: list[tuple[str, ...]] = []

    async def work() -> None:
        async with trial.session(str(home.parent / "python3"), cache=True) as agent:
            assert (await agent.call("trial.echo", {"value": 7})).reading["value"] == 7
            sent.append(agent.sent_parts)
            assert agent.hello["cached"] is (agent.sent_parts == ())

    run(work)
    return sent[0]


def kept(home: Path) -> list[Path]:
    return sorted((home / ".cache" / "fleetmem").iterdir())


def test_second_contact_sends_nothing(home: Path) -> None:
    assert contact(home) == ("core", "nvml")
    folder = home / ".cache" / "fleetmem"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    digests = {part.name: part.sha256 for part in trial.payload().parts}
    plain = [path for path in kept(home) if not path.suffix]
    assert {path.name for path in plain} == {f"{n}-{d}" for n, d in digests.items()}
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in kept(home))
    assert contact(home) == ()


@pytest.mark.parametrize("which", ["compiled", "source", "both"])
@pytest.mark.parametrize("damage", ["cut", "changed", "empty"])
def test_damaged_cache(home: Path, which: str, damage: str) -> None:
    """Whatever lies in the cache, only what has the right SHA-256 runs."""
    contact(home)
    for path in kept(home):
        if which == "both" or (which == "compiled") == bool(path.suffix):
            data = path.read_bytes()
            middle = len(data) // 2
            new = {
                "cut": data[:middle],
                "changed": data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :],
                "empty": b"",
            }[damage]
            path.write_bytes(new)
    expected = ("core", "nvml") if which == "both" else ()
    assert contact(home) == expected
    assert contact(home) == ()


def test_parts_that_nobody_loads_any_more_go_after_a_month(home: Path) -> None:
    contact(home)
    folder = home / ".cache" / "fleetmem"
    old, recent = folder / ("core-" + "0" * 64), folder / ("core-" + "1" * 64 + ".cpython-38")
    for path, days in ((old, 31), (recent, 29)):
        path.write_bytes(b"x")
        moment = time.time() - days * 86400
        os.utime(path, (moment, moment))
    for path in kept(home):
        if path.name.startswith("core-") and path not in (old, recent):
            path.unlink()
    assert contact(home) == ("core",)
    assert not old.exists()
    assert recent.exists()


def test_a_cache_of_others_is_not_used(home: Path) -> None:
    contact(home)
    (home / ".cache" / "fleetmem").chmod(0o770)
    assert contact(home) == ("core", "nvml")


def test_a_link_in_the_cache_is_not_followed(home: Path) -> None:
    contact(home)
    for path in kept(home):
        moved = home / path.name
        path.rename(moved)
        path.symlink_to(moved)
    assert contact(home) == ("core", "nvml")


@pytest.mark.parametrize("obstacle", ["file", "missing"])
def test_no_cache_possible(home: Path, obstacle: str) -> None:
    """Without a folder it runs from memory and leaves no file."""
    if obstacle == "file":
        (home / ".cache").write_text("in the way")
    else:
        home.rmdir()
    before = sorted(home.parent.rglob("*"))
    assert contact(home) == ("core", "nvml")
    assert contact(home) == ("core", "nvml")
    assert sorted(home.parent.rglob("*")) == before


# --- calls ---------------------------------------------------------------------------------


@pytest.mark.parametrize("detached", [False, True])
@pytest.mark.parametrize("how", ["timeout", "cancel"])
def test_overdue_and_cancelled(how: str, detached: bool) -> None:
    """The call's process ends with all that it started, and the session goes on."""
    word = mark()

    async def work() -> None:
        async with trial.session() as agent:
            started = asyncio.Event()
            begun = asyncio.create_task(
                agent.call(
                    "trial.hang",
                    {"mark": word, "detached": detached},
                    timeout_seconds=4.0 if how == "timeout" else None,
                    on_chunk=lambda data: started.set(),
                )
            )
            await started.wait()
            await trial.until(lambda: trial.processes(word))
            if how == "cancel":
                agent._channel.write(wire.encode({"type": "cancel", "id": 1}))
            result = await begun
            wanted = (
                ("timed_out", "no answer in 4 s") if how == "timeout" else ("failed", "cancelled")
            )
            assert (result.outcome, result.reason) == wanted
            await trial.until(lambda: not trial.processes(word))
            assert (await agent.call("trial.echo", {"value": 2})).reading["value"] == 2

    run(work)


@pytest.mark.parametrize("detached", [False, True])
def test_what_a_call_leaves_is_ended(detached: bool) -> None:
    word = mark()

    async def work() -> None:
        async with trial.session() as agent:
            result = await agent.call("trial.leave", {"mark": word, "detached": detached})
            assert result.outcome == "ok"
            await trial.until(lambda: not trial.processes(word))
            assert (await agent.call("trial.echo")).outcome == "ok"

    run(work)


def test_what_a_running_call_has_detached_outlives_other_calls() -> None:
    """Each call keeps its own orphans: they end with it, and not with whatever ends first."""
    words = [mark(), mark()]

    async def work() -> None:
        async with trial.session() as agent:
            begun = []
            for word in words:
                started = asyncio.Event()
                call = agent.call(
                    "trial.hang",
                    {"mark": word, "detached": True},
                    on_chunk=lambda data, started=started: started.set(),
                )
                begun.append(asyncio.create_task(call))
                await started.wait()
                await trial.until(lambda word=word: len(trial.processes(word)) == 2)
            kept = [sorted(trial.processes(word)) for word in words]
            for name, args in (
                ("trial.echo", {}),
                ("trial.leave", {"mark": mark(), "detached": True}),
                ("trial.die", {"number": 11}),
                ("trial.nvml_die", {}),
            ):
                await agent.call(name, args)
                await agent.call("trial.echo")  # serve has swept after the one before
            assert [sorted(trial.processes(word)) for word in words] == kept
            agent._channel.write(wire.encode({"type": "cancel", "id": 1}))
            assert (await begun[0]).reason == "cancelled"
            await trial.until(lambda: not trial.processes(words[0]))
            await agent.call("trial.echo")
            assert sorted(trial.processes(words[1])) == kept[1]
            agent._channel.write(wire.encode({"type": "cancel", "id": 2}))
            assert (await begun[1]).reason == "cancelled"
            await trial.until(lambda: not trial.processes(words[1]))

    run(work)


def test_a_session_ends_what_each_of_its_calls_left() -> None:
    """A child that takes several calls goes on after each: its orphans do not wait for its end."""
    word = mark()

    async def work() -> None:
        async with trial.session() as agent:
            pid = (await agent.call("trial.nvml")).reading["pid"]
            left = await agent.call("trial.nvml_leave", {"mark": word})
            assert left.outcome == "ok"
            await trial.until(lambda: not trial.processes(word))
            assert (await agent.call("trial.nvml")).reading["pid"] == pid

    run(work)


def test_a_call_that_dies() -> None:
    async def work() -> None:
        async with trial.session() as agent:
            result = await agent.call("trial.die", {"number": 11})
            assert (result.outcome, result.reason) == (
                "failed",
                "the call's process was ended by signal 11",
            )
            results = await asyncio.gather(
                agent.call("trial.nvml_die"), agent.call("trial.nvml"), agent.call("trial.nvml")
            )
            assert [row.outcome for row in results] == ["failed", "ok", "ok"]
            assert results[1].reading == results[2].reading

    run(work)


def test_the_nvml_session_is_one_process_and_is_not_asked_again_when_it_hangs() -> None:
    async def work() -> None:
        async with trial.session() as agent:
            first = await agent.call("trial.nvml")
            assert (await agent.call("trial.nvml")).reading == first.reading
            hung, queued = await asyncio.gather(
                agent.call("trial.nvml", {"seconds": 600}, timeout_seconds=0.3),
                agent.call("trial.nvml"),
            )
            why = "NVML gave no answer in 0.3 s"
            assert (hung.outcome, hung.code, hung.reason) == ("timed_out", "nvml_hung", why)
            assert (queued.outcome, queued.code, queued.reason) == ("failed", "nvml_hung", why)
            await trial.until(lambda: not trial.alive(first.reading["pid"]))
            assert (await agent.call("trial.echo")).outcome == "ok"

    run(work)


def test_children_hold_nothing_of_the_channel() -> None:
    async def work() -> None:
        async with trial.session() as agent:
            await agent.call("trial.nvml")
            files = (await agent.call("trial.files")).reading
            links = sorted(target.partition(":")[0] for target in files.values())
            assert [files[number] for number in "012"] == ["/dev/null"] * 3
            # two pipes to serve, and the folder that was being listed
            assert [link for link in links if link == "pipe"] == ["pipe", "pipe"]
            assert not [target for target in files.values() if "socket" in target]

    run(work)


def test_memory_is_capped() -> None:
    async def work() -> None:
        async with trial.session() as agent:
            result = await agent.call("trial.memory", {"mib": 2000})
            assert (result.outcome, result.reason) == (
                "failed",
                "the call needed more memory than it may use",
            )

    run(work)


def test_calls_overlap() -> None:
    async def work() -> None:
        async with trial.session() as agent:
            rows = await asyncio.gather(
                *(agent.call("trial.echo", {"value": n}) for n in range(20))
            )
            assert [row.reading["value"] for row in rows] == list(range(20))

    run(work)


# --- leaving nothing -----------------------------------------------------------------------


async def _line(agent: Session) -> tuple[int, int]:
    """(guard, serve)."""
    row = (await agent.call("trial.echo")).reading
    text = Path("/proc", str(row["parent"]), "stat").read_text()
    return int(text.rpartition(")")[2].split()[1]), row["parent"]


@pytest.mark.parametrize("ending", ["bye", "eof", "serve", "guard", "term", "twice"])
def test_endings_leave_nothing(ending: str) -> None:
    """Whoever ends first, the call and its children go, those in sessions of their own too."""
    words = [mark(), mark()]

    async def work() -> None:
        async with trial.session() as agent:
            started = asyncio.Event()
            guard, serve = await _line(agent)
            nvml = (await agent.call("trial.nvml")).reading["pid"]
            calls = [
                asyncio.create_task(
                    agent.call(
                        "trial.hang",
                        {"mark": word, "detached": at == 1},
                        on_chunk=lambda data: started.set(),
                    )
                )
                for at, word in enumerate(words)
            ]
            await started.wait()
            await trial.until(lambda: all(trial.processes(f"sleep {word}") for word in words))
            if ending == "bye":
                agent._channel.write(wire.encode({"type": "bye"}))
            elif ending == "eof":
                agent._channel.write_eof()
            elif ending == "serve":
                os.kill(serve, signal.SIGKILL)
            elif ending == "guard":
                os.kill(guard, signal.SIGKILL)
            else:
                for _ in range(1 if ending == "term" else 20):
                    if trial.alive(guard):
                        os.kill(guard, signal.SIGTERM)
            await trial.until(
                lambda: (
                    not any(trial.processes(word) for word in words)
                    and not any(trial.alive(pid) for pid in (guard, serve, nvml))
                ),
                0.75 * wire.LEASE_SECONDS,  # at once: silence would be noticed after the lease
            )
            ended = await asyncio.gather(*calls, return_exceptions=True)
            assert all(isinstance(one, errors.FleetError) for one in ended), ended

    run(work)


START_UP = """#!/bin/sh
setsid nohup sleep {stays} >/dev/null 2>&1 &
(setsid sh -c 'sleep 0.3; setsid sleep {orphan} & true' >/dev/null 2>&1 </dev/null; sleep 0.1) &
exec {python} "$@"
"""
"""What a start-up file does: a monitor, and one that leaves an orphan while the agent works."""


@pytest.mark.parametrize("ending", ["bye", "eof", "serve", "guard", "term", "outer"])
def test_what_ran_before_the_agent_is_left_alone(ending: str, tmp_path: Path) -> None:
    """Children of the login shell's process, and what they leave, outlive every ending."""
    stays, orphan, ours = mark(), mark(), mark()
    start = tmp_path / "python"
    start.write_text(START_UP.format(stays=stays, orphan=orphan, python=sys.executable))
    start.chmod(0o755)

    async def work() -> None:
        async with trial.session(python=str(start)) as agent:
            guard, serve = await _line(agent)
            outer = trial.parent(guard)
            await trial.until(lambda: trial.processes(f"sleep {orphan}"))
            started = asyncio.Event()
            call = asyncio.create_task(
                agent.call(
                    "trial.hang",
                    {"mark": ours},
                    on_chunk=lambda data: started.set(),
                )
            )
            await started.wait()
            await trial.until(lambda: trial.processes(f"sleep {ours}"))
            if ending == "bye":
                agent._channel.write(wire.encode({"type": "bye"}))
            elif ending == "eof":
                agent._channel.write_eof()
            elif ending == "term":
                os.kill(outer, signal.SIGTERM)
            else:
                os.kill({"serve": serve, "guard": guard, "outer": outer}[ending], signal.SIGKILL)
            await trial.until(
                lambda: (
                    not trial.processes(ours)
                    and not any(trial.alive(pid) for pid in (outer, guard, serve))
                ),
                0.75 * wire.LEASE_SECONDS,
            )
            assert all(
                isinstance(one, errors.FleetError)
                for one in await asyncio.gather(call, return_exceptions=True)
            )

    try:
        run(work)
        left = [trial.processes(f"sleep {word}") for word in (stays, orphan)]
        assert all(left), left
    finally:
        for word in (stays, orphan):
            for pid in trial.processes(f"sleep {word}"):
                os.kill(pid, signal.SIGKILL)


def test_an_action_may_write_that_it_is_done(tmp_path: Path) -> None:
    """After the connection's end an action has 2 s; one that takes longer is ended."""

    async def work() -> None:
        async with trial.session() as agent:
            begun: list[int] = []
            for name, seconds in (("short", 0.6), ("long", 600.0)):
                asyncio.ensure_future(
                    agent.call(
                        "trial.act",
                        {"path": str(tmp_path / name), "seconds": seconds},
                        on_chunk=lambda data: begun.append(data["begun"]),
                    )
                ).add_done_callback(lambda task: task.exception())
            await trial.until(lambda: len(begun) == 2)
            end = time.monotonic()
            agent._channel.write_eof()
            await trial.until(lambda: not any(trial.alive(pid) for pid in begun))
            assert time.monotonic() - end > 1.9
        assert (tmp_path / "short").read_text() == "done"
        assert not (tmp_path / "long").exists()

    run(work)


def test_a_silent_peer_is_given_up() -> None:
    """20 s without a frame count as the end; before that, without a part."""
    word, token = mark(), "a1:b2"
    line = command_line(trial.payload(), token, LaunchWay(cache=False))
    agents = [
        subprocess.Popen(
            ["/bin/sh", "-c", line],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for _ in range(2)
    ]
    talker = agents[1]
    assert talker.stdin is not None
    assert talker.stdout is not None
    assert talker.stdout.readline() == b"b2a1 boot\n"
    stage0 = trial.payload().stage0
    for data in (stage0, *(part.compressed for part in trial.payload().parts)):
        talker.stdin.write(len(data).to_bytes(4, "big") + data)
    began = time.monotonic()
    call = {"type": "call", "id": 1, "name": "trial.hang", "args": {"mark": word, "detached": True}}
    talker.stdin.write(wire.encode(call))
    talker.stdin.flush()

    async def work() -> None:
        await trial.until(lambda: trial.processes(word))
        await trial.until(
            lambda: not trial.processes(word) and all(one.poll() is not None for one in agents),
            120.0,
        )
        assert time.monotonic() - began > wire.LEASE_SECONDS - 1

    try:
        run(work)
    finally:
        for one in agents:
            one.kill()
            _, said = one.communicate()
    assert talker.returncode == 75
    assert b"no message for 20 s" in said


def test_what_is_no_frame_ends_the_agent() -> None:
    async def work() -> None:
        async with trial.session() as agent:
            guard, serve = await _line(agent)
            agent._channel.write(b"\xff\xff\xff\xffjunk")
            with pytest.raises(errors.AgentFailed) as caught:
                await agent.call("trial.echo")
            assert "malformed frame" in caught.value.message
            await trial.until(lambda: not trial.alive(guard) and not trial.alive(serve))

    run(work)


def test_wrong_parts_do_not_run() -> None:
    """Bytes that do not have the promised SHA-256 end the start with one line."""
    token = "a1:b2"
    line = command_line(trial.payload(), token, LaunchWay(cache=False))
    core = trial.payload().parts[0]
    evil = core.compressed[:-1] + bytes([core.compressed[-1] ^ 1])
    sent = b"".join(len(d).to_bytes(4, "big") + d for d in (trial.payload().stage0, evil))
    done = subprocess.run(["/bin/sh", "-c", line], input=sent, capture_output=True, timeout=60)
    assert done.returncode != 0
    assert done.stdout.startswith(b"b2a1 boot\nb2a1 ok 3.")
    assert b"Traceback" not in done.stderr, done.stderr


def test_payload_is_small_and_repeatable() -> None:
    from fleetmem.controller.contact import payload as made

    first = made.build()
    assert made.build() == first
    made.payload.cache_clear()
    assert made.payload() == first  # also where it comes from the cache
    core = {part.name: part for part in first.parts}["core"]
    assert len(core.compressed) < 64 * 1024
    assert json.dumps(first.labels)
