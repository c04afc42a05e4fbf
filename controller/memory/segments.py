"""Shared memory of one host as segments, and sizes by NUMA node. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fleetmem.controller.memory.snapshot_shapes import Segment


def segments(reading: Any) -> list[Segment]:
    """Shared memory with a name or a number; each object once, whoever shows it."""
    found: dict[tuple[Any, ...], Segment] = {}
    for one in reading["segments"] if reading else ():
        of = one["namespace"] if one["kind"] == "sysv" else None  # a tmpfs has many mounts
        key = (one["kind"], one["device"], one["inode"], one["shmid"], of)
        users = sorted({*one["mapped_by"], *one["open_by"]})
        known = users or one["owner_state"] == "dead"
        number = one["shmid"] if one["shmid"] is not None else one["inode"]
        found[key] = {
            "kind": one["kind"],
            "name": one["path"] or str(number),
            "resident_bytes": one["resident_bytes"],
            "by_numa_node": None,
            "mapped_by": users if known else None,
            "persistent": one["kind"] in ("posix", "sysv"),
        }
    return list(found.values())


def unnamed(readings: Mapping[str, Any]) -> list[Segment]:
    """Shared memory of processes that has no name, such as pinned host memory: each process's
    proportional share, so pages that others map too are in nobody's share twice."""
    memory = readings.get("processes.memory")
    found: list[Segment] = []
    for row in memory["processes"] if memory else ():
        share = row["proportional"]
        size = share.get("pss_unnamed_shmem_bytes") or 0 if share else 0
        if size:
            pinned = row["driver"] and row["driver"]["pinned_resident_bytes"]
            found.append(
                {
                    "kind": "pinned host memory" if pinned else "anonymous shared memory",
                    "name": f"of pid {row['pid']}",
                    "resident_bytes": size,
                    "by_numa_node": by_node(row["numa"], "shmem_bytes", size),
                    "mapped_by": [row["pid"]],
                    "persistent": False,
                }
            )
    return found


def by_node(numa: Any, field: str, share: int | None) -> dict[str, int] | None:
    """A process's *share* of one backing by node. numa_maps counts whole pages also where
    others map them too, so its figures are scaled down to the share."""
    if not numa or share is None:
        return None
    counted = {node: parts.get(field, 0) for node, parts in numa["by_numa_node"].items()}
    whole = sum(counted.values())
    if whole <= share:
        return counted
    return {node: size * share // whole for node, size in counted.items()}
