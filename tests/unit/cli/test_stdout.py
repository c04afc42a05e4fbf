"""Large answers arrive whole, whatever happens to the pipe meanwhile."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import termios
from pathlib import Path

from tests.unit.agent.probe_actors import state_of, until

SIZE = 600_000
WRITE = f"from fleetmem.controller.cli.kit.stdout import put; put('é' + 'x' * {SIZE})"


def child(number: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", WRITE], stdout=number)


def wait_full(running: subprocess.Popen[bytes]) -> None:
    """Until it sleeps in a write to the full pipe."""
    until(lambda: "pipe" in Path(f"/proc/{running.pid}/wchan").read_text())


def full(number: int) -> bool:
    """Whether nothing more fits into the pipe that ends in *number*."""
    size = fcntl.ioctl(number, termios.FIONREAD, bytes(4))
    return int.from_bytes(size, sys.byteorder) == fcntl.fcntl(number, fcntl.F_GETPIPE_SZ)


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
    until(lambda: state_of(running.pid) == "T")
    running.send_signal(signal.SIGCONT)
    until(lambda: state_of(running.pid) != "T")
    wait_full(running)
    assert everything(ours) == ("é" + "x" * SIZE).encode()
    assert running.wait(60) == 0


def test_a_pipe_that_does_not_block_loses_nothing() -> None:
    """Some shells and terminals share a non-blocking pipe with the programs they start."""
    ours, theirs = os.pipe()
    flags = fcntl.fcntl(theirs, fcntl.F_GETFL)
    fcntl.fcntl(theirs, fcntl.F_SETFL, flags | os.O_NONBLOCK)
    running = child(theirs)
    os.close(theirs)
    until(lambda: full(ours))
    assert everything(ours) == ("é" + "x" * SIZE).encode()
    assert running.wait(60) == 0
