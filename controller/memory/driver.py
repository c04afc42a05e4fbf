"""Who has memory of the GPU's driver on a NUMA node, and managed memory on a GPU. Pure.

NVML's lists name what CUDA allocated on a GPU for a process. They leave out managed (unified)
memory, on an H200 with driver 580 all of it, and what the driver keeps in the host's memory.
Both show in the process's mappings (see ``agent/kernel/smaps.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fleetmem.controller.memory.snapshot_shapes import Gpu, Process, SnapshotNode

_BOUND = "that is not in the host's, at most"

NOT_SUPPORTED = 3
"""NVML's answer where a GPU has nothing of the kind that was asked for."""

WORTH_BYTES = 64 << 20
"""Below this, what NVML's lists do not explain is the driver's own: 9 to 17 MiB a context."""


@dataclass(frozen=True)
class DriverPart:
    """``size_bytes`` of one place's driver memory; ``owner`` is ``None`` where several could
    have it, ``pid`` the only process it can be of."""

    owner: str | None
    size_bytes: int
    evidence: str
    pid: int | None = None


def label(process: Process) -> str:
    """Who a process is in the table: its unit or container, else its name and pid."""
    return process["owner"] or f"{process['name']} {process['pid']}"


def bytes_on(place: str, by_node: Mapping[str, int] | None, whole: int | None, alone: bool) -> int:
    """Bytes on node *place*; without a breakdown all of it where there is no other node."""
    if by_node is not None:
        return by_node.get(place, 0)
    return whole or 0 if alone else 0


def on_node(
    node: SnapshotNode, gpu: Gpu | None, processes: Sequence[Process], alone: bool
) -> list[DriverPart]:
    """What processes have of *node*; *gpu* is the one whose memory it is.

    The pages of a GPU's node that a process maps over its device are among those that NVML
    counts for it, or for whose fork it is; managed memory is not.
    """
    place = str(node["id"])
    listed = gpu is not None and gpu["processes_bytes"] is not None
    found = []
    charged = 0
    for process in processes:
        pid, who = process["pid"], label(process)
        held = (process["gpus"].get(gpu["uuid"]) or 0) if gpu is not None and listed else 0
        mapped = 0
        if not listed or node["kind"] != "gpu":
            mapped = bytes_on(place, process["driver_by_numa_node"], process["driver_bytes"], alone)
        managed = bytes_on(place, process["managed_by_numa_node"], process["managed_bytes"], alone)
        charged += held
        if max(held, mapped):
            source = "nvml:" if held >= mapped else "driver memory of"
            found.append(DriverPart(who, max(held, mapped), f"{source} pid {pid}", pid))
        if managed:
            found.append(DriverPart(who, managed, f"managed memory of pid {pid}", pid))
    gone = ((gpu["processes_bytes"] or 0) if gpu is not None else 0) - charged
    if gone > 0:
        found.append(DriverPart(None, gone, "nvml: numbers that no process has"))
    return found


def managed_on_gpus(
    rests: Mapping[str, int], processes: Sequence[Process], gone: Mapping[str, Sequence[int]]
) -> dict[str, list[DriverPart]]:
    """Managed memory by GPU: of what nothing else explains there (*rests*, bytes by uuid), at
    most what processes on it have mapped and not in the host's memory. *gone*: numbers on a
    GPU's list that no process has.

    Such memory was moved to a GPU, or never touched, so this is a bound. Nothing is given
    twice. An owner is named only where no other process could have that memory: one that is
    gone, or whose mappings were not read, may have any.
    """
    space = {p["pid"]: (p["managed_map_bytes"] or 0) - (p["managed_bytes"] or 0) for p in processes}
    left = {pid: max(0, size) for pid, size in space.items()}
    could = {uuid: [p for p in processes if uuid in p["gpus"] and left[p["pid"]]] for uuid in rests}
    unread = {
        uuid: [p["pid"] for p in processes if uuid in p["gpus"] and p["managed_map_bytes"] is None]
        for uuid in rests
    }
    others = {uuid: [*unread[uuid], *gone.get(uuid, ())] for uuid in rests}
    found: dict[str, list[DriverPart]] = {}
    shared: set[int] = set()
    for uuid in sorted(rests, key=lambda u: (len(could[u]) + len(others[u]), -rests[u])):
        pids = [process["pid"] for process in could[uuid]]
        room = sum(left[pid] for pid in pids)
        size = min(rests[uuid], room)
        if rests[uuid] < WORTH_BYTES or not size:
            continue
        fits = len(pids) == 1 or (room <= rests[uuid] and shared.isdisjoint(pids))
        named = fits and not others[uuid]
        parts = found[uuid] = []
        if not named:
            shared.update(pids)
            numbers = " ".join(map(str, sorted({*pids, *others[uuid]})))
            parts.append(
                DriverPart(None, size, f"managed memory of one of pids {numbers} {_BOUND}")
            )
        for process in could[uuid]:
            pid = process["pid"]
            given = min(left[pid], size)
            left[pid] -= given
            size -= given
            if named and given:
                evidence = f"managed memory of pid {pid} {_BOUND}"
                parts.append(DriverPart(label(process), given, evidence, pid))
    return found


def has_no_memory(gpu: Mapping[str, Any]) -> bool:
    """Whether a GPU of ``gpu.devices`` has none: a GB10's NVML (driver 580) answers "Not
    Supported (3)" where others tell their memory. Its lists of processes have sizes."""
    codes = gpu.get("error_codes") or {}
    return gpu["total_bytes"] is None and codes.get("memory") == NOT_SUPPORTED
