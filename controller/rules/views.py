"""The rows that rules look at where a reading alone does not say enough. Pure.

``each: numa.nodes`` has the nodes of the snapshot with what lies on them; a rule over any
other reading sees the reading itself (:mod:`fleetmem.controller.rules.fields`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypedDict

from fleetmem.controller.memory.abandoned import abandoned
from fleetmem.controller.memory.account import snapshot
from fleetmem.controller.memory.snapshot_shapes import Snapshot, SnapshotFile, SnapshotNode
from fleetmem.controller.rules.reading_paths import rows_of

Rows = list[dict[str, Any]]


class NodeView(SnapshotNode):
    """A NUMA node, with the file pages on it by who maps them.

    ``largest_unmapped``: the directory with the most clean pages on this node that no
    process maps, where its files were measured.
    """

    integrated: bool
    unmapped_file_bytes: int | None
    mapped_file_bytes: int | None
    dirty_file_bytes: int | None
    largest_unmapped: str | None
    mappers: list[int]
    anon_and_shmem_bytes: int | None
    cached_share_percent: float | None
    cpu_nodes_free_bytes: int | None


class GpuView(TypedDict):
    """A GPU. ``integrated``: its memory is the machine's own, there is no other."""

    index: int
    uuid: str
    name: str | None
    same_as: str | None
    integrated: bool
    total_bytes: int | None
    used_bytes: int | None
    free_bytes: int | None
    processes_bytes: int | None
    unaccounted_bytes: int | None


class HostView(TypedDict):
    """One host as a whole."""

    gpu_count: int | None
    gpu_names: str | None
    driver_version: str | None
    kernel: str | None
    page_size_bytes: int | None
    total_bytes: int | None
    available_bytes: int | None
    shmem_bytes: int | None
    swap_used_bytes: int | None
    numa_balancing: int | None
    coherent_mode: str | None
    numa_node_count: int | None


class ProcessView(TypedDict):
    """One process. ``has_policy`` is unknown where numa_maps was not read. ``abandoned``: what
    became of those who started it, where none of them is left."""

    pid: int
    name: str
    user: str | None
    owner: str | None
    anon_bytes: int | None
    shmem_bytes: int | None
    swap_bytes: int | None
    pinned_bytes: int | None
    shared_map_bytes: int | None
    gpu_bytes: int | None
    on_gpu_nodes_bytes: int | None
    has_policy: bool | None
    host_total_bytes: int | None
    abandoned: str | None


class SegmentView(TypedDict):
    """One object of shared memory."""

    kind: str
    name: str
    resident_bytes: int | None
    size_bytes: int
    user: str | None
    owner_state: str | None
    count: int


class CgroupView(TypedDict):
    """One control group. ``limit_bytes``: the lower of its max and high; ``kept_bytes``: what it
    has without file cache, which makes room by itself. ``oom_kills``: since the group was made,
    without those of the groups below it that are listed."""

    path: str
    current_bytes: int
    limit_bytes: int | None
    kept_bytes: int | None
    file_bytes: int | None
    current_percent: float | None
    kept_percent: float | None
    oom_kills: int | None
    processes: int | None


class RowView(TypedDict):
    """One row of the table."""

    backing: str
    owner: str | None
    location: str
    lifetime: str | None
    bytes: int | None


@dataclass(frozen=True)
class View:
    """Rows under a name. ``key`` finds the same row again in another run."""

    probes: tuple[str, ...]
    row: type
    key: tuple[str, ...]
    subject: str
    rows: Callable[[Mapping[str, Any], Snapshot], Rows]


class Look:
    """The rows of one host's readings (name → reading or None), each made once."""

    def __init__(self, readings: Mapping[str, Any]) -> None:
        self._readings = readings
        self._section: Snapshot | None = None
        self._rows: dict[str, Rows] = {}

    def rows(self, each: str) -> Rows:
        """The rows of *each*, a view or a path into a reading; none where it was not read."""
        if each not in self._rows:
            self._rows[each] = self._make(each)
        return self._rows[each]

    def _make(self, each: str) -> Rows:
        if each not in VIEWS:
            return [dict(row) for row in rows_of(each, self._readings)]
        view = VIEWS[each]
        if self._readings.get(view.probes[0]) is None:
            return []
        if self._section is None:
            self._section = snapshot(self._readings)
        return view.rows(self._readings, self._section)


