"""Shapes of ``numa.nodes``."""

from __future__ import annotations

from typing import Literal

from typing_extensions import TypedDict


class HugePages(TypedDict):
    """One pool of huge pages of a NUMA node; ``hugetlb_bytes`` sums ``total_bytes`` of all."""

    page_bytes: int
    total_bytes: int
    free_bytes: int


class NumaNode(TypedDict):
    """One NUMA node with memory.

    The parts are disjoint and add up to ``total_bytes``: free file anon shmem slab hugetlb
    kernel device unaccounted. ``file_bytes`` has neither shmem nor swap cache in it;
    ``kernel_bytes`` is stacks, page tables, ``percpu_bytes`` (free pages on per-CPU lists) and
    ``vmalloc_bytes``, in which the stacks are (``None`` where it could not be read: only root
    may). ``device_bytes`` is what the kernel itself counts for drivers (``None`` where it
    counts nothing); ``unaccounted_bytes`` is the remainder and may be a few MiB below zero,
    since the counters are not of one moment. All other figures are views of these parts.

    ``kind``: cpu, gpu (a GPU's memory, by the driver or NVML: ``gpu_evidence``) or memory.
    """

    id: int
    kind: Literal["cpu", "gpu", "memory"]
    gpu_uuid: str | None
    gpu_bus_id: str | None
    gpu_evidence: Literal["numa_status", "nvml"] | None
    cpus: str
    movable_only: bool | None
    distances: list[int]
    total_bytes: int
    free_bytes: int
    file_bytes: int
    anon_bytes: int
    shmem_bytes: int
    slab_bytes: int
    hugetlb_bytes: int
    kernel_bytes: int
    device_bytes: int | None
    unaccounted_bytes: int
    kernel_stack_bytes: int
    vmalloc_bytes: int | None
    page_tables_bytes: int
    percpu_bytes: int | None
    low_watermark_bytes: int | None
    slab_reclaimable_bytes: int
    mapped_bytes: int
    dirty_bytes: int
    writeback_bytes: int
    unevictable_bytes: int
    mlocked_bytes: int
    swap_cached_bytes: int
    zspages_bytes: int | None
    huge_pages: list[HugePages]


class MemorySummary(TypedDict):
    """/proc/meminfo: the machine as a whole (views, not parts)."""

    total_bytes: int
    free_bytes: int
    available_bytes: int | None
    buffers_bytes: int
    cached_bytes: int
    shmem_bytes: int
    swap_total_bytes: int
    swap_free_bytes: int
    swap_cached_bytes: int
    mlocked_bytes: int
    dirty_bytes: int
    writeback_bytes: int
    percpu_allocator_bytes: int | None
    vmalloc_used_bytes: int | None


class MemorySettings(TypedDict):
    """Settings that decide where memory lands; ``None`` where the host has none of the kind.

    ``kernel_command_line``: its words about memory only.
    """

    numa_balancing: int | None
    zone_reclaim_mode: int | None
    swappiness: int | None
    overcommit_memory: int | None
    demotion: bool | None
    transparent_hugepage: str | None
    init_on_alloc: bool | None
    kernel_command_line: str | None


class DriverMemory(TypedDict):
    """What the NVIDIA driver's files say. ``coherent_mode``: numa, driver (CDMM) or ``None``."""

    coherent_mode: str | None
    parameters: dict[str, str]


class GpuNuma(TypedDict):
    """One GPU's NUMA node by /proc/driver/nvidia/gpus/BUS/numa_status."""

    bus_id: str
    uuid: str | None
    numa_node: int | None
    status: str | None
    problem: str | None


class NumaNodes(TypedDict):
    """Reading of ``numa.nodes``. ``synthetic``: the kernel knows no NUMA nodes, this is node 0."""

    page_size_bytes: int
    synthetic: bool
    nodes: list[NumaNode]
    memory: MemorySummary
    settings: MemorySettings
    driver: DriverMemory | None
    gpus: list[GpuNuma]
    problems: list[str]
