"""Shapes of ``cgroups.memory``."""

from __future__ import annotations

from typing_extensions import TypedDict


class CgroupMemory(TypedDict):
    """One control group with its descendants' memory in it; limits ``None``: no limit or field."""

    path: str
    current_bytes: int
    max_bytes: int | None
    high_bytes: int | None
    swap_bytes: int | None
    anon_bytes: int | None
    file_bytes: int | None
    shmem_bytes: int | None
    kernel_bytes: int | None
    slab_bytes: int | None
    dirty_bytes: int | None
    writeback_bytes: int | None
    by_numa_node: dict[str, dict[str, int]] | None
    events: dict[str, int]
    processes: int | None


class CgroupsMemory(TypedDict):
    """Reading of ``cgroups.memory``; ``version`` 2 or 1 (the hierarchy with the controller)."""

    version: int
    cgroups: list[CgroupMemory]
    seen: int
    complete: bool
