"""processes.memory and cgroups.memory beside psutil and the kernel's own files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from fleetmem.agent.kernel import smaps as memory_deep
from fleetmem.agent.kernel import sysroot
from fleetmem.agent.model import Trouble
from fleetmem.agent.probes import cgroup_memory, memory
from fleetmem.controller.rules import playbook
from fleetmem.controller.rules.judge import Case, judge
from fleetmem.controller.rules.views import Look
from tests.unit.page_cache.cache_ground import MIB, call, end, holder

BUSY = """
a = bytearray(48 << 20)
f = open({path!r}, 'w+b'); f.truncate(24 << 20)
m = mmap.mmap(f.fileno(), 0); m[:] = b'x' * len(m)
z = mmap.mmap(-1, 8 << 20); z[:] = b'y' * len(z)
"""


def test_a_process_agrees_with_psutil() -> None:
    place = f"/dev/shm/fleetmem-test-{os.getpid()}"
    running = holder(BUSY.format(path=place))
    try:
        _, _, reading = call("processes.memory", pids=(running.pid,), rows=0, largest=0, numa=1)
        (row,) = reading["processes"]
        known = psutil.Process(running.pid)
        full = known.memory_full_info()
    finally:
        end(running)
        os.unlink(place)
    assert row["resident_bytes"] == full.rss
    assert row["virtual_bytes"] == full.vms
    assert row["swap_bytes"] == full.swap
    assert row["anon_bytes"] + row["file_bytes"] + row["shmem_bytes"] == full.rss
    assert abs(row["proportional"]["pss_bytes"] - full.pss) < MIB
    assert abs(row["proportional"]["private_bytes"] - full.uss) < MIB
    assert row["anon_bytes"] >= 48 * MIB
    assert 32 * MIB <= row["shmem_bytes"] < 36 * MIB
    shared = {found["kind"]: found for found in row["shared"]}
    assert shared["posix"]["map_bytes"] == 24 * MIB
    assert shared["posix"]["name"] == place
    assert shared["zero"]["map_bytes"] == 8 * MIB
    assert row["driver"] is None
    if row["numa"] is not None:
        by_node = row["numa"]["by_numa_node"].values()
        assert sum(node.get("shmem_bytes", 0) for node in by_node) >= 32 * MIB
        assert sum(sum(node.values()) for node in by_node) <= full.rss + MIB


def test_totals_are_sums_over_all_processes() -> None:
    before = all_resident()
    _, _, reading = call("processes.memory", rows=3, largest=0)
    low, high = sorted((before, all_resident()))
    assert len(reading["processes"]) <= 3
    near = max(256 * MIB, high // 10)  # others of this machine start and end meanwhile
    assert low - near < reading["totals"]["resident_bytes"] < high + near
    sizes = [row["resident_bytes"] + row["swap_bytes"] for row in reading["processes"]]
    assert sizes == sorted(sizes, reverse=True)


def all_resident() -> int:
    """Resident bytes of all processes, as psutil counts them."""
    found = (process.info["memory_info"] for process in psutil.process_iter(["memory_info"]))
    return sum(memory.rss for memory in found if memory is not None)


class Files:
    def __init__(self, root: Path) -> None:
        self.root = root

    def put(self, name: str, text: str) -> None:
        place = self.root / name.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Files:
    monkeypatch.setattr(sysroot, "ROOT", str(tmp_path))
    return Files(tmp_path)


def deep(pid: int) -> Any:
    return next(memory_deep.look(pid, True))


def test_the_driver_s_mappings_and_policies(files: Files) -> None:
    files.put("/proc/7/smaps_rollup", "0-1 ---p 0 0:0 0 [rollup]\nRss: 9 kB\nPss: 8 kB\n")
    files.put(
        "/proc/7/maps",
        "200000000-200200000 rw-s 0 00:05 91 /dev/nvidia-uvm\n"
        "300000000-300400000 rw-s 0 00:01 92 /dev/zero (deleted)\n"
        "400000000-400100000 rw-s 0 00:05 93 /dev/nvidia0\n"
        "410000000-410200000 rw-s 0 00:05 90 /dev/nvidiactl\n"
        "500000000-500100000 r--p 0 fe:00 94 /usr/lib/libc.so\n"
        "600000000-600100000 rw-s 0 00:1a 95 /dev/shm/kept\n"
        "700000000-700100000 rw-s 0 00:1a 96 /dev/shm/gone (deleted)\n",
    )
    files.put(
        "/proc/7/smaps",
        "200000000-200200000 rw-s 0 00:05 91 /dev/nvidia-uvm\nRss:  512 kB\nPss: 256 kB\n"
        "300000000-300400000 rw-s 0 00:01 92 /dev/zero (deleted)\nRss:  4096 kB\nPss: 2048 kB\n"
        "400000000-400100000 rw-s 0 00:05 93 /dev/nvidia0\nRss: 0 kB\nPss: 0 kB\n"
        "410000000-410200000 rw-s 0 00:05 90 /dev/nvidiactl\nRss: 2048 kB\nPss: 1024 kB\n"
        "500000000-500100000 r--p 0 fe:00 94 /usr/lib/libc.so\nRss:  64 kB\nPss: 32 kB\n"
        "600000000-600100000 rw-s 0 00:1a 95 /dev/shm/kept\nRss: 1024 kB\nPss: 1024 kB\n"
        "700000000-700100000 rw-s 0 00:1a 96 /dev/shm/gone (deleted)\nRss: 9 kB\nPss: 7 kB\n",
    )
    files.put(
        "/proc/7/numa_maps",
        "100000 bind:1 anon=3 dirty=3 N0=1 N1=2 kernelpagesize_kB=4\n"
        "200000 default file=/dev/shm/x dirty=5 N1=5 kernelpagesize_kB=64\n"
        "300000 default file=/lib/x mapped=1 N0=1 kernelpagesize_kB=4\n"
        "380000 default file=/dev/nvidia-uvm mapped=96 N1=96 kernelpagesize_kB=4\n"
        "390000 default file=/dev/nvidiactl mapped=512 N0=512 kernelpagesize_kB=4\n"
        "400000 default file=/anon_hugepage\\040(deleted) huge dirty=1 N1=1"
        " kernelpagesize_kB=2048\n",
    )
    found = deep(7)
    assert found["driver"] == {
        "map_bytes": 5 * MIB,
        "pss_bytes": 1024 * 1024,
        "uvm_map_bytes": 2 * MIB,
        "uvm_pss_bytes": 256 * 1024,
        "pinned_resident_bytes": 4 * MIB,
    }
    assert found["proportional"]["pss_bytes"] == 8 * 1024
    assert found["proportional"]["pss_anon_bytes"] is None
    assert found["proportional"]["pss_unnamed_shmem_bytes"] == (2048 + 7) * 1024
    assert found["numa"]["by_numa_node"] == {
        "0": {"anon_bytes": 4096, "file_bytes": 4096, "driver_bytes": 2 * MIB},
        "1": {
            "anon_bytes": 8192,
            "shmem_bytes": 5 * 65536,
            "hugetlb_bytes": 2 * MIB,
            "managed_bytes": 96 * 4096,
        },
    }
    assert found["numa"]["policies"] == {
        "bind:1": 3 * 4096,
        "default": 5 * 65536 + 4096 + 2 * MIB + 96 * 4096 + 2 * MIB,
    }


def test_the_memory_of_a_process_without_its_main_thread(files: Files) -> None:
    files.put("/proc/7/status", "Name: x\nState: Z\nThreads: 2\n")
    files.put("/proc/7/task/7/status", "Name: x\nThreads: 2\n")
    files.put("/proc/7/task/9/status", "Name: x\nVmRSS: 12 kB\nThreads: 2\n")
    found = memory.read_status(7)
    assert found is not None
    assert found.size(b"VmRSS") == 12 * 1024
    files.put("/proc/8/status", "Name: kthread\nThreads: 1\n")
    assert memory.read_status(8) is None


WITHOUT_LEADER = """
import ctypes, threading
a = bytearray(40 << 20)
z = mmap.mmap(-1, 8 << 20); z[:] = b'y' * len(z)
def stay():
    leader = f"/proc/{os.getpid()}/stat"
    while open(leader).read().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.01)
    print("ready", flush=True)
    time.sleep(600)
