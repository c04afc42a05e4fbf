"""One cached gigabyte by NUMA node against a C loop of the same system calls; 500 processes."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import measure
from fleetmem.agent.declare import find
from fleetmem.agent.model import Trouble
from fleetmem.agent.page_cache import scan as cache_scan

ROUNDS = 5
SIZE = 1 << 30
PROCESSES = 500
MOST_RATIO = 1.3
MOST_CPU_SECONDS = 1.5


def main() -> list[tuple[str, str]]:
    """The rows of the table."""
    return [*_scan(), *_processes()]


def _cpu(who: int) -> float:
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime


def _scan() -> list[tuple[str, str]]:
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="fleetmem-bench-") as scratch:
        program, file = f"{scratch}/count", Path(scratch, "file")
        source = str(Path(__file__).with_name("count_pages.c"))
        subprocess.run(["gcc", "-O2", "-o", program, source], check=True)
        with open(file, "wb") as out:
            block = os.urandom(1 << 20)
            for _ in range(SIZE >> 20):
                out.write(block)
            os.fsync(out.fileno())
        theirs, ours = [], []
        for _ in range(ROUNDS):
            theirs.append(measure.run([program, str(file)]).client)
            before = _cpu(resource.RUSAGE_SELF)
            *_, (counts, _, problem) = cache_scan.count_nodes(os.fsencode(file))  # type: ignore[misc]
            ours.append(_cpu(resource.RUSAGE_SELF) - before)
            if problem or sum(count for _, count in counts) * os.sysconf("SC_PAGE_SIZE") < SIZE:
                raise RuntimeError(f"the file did not stay in the page cache: {counts} {problem}")
    factor = min(ours) / min(theirs)
    missed = " MISSED" if factor > MOST_RATIO else ""
    return [
        ("1 GiB by NUMA node, CPU s", f"{min(ours):.3f}"),
        ("  the same in C", f"{min(theirs):.3f}"),
        (f"  ratio, at most {MOST_RATIO}", f"{factor:.2f}{missed}"),
    ]


def _processes() -> list[tuple[str, str]]:
    """CPU of a snapshot's probes, children included, beside 500 more processes."""
    program = [sys.executable, "-I", "-S", "-c", "import time; print(flush=True); time.sleep(600)"]
    running: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(PROCESSES):
            running.append(subprocess.Popen(program, stdout=subprocess.PIPE))
        for one in running:
            assert one.stdout is not None
            one.stdout.readline()
        time.sleep(0.5)
        before = _cpu(resource.RUSAGE_SELF) + _cpu(resource.RUSAGE_CHILDREN)
        for name in ("numa.nodes", "processes.memory", "shm.segments", "pagecache.files"):
            try:
                find(name).func()
            except Trouble as trouble:
                if trouble.reading is None:
                    raise
        spent = _cpu(resource.RUSAGE_SELF) + _cpu(resource.RUSAGE_CHILDREN) - before
    finally:
        for one in running:
            one.kill()
        for one in running:
            one.wait()
            assert one.stdout is not None
            one.stdout.close()
    missed = " MISSED" if spent > MOST_CPU_SECONDS else ""
    label = f"memory probes beside {PROCESSES} processes, CPU s, at most {MOST_CPU_SECONDS}"
    return [(label, f"{spent:.2f}{missed}")]
