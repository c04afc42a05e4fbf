"""numa.nodes: parts that add up, on this machine and on machines made of files."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetmem.agent.kernel import numa_settings, sysroot
from fleetmem.agent.probes import numa
from fleetmem.agent.services import numa_gpus

PARTS = ("free", "file", "anon", "shmem", "slab", "hugetlb", "kernel", "device", "unaccounted")
MIB = 1 << 20
GIB = 1 << 30


def closes(row: Any) -> bool:
    return sum(row[f"{part}_bytes"] or 0 for part in PARTS) == row["total_bytes"]


def test_this_machine_agrees_with_psutil_and_free() -> None:
    before = psutil.virtual_memory()
    reading = numa.numa_nodes()
    memory, swap = psutil.virtual_memory(), psutil.swap_memory()
    told = reading["memory"]

    def agrees(found: int, first: int, last: int) -> bool:
        """Others work on this machine: the figure lies between those before and after."""
        return min(first, last) - near < found < max(first, last) + near

    assert told["total_bytes"] == memory.total
    assert told["swap_total_bytes"] == swap.total
    near = 256 * MIB
    assert agrees(told["free_bytes"], before.free, memory.free)
    assert agrees(told["available_bytes"] or 0, before.available, memory.available)
    # psutil and free add reclaimable slab to what is cached
    reclaimable = sum(row["slab_reclaimable_bytes"] for row in reading["nodes"])
    assert agrees(told["cached_bytes"] + reclaimable, before.cached, memory.cached)
    assert agrees(told["buffers_bytes"], before.buffers, memory.buffers)
    assert agrees(told["shmem_bytes"], before.shared, memory.shared)
    line = subprocess.run(["free", "-bw"], capture_output=True, text=True).stdout.splitlines()[1]
    words = [int(word) for word in line.split()[1:]]
    assert words[0] == told["total_bytes"]
    assert agrees(told["free_bytes"], before.free, words[2])
    assert agrees(told["shmem_bytes"], before.shared, words[3])
    assert reading["nodes"]
    for row in reading["nodes"]:
        assert closes(row)
        assert row["kind"] in ("cpu", "gpu", "memory")
    free = sum(row["free_bytes"] for row in reading["nodes"])
    # A kernel that hands memory to its nodes late counts it as free and total at once.
    late = memory.total - sum(row["total_bytes"] for row in reading["nodes"])
    assert agrees(free + late, before.free, memory.free)
    assert reading["page_size_bytes"] in (4096, 16384, 65536)
    line_ = reading["settings"]["kernel_command_line"] or ""
    assert all(word.startswith(numa_settings.KERNEL_WORDS) for word in line_.split())


class Made:
    """A machine made of files."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def put(self, name: str, text: str) -> None:
        place = self.root / name.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)

    def node(self, number: int, cpus: str, gib: int, **kib: int) -> None:
        fields = {"MemTotal": gib << 20, **kib}
        lines = "".join(f"Node {number} {k}:  {v} kB\n" for k, v in fields.items())
        place = f"/sys/devices/system/node/node{number}"
        self.put(f"{place}/meminfo", lines + f"Node {number} HugePages_Total:  3\n")
        self.put(f"{place}/cpulist", cpus + "\n")
        self.put(f"{place}/distance", "10 80\n")


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    monkeypatch.setattr(sysroot, "ROOT", str(tmp_path))
    monkeypatch.setattr(numa_gpus, "_by_nvml", lambda problems: [])
    found = Made(tmp_path)
    found.put("/proc/meminfo", "MemTotal: 100 kB\nMemFree: 40 kB\nMemAvailable: 60 kB\n")
    return found