threading.Thread(target=stay).start()
ctypes.CDLL(None).pthread_exit(None)
"""


def test_a_real_process_without_its_main_thread() -> None:
    """Its own folder in /proc shows no memory any more; that of another task does."""
    running = holder(WITHOUT_LEADER)
    try:
        _, _, reading = call("processes.memory", pids=(running.pid,), rows=0, largest=0, numa=1)
        assert Path(f"/proc/{running.pid}/maps").read_bytes() == b""
    finally:
        end(running)
    (row,) = reading["processes"]
    assert 40 * MIB <= row["anon_bytes"] < 80 * MIB
    share = row["proportional"]
    assert 40 * MIB <= share["private_bytes"] < 80 * MIB
    assert 8 * MIB <= share["pss_unnamed_shmem_bytes"] < 9 * MIB
    if row["numa"] is not None:
        by_node = row["numa"]["by_numa_node"].values()
        assert sum(node.get("anon_bytes", 0) for node in by_node) >= 40 * MIB


def test_lines_of_smaps_and_numa_maps_of_odd_shapes(files: Files) -> None:
    """Cut off, a policy of two words, a name with a blank, fields of newer kernels."""
    files.put("/proc/7/smaps_rollup", "0-1 ---p 0 0:0 0 [rollup]\nPss: 8 kB\nPss_Dirty: 1 kB\n")
    files.put(
        "/proc/7/maps",
        "200000000-200200000 rw-s 0 00:05 91 /dev/nvidia-uvm (deleted)\n"
        "ffffff0000000000-ffffff0000100000 rw-s 0 00:05 92 /dev/nvidiactl\n",
    )
    files.put(
        "/proc/7/smaps",
        "200000000-200200000 rw-s 0 00:05 91 /dev/nvidia-uvm (deleted)\n"
        "Rss: 64 kB\nPss: 64 kB\nPss_Dirty: 64 kB\nVmFlags: rd wr sh mr mw me ms pf io de dd sd\n"
        "ffffff0000000000-ffffff0000100000 rw-s 0 00:05 92 /dev/nvidiactl\n"
        "Rss: 32 kB\nPss: 16 kB\n"
        "ffffff0000100000-ffffff0000200000 rw-p 0 00:00 0 \n"
        "Rss: 99 kB\nPss: 99 kB\n"
        "ffffff0000200000-ffffff0000300000 rw-s 0 00:05 92 /dev/nvidiactl\nRss: 32 kB\nPss:",
    )
    files.put(
        "/proc/7/numa_maps",
        "200000000 prefer (many):0-1 file=/dev/nvidia-uvm\\040(deleted) mapped=16 N1=16"
        " kernelpagesize_kB=4\n"
        "ffffff0000000000 default file=/dev/nvidiactl dirty=8 active=0 N0=8 kernelpagesize_kB=4\n"
        "ffffff0000200000 default\n"
        "\n"
        "ffffff0000300000 default file=/dev/nvidiactl N0=8 kernelpagesize_kB=",
    )
    found = deep(7)
    assert found["driver"]["uvm_pss_bytes"] == 64 * 1024
    assert found["driver"]["pss_bytes"] == 16 * 1024
    assert found["numa"]["by_numa_node"] == {
        "0": {"driver_bytes": 32 * 1024},
        "1": {"managed_bytes": 64 * 1024},
    }


def test_cgroups_of_version_2(files: Files) -> None:
    files.put("/proc/self/mountinfo", "1 2 0:3 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
    top = "/sys/fs/cgroup"
    files.put(f"{top}/cgroup.controllers", "cpu memory\n")
    place = f"{top}/system.slice/vllm.service"
    files.put(f"{place}/memory.current", f"{90 * MIB}\n")
    files.put(f"{place}/memory.max", "max\n")
    files.put(f"{place}/memory.high", f"{99 * MIB}\n")
    files.put(f"{place}/memory.stat", "anon 100\nfile 5000\nshmem 2000\nslab 7\nfile_dirty 3\n")
    files.put(f"{place}/memory.numa_stat", "anon N0=60 N1=40\nfile N0=0 N1=5000\nslab N0=7\n")
    files.put(f"{place}/memory.events", "low 0\nhigh 4\nmax 0\noom 1\noom_kill 1\n")
    files.put(f"{place}/cgroup.procs", "12\n13\n")
    files.put(f"{top}/small/memory.current", "4096\n")
    reading = cgroup_memory.cgroups_memory()
    assert reading["version"] == 2
    assert reading["seen"] == 4
    (row,) = reading["cgroups"]
    assert row["path"] == "/system.slice/vllm.service"
    assert row["current_bytes"] == 90 * MIB
    assert (row["max_bytes"], row["high_bytes"]) == (None, 99 * MIB)
    assert (row["anon_bytes"], row["file_bytes"], row["shmem_bytes"]) == (100, 3000, 2000)
    assert row["by_numa_node"] == {
        "0": {"anon_bytes": 60, "file_bytes": 0},
        "1": {"anon_bytes": 40, "file_bytes": 5000},
    }
    assert row["events"]["oom_kill"] == 1
    assert row["processes"] == 2


def test_cgroups_of_version_1_are_found_first(files: Files) -> None:
    files.put(
        "/proc/self/mountinfo",
        "1 2 0:3 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
        "3 2 0:4 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
    )
    place = "/sys/fs/cgroup/memory/docker/abc"
    files.put(f"{place}/memory.usage_in_bytes", f"{5 * MIB}\n")
    files.put(f"{place}/memory.limit_in_bytes", "9223372036854771712\n")
    files.put(f"{place}/memory.stat", "cache 1\ntotal_cache 900\ntotal_rss 50\ntotal_shmem 100\n")
    files.put(f"{place}/memory.failcnt", "3\n")
    reading = cgroup_memory.cgroups_memory()
    (row,) = reading["cgroups"]
    assert reading["version"] == 1
    assert (row["file_bytes"], row["shmem_bytes"], row["anon_bytes"]) == (800, 100, 50)
    assert row["max_bytes"] is None
    assert row["events"] == {"max": 3}


def test_no_memory_controller_is_said(files: Files) -> None:
    files.put("/proc/self/mountinfo", "1 2 0:3 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
    with pytest.raises(Trouble, match="no control groups") as caught:
        cgroup_memory.cgroups_memory()
    assert caught.value.outcome == "unsupported"


MEMBER = """
import os, sys
with open(sys.argv[1], "w") as file:
    file.write(str(os.getpid()))
