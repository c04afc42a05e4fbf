"""The agent with a few more calls, for tests: real code in a payload of its own, no hooks."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path

from fleetmem.controller.contact import payload as made
from fleetmem.controller.contact.agent_parts import Payload
from fleetmem.controller.contact.launch import LaunchWay
from fleetmem.controller.contact.session import Session
from fleetmem.controller.contact.transport import Connection, ConnectSettings
from fleetmem.controller.contact.transport.choose import connect
from fleetmem.controller.hosts.host import Host

CALLS = '''
from __future__ import annotations

import os
import time

from fleetmem.agent.declare import action, probe


def _start(mark, detached):
    """A shell with a sleeping child, in a session of its own where *detached*."""
    if os.fork() == 0:
        if detached:
            os.setsid()
            if os.fork():
                os._exit(0)
        os.execv("/bin/sh", ["sh", "-c", "sleep %s; true" % mark])


@probe("trial.echo")
def echo(*, value=None):
    return {"value": value, "pid": os.getpid(), "parent": os.getppid()}


@probe("trial.hang")
def hang(*, mark="", detached=False, emit=None):
    _start(mark, detached)
    emit({"started": mark})
    time.sleep(600)


@probe("trial.leave")
def leave(*, mark="", detached=False):
    _start(mark, detached)
    return {}


@probe("trial.die")
def die(*, number=9):
    os.kill(os.getpid(), number)


@probe("trial.fail")
def fail():
    raise KeyError("nothing there")


@probe("trial.files")
def files():
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[name] = os.readlink("/proc/self/fd/" + name)
        except OSError:
            pass
    return found


@probe("trial.memory")
def memory(*, mib=1):
    return len(bytearray(mib << 20))


@probe("trial.nvml")
def in_session(*, seconds=0.0):
    time.sleep(seconds)
    return {"pid": os.getpid()}


@probe("trial.nvml_leave")
def session_leaves(*, mark=""):
    _start(mark, True)
    _start(mark, False)
    return {}


@probe("trial.nvml_die")
def session_dies():
    os.kill(os.getpid(), 11)


def plan(path="", seconds=0.0):
    return ["write " + path]


@action("trial.act", plan=plan, reversible=True, blast_radius="a file")
def act(*, path="", seconds=0.0, emit=None):
    emit({"begun": os.getpid()})
    time.sleep(seconds)
    with open(path, "w") as file:
        file.write("done")
    return {}
'''
_ROWS = {
    **dict.fromkeys(("echo", "leave", "die", "fail", "files", "memory"), '"probes.trial", "T"'),
    "hang": '"probes.trial", "T", 600.0',
    "nvml": '"probes.trial", "T", nvml=True',
    "nvml_die": '"probes.trial", "T", nvml=True',
    "nvml_leave": '"probes.trial", "T", nvml=True',
    "act": '"actions.trial", "T", 30.0',
}


@cache
def payload() -> Payload:
    """The product's payload and the trial calls."""
    modules = made.agent_modules()
    modules["fleetmem.agent.probes.trial"] = CALLS
    declare = modules["fleetmem.agent.declare"]
    modules["fleetmem.agent.actions.trial"] = CALLS
    rows = "".join(f'    "trial.{name}": Row({row}),\n' for name, row in _ROWS.items())
    assert declare.count("CALLS = {\n") == 1
    declare = declare.replace("CALLS = {\n", "CALLS = {\n" + rows)
    modules["fleetmem.agent.declare"] = declare
    wrap, bootstrap = made.boot()
    parts = (made.pack("core", modules), made.pack("nvml", made.nvml()))
    return Payload(wrap, bootstrap, made.stage0(), parts)


HERE = Host("here", "here", transport="local")


@asynccontextmanager
async def connection(host: Host = HERE) -> AsyncIterator[Connection]:
    """A connection that is closed at the end."""
    held = await connect(host, ConnectSettings(config_files=()))
    try:
        yield held
    finally:
        await held.close()


@asynccontextmanager
async def session(
    python: str | None = None, cache: bool = False, host: Host = HERE, wanted: Payload | None = None
) -> AsyncIterator[Session]:
    """A session with the trial agent, through the local transport."""
    async with connection(host) as held:
        opened = await Session.open(
            held, wanted or payload(), LaunchWay(python=python, cache=cache)
        )
        try:
            yield opened
        finally:
            await opened.close()


def processes(mark: str) -> list[int]:
    """Pids on this machine whose command line or name contains *mark*, zombies not."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            line = Path("/proc", name, "cmdline").read_bytes().replace(b"\0", b" ")
        except OSError:
            continue
        if mark.encode() in line:
            found.append(int(name))
    return found


def alive(pid: int) -> bool:
    """Whether *pid* exists and is no zombie."""
    try:
        text = Path("/proc", str(pid), "stat").read_text("utf-8", "replace")
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] not in "ZX"


def parent(pid: int) -> int:
    """The parent of a living process."""
    text = Path("/proc", str(pid), "stat").read_text("utf-8", "replace")
    return int(text.rpartition(")")[2].split()[1])


async def until(happened: Callable[[], object], seconds: float = 60.0) -> float:
    """Wait until *happened* is true; how long it took. AssertionError after *seconds*."""
    began = time.monotonic()
    while not happened():
        assert time.monotonic() - began < seconds, f"not within {seconds} s"
        await asyncio.sleep(0.02)
    return time.monotonic() - began
