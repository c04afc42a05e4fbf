"""Run a command, know its cost: wall, its own CPU, and the CPU everything else spent meanwhile."""

from __future__ import annotations

import os
import resource
import subprocess
import time
from dataclasses import dataclass

TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Cost:
    """Seconds. ``other`` is what the rest of the machine spent: the hosts, on a quiet one."""

    wall: float
    client: float
    other: float


def run(
    words: list[str], environment: dict[str, str] | None = None, ok: tuple[int, ...] = (0,)
) -> Cost:
    """The cost of one command and its children; RuntimeError where it fails."""
    busy, before = _busy(), _children()
    begin = time.perf_counter()
    done = subprocess.run(
        words,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    wall = time.perf_counter() - begin
    client = _children() - before
    if done.returncode not in ok:
        raise RuntimeError(f"{words[0]} ended with {done.returncode}: {done.stderr[-400:]}")
    return Cost(wall, client, max(0.0, _busy() - busy - client))


def best(costs: list[Cost]) -> Cost:
    """The smallest of each figure."""
    return Cost(
        min(c.wall for c in costs), min(c.client for c in costs), min(c.other for c in costs)
    )


def _children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _busy() -> float:
    """CPU seconds of the whole machine since boot, idle and iowait left out."""
    with open("/proc/stat") as file:
        fields = [int(value) for value in file.readline().split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / TICK
