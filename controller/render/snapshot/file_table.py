"""The table of file pages below the places, by directory. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from fleetmem.controller.answer.fold import fold_numbers
from fleetmem.controller.memory.snapshot_shapes import Snapshot, SnapshotFile
from fleetmem.controller.memory.table import directory
from fleetmem.controller.render.kit.line import WIDTH, Line, block
from fleetmem.controller.render.kit.table import Column, Row, table_lines
from fleetmem.controller.text.safe import safe
from fleetmem.controller.text.sizes import NONE, count, decimals, gib_column, thousands

_ROWS = 8
_GPU_COLUMNS = 3
_SHARE = 20
"""One part in twenty (5 %) makes a table worth showing."""


@dataclass
class _Group:
    """Files of one directory and ending, with the same mappers."""

    name: str
    mapped_by: str
    files: int = 0
    total: int = 0
    dirty: int = 0
    by_node: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class _Row:
    """One row of the file table; ``sizes`` are its total, each column of nodes, what is dirty."""

    name: str
    files: int | None
    sizes: tuple[int | None, ...]
    mapped_by: str = NONE
    dim: bool = False


def wants_files(section: Snapshot, asked: bool) -> bool:
    """Whether the file table is shown: file pages are 5 % of a GPU's node, or it was asked for."""
    return bool(section["page_cache"]["files"]) and (
        asked
        or any(
            node["kind"] == "gpu"
            and (node["file_bytes"] or 0) * _SHARE >= (node["total_bytes"] or 1)
            for node in section["numa_nodes"]
        )
    )


def file_lines(section: Snapshot, width: int = WIDTH) -> list[Line]:
    """Files folded by directory, the most on a GPU's node first."""
    gpu = [n for n in section["numa_nodes"] if n["kind"] == "gpu" and n["total_bytes"]]
    gpu.sort(key=lambda node: -(node["file_bytes"] or 0))
    own = [str(node["id"]) for node in gpu[:_GPU_COLUMNS]]
    rest = [str(n["id"]) for n in section["numa_nodes"] if str(n["id"]) not in own]
    columns = [[name] for name in own] + ([rest] if rest else [])
    groups = _groups(section["page_cache"]["files"])
    groups.sort(key=lambda one: (-sum(one.by_node.get(n, 0) for n in own), -one.total))
    shown, others = groups[:_ROWS], groups[_ROWS:]
    if others:
        shown = [*shown, _together(others)]
    rows = [_grouped(group, columns) for group in shown]
    rows += _small(section, columns) + _untraced(section, columns)
    places = [decimals(column) for column in zip(*(row.sizes for row in rows), strict=True)]
    heads = [
        Column("FILE PAGES", least=20, path=True),
        Column("FILES", right=True, drop=1),
        Column("TOTAL", right=True),
        *(Column(_node_name(column), right=True) for column in columns),
        Column("DIRTY", right=True, drop=2),
        Column("MAPPED BY"),
    ]
    return table_lines(heads, [_line(row, places) for row in rows], width) + _unsure(section, width)


def _groups(files: Sequence[SnapshotFile]) -> list[_Group]:
    found: dict[tuple[str, str], _Group] = {}
    for one in files:
        if not one["resident_bytes"]:
            continue
        key = (directory(one["path"]), _mapped(one["mapped_by"]))
        group = found.setdefault(key, _Group(*key))
        group.files += 1
        group.total += one["resident_bytes"]
        group.dirty += one["dirty_bytes"] or 0
        for node, size in (one["by_numa_node"] or {}).items():
            group.by_node[node] = group.by_node.get(node, 0) + size
    return list(found.values())


def _mapped(pids: Sequence[int] | None) -> str:
    if pids is None:
        return NONE
    if not pids:
        return "nobody"
    return str(pids[0]) if len(pids) == 1 else count(len(pids), "process", "processes")


def _together(groups: Sequence[_Group]) -> _Group:
    whole = _Group("other", NONE)
    for group in groups:
        whole.files += group.files
        whole.total += group.total
        whole.dirty += group.dirty
        for node, size in group.by_node.items():
            whole.by_node[node] = whole.by_node.get(node, 0) + size
    return whole


def _node_name(column: Sequence[str]) -> str:
    return f"NUMA {fold_numbers(map(int, column))}"


def _grouped(group: _Group, columns: Sequence[Sequence[str]]) -> _Row:
    known = bool(group.by_node)
    nodes = [sum(group.by_node.get(n, 0) for n in column) if known else None for column in columns]
    name = group.name if group.name == "other" else safe(group.name)
    return _Row(name, group.files, (group.total, *nodes, group.dirty), group.mapped_by)


def _line(row: _Row, places: Sequence[int]) -> Row:
    sizes = [gib_column(*one) for one in zip(row.sizes, places, strict=True)]
    files = NONE if row.files is None else thousands(row.files)
    style = "dim" if row.dim else ""
    mapped: Line = ((row.mapped_by, "sure" if row.mapped_by == "nobody" else style),)
    return Row([row.name, files, *sizes, mapped], style=style)


def _small(section: Snapshot, columns: Sequence[Sequence[str]]) -> list[_Row]:
    """What was found and has no row of its own: files that are too small, or too many."""
    small = section["page_cache"]["coverage"].get("small")
    if not small or not small["files"]:
        return []
    sizes = (small["resident_bytes"], *(None for _ in columns), None)
    return [_Row("small files", small["files"], sizes)]


def _untraced(section: Snapshot, columns: Sequence[Sequence[str]]) -> list[_Row]:
    coverage = section["page_cache"]["coverage"]
    if not coverage:
        return []
    percent = coverage["percent"]
    by_node = coverage["by_numa_node"]

    def missing(column: Sequence[str]) -> int | None:
        found = [by_node[node] for node in column if node in by_node]
        left_out: int = sum(one["file_bytes"] - one["found_bytes"] for one in found)
        return max(0, left_out) if found else None

    left_out = max(0, coverage["file_bytes"] - coverage["found_bytes"])
    said = NONE if percent is None else f"{percent:.1f}"
    sizes = (left_out, *(missing(column) for column in columns), None)
    return [_Row(f"not traced ({said} % found)", None, sizes, dim=True)]


def _unsure(section: Snapshot, width: int) -> list[Line]:
    """Why the table may lack files."""
    coverage = section["page_cache"]["coverage"]
    lines: list[Line] = []
    if coverage and not coverage["complete"]:
        said = f"the search ended early: {safe(coverage['stopped'] or '')}"
        lines += block(said, width, "warn", 2)
    if coverage and coverage["unknown"]:
        lines += block(
            f"{count(coverage['unknown'], 'file')} could not be measured", width, "warn", 2
        )
    return lines
