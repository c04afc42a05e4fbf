"""Backing × owner × location × lifetime: rows that add up to each place's whole. Pure.

Nothing is counted twice: a mapping is a view of pages that have their own row. What no
process or file explains keeps its backing and has no owner; what no backing explains is
the ``unaccounted`` row.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fleetmem.controller.memory.driver import DriverPart, bytes_on, label
from fleetmem.controller.memory.snapshot_shapes import (
    NOBODY,
    Backing,
    Gpu,
    Lifetime,
    Process,
    Segment,
    SnapshotFile,
    SnapshotNode,
    SnapshotRow,
)

_EVIDENCE = 4
"""So many parts of a row are named in its evidence, the largest first."""

_LIFETIMES: dict[Backing, Lifetime | None] = {
    "file": "cache",
    "anon": "process",
    "shmem": "process",
    "hugetlb": "persistent",
    "slab": "boot",
    "kernel": "boot",
    "device": "process",
    "free": None,
    "unaccounted": None,
}


@dataclass
class _Pile:
    """What one owner has of one part, and where that figure comes from."""

    size_bytes: int = 0
    parts: dict[str, int] = field(default_factory=dict)

    def add(self, size_bytes: int, part: str) -> None:
        self.size_bytes += size_bytes
        self.parts[part] = self.parts.get(part, 0) + size_bytes

    def evidence(self) -> list[str]:
        """The largest parts by name, and how many more there are."""
        names = sorted(self.parts, key=lambda name: -self.parts[name])
        more = [f"{len(names) - _EVIDENCE} more"] if len(names) > _EVIDENCE else []
        return names[:_EVIDENCE] + more


Owned = dict[tuple[str | None, Lifetime | None], _Pile]


def table(
    nodes: Sequence[SnapshotNode],
    gpus: Sequence[Gpu],
    processes: Sequence[Process],
    files: Sequence[SnapshotFile],
    segments: Sequence[Segment],
    driver: Mapping[str, Sequence[DriverPart]],
    swap_used_bytes: int | None = None,
) -> list[SnapshotRow]:
    """The rows of one host, place by place, the largest of each place first.

    *driver*: who has driver memory of each node, and managed memory of each GPU, by location.
    """
    names = {process["pid"]: label(process) for process in processes}
    only = nodes[0]["id"] if len(nodes) == 1 else None
    rows: list[SnapshotRow] = []
    for node in nodes:
        place = str(node["id"])
        alone = node["id"] == only
        rows += _node(
            node,
            _files(files, place, names, alone),
            _anonymous(processes, place, alone),
            _shared(segments, place, names, alone),
            _driver(driver.get(f"numa:{place}", ())),
        )
    for gpu in gpus:
        if gpu["same_as"] is None:
            rows += _gpu(gpu, processes, driver.get(f"gpu:{gpu['uuid']}", ()))
    return rows + _swap(processes, swap_used_bytes)


def closes(rows: Iterable[SnapshotRow], place: str) -> int | None:
    """The sum of a place's rows; ``None`` where one of them is not known."""
    sizes = [row["bytes"] for row in rows if row["location"] == place]
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None


# --- a NUMA node ---------------------------------------------------------------------------


def _node(
    node: SnapshotNode, files: Owned, anonymous: Owned, shared: Owned, driver: Owned
) -> list[SnapshotRow]:
    place = f"numa:{node['id']}"
    rows = _part("file", node["file_bytes"], place, files, "meminfo: not traced to a file")
    rows += _part("anon", node["anon_bytes"], place, anonymous, "meminfo: of no process seen")
    rows += _part("shmem", node["shmem_bytes"], place, shared, "meminfo: of no object seen")
    if node["device_bytes"]:
        rows += _part("device", node["device_bytes"], place, driver, "meminfo", "driver")
    source = {
        "slab": "meminfo: Slab",
        "hugetlb": "huge page pools",
        "kernel": "stacks, page tables, per-CPU lists, vmalloc",
        "free": "meminfo: MemFree",
        "unaccounted": "the rest of MemTotal",
    }
    sizes: dict[Backing, int | None] = {
        "slab": node["slab_bytes"],
        "hugetlb": node["hugetlb_bytes"],
        "kernel": node["kernel_bytes"],
        "free": node["free_bytes"],
        "unaccounted": node["unaccounted_bytes"],
    }
    for backing, size in sizes.items():
        if size or backing == "unaccounted" or size is None:
            owner = "kernel" if backing in ("slab", "kernel") else None
            rows.append(_row(backing, owner, place, size, [source[backing]]))
    return rows


def _part(
    backing: Backing,
    whole: int | None,
    place: str,
    owned: Owned,
    rest_evidence: str,
    rest_owner: str | None = None,
) -> list[SnapshotRow]:
    """Rows of one part of a node. They add up to *whole*: what no owner explains is a row
    of *rest_owner*, and owners that explain too much (pages moved meanwhile) are cut, the
    largest first, with a note."""
    if whole is None:
        return [_row(backing, None, place, None, ["not readable"])]
    over = max(0, sum(pile.size_bytes for pile in owned.values()) - whole)
    rows = []
    explained = 0
    piles = sorted(owned.items(), key=lambda item: -item[1].size_bytes)
    for (owner, lifetime), pile in piles:
        cut = min(over, pile.size_bytes)
        over -= cut
        size = pile.size_bytes - cut
        explained += size
        evidence = pile.evidence()
        if cut:
            evidence.append(f"{cut} bytes more were seen than the node has: counted meanwhile")
        if size:
            rows.append(_row(backing, owner, place, size, evidence, lifetime))
    if whole > explained:
        rows.append(_row(backing, rest_owner, place, whole - explained, [rest_evidence]))
    return rows