def comparable(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Whether growth between two looks is the host's: it was not started again in between, and
    both or none were root's, who sees whose memory it is."""
    was, now = old.get("host.facts"), new.get("host.facts")
    if not was or not now or was["boot_id"] != now["boot_id"]:
        return False
    return bool((was["uid"] == 0) == (now["uid"] == 0))


def integrated(section: Snapshot) -> bool:
    """Whether a GPU's memory is the machine's own: a node with CPUs is the GPU's, too.

    Cached files are then ordinary cache of the only memory there is, and no GH200's spill.
    """
    return any(n["gpu_uuid"] and n["kind"] == "cpu" for n in section["numa_nodes"])


def _nodes(readings: Mapping[str, Any], section: Snapshot) -> Rows:
    files = section["page_cache"]["files"] if readings.get("pagecache.files") else None
    one = integrated(section)
    free = [n["free_bytes"] for n in section["numa_nodes"] if n["kind"] == "cpu"]
    known = [size for size in free if size is not None]
    rows = [_node(node, files, one) for node in section["numa_nodes"]]
    return [{**row, "cpu_nodes_free_bytes": sum(known) if known else None} for row in rows]


def _node(node: SnapshotNode, files: list[SnapshotFile] | None, one: bool) -> dict[str, Any]:
    place = str(node["id"])
    mapped = unmapped = dirty = 0
    folders: dict[str, int] = {}
    mappers: set[int] = set()
    for file in files or ():
        size = (file["by_numa_node"] or {}).get(place, 0)
        if not size:
            continue
        if file["mapped_by"]:
            mapped += size
            mappers.update(file["mapped_by"])
        elif file["mapped_by"] is not None:
            unmapped += size
            dirty += file["dirty_bytes"] or 0
            if not file["dirty_bytes"]:
                folder = os.path.dirname(file["path"]) or "/"
                folders[folder] = folders.get(folder, 0) + size
    anon, shmem = node["anon_bytes"], node["shmem_bytes"]
    whole, cached = node["total_bytes"], node["file_bytes"]
    return {
        **node,
        "integrated": one,
        "unmapped_file_bytes": None if files is None else unmapped,
        "mapped_file_bytes": None if files is None else mapped,
        "dirty_file_bytes": None if files is None else dirty,
        "largest_unmapped": max(folders, key=lambda name: folders[name]) if folders else None,
        "mappers": sorted(mappers),
        "anon_and_shmem_bytes": None if anon is None or shmem is None else anon + shmem,
        "cached_share_percent": round(100 * cached / whole, 1) if whole and cached else None,
    }


def _gpus(_readings: Mapping[str, Any], section: Snapshot) -> Rows:
    one = integrated(section)
    return [
        {**{name: gpu.get(name) for name in GpuView.__annotations__}, "integrated": one}
        for gpu in section["gpus"]
    ]


def _host(readings: Mapping[str, Any], section: Snapshot) -> Rows:
    facts, numa = readings.get("host.facts"), readings.get("numa.nodes")
    devices = readings.get("gpu.devices")
    memory = numa["memory"] if numa else None
    driver = numa["driver"] if numa else None
    names = sorted({str(gpu["name"]) for gpu in devices["gpus"]}) if devices else None
    return [
        {
            "gpu_count": len(devices["gpus"]) if devices else None,
            "gpu_names": ", ".join(names) if names else None,
            "driver_version": devices["driver_version"] if devices else None,
            "kernel": facts["kernel"] if facts else None,
            "page_size_bytes": section["page_size_bytes"],
            "total_bytes": memory["total_bytes"] if memory else None,
            "available_bytes": memory["available_bytes"] if memory else None,
            "shmem_bytes": memory["shmem_bytes"] if memory else None,
            "swap_used_bytes": memory["swap_total_bytes"] - memory["swap_free_bytes"]
            if memory
            else None,
            "numa_balancing": numa["settings"]["numa_balancing"] if numa else None,
            "coherent_mode": driver["coherent_mode"] if driver else None,
            "numa_node_count": len(section["numa_nodes"]) if numa else None,
        }
    ]


def _processes(readings: Mapping[str, Any], section: Snapshot) -> Rows:
    gpu_nodes = {str(n["id"]) for n in section["numa_nodes"] if n["kind"] == "gpu"}
    numa = readings.get("numa.nodes")
    total = numa["memory"]["total_bytes"] if numa else None
    raw = {p["pid"]: p for p in readings["processes.memory"]["processes"]}
    identities = readings.get("processes.identity")
    who = {p["pid"]: p for p in identities["processes"]} if identities else {}
    rows = []
    for process in section["processes"]:
        measured = raw.get(process["pid"])
        maps = measured["numa"] if measured else None
        known = [size for size in process["gpus"].values() if size is not None]
        spilt = None
        if maps is not None:
            spilt = sum(
                parts.get("anon_bytes", 0) + parts.get("shmem_bytes", 0)
                for node, parts in maps["by_numa_node"].items()
                if node in gpu_nodes
            )
        row = {name: process.get(name) for name in ProcessView.__annotations__}
        row["gpu_bytes"] = sum(known) if len(known) == len(process["gpus"]) else None
        row["shared_map_bytes"] = _mapped(measured["shared"]) if measured else None
        row["on_gpu_nodes_bytes"] = spilt
        row["has_policy"] = None if maps is None else any(p != "default" for p in maps["policies"])
        row["host_total_bytes"] = total
        row["abandoned"] = abandoned(who[process["pid"]]) if process["pid"] in who else None
        rows.append(row)
    return rows


def _mapped(objects: list[Any]) -> int:
    """Address space of shared objects, each once however often it is mapped."""
    return sum({(one["device"], one["inode"]): one["map_bytes"] for one in objects}.values())


def _segments(readings: Mapping[str, Any], _section: Snapshot) -> Rows:
    return [
        {
            "kind": one["kind"],
            "name": one["path"] or f"{one['kind']} {one['shmid'] or one['inode']}",
            "resident_bytes": one["resident_bytes"],
            "size_bytes": one["size_bytes"],
            "user": one["user"],
            "owner_state": one["owner_state"],
            "count": 1,
        }
        for one in readings["shm.segments"]["segments"]
    ]


def _cgroups(readings: Mapping[str, Any], _section: Snapshot) -> Rows:
    reading = readings["cgroups.memory"]
    groups = reading["cgroups"]
    kills = {one["path"]: one["events"].get("oom_kill") for one in groups}
    own = dict(kills)
    if reading["version"] == 2:  # a group counts what happens below it, too
        for path, count in kills.items():
            above = _above(path, kills)
            if count is not None and above is not None and own[above] is not None:
                own[above] -= count
    rows = []
    for one in groups:
        limits = [size for size in (one["max_bytes"], one["high_bytes"]) if size is not None]
        limit = min(limits, default=None)
        cache, now = one["file_bytes"], one["current_bytes"]
        kept = None if cache is None else max(0, now - cache)
        count = own[one["path"]]
        row = {name: one.get(name) for name in CgroupView.__annotations__}
        row["limit_bytes"], row["kept_bytes"] = limit, kept
        row["current_percent"] = _percent(now, limit)
        row["kept_percent"] = _percent(kept, limit)
        row["oom_kills"] = None if count is None else max(0, count)
        rows.append(row)
    return rows


def _above(path: str, groups: Mapping[str, Any]) -> str | None:
    """The nearest group above *path* that is among *groups*."""
    while path not in ("", "/"):
        path = os.path.dirname(path)
        if path in groups:
            return path
    return None


def _percent(part: int | None, whole: int | None) -> float | None:
    return round(100 * part / whole, 1) if part is not None and whole else None


def _table(_readings: Mapping[str, Any], section: Snapshot) -> Rows:
    return [{name: row.get(name) for name in RowView.__annotations__} for row in section["table"]]


VIEWS: dict[str, View] = {
    "numa.nodes": View(("numa.nodes",), NodeView, ("id",), "NUMA node {id}", _nodes),
    "gpu.devices": View(("gpu.devices",), GpuView, ("index",), "GPU {index}", _gpus),
    "host.facts": View(("host.facts",), HostView, (), "host", _host),
    "processes.memory": View(
        ("processes.memory",), ProcessView, ("pid",), "{name} {pid}", _processes
    ),
    "shm.segments": View(("shm.segments",), SegmentView, ("kind", "name"), "{name}", _segments),
    "cgroups.memory": View(("cgroups.memory",), CgroupView, ("path",), "{path}", _cgroups),
    "memory.table": View(
        ("numa.nodes",),
        RowView,
        ("backing", "owner", "location", "lifetime"),
        "{backing} at {location}",
        _table,
    ),
}
"""Views by the name that ``each`` uses; every other probe's rows are its reading's own."""
