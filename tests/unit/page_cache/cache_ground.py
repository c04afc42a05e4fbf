"""Ground for tests of the page cache: a directory on a real disk, and mincore as an oracle."""

from __future__ import annotations

import ctypes
import mmap
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fleetmem.agent.declare import find
from fleetmem.agent.model import Trouble

PAGE = mmap.PAGESIZE
MIB = 1 << 20


@pytest.fixture
def disk() -> Iterator[Path]:
    """A directory that is not on tmpfs."""
    place = Path(tempfile.mkdtemp(prefix="fleetmem-", dir="/var/tmp"))
    try:
        yield place
    finally:
        shutil.rmtree(os.fsencode(place))


def call(name: str, **options: Any) -> tuple[str, str | None, Any]:
    """Outcome, reason and reading of a probe or action."""
    try:
        return "ok", None, find(name).func(**options)
    except Trouble as trouble:
        return trouble.outcome, trouble.reason, trouble.reading


def resident(path: Path | bytes) -> int:
    """Bytes of a file in the page cache by mincore, asked without the code under test."""
    size = os.stat(path).st_size
    if not size:
        return 0
    libc = ctypes.CDLL(None, use_errno=True)
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
        libc.mmap.restype = ctypes.c_void_p
        vector = (ctypes.c_ubyte * ((size + PAGE - 1) // PAGE))()
        address = libc.mmap(None, ctypes.c_size_t(size), 1, 1, file.fileno(), ctypes.c_long(0))
        assert libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(size), vector) == 0
        libc.munmap(ctypes.c_void_p(address), ctypes.c_size_t(size))
        assert len(view) == size
        return sum(byte & 1 for byte in vector) * PAGE


def near(told: int, true: int) -> bool:
    """Equal, but for a few pages: cachestat passes over one that is being moved just then."""
    return abs(told - true) <= 16 * PAGE


def cached(path: Path, mib: int) -> Path:
    """A file of this size, on disk and in the page cache."""
    with open(path, "wb") as file:
        file.write(os.urandom(mib * MIB))
        file.flush()
        os.fsync(file.fileno())
    return path


def holder(script: str) -> subprocess.Popen[str]:
    """A process that runs *script*, has printed "ready", and stays until it is killed."""
    program = f"import mmap, os, sys, time\n{script}\nprint('ready', flush=True)\ntime.sleep(600)"
    running = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert running.stdout is not None
    assert running.stdout.readline() == "ready\n"
    return running


def end(running: subprocess.Popen[str]) -> None:
    """Kill and collect it."""
    running.kill()
    running.wait()
    if running.stdout is not None:
        running.stdout.close()


MAPS = """
f = open({path!r}, 'rb')
m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)
f.close()
sum(m[i] for i in range(0, len(m), 4096))
"""
"""Maps a file and touches every page."""
