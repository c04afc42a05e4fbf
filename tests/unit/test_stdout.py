"""Large answers arrive whole, whatever happens to the pipe meanwhile."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

SIZE = 600_000
WRITE = f"from fleetmem.controller.cli.stdout import put; put('é' + 'x' * {SIZE})"


def child(number: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", WRITE], stdout=number)


def wait_full(running: subprocess.Popen[bytes]) -> None:
    """Until it sleeps in a write to the full pipe."""
    for _ in range(500):
        if "pipe" in Path(f"/proc/{running.pid}/wchan").read_text():
            return
        time.sleep(0.02)
    raise AssertionError("it never filled the pipe")


def everything(number: int) -> bytes:
    data = b""
    while more := os.read(number, 1 << 16):
        data += more
    os.close(number)
    return data


def test_a_stop_in_the_middle_loses_nothing() -> None:
    """Ctrl-Z and fg while a pager has not read on: Python's own writer drops the rest."""
    ours, theirs = os.pipe()
    running = child(theirs)
    os.close(theirs)
    wait_full(running)
    running.send_signal(signal.SIGSTOP)
    time.sleep(0.2)
    running.send_signal(signal.SIGCONT)
    time.sleep(0.2)
    assert everything(ours) == ("é" + "x" * SIZE).encode()
    assert running.wait(20) == 0


def test_a_pipe_that_does_not_block_loses_nothing() -> None:
    """Some shells and terminals share a non-blocking pipe with the programs they start."""
    ours, theirs = os.pipe()
    flags = fcntl.fcntl(theirs, fcntl.F_GETFL)
    fcntl.fcntl(theirs, fcntl.F_SETFL, flags | os.O_NONBLOCK)
    running = child(theirs)
    os.close(theirs)
    time.sleep(1.0)
    assert everything(ours) == ("é" + "x" * SIZE).encode()
    assert running.wait(20) == 0
