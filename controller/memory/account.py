"""Readings of one host to its ``snapshot`` section. Pure.

The kernel counts each page once, by NUMA node; processes, files, segments and NVML say who
has it. A GPU whose memory is a NUMA node is a view of that node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from fleetmem.controller.memory.driver import DriverPart, has_no_memory, managed_on_gpus, on_node
from fleetmem.controller.memory.segments import by_node, segments, unnamed
from fleetmem.controller.memory.snapshot_shapes import (
    Gpu,
    Process,
    Snapshot,
    SnapshotFile,
    SnapshotNode,
)
from fleetmem.controller.memory.table import closes, table

TOLERANCE_BYTES = 64 << 20
"""A place is explained where less than this is unaccounted: the counters are not of one
moment, and a node with CPUs has some 45 MiB that no counter shows."""

_NODE_FIELDS = tuple(SnapshotNode.__annotations__)
_PROCESSES = 200
_FILES = 5000


def snapshot(readings: Mapping[str, Any], phase: str | None = None) -> Snapshot:
    """The section from plain *readings* (name → reading or None), worst places first."""
    numa = readings.get("numa.nodes")
    facts = readings.get("host.facts")
    devices = readings.get("gpu.devices")
    listed = _listed(readings.get("gpu.processes"))
    gpus = [_gpu(gpu, listed.get(gpu["index"])) for gpu in devices["gpus"]] if devices else []
    processes = _processes(readings, listed, {gpu["index"]: gpu["uuid"] for gpu in gpus})
    found = numa["nodes"] if numa else []
    nodes = [_node(node, devices, len(found) == 1) for node in found]
    for gpu in gpus:
        node_id = next((n["id"] for n in nodes if n["gpu_uuid"] == gpu["uuid"]), None)
        gpu["same_as"] = None if node_id is None else f"numa:{node_id}"
        if gpu["same_as"]:
            gpu["unaccounted_bytes"] = None
    driver = _driver(nodes, gpus, processes, _gone(readings.get("gpu.processes")))
    processes.sort(key=_on_gpus, reverse=True)
    cache = readings.get("pagecache.files")
    sees_all = facts is not None and facts["uid"] == 0
    files = [_file(one, sees_all) for one in cache["files"]] if cache else []
    swap = numa["memory"] if numa else None
    rows = table(
        nodes,
        gpus,
        processes,
        files,
        segments(readings.get("shm.segments")) + unnamed(readings),
        driver,
        None if swap is None else swap["swap_total_bytes"] - swap["swap_free_bytes"],
    )
    return {
        "phase": phase,
        "boot_id": facts["boot_id"] if facts else None,
        "page_size_bytes": _page_size(numa, facts),
        "numa_nodes": nodes,
        "gpus": gpus,
        "processes": processes[:_PROCESSES],
        "page_cache": {"files": files[:_FILES], "coverage": _coverage(cache)},
        "table": rows,
    }


def gaps(section: Snapshot) -> list[str]:
    """Places whose rows do not add up to their whole; empty for a sound section."""
    wrong = []
    wholes = [(f"numa:{n['id']}", n["total_bytes"]) for n in section["numa_nodes"]]
    wholes += [(f"gpu:{g['uuid']}", g["total_bytes"]) for g in section["gpus"] if not g["same_as"]]
    for place, whole in wholes:
        added = closes(section["table"], place)
        if added is not None and whole is not None and added != whole:
            wrong.append(f"{place}: rows add up to {added}, not {whole}")
    return wrong


def _page_size(numa: Any, facts: Any) -> int | None:
    if numa:
        return int(numa["page_size_bytes"])
    return int(facts["page_size_bytes"]) if facts else None


def _coverage(cache: Any) -> dict[str, Any]:
    if not cache:
        return {}
    kept = ("looked", "unknown", "complete", "stopped", "small")
    return {**cache["coverage"], **{name: cache[name] for name in kept}}


# --- GPUs and nodes ------------------------------------------------------------------------


def _listed(reading: Any) -> dict[int, list[Any] | None]:
    """NVML's plausible rows by GPU index; ``None`` where a list could not be read."""
    if not reading:
        return {}
    return {
        gpu["index"]: [p for p in gpu["processes"] if p["state"] != "implausible"]
        if gpu["complete"]
        else None
        for gpu in reading["gpus"]
    }


def _gone(reading: Any) -> dict[str, list[int]]:
    """Numbers on NVML's lists that are no process to be asked, by the GPU's uuid."""
    return {
        gpu["uuid"]: [p["pid"] for p in gpu["processes"] if p["state"] != "alive"]
        for gpu in (reading["gpus"] if reading else ())
    }


