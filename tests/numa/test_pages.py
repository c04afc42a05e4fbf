"""Whatever the kernel counts in pages is bytes of this machine's page size (4K, 16K)."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from typing import Any

import pytest

from tests.lab.numa import arch as numa_arch
from tests.numa.machine import MIB, PLACE, Machine

pytestmark = pytest.mark.lab

SPARSE, LAYER = "/data/pages/sparse", "/data/pages/over"
TOUCHED = [0, 1, 7, 50, 51, 99]
PAGES = 100
MAKE = f"""
import mmap, os
page = mmap.PAGESIZE
with open({SPARSE!r}, "wb") as file:
    file.write(b"x" * ({PAGES - 1} * page + 5000))
    file.flush()
    os.fsync(file.fileno())
fd = os.open({SPARSE!r}, os.O_RDONLY)
os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
for at in {TOUCHED}:
    os.pread(fd, 1, at * page)
"""
BOTH_WAYS = f"""
import json, os, sys
sys.path.insert(0, {PLACE!r})
from fleetmem.agent.page_cache import pages
fd = os.open({SPARSE!r}, os.O_RDONLY)
size = os.fstat(fd).st_size
by_mincore, by_node = [], {{}}
for window in pages.windows(fd, size):
    by_mincore += [at for first, last in window.runs() for at in range(first, last)]
    window.touch()
    by_node = window.nodes()[0]
print(json.dumps([pages.cachestat(fd, size)[0], by_mincore, sum(by_node.values())]))
"""


def python(machine: Machine, script: str) -> str:
    return machine.sh("python3 -I -c " + shlex.quote(script))


@pytest.fixture
def page(machine: Machine) -> int:
    """The page size in bytes, as the machine's C library says it."""
    return int(machine.sh("getconf PAGESIZE"))


@pytest.fixture
def sparse(machine: Machine) -> Iterator[None]:
    """A file of which exactly the pages TOUCHED are cached, and the same file on overlayfs."""
    over = f"lowerdir=/data/pages,upperdir={LAYER}/up,workdir={LAYER}/work"
    machine.sh(f"mkdir -p {LAYER}/up {LAYER}/work {LAYER}/all && modprobe overlay")
    machine.sh(f"mount -t overlay overlay -o {over} {LAYER}/all")
    python(machine, MAKE)
    yield
    machine.sh(f"umount {LAYER}/all; rm -r /data/pages")


def test_the_page_size(machine: Machine, page: int) -> None:
    assert page == numa_arch.named().page_bytes
    assert machine.call("numa.nodes")["reading"]["page_size_bytes"] == page
    assert machine.call("host.facts")["reading"]["page_size_bytes"] == page
    reading = machine.call("pagecache.files", discover=0, walk="never")["reading"]
    assert reading["page_size_bytes"] == page


def test_cachestat_and_mincore_see_the_same_pages(
    machine: Machine, page: int, sparse: None
) -> None:
    counted, resident, mapped = json.loads(python(machine, BOTH_WAYS))
    assert (counted, resident, mapped) == (len(TOUCHED), TOUCHED, len(TOUCHED))
    # cachestat says nothing of a file on overlayfs: it is asked of the layer's file.
    for path in (SPARSE, f"{LAYER}/all/sparse"):
        reading = machine.call("pagecache.files", paths=[path], discover=0, walk="never")["reading"]
        (row,) = reading["files"]
        assert (row["path"], row["dirty_bytes"]) == (path, 0)
        assert row["size_bytes"] == (PAGES - 1) * page + 5000
        assert row["resident_bytes"] == len(TOUCHED) * page
        assert sum(row["by_numa_node"].values()) == len(TOUCHED) * page


def test_dirty_pages(machine: Machine, page: int) -> None:
    machine.sh("rm -f /data/dirty; sync -f /data")
    machine.sh(f"dd if=/dev/zero of=/data/dirty bs={page} count=40 2>/dev/null")
    reading = machine.call("pagecache.files", paths=["/data/dirty"], discover=0)["reading"]
    (row,) = reading["files"]
    assert row["resident_bytes"] == row["dirty_bytes"] + row["writeback_bytes"] == 40 * page
    machine.sh("rm /data/dirty")


def counts(machine: Machine, node: int) -> int:
    """Pages on the per-CPU lists of a node, from the kernel's own table."""
    total, here = 0, False
    for line in machine.sh("cat /proc/zoneinfo").splitlines():
        words = line.split()
        if words[0] == "Node":
            here = int(words[1].rstrip(",")) == node
        elif here and words[0] == "count:":
            total += int(words[1])
    return total


def test_pages_on_per_cpu_lists(machine: Machine, page: int) -> None:
    """Freed pages of node 1 wait there; compared while nothing moves them."""
    machine.shard("/data/waits", 16, "--membind=1")
    machine.sh("dd if=/data/waits iflag=nocache count=0 2>/dev/null; rm /data/waits")
    for _ in range(50):
        before = counts(machine, 1)
        row = next(row for row in machine.call("numa.nodes")["reading"]["nodes"] if row["id"] == 1)
        if counts(machine, 1) == before:
            break
    else:
        pytest.fail("the lists of node 1 never stand still")
    assert before > 0
    assert row["percpu_bytes"] == before * page


def test_shared_memory_and_a_process_s_own(machine: Machine, page: int) -> None:
    machine.sh("head -c 3145729 /dev/zero >/dev/shm/odd")
    segments = machine.call("shm.segments")["reading"]["segments"]
    (row,) = [row for row in segments if row["path"] == "/dev/shm/odd"]
    assert (row["size_bytes"], row["resident_bytes"]) == (3 * MIB + 1, 3 * MIB + page)
    machine.sh("rm /dev/shm/odd")
    script = f"import mmap; m = mmap.mmap(-1, {24 * MIB}, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n"
    pid = machine.start(script + "for i in range(0, len(m), mmap.PAGESIZE): m[i] = 1")
    found = machine.call("processes.memory", pids=[pid], largest=0, numa=1)["reading"]
    (process,) = [row for row in found["processes"] if row["pid"] == pid]
    nodes: dict[str, Any] = process["numa"]["by_numa_node"]
    anon = sum(row.get("anon_bytes", 0) for row in nodes.values())
    assert 24 * MIB < process["anon_bytes"] < 48 * MIB
    assert abs(anon - process["anon_bytes"]) < MIB
    assert process["proportional"]["pss_anon_bytes"] > 24 * MIB
    machine.sh(f"kill {pid}")