def _row(
    backing: Backing,
    owner: str | None,
    place: str,
    size_bytes: int | None,
    evidence: list[str],
    lifetime: Lifetime | None = None,
) -> SnapshotRow:
    return {
        "backing": backing,
        "owner": owner,
        "location": place,
        "lifetime": lifetime or _LIFETIMES[backing],
        "bytes": size_bytes,
        "evidence": evidence,
    }


# --- who has what of a node ----------------------------------------------------------------


def _files(
    files: Sequence[SnapshotFile], place: str, names: Mapping[int, str], alone: bool
) -> Owned:
    owned: Owned = {}
    for one in files:
        size = bytes_on(place, one["by_numa_node"], one["resident_bytes"], alone)
        if size:
            key = (_mappers(one["mapped_by"], names), "cache")
            pile = owned.setdefault(key, _Pile())  # type: ignore[arg-type]  # a literal
            pile.add(size, directory(one["path"]))
    return owned


def directory(path: str) -> str:
    """The glob that *path* folds into: its directory and its ending."""
    folder, name = os.path.split(path)
    ending = os.path.splitext(name)[1]
    return f"{folder.rstrip('/')}/*{ending}"


def _mappers(pids: Sequence[int] | None, names: Mapping[int, str]) -> str | None:
    """Who maps pages: nobody, one owner by name, several by their number."""
    if pids is None:
        return None
    found = sorted({names.get(pid, f"process {pid}") for pid in pids})
    if not found:
        return NOBODY
    return found[0] if len(found) == 1 else f"{len(found)} owners"


def _anonymous(processes: Sequence[Process], place: str, alone: bool) -> Owned:
    """Only shares that no other process counts too: ``shared`` ones stay in the rest."""
    owned: Owned = {}
    for process in processes:
        by_node = process["anon_by_numa_node"]
        whole = None if process["shared"] else process["anon_bytes"]
        size = 0 if whole is None and by_node is None else bytes_on(place, by_node, whole, alone)
        if size:
            pile = owned.setdefault((label(process), "process"), _Pile())
            pile.add(size, f"pid {process['pid']}")
    return owned


def _driver(parts: Sequence[DriverPart]) -> Owned:
    owned: Owned = {}
    for part in parts:
        owned.setdefault((part.owner, "process"), _Pile()).add(part.size_bytes, part.evidence)
    return owned


def _shared(
    segments: Sequence[Segment], place: str, names: Mapping[int, str], alone: bool
) -> Owned:
    owned: Owned = {}
    for one in segments:
        size = bytes_on(place, one["by_numa_node"], one["resident_bytes"], alone)
        if size:
            lifetime: Lifetime = "persistent" if one["persistent"] else "process"
            key = (_mappers(one["mapped_by"], names), lifetime)
            owned.setdefault(key, _Pile()).add(size, f"{one['kind']} {one['name']}")
    return owned


# --- GPUs with memory of their own, and swap -----------------------------------------------


def _gpu(
    gpu: Gpu, processes: Sequence[Process], managed: Sequence[DriverPart]
) -> list[SnapshotRow]:
    place = f"gpu:{gpu['uuid']}"
    owned: dict[str | None, _Pile] = {}
    rows = []
    listed = 0
    for process in processes:
        if gpu["uuid"] not in process["gpus"]:
            continue
        size = process["gpus"][gpu["uuid"]]
        if size is None:
            rows.append(_row("device", label(process), place, None, [f"pid {process['pid']}"]))
        elif size:
            owned.setdefault(label(process), _Pile()).add(size, f"nvml: pid {process['pid']}")
            listed += size
    gone = (gpu["processes_bytes"] or 0) - listed
    if gone > 0:
        owned.setdefault(None, _Pile()).add(gone, "nvml: numbers that no process has")
    for part in managed:
        owned.setdefault(part.owner, _Pile()).add(part.size_bytes, part.evidence)
    for owner, pile in sorted(owned.items(), key=lambda item: -item[1].size_bytes):
        rows.append(_row("device", owner, place, pile.size_bytes, pile.evidence()))
    if gpu["reserved_bytes"]:
        rows.append(_row("device", "driver", place, gpu["reserved_bytes"], ["nvml"], "boot"))
    if gpu["free_bytes"] is None or gpu["free_bytes"]:
        rows.append(_row("free", None, place, gpu["free_bytes"], ["nvml"]))
    rows.append(
        _row("unaccounted", None, place, gpu["unaccounted_bytes"], ["used less all processes"])
    )
    return rows


def _swap(processes: Sequence[Process], used_bytes: int | None) -> list[SnapshotRow]:
    owned: Owned = {}
    for process in processes:
        if process["swap_bytes"] and not process["shared"]:
            pile = owned.setdefault((label(process), "process"), _Pile())
            pile.add(process["swap_bytes"], f"pid {process['pid']}")
    if used_bytes is not None:
        return _part("anon", used_bytes, "swap", owned, "of no process seen") if used_bytes else []
    return [
        _row("anon", owner, "swap", pile.size_bytes, pile.evidence(), lifetime)
        for (owner, lifetime), pile in owned.items()
    ]
