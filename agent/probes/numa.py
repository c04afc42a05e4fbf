"""``numa.nodes``: the memory of each NUMA node in disjoint parts that add up to its total."""

from __future__ import annotations

import os

from fleetmem.agent.declare import probe
from fleetmem.agent.kernel import numa_settings, sysroot
from fleetmem.agent.model import UNSUPPORTED, Trouble
from fleetmem.agent.services import numa_gpus

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Optional, Tuple

    from fleetmem.agent.shapes import HugePages, NumaNode, NumaNodes

NODES = "/sys/devices/system/node"
HUGE = "/sys/kernel/mm/hugepages"
DEVICE_FIELDS = ("GPUActive", "GPUReclaim")
"""Counters that newer kernels keep for pages of GPU drivers (outside of all other parts)."""


class Zones:
    """What /proc/zoneinfo says of one node, in pages; ``zspages`` None where not counted."""

    __slots__ = ("low", "movable_only", "percpu", "zspages")

    def __init__(self) -> None:
        self.percpu = 0
        self.low = 0
        self.zspages: Optional[int] = None
        self.movable_only: Optional[bool] = None


@probe("numa.nodes")
def numa_nodes(*, vmalloc: bool = True) -> NumaNodes:
    """Each NUMA node with memory: what is in it, whose memory it is, and settings that matter.

    *vmalloc*: also the kernel's vmalloc pages by node, root's to read; some 2 ms for each
    thousand areas.

    A GPU's node is found by the driver's numa_status files, else by NVML (in a child with a
    timeout, and only where a node without CPUs asks for it).
    """
    page = os.sysconf("SC_PAGE_SIZE")
    machine = meminfo(sysroot.text("/proc/meminfo"))
    if "MemTotal" not in machine:
        raise Trouble(UNSUPPORTED, "/proc/meminfo has no MemTotal")
    zones = zoneinfo(_optional("/proc/zoneinfo", sysroot.LARGE))
    areas = vmalloc_pages(_optional("/proc/vmallocinfo", sysroot.LARGE)) if vmalloc else None
    problems: List[str] = []
    ids = node_ids()
    nodes: List[NumaNode] = []
    for number in ids:
        place = "%s/node%d" % (NODES, number)
        try:
            fields = meminfo(sysroot.text(place + "/meminfo"))
        except OSError as error:
            problems.append("node %d: %s" % (number, error.strerror))
            continue
        if fields.get("MemTotal"):
            if areas is not None:
                fields["Vmalloc"] = areas.get(number, 0) * page
            row = _node(number, fields, zones.get(number), _huge(place + "/hugepages"), page)
            row["cpus"] = _optional(place + "/cpulist").strip()
            row["distances"] = [int(word) for word in _optional(place + "/distance").split()]
            nodes.append(row)
    if not ids:
        fields = dict(machine, FilePages=machine.get("Cached", 0) + machine.get("Buffers", 0))
        fields["FilePages"] += machine.get("SwapCached", 0)
        if areas is not None:
            fields["Vmalloc"] = sum(areas.values()) * page
        row = _node(0, fields, zones.get(0), _huge(HUGE), page)
        row["cpus"] = _optional("/sys/devices/system/cpu/online").strip()
        nodes.append(row)
    gpus = numa_gpus.by_driver()
    numa_gpus.assign(nodes, gpus, problems)
    return {
        "page_size_bytes": page,
        "synthetic": not ids,
        "nodes": nodes,
        "memory": numa_settings.summary(machine),
        "settings": numa_settings.settings(),
        "driver": numa_gpus.driver(),
        "gpus": gpus,
        "problems": problems,
    }


def node_ids() -> List[int]:
    """Nodes that are online, in order; empty where the kernel knows no NUMA."""
    try:
        names = sysroot.names(NODES)
    except OSError:
        return []
    return sorted(int(name[4:]) for name in names if name[:4] == "node" and name[4:].isdigit())


def meminfo(text: str) -> Dict[str, int]:
    """Fields of a meminfo file in bytes (those without a unit are left out)."""
    fields: Dict[str, int] = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        words = value.split()
        if len(words) == 2 and words[1] == "kB":
            fields[name.rpartition(" ")[2]] = int(words[0]) * 1024
    return fields


def zoneinfo(text: str) -> Dict[int, Zones]:
    """/proc/zoneinfo by node: per-CPU lists, low watermark, zspages, and whether all is movable."""
    found: Dict[int, Zones] = {}
    node = Zones()
    name = ""
    for line in text.splitlines():
        words = line.split()
        if not words:
            continue
        first = words[0]
        if first == "count:":
            node.percpu += int(words[1])
        elif first == "Node":
            node = found.setdefault(int(words[1].rstrip(",")), Zones())
            name = words[3]
        elif first == "low":
            node.low += int(words[1])
        elif first == "nr_zspages":
            node.zspages = (node.zspages or 0) + int(words[1])
        elif first == "present" and int(words[1]):
            node.movable_only = node.movable_only is not False and name == "Movable"
    return found