def test_every_part_is_its_own(made: Made) -> None:
    made.node(
        0,
        "0-71",
        4,
        MemFree=1000,
        FilePages=900,
        Shmem=200,
        SwapCached=50,
        AnonPages=300,
        Slab=70,
        KernelStack=5,
        PageTables=6,
        SecPageTables=7,
        GPUActive=11,
        GPUReclaim=1,
    )
    place = "/sys/devices/system/node/node0/hugepages/"
    for size, count, free in ((2048, 3, 1), (1048576, 1, 0), (64, 0, 0)):
        made.put(f"{place}hugepages-{size}kB/nr_hugepages", f"{count}\n")
        made.put(f"{place}hugepages-{size}kB/free_hugepages", f"{free}\n")
    made.put(
        "/proc/zoneinfo",
        "Node 0, zone      DMA\n  pages free     3\n        low      4\n"
        "        present  100\n      nr_zspages   9\n  pagesets\n    cpu: 0\n"
        "              count:    2\n    cpu: 1\n              count:    3\n"
        "Node 0, zone   Normal\n  pages free     3\n        low      6\n"
        "        present  100\n    cpu: 0\n              count:    10\n"
        "Node 1, zone  Movable\n        present  50\n              count:    99\n",
    )
    row = numa.numa_nodes()["nodes"][0]
    page = numa.numa_nodes()["page_size_bytes"]
    assert closes(row)
    assert row["file_bytes"] == 650 * 1024
    assert row["shmem_bytes"] == 200 * 1024
    assert row["hugetlb_bytes"] == 3 * 2 * MIB + GIB
    assert [pool["page_bytes"] for pool in row["huge_pages"]] == [GIB, 2 * MIB]
    assert row["percpu_bytes"] == 15 * page
    assert row["kernel_bytes"] == 18 * 1024 + 15 * page
    assert row["device_bytes"] == 12 * 1024
    assert row["low_watermark_bytes"] == 10 * page
    assert row["zspages_bytes"] == 9 * page
    assert row["movable_only"] is False
    assert row["distances"] == [10, 80]


VMALLOC = """\
0x01-0x02   20480 irq_init_percpu_irqstack+0xca/0x100 vmap
0x02-0x03    8192 acpi_os_map_iomem+0x1bc/0x1e0 phys=0x00000000000a0000 ioremap
0x03-0x04   20480 kernel_clone+0x94/0x3e0 pages=4 vmalloc N0=4
0x04-0x05 2101248 os_alloc_mem+0x9d/0x130 [nvidia] pages=512 vmalloc vpages N0=500 N1=12
0x05-0x06   40960 i915_gem_object_pin_map+0x1/0x2 pages=9 vmap N0=9
0x07-0x08 2097152 pcpu_get_vm_areas+0x0/0x700 vmalloc
"""


def test_memory_that_the_kernel_took_by_vmalloc(made: Made) -> None:
    """Stacks are in it; mapped pages and device memory are not. Ordinary users may not read it."""
    made.node(0, "0-1", 4, KernelStack=16, PageTables=6)
    made.node(1, "", 4)
    kernels = {row["id"]: row["kernel_bytes"] for row in numa.numa_nodes()["nodes"]}
    assert kernels == {0: 22 * 1024, 1: 0}
    made.put("/proc/vmallocinfo", VMALLOC)
    reading = numa.numa_nodes()
    page = reading["page_size_bytes"]
    rows = {row["id"]: row for row in reading["nodes"]}
    assert {name: row["vmalloc_bytes"] for name, row in rows.items()} == {
        0: 504 * page,
        1: 12 * page,
    }
    assert rows[0]["kernel_bytes"] == 504 * page + 6 * 1024
    assert all(closes(row) for row in rows.values())
    without = numa.numa_nodes(vmalloc=False)["nodes"][0]
    assert (without["vmalloc_bytes"], without["kernel_bytes"]) == (None, 22 * 1024)


def test_vmalloc_of_a_kernel_without_numa() -> None:
    line = "0x1-0x2 20480 kernel_clone+0x94/0x3e0 pages=4 vmalloc\n"
    assert numa.vmalloc_pages(line * 3) == {0: 12}
    assert numa.vmalloc_pages(line + line[:-10]) == {0: 4}  # cut off
    assert numa.vmalloc_pages("") is None


def test_vmalloc_as_kernels_write_it() -> None:
    """Lines as of 4.4 to 6.18, x86 and arm64; a function's name is no figure."""
    text = (
        "0xffffc900000c0000-0xffffc900000c2000    8192 module_alloc_update_bounds+0xc/0x60 pages=1"
        " vmalloc N0=1\n"
        "0x(____ptrval____)-0x(____ptrval____)   12288 0xffffffffc0a1b2c3 pages=2 vmalloc N1=2\n"
        "0xffff800080000000-0xffff800080010000   65536 gic_of_init+0x1/0x2 phys=0x8000000 ioremap\n"
        "0x0000000000000000-0x0000000000000000 2101248 bpf_prog_alloc+0x1/0x2 [N2x] pages=512"
        " vmalloc user vpages N0=256 N1=256\n"
        "0x1-0x2   12288 N4mangledE+0x1/0x2 pages=2 vmalloc N0=2\n"
        "0x1-0x2 1048576 unpurged vm_area\n"
        "0x1-0x2 4194304 vm_map_ram\n"
        "0x1-0x2    8192 N7=strange pages=1 vmalloc\n"
        "\n"
    )
    assert numa.vmalloc_pages(text) == {0: 1 + 256 + 2, 1: 2 + 256}
    assert numa.vmalloc_pages("no lines") == {}


