"""The machine's memory as a whole, and the settings that decide where memory lands."""

from __future__ import annotations

from fleetmem.agent.kernel import sysroot

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Optional

    from fleetmem.agent.shapes import MemorySettings, MemorySummary

KERNEL_WORDS = (
    "init_on_",
    "numa",
    "memhp",
    "hugepages",
    "hugepagesz",
    "default_hugepagesz",
    "transparent_hugepage",
    "movable",
    "kernelcore",
    "movablecore",
    "mem=",
    "cma",
    "iommu",
    "isolcpus",
    "nohz_full",
)
"""Words of the kernel's command line that bear on memory; the others may be private."""


def summary(fields: Dict[str, int]) -> MemorySummary:
    """The totals of /proc/meminfo (bytes by field name)."""

    def take(name: str) -> int:
        return fields.get(name, 0)

    return {
        "total_bytes": take("MemTotal"),
        "free_bytes": take("MemFree"),
        "available_bytes": fields.get("MemAvailable"),
        "buffers_bytes": take("Buffers"),
        "cached_bytes": take("Cached"),
        "shmem_bytes": take("Shmem"),
        "swap_total_bytes": take("SwapTotal"),
        "swap_free_bytes": take("SwapFree"),
        "swap_cached_bytes": take("SwapCached"),
        "mlocked_bytes": take("Mlocked"),
        "dirty_bytes": take("Dirty"),
        "writeback_bytes": take("Writeback"),
        "percpu_allocator_bytes": fields.get("Percpu"),
        "vmalloc_used_bytes": fields.get("VmallocUsed"),
    }


def settings() -> MemorySettings:
    """Settings of the running kernel."""
    line = _text("/proc/cmdline")
    demotion = _text("/sys/kernel/mm/numa/demotion_enabled")
    huge = _text("/sys/kernel/mm/transparent_hugepage/enabled") or ""
    return {
        "numa_balancing": _number("/proc/sys/kernel/numa_balancing"),
        "zone_reclaim_mode": _number("/proc/sys/vm/zone_reclaim_mode"),
        "swappiness": _number("/proc/sys/vm/swappiness"),
        "overcommit_memory": _number("/proc/sys/vm/overcommit_memory"),
        "demotion": None if demotion is None else demotion in ("true", "1"),
        "transparent_hugepage": huge.partition("[")[2].partition("]")[0] or None,
        "init_on_alloc": _switch(line or "", "init_on_alloc="),
        "kernel_command_line": None
        if line is None
        else " ".join(word for word in line.split() if word.startswith(KERNEL_WORDS)),
    }


def _switch(line: str, name: str) -> Optional[bool]:
    """The last word *name*0 or *name*1 of the kernel's command line."""
    last: Optional[bool] = None
    for word in line.split():
        if word.startswith(name):
            last = word[len(name) :].lower() in ("1", "y", "yes", "on")
    return last


def _text(name: str) -> Optional[str]:
    try:
        return sysroot.text(name).strip()
    except OSError:
        return None


def _number(name: str) -> Optional[int]:
    try:
        return int(_text(name) or "")
    except ValueError:
        return None
