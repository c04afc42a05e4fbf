"""Shapes of ``processes.memory``."""

from __future__ import annotations

from typing import Literal

from typing_extensions import TypedDict


class ProportionalSize(TypedDict):
    """smaps_rollup: pages divided by the number of processes that map them.

    ``pss_unnamed_shmem_bytes``: that part of the shared memory which has no name: mapped
    shared and anonymous (also pinned by the driver), or deleted from /dev/shm.
    """

    pss_bytes: int
    pss_anon_bytes: int | None
    pss_file_bytes: int | None
    pss_shmem_bytes: int | None
    pss_unnamed_shmem_bytes: int
    private_bytes: int
    swap_pss_bytes: int | None
    locked_bytes: int | None


class SharedObject(TypedDict):
    """One shared memory object that a process maps; ``map_bytes`` is address space.

    ``kind``: posix (a file on tmpfs), sysv, memfd, zero (anonymous shared memory, and where
    the driver keeps pinned host memory), hugetlb.
    """

    kind: Literal["posix", "sysv", "memfd", "zero", "hugetlb"]
    name: str
    device: str
    inode: int
    map_bytes: int


class ProcessNuma(TypedDict):
    """numa_maps of one process: bytes by NUMA node and backing, and address space by policy."""

    by_numa_node: dict[str, dict[str, int]]
    policies: dict[str, int]


class DriverMaps(TypedDict):
    """Mappings of the driver's files: address space, and the host's pages in it by share.

    ``uvm``: managed (unified) memory; what of it is not in the host's memory is on a GPU or
    was never touched. ``pss_bytes``: pages of the driver's own, without those of uvm.
    """

    map_bytes: int
    pss_bytes: int
    uvm_map_bytes: int
    uvm_pss_bytes: int
    pinned_resident_bytes: int


class ProcessMemory(TypedDict):
    """One process by /proc/PID/status, and more for the largest ones.

    ``proportional`` and ``numa`` are ``None`` where they were not asked or not allowed.
    """

    pid: int
    start_time: int
    comm: str
    title: str
    uid: int
    user: str | None
    cgroup: str | None
    virtual_bytes: int
    resident_bytes: int
    anon_bytes: int | None
    file_bytes: int | None
    shmem_bytes: int | None
    swap_bytes: int
    locked_bytes: int
    pinned_bytes: int
    hugetlb_bytes: int
    page_tables_bytes: int
    allowed_numa_nodes: str | None
    proportional: ProportionalSize | None
    shared: list[SharedObject]
    driver: DriverMaps | None
    numa: ProcessNuma | None


class ProcessTotals(TypedDict):
    """Sums over all processes, also those without a row."""

    processes: int
    resident_bytes: int
    anon_bytes: int
    swap_bytes: int
    locked_bytes: int
    hugetlb_bytes: int


class ProcessesMemory(TypedDict):
    """Reading of ``processes.memory``, largest first. ``denied``: rows without what root sees."""

    processes: list[ProcessMemory]
    totals: ProcessTotals
    denied: int
    complete: bool
