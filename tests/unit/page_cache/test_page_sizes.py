"""What the kernel counts in pages comes out in bytes of the host's page size, whatever that is."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from fleetmem.agent.actions import pagecache as drop
from fleetmem.agent.actions import pagecache_file
from fleetmem.agent.kernel import smaps as memory_deep
from fleetmem.agent.kernel import sysroot
from fleetmem.agent.page_cache import pages, shm_scan
from fleetmem.agent.probes import cgroup_memory, numa, pagecache
from fleetmem.controller.render.snapshot.snapshot import head_lines

MIB = 1 << 20
KEY = (8, 1, 77)


@pytest.fixture(params=[4096, 16384, 65536])
def page(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """A host with pages of this size. Only what counts may run: no mapping is looked at."""
    size = int(request.param)
    real = os.sysconf

    def sysconf(name: str | int) -> int:
        return size if name in ("SC_PAGE_SIZE", "SC_PAGESIZE") else real(name)

    monkeypatch.setattr(os, "sysconf", sysconf)
    monkeypatch.setattr(pages, "PAGE", size)
    return size


@pytest.fixture
def put(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes a file of a host that consists of files."""
    monkeypatch.setattr(sysroot, "ROOT", str(tmp_path))

    def write(name: str, text: str) -> None:
        place = tmp_path / name.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)

    return write


def test_per_cpu_lists_watermarks_and_zspages(page: int, put: Any) -> None:
    put("/proc/meminfo", "MemTotal: 8388608 kB\nMemFree: 4194304 kB\n")
    put("/sys/devices/system/node/node0/meminfo", "Node 0 MemTotal: 8388608 kB\n")
    put("/sys/devices/system/node/node0/cpulist", "0-1\n")
    put(
        "/proc/zoneinfo",
        "Node 0, zone   Normal\n        low      30\n      nr_zspages   9\n"
        "    cpu: 0\n              count:    100\n    cpu: 1\n              count:    23\n",
    )
    reading = numa.numa_nodes()
    (row,) = reading["nodes"]
    assert reading["page_size_bytes"] == page
    assert row["percpu_bytes"] == row["kernel_bytes"] == 123 * page
    assert row["low_watermark_bytes"] == 30 * page
    assert row["zspages_bytes"] == 9 * page


def test_a_process_s_pages_by_node(page: int, put: Any) -> None:
    """A line that does not say its page size has the host's; huge pages say theirs."""
    put(
        "/proc/7/numa_maps",
        "100000 default anon=3 dirty=3 N0=1 N1=2\n"
        "200000 default file=/lib/x mapped=5 N0=5 kernelpagesize_kB=4\n"
        "300000 bind:1 file=/anon_hugepage\\040(deleted) huge N1=2 kernelpagesize_kB=32768\n",
    )
    found = memory_deep.numa_maps("/proc/7")
    assert found == {
        "by_numa_node": {
            "0": {"anon_bytes": page, "file_bytes": 5 * 4096},
            "1": {"anon_bytes": 2 * page, "hugetlb_bytes": 64 * MIB},
        },
        "policies": {"default": 3 * page + 5 * 4096, "bind:1": 64 * MIB},
    }


def test_control_groups_of_version_1(page: int, put: Any) -> None:
    """Their numa_stat counts pages, and "no limit" is the largest multiple of one."""
    put(
        "/proc/self/mountinfo",
        "3 2 0:4 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
    )
    place = "/sys/fs/cgroup/memory/job"
    put(f"{place}/memory.usage_in_bytes", f"{5 * MIB}\n")
    put(f"{place}/memory.limit_in_bytes", f"{(1 << 63) - page}\n")
    put(f"{place}/memory.numa_stat", "hierarchical_anon=7 N0=3 N1=4\nhierarchical_file=9 N1=9\n")
    (row,) = cgroup_memory.cgroups_memory()["cgroups"]
    assert row["max_bytes"] is None
    assert row["by_numa_node"] == {
        "0": {"anon_bytes": 3 * page},
        "1": {"anon_bytes": 4 * page, "file_bytes": 9 * page},
    }


def test_a_cached_file(page: int) -> None:
    scan = pagecache.Scan(1.0)
    found = scan.add((b"/data/x", KEY, False, 10 * MIB, 40, 3, 2, None, False), b"/data/x")
    assert found.resident == 40 * page
    found.nodes = {0: 4, 1: 36}
    row = pagecache._row(scan, KEY, found)
    assert row["resident_bytes"] == 40 * page
    assert row["by_numa_node"] == {"0": 4 * page, "1": 36 * page}
    assert (row["dirty_bytes"], row["writeback_bytes"]) == (3 * page, 2 * page)
    assert scan.coverage()["found_bytes"] == 40 * page


def test_a_dropped_file_and_the_room_for_a_migrated_one(page: int) -> None:
    file = pagecache_file.blank("partial", None)
    file["before"], file["after"], file["dirty"] = {1: 36}, {1: 2}, 5
    row = drop._row(b"/data/x", file, None)
    assert (row["before_bytes"], row["after_bytes"]) == (36 * page, 2 * page)
    assert (row["before"], row["dirty_bytes"]) == ({"1": 36 * page}, 5 * page)
    node: Any = {"id": 0, "kind": "cpu", "distances": [10, 80]}
    node.update(free_bytes=100 * MIB, low_watermark_bytes=18 * MIB)
    assert drop._rooms([node], frozenset({1})) == {0: 64 * MIB // page}


def test_shared_memory(page: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of its pages are in memory, the other half is swapped."""
    path = tmp_path / "segment"
    path.write_bytes(b"x" * MIB)
    allocated = path.stat().st_blocks * 512
    monkeypatch.setattr(pages, "cachestat", lambda fd, size: (MIB // 2 // page, 0, 0))
    row = shm_scan._file("posix", os.fsencode(path), os.fsencode(path), path.stat())
    assert row[6:8] == (MIB // 2, allocated - MIB // 2)


def test_the_screen_says_it(page: int) -> None:
    entry: Any = {"host": "gh200-01", "readings": {}}
    section: Any = {"page_size_bytes": page, "numa_nodes": [], "phase": None}
    ((text, _),) = head_lines(entry, section, "1")[0]
    assert f"{page >> 10}K pages" in text