def vmalloc_pages(text: str) -> Optional[Dict[int, int]]:
    """Pages that vmalloc allocated, by node (0 where the kernel knows none), from
    /proc/vmallocinfo; ``None`` where that could not be read. Areas of vmap and ioremap have no
    pages of their own."""
    found: Dict[int, int] = {}
    for line in text.rpartition("\n")[0].split("\n"):  # whole lines: the end may be cut off
        words = line.split()
        if "vmalloc" not in words:
            continue
        counts = [word for word in words if word[0] == "N" and word[1:2].isdigit()]
        counts = counts or ["N0=" + word[6:] for word in words if word[:6] == "pages="]
        for word in counts:
            node, _, count = word[1:].partition("=")
            if node.isdigit() and count.isdigit():
                found[int(node)] = found.get(int(node), 0) + int(count)
    return found if text else None


def _node(
    number: int,
    fields: Dict[str, int],
    zones: Optional[Zones],
    huge: List[HugePages],
    page: int,
) -> NumaNode:
    def take(name: str) -> int:
        return fields.get(name, 0)

    percpu = zones.percpu * page if zones else None
    stacks = take("KernelStack")
    kernel = max(stacks, take("Vmalloc"))  # stacks are vmalloc areas (CONFIG_VMAP_STACK)
    tables = take("PageTables") + take("SecPageTables")
    device = [fields[name] for name in DEVICE_FIELDS if name in fields]
    parts = {
        "free": take("MemFree"),
        "file": take("FilePages") - take("Shmem") - take("SwapCached"),
        "anon": take("AnonPages"),
        "shmem": take("Shmem"),
        "slab": take("Slab"),
        "hugetlb": sum(pool["total_bytes"] for pool in huge),
        "kernel": kernel + tables + (percpu or 0),
        "device": sum(device),
    }
    return {
        "id": number,
        "kind": "memory",
        "gpu_uuid": None,
        "gpu_bus_id": None,
        "gpu_evidence": None,
        "cpus": "",
        "movable_only": zones.movable_only if zones else None,
        "distances": [],
        "total_bytes": take("MemTotal"),
        "free_bytes": parts["free"],
        "file_bytes": parts["file"],
        "anon_bytes": parts["anon"],
        "shmem_bytes": parts["shmem"],
        "slab_bytes": parts["slab"],
        "hugetlb_bytes": parts["hugetlb"],
        "kernel_bytes": parts["kernel"],
        "device_bytes": parts["device"] if device else None,
        "unaccounted_bytes": take("MemTotal") - sum(parts.values()),
        "kernel_stack_bytes": stacks,
        "vmalloc_bytes": fields.get("Vmalloc"),
        "page_tables_bytes": tables,
        "percpu_bytes": percpu,
        "low_watermark_bytes": zones.low * page if zones else None,
        "slab_reclaimable_bytes": take("SReclaimable"),
        "mapped_bytes": take("Mapped"),
        "dirty_bytes": take("Dirty"),
        "writeback_bytes": take("Writeback"),
        "unevictable_bytes": take("Unevictable"),
        "mlocked_bytes": take("Mlocked"),
        "swap_cached_bytes": take("SwapCached"),
        "zspages_bytes": None if zones is None or zones.zspages is None else zones.zspages * page,
        "huge_pages": huge,
    }


def _huge(place: str) -> List[HugePages]:
    """Pools of all sizes; a pool without pages has no row."""
    try:
        names = sorted(sysroot.names(place))
    except OSError:
        return []
    pools: List[HugePages] = []
    for name in names:
        size = name.rpartition("-")[2]
        total = _number("%s/%s/nr_hugepages" % (place, name))
        if size.endswith("kB") and total:
            each = int(size[:-2]) * 1024
            free = _number("%s/%s/free_hugepages" % (place, name))
            pools.append(
                {"page_bytes": each, "total_bytes": total * each, "free_bytes": free * each}
            )
    return pools


def _number(name: str) -> int:
    text = _optional(name).strip()
    return int(text) if text.isdigit() else 0


def _optional(name: str, limit: int = sysroot.SMALL) -> str:
    try:
        return sysroot.text(name, limit)
    except OSError:
        return ""


def file_bytes() -> Dict[int, Tuple[int, bool]]:
    """(file pages in bytes, whether it has CPUs) of each node with memory; cheap."""
    found: Dict[int, Tuple[int, bool]] = {}
    for number in node_ids():
        place = "%s/node%d" % (NODES, number)
        fields = meminfo(_optional(place + "/meminfo"))
        if fields.get("MemTotal"):
            pages = fields.get("FilePages", 0) - fields.get("Shmem", 0)
            cpus = bool(_optional(place + "/cpulist").strip())
            found[number] = (max(0, pages - fields.get("SwapCached", 0)), cpus)
    if not found:
        fields = meminfo(_optional("/proc/meminfo"))
        pages = fields.get("Cached", 0) + fields.get("Buffers", 0) - fields.get("Shmem", 0)
        found[0] = (max(0, pages), True)
    return found


def cpu_nodes(nodes: List[NumaNode]) -> List[Tuple[int, int]]:
    """(node, bytes that can be put there without pressing on it), for nodes with CPUs."""
    return [
        (row["id"], row["free_bytes"] - 2 * (row["low_watermark_bytes"] or 0))
        for row in nodes
        if row["kind"] == "cpu"
    ]
