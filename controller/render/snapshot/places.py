"""The table of places: NUMA nodes and GPUs, a column a backing, a bar. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fleetmem.controller.memory.snapshot_shapes import Gpu, Snapshot, SnapshotNode
from fleetmem.controller.render.kit.line import Line, Span
from fleetmem.controller.render.kit.table import Cell, Column, Row, table_lines
from fleetmem.controller.text.safe import safe
from fleetmem.controller.text.sizes import GIB, NONE, count

COLUMNS = ("TOTAL", "FREE", "CUDA", "FILE", "ANON", "SHMEM", "KERNEL", "UNACC")
_PARTS = COLUMNS[1:]
_BAR = 15
_WIDE_BAR, _WIDE = 30, 130
LETTERS = {
    "FILE": ("F", "red"),
    "CUDA": ("C", "blue"),
    "ANON": ("A", "magenta"),
    "SHMEM": ("S", "cyan"),
    "KERNEL": ("K", "grey"),
    "UNACC": ("?", "yellow"),
    "FREE": ("·", "dim"),
}
"""The parts of a bar from left to right: letter and style."""


@dataclass(frozen=True)
class Place:
    """One row. ``parts`` (bytes by column) are disjoint; with all known they add up to
    ``total``. KERNEL has slab and huge pages in it, and a driver's reserve."""

    name: str
    where: str
    kind: str
    total: int | None
    parts: Mapping[str, int | None]


def places(section: Snapshot) -> list[Place]:
    """GPUs first, then nodes with CPUs, then the rest; empty nodes are left out."""
    gpus = {f"numa:{node['id']}": node for node in section["numa_nodes"] if node["gpu_uuid"]}
    rows = []
    for gpu in section["gpus"]:
        node = gpus.get(gpu["same_as"] or "")
        if node is not None and node["kind"] == "gpu":
            rows.append(_node(node, f"GPU {gpu['index']} HBM"))
        elif gpu["same_as"] is None:
            rows.append(_gpu(gpu))
    left_over = [n for n in section["numa_nodes"] if n["total_bytes"] != 0]
    cpus = [node for node in left_over if node["kind"] == "cpu"]
    rows += [_node(node, f"CPU {number} DRAM") for number, node in enumerate(cpus)]
    known = {gpu["same_as"] for gpu in section["gpus"]}
    rows += [
        _node(node, "GPU memory" if node["kind"] == "gpu" else "memory")
        for node in left_over
        if node["kind"] == "memory" or (node["kind"] == "gpu" and f"numa:{node['id']}" not in known)
    ]
    return rows


def place_notes(section: Snapshot) -> list[str]:
    """What the table of places does not show: nodes without memory, huge pages."""
    notes = []
    hidden = sum(node["total_bytes"] == 0 for node in section["numa_nodes"])
    if hidden:
        notes.append(f"{count(hidden, 'NUMA node')} without memory, hidden")
    huge = [n for n in section["numa_nodes"] if n["hugetlb_bytes"]]
    if huge:
        said = ", ".join(f"{(n['hugetlb_bytes'] or 0) / GIB:.1f} on NUMA {n['id']}" for n in huge)
        notes.append(f"KERNEL includes huge pages: {said}")
    return notes


def _node(node: SnapshotNode, name: str) -> Place:
    kernel = [node["kernel_bytes"], node["slab_bytes"], node["hugetlb_bytes"]]
    parts = {
        "FREE": node["free_bytes"],
        "CUDA": node["device_bytes"],
        "FILE": node["file_bytes"],
        "ANON": node["anon_bytes"],
        "SHMEM": node["shmem_bytes"],
        "KERNEL": None if None in kernel else sum(size or 0 for size in kernel),
        "UNACC": node["unaccounted_bytes"],
    }
    return Place(name, f"NUMA {node['id']}", node["kind"], node["total_bytes"], parts)


def _gpu(gpu: Gpu) -> Place:
    parts: dict[str, int | None] = dict.fromkeys(_PARTS)
    parts["FREE"] = gpu["free_bytes"]
    held = gpu["processes_bytes"]
    parts["CUDA"] = None if held is None else held + (gpu.get("managed_bytes") or 0)
    parts["KERNEL"] = gpu["reserved_bytes"]
    parts["UNACC"] = gpu["unaccounted_bytes"]
    return Place(f"GPU {gpu['index']}", "device", "gpu", gpu["total_bytes"], parts)


def place_lines(rows: Sequence[Place], width: int = 100) -> list[Line]:
    """The table; the bar goes first where there is no room, then SHMEM and KERNEL."""
    bar = _WIDE_BAR if width >= _WIDE else _BAR
    drops = {"SHMEM": 2, "KERNEL": 1}
    columns = [
        Column("WHERE"),
        Column(""),
        *(Column(name, right=True, drop=drops.get(name, 0)) for name in COLUMNS),
        Column(f"0 %{'100 %':>{bar - 3}}", drop=3),
    ]
    return table_lines(columns, [_row(row, bar) for row in rows], width)


def _row(row: Place, bar: int) -> Row:
    tenths = in_tenths(row)
    figures: list[Cell] = [((_tenth(tenths[name]), _style(name, row)),) for name in COLUMNS]
    return Row([safe(row.name), safe(row.where), *figures, tuple(bar_spans(row, bar))])


def _style(name: str, row: Place) -> str:
    size, total = row.parts.get(name), row.total
    if not size or not total or size * 20 < total:
        return ""
    if name == "UNACC":
        return "warn"
    return "bad" if name == "FILE" and row.kind == "gpu" else ""


def _tenth(value: int | None) -> str:
    return NONE if value is None else f"{value / 10:.1f}"


def in_tenths(row: Place) -> dict[str, int | None]:
    """Tenths of GiB by column, rounded so that the parts shown add up to the total shown."""
    found: dict[str, int | None] = {"TOTAL": None if row.total is None else _tenths(row.total)}
    exact = {name: size * 10 / GIB for name, size in row.parts.items() if size is not None}
    for name in row.parts:
        found[name] = int(exact[name] // 1) if name in exact else None
    total = found["TOTAL"]
    if total is None or not exact or row.total != sum(row.parts[name] or 0 for name in exact):
        found.update({name: round(value) for name, value in exact.items()})
        return found
    missing = total - sum(found[name] or 0 for name in exact)
    for name in sorted(exact, key=lambda name: exact[name] // 1 - exact[name])[: max(0, missing)]:
        found[name] = (found[name] or 0) + 1
    return found


def _tenths(size: int) -> int:
    return round(size * 10 / GIB)


def style(name: str, row: Place) -> str:
    """How the part *name* of *row* is drawn: file pages are red where a GPU's memory is."""
    return "dim" if name == "FILE" and row.kind != "gpu" else LETTERS[name][1]


def bar_spans(row: Place, cells: int = _BAR) -> list[Span]:
    """*cells* letters in proportion: what lies there first, free last."""
    total = row.total
    if not total:
        return [(" " * cells, "")]
    order = [name for name in LETTERS if row.parts.get(name)]
    shares = {name: max(0, row.parts[name] or 0) * cells / total for name in order}
    counts = {name: int(share) for name, share in shares.items()}
    spare = cells - sum(counts.values())
    for name in sorted(order, key=lambda name: counts[name] - shares[name])[: max(0, spare)]:
        counts[name] += 1
    spans = []
    for name in order:
        if counts[name]:
            spans.append((LETTERS[name][0] * counts[name], style(name, row)))
    missing = cells - sum(counts.values())
    return [*spans, (" " * missing, "")] if missing > 0 else spans