kept = bytearray(int(sys.argv[2]) << 20)
print("full", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def limited() -> Iterator[Path]:
    """A control group of this test's own that may have 64 MiB and no swap."""
    version, root = cgroup_memory.find()
    place = Path(root) / f"fleetmem-test-{os.getpid()}"
    names = {
        1: ("memory.limit_in_bytes", "memory.swappiness"),
        2: ("memory.max", "memory.swap.max"),
    }
    try:
        place.mkdir()
    except OSError as error:
        pytest.skip(f"NOT TESTED: no control group can be made here: {error.strerror}")
    try:
        limit, swap = (place / name for name in names[version])
        if not limit.exists():
            pytest.skip("NOT TESTED: control groups below the first have no memory controller here")
        limit.write_text(str(64 * MIB))
        if swap.exists():
            swap.write_text("0")
        yield place
    finally:
        place.rmdir()


def test_a_group_that_is_full_and_one_whose_process_was_killed(limited: Path) -> None:
    """Real pages and a real kill, of the one process that is in the group; then the findings."""
    command = [sys.executable, "-c", MEMBER, str(limited / "cgroup.procs")]
    running = subprocess.Popen(
        [*command, "60"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert running.stdin is not None
    assert running.stdout is not None
    try:
        assert running.stdout.readline() == "full\n"
        full = call("cgroups.memory", largest=20000)[2]
    finally:
        running.stdin.close()
        running.wait(timeout=60)
        running.stdout.close()
    greedy = subprocess.run([*command, "200"], stdin=subprocess.DEVNULL, capture_output=True)
    assert greedy.returncode == -signal.SIGKILL
    killed = call("cgroups.memory", largest=20000, least_bytes=0)[2]

    name = f"/{limited.name}"
    (row,) = [row for row in full["cgroups"] if row["path"].endswith(name)]
    assert row["max_bytes"] == 64 * MIB
    assert 60 * MIB <= row["current_bytes"] <= 64 * MIB
    assert row["processes"] == 1
    (row,) = [row for row in killed["cgroups"] if row["path"].endswith(name)]
    assert row["events"]["oom_kill"] == 1
    book = playbook.load("memory")
    said = [
        {one["rule"] for one in judge([book], [Case("h", Look({"cgroups.memory": reading}))])
         if one["subject"].endswith(name)}
        for reading in (full, killed)
    ]  # fmt: skip
    assert said == [{"memory/group-near-limit"}, {"memory/group-oom-killed"}]