@given(st.text(alphabet="0x-9aN=12 pgesvmaloc\n\t", max_size=200))
def test_vmalloc_whatever_is_written(text: str) -> None:
    found = numa.vmalloc_pages(text)
    assert found is None or all(node >= 0 and pages >= 0 for node, pages in found.items())


def test_a_gpu_s_node_by_the_driver(made: Made) -> None:
    made.node(0, "0-71", 4, MemFree=1000)
    made.node(1, "", 96, MemFree=2000)
    made.node(2, "", 0)
    made.node(9, "", 8, MemFree=5)
    made.put(
        "/proc/zoneinfo",
        "Node 1, zone  Movable\n        present  50\nNode 1, zone  Normal\n        present  0\n",
    )
    gpus = "/proc/driver/nvidia/gpus/0009:01:00.0"
    made.put(f"{gpus}/numa_status", "Node:   1\nStatus: online\nAddress: 42000000000\n")
    made.put(f"{gpus}/information", "Model: NVIDIA GH200\nGPU UUID: \t GPU-1234\n")
    made.put("/proc/driver/nvidia/gpus/0019:01:00.0/information", "Model: another\n")
    made.put("/proc/driver/nvidia/params", 'CoherentGPUMemoryMode: ""\nModifyDeviceFiles: 1\n')
    reading = numa.numa_nodes()
    rows = {row["id"]: row for row in reading["nodes"]}
    assert sorted(rows) == [0, 1, 9]  # a node without memory has no row
    assert [rows[n]["kind"] for n in (0, 1, 9)] == ["cpu", "gpu", "memory"]
    assert rows[1]["gpu_uuid"] == "GPU-1234"
    assert rows[1]["gpu_evidence"] == "numa_status"
    assert rows[1]["movable_only"] is True
    assert [row["numa_node"] for row in reading["gpus"]] == [1]
    assert reading["driver"] is not None
    assert reading["driver"]["coherent_mode"] is None


def test_nvml_names_the_node_where_the_driver_s_files_do_not(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.node(0, "0-1", 1)
    made.node(1, "", 2)
    monkeypatch.setattr(numa_gpus, "_by_nvml", lambda problems: ["1 GPU-9 0009:01:00.0", "7 X Y"])
    rows = numa.numa_nodes()["nodes"]
    assert (rows[1]["kind"], rows[1]["gpu_uuid"], rows[1]["gpu_evidence"]) == (
        "gpu",
        "GPU-9",
        "nvml",
    )


def test_a_kernel_without_numa_is_one_node(made: Made) -> None:
    made.put(
        "/proc/meminfo",
        "MemTotal: 1000 kB\nMemFree: 100 kB\nCached: 300 kB\nBuffers: 50 kB\n"
        "SwapCached: 10 kB\nShmem: 40 kB\nAnonPages: 200 kB\nSlab: 30 kB\n",
    )
    made.put("/sys/devices/system/cpu/online", "0-3\n")
    reading = numa.numa_nodes()
    assert reading["synthetic"] is True
    (row,) = reading["nodes"]
    assert closes(row)
    assert row["file_bytes"] == 310 * 1024
    assert row["kind"] == "cpu"


def test_settings_and_only_words_about_memory(made: Made) -> None:
    made.put("/proc/cmdline", "root=/dev/x secret=abc init_on_alloc=1 hugepages=4 init_on_alloc=0")
    made.put("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n")
    made.put("/sys/kernel/mm/numa/demotion_enabled", "true\n")
    made.put("/proc/sys/kernel/numa_balancing", "2\n")
    found = numa_settings.settings()
    assert found["kernel_command_line"] == "init_on_alloc=1 hugepages=4 init_on_alloc=0"
    assert found["init_on_alloc"] is False
    assert found["transparent_hugepage"] == "madvise"
    assert found["demotion"] is True
    assert found["numa_balancing"] == 2
    assert found["swappiness"] is None