def _gpu(gpu: Any, processes: list[Any] | None) -> Gpu:
    sizes = None if processes is None else [p["used_bytes"] for p in processes]
    of_processes = None if sizes is None or None in sizes else sum(sizes)
    used, total, free = gpu["used_bytes"], gpu["total_bytes"], gpu["free_bytes"]
    reserved = 0 if gpu["memory_version"] == 1 else gpu["reserved_bytes"]
    rest = None
    if None not in (total, free, of_processes):
        rest = total - free - (reserved or 0) - (of_processes or 0)
    return {
        "index": gpu["index"],
        "uuid": gpu["uuid"],
        "name": gpu["name"],
        "same_as": None,
        "total_bytes": total,
        "reserved_bytes": reserved,
        "used_bytes": used,
        "free_bytes": free,
        "processes_bytes": of_processes,
        "managed_bytes": None if rest is None else 0,
        "unaccounted_bytes": rest,
    }


def _node(node: Any, devices: Any, alone: bool) -> SnapshotNode:
    """One node as the section has it. One with CPUs stays a CPU's even where a GPU has no other
    memory (integrated)."""
    row = cast(SnapshotNode, {name: node[name] for name in _NODE_FIELDS})
    uuid = row["gpu_uuid"] or _uuid_of(node["id"], devices, alone)
    row["gpu_uuid"] = uuid
    if uuid is not None:
        row["kind"] = "cpu" if node["cpus"] else "gpu"
    return row


def _uuid_of(node_id: int, devices: Any, alone: bool) -> str | None:
    """The GPU whose memory a node is: as NVML says, or one without memory of its own where there
    is no other node."""
    if not devices:
        return None
    found = (
        gpu["uuid"]
        for gpu in devices["gpus"]
        if gpu["numa_node"] == node_id or (alone and has_no_memory(gpu))
    )
    return next(found, None)


def _driver(
    nodes: Sequence[SnapshotNode],
    gpus: Sequence[Gpu],
    processes: Sequence[Process],
    gone: Mapping[str, Sequence[int]],
) -> dict[str, list[DriverPart]]:
    """Who has driver memory of each node and managed memory of each GPU, by location; the
    places' own figures follow.

    The kernel does not count such memory, or only part of it, so it is taken out of what is
    unaccounted there, never added: what the kernel calls driver memory is not taken again.
    """
    found: dict[str, list[DriverPart]] = {}
    rests: dict[str, int] = {}
    views: dict[str, SnapshotNode] = {}
    for node in nodes:
        place = f"numa:{node['id']}"
        gpu = next((gpu for gpu in gpus if gpu["same_as"] == place), None)
        listed = gpu is not None and gpu["processes_bytes"] is not None
        parts = found[place] = on_node(node, gpu, processes, len(nodes) == 1)
        rest = node["unaccounted_bytes"]
        if rest is None:
            continue
        if listed and node["device_bytes"] is None:
            node["device_bytes"] = 0
        known = node["device_bytes"] or 0
        _to_device(node, min(sum(part.size_bytes for part in parts) - known, rest))
        if gpu is not None and listed and node["kind"] == "gpu":
            views[gpu["uuid"]] = node
            rests[gpu["uuid"]] = node["unaccounted_bytes"] or 0
    for gpu in gpus:
        if gpu["unaccounted_bytes"] is not None:
            rests[gpu["uuid"]] = gpu["unaccounted_bytes"]
    uuids = {gpu["uuid"]: gpu for gpu in gpus}
    for uuid, parts in managed_on_gpus(rests, processes, gone).items():
        size = sum(part.size_bytes for part in parts)
        if uuid in views:
            node = views[uuid]
            found[f"numa:{node['id']}"] += parts
            _to_device(node, size)
        else:
            found[f"gpu:{uuid}"] = parts
            gpu = uuids[uuid]
            gpu["managed_bytes"] = size
            gpu["unaccounted_bytes"] = rests[uuid] - size
        for process in processes:
            mine = sum(part.size_bytes for part in parts if part.pid == process["pid"])
            if mine:
                process["managed_by_gpu"][uuid] = mine
    return found


def _to_device(node: SnapshotNode, size_bytes: int) -> None:
    """Move that much, if it is any, from the unaccounted of *node* to driver memory."""
    if size_bytes > 0:
        node["device_bytes"] = (node["device_bytes"] or 0) + size_bytes
        node["unaccounted_bytes"] = (node["unaccounted_bytes"] or 0) - size_bytes


# --- processes, files, segments ------------------------------------------------------------


