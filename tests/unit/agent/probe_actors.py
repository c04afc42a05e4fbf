"""Real processes for the tests of the probes, each ended by its exact pid."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

PRELUDE = """
import ctypes, os, platform, sys, threading, time
libc = ctypes.CDLL(None)
libc.prctl(1, 9, 0, 0, 0)  # PR_SET_PDEATHSIG: a test run that is killed leaves no actor
EXIT = {"x86_64": 60, "aarch64": 93}[platform.machine()]
def say(*words):
    sys.stdout.write(" ".join(str(word) for word in words) + "\\n")
    sys.stdout.flush()
def rest():
    while True:
        time.sleep(3600)                         # it sleeps whenever anybody looks
def rename(name):
    libc.prctl(15, ctypes.c_char_p(name.encode()), 0, 0, 0)
"""


class Actor:
    """A running script; ``words`` is the line it said when it was ready."""

    def __init__(self, process: subprocess.Popen[str], words: list[str]) -> None:
        self.process = process
        self.pid = process.pid
        self.words = words


@contextlib.contextmanager
def actor(script: str, *, session: bool = True, pass_fds: tuple[int, ...] = ()) -> Iterator[Actor]:
    """Run *script* until the block ends. Pids that it says are ended too."""
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", PRELUDE + textwrap.dedent(script)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=session,
        pass_fds=pass_fds,
    )
    assert process.stdout is not None
    line: list[str] = []
    try:
        line = process.stdout.readline().split()
        assert line, "the script ended before it was ready"
        yield Actor(process, line)
    finally:
        for pid in [int(word) for word in line if word.isdigit()]:
            # Told by our own descendant a moment ago; it cannot have been reused since, as
            # nobody but its parent (or the reaper in the script) collects it.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.kill()
        process.wait()
        process.stdout.close()


def until(what: object, seconds: float = 60.0) -> None:
    """Wait until the callable *what* is true; AssertionError where it stays false."""
    assert callable(what)
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "did not come true in time"
        time.sleep(0.01)


def state_of(pid: int, task: int | None = None) -> str:
    """The kernel's letter for the leader of a process, or for another task."""
    text = Path(f"/proc/{pid}/task/{task or pid}/stat").read_text()
    return text.rpartition(")")[2].split()[0]


def others_sleep(pid: int) -> bool:
    """Whether every task but the leader sleeps."""
    tasks = [int(name) for name in os.listdir(f"/proc/{pid}/task") if int(name) != pid]
    return all(state_of(pid, task) == "S" for task in tasks)