def _processes(
    readings: Mapping[str, Any], listed: Mapping[int, list[Any] | None], uuids: Mapping[int, str]
) -> list[Process]:
    identities = readings.get("processes.identity")
    who = {p["pid"]: p for p in identities["processes"]} if identities else {}
    held: dict[int, dict[str, int | None]] = {}
    for index, rows in listed.items():
        for row in rows or ():
            if index in uuids and row["state"] == "alive":
                gpus = held.setdefault(row["pid"], {})
                before = gpus.get(uuids[index], 0)
                size = row["used_bytes"]
                gpus[uuids[index]] = None if size is None or before is None else before + size
    reading = readings.get("processes.memory")
    rows = reading["processes"] if reading else []
    found = [_process(row, who.get(row["pid"]), held.pop(row["pid"], {})) for row in rows]
    found += [_only_listed(pid, who.get(pid), gpus) for pid, gpus in held.items()]
    return found


def _on_gpus(process: Process) -> int:
    sizes = (*process["gpus"].values(), *process["managed_by_gpu"].values())
    return sum(size or 0 for size in sizes)


def _process(row: Any, identity: Any, gpus: dict[str, int | None]) -> Process:
    share = row["proportional"]
    sizes = {
        name: share[f"pss_{name}_bytes"] if share else None for name in ("anon", "file", "shmem")
    }
    shared = sizes["anon"] is None
    numa = row["numa"]
    driver = row["driver"]
    read: Mapping[str, int | None] = driver or {}
    none = 0 if share and not driver else None  # looked at, and no mapping of the driver's
    managed = read.get("uvm_pss_bytes", read.get("uvm_resident_bytes", none))
    own = read.get("pss_bytes", none)
    file = row["file_bytes"] if shared else sizes["file"]
    swapped = share["swap_pss_bytes"] if share else None
    return {
        "pid": row["pid"],
        "start_time": row["start_time"],
        "name": _name(row["comm"], row["title"]),
        "user": row["user"],
        "owner": _owner(identity),
        "anon_bytes": row["anon_bytes"] if shared else sizes["anon"],
        "file_bytes": None if file is None else max(0, file - (managed or 0) - (own or 0)),
        "shmem_bytes": row["shmem_bytes"] if shared else sizes["shmem"],
        "swap_bytes": row["swap_bytes"] if swapped is None else swapped,
        "pinned_bytes": driver["pinned_resident_bytes"] if driver else row["pinned_bytes"],
        "driver_bytes": own,
        "managed_bytes": managed,
        "managed_map_bytes": read.get("uvm_map_bytes", none),
        "shared": shared,
        "anon_by_numa_node": by_node(numa, "anon_bytes", sizes["anon"]),
        "driver_by_numa_node": by_node(numa, "driver_bytes", own),
        "managed_by_numa_node": by_node(numa, "managed_bytes", managed),
        "gpus": gpus,
        "managed_by_gpu": {},
    }


def _only_listed(pid: int, identity: Any, gpus: dict[str, int | None]) -> Process:
    """A process that NVML names and whose memory on the host was not measured."""
    return {
        "pid": pid,
        "start_time": identity["start_time"] if identity else None,
        "name": _name(identity["comm"], identity["title"]) if identity else "process",
        "user": identity["user"] if identity else None,
        "owner": _owner(identity),
        "anon_bytes": None,
        "file_bytes": None,
        "shmem_bytes": None,
        "swap_bytes": None,
        "pinned_bytes": identity["pinned_bytes"] if identity else None,
        "driver_bytes": None,
        "managed_bytes": None,
        "managed_map_bytes": None,
        "shared": True,
        "anon_by_numa_node": None,
        "driver_by_numa_node": None,
        "managed_by_numa_node": None,
        "gpus": gpus,
        "managed_by_gpu": {},
    }


def _name(comm: str, title: str) -> str:
    """The title's first word where it continues comm (cut at 15 characters) or is a role."""
    word = title.strip().split(" ", 1)[0]
    base = word.rpartition("/")[2]
    if base.startswith(comm) and comm:
        return base
    return word if "::" in word else comm or base or "?"


def _owner(identity: Any) -> str | None:
    """The unit, container, pod or job that a process belongs to, if it has one."""
    if identity is None or identity["owner"]["kind"] in ("none", "session"):
        return None
    name: str | None = identity["owner"]["name"]
    return name


def _file(one: Any, sees_all: bool) -> SnapshotFile:
    """As the section has it. Nobody maps it only where that was seen: by the kernel's own
    count of mappings, or by looking at every process."""
    pids: list[int] | None = one["mapped_by"]
    elsewhere = one["mapped_elsewhere"]
    if not pids and (elsewhere or (elsewhere is None and not sees_all)):
        pids = None
    return {
        "path": one["path"],
        "size_bytes": one["size_bytes"],
        "resident_bytes": one["resident_bytes"],
        "by_numa_node": one["by_numa_node"],
        "dirty_bytes": one["dirty_bytes"],
        "mapped_by": pids,
    }
