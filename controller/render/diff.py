"""``diff``: what changed, the largest first, equal changes of several hosts folded. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from fleetmem.controller.answer.envelope import Envelope, HostEntry
from fleetmem.controller.answer.fold import fold_hosts, template
from fleetmem.controller.memory.snapshot_shapes import SnapshotChange
from fleetmem.controller.render.kit.findings import finding_lines
from fleetmem.controller.render.kit.line import WIDTH, Line, block
from fleetmem.controller.render.kit.next_steps import finding_steps
from fleetmem.controller.render.kit.signs import OUTCOMES
from fleetmem.controller.render.kit.table import Column, Row, hosts_column, table_lines
from fleetmem.controller.text.safe import safe
from fleetmem.controller.text.sizes import GIB, NONE, count, span

_MAX = 24

Folded = tuple[list[str], list[SnapshotChange]]


def diff_lines(envelope: Envelope, first: str, second: str, width: int = WIDTH) -> list[Line]:
    """The screen; *first* and *second* are what was asked for."""
    entries = [entry for entry in envelope["hosts"] if "diff" in entry]
    title = f"{safe(first)} → {safe(second)} · {count(len(entries), 'host')} in both · GiB"
    lines = block(title, width, "bold")
    again = [entry["host"] for entry in entries if entry["diff"]["same_boot"] is False]
    if again:
        lines += block(f"rebooted in between: {safe(fold_hosts(again))}", width, "warn")
    folded = _folded(entries)
    if folded:
        lines += [(), *_table(folded[:_MAX], len(envelope["hosts"]) > 1, width)]
    if len(folded) > _MAX:
        lines.append(((f"… {len(folded) - _MAX} more; -o json lists all", "dim"),))
    still = [entry["host"] for entry in entries if not entry["diff"]["rows"]]
    if still:
        text = f"{safe(fold_hosts(still))}: nothing changed by 1 MiB or more"
        lines += block(text, width, "dim", first="· ")
    for entry in envelope["hosts"]:
        if entry["error"] is not None:
            glyph, style = OUTCOMES[entry["outcome"]]
            text = f"{safe(entry['host'])}: {safe(entry['error']['message'])}"
            lines += block(text, width, style, first=f"{glyph} ")
    if envelope["findings"]:
        lines += [(), *finding_lines(envelope["findings"], width)]
        lines += finding_steps(envelope["findings"], width)
    return lines


def _folded(entries: Sequence[HostEntry]) -> list[Folded]:
    """Changes of the same thing in the same direction, over all hosts; the largest first."""
    groups: dict[tuple[object, ...], Folded] = {}
    for entry in entries:
        for row in entry["diff"]["rows"]:
            change = row["change_bytes"]
            way = None if change is None else change > 0
            owner = None if row["owner"] is None else template(row["owner"])
            key = (row["backing"], owner, row["place"], row["lifetime"], way)
            hosts, rows = groups.setdefault(key, ([], []))
            hosts.append(entry["host"])
            rows.append(row)
    return sorted(
        groups.values(), key=lambda one: -max(abs(row["change_bytes"] or 0) for row in one[1])
    )


def _table(folded: Sequence[Folded], several: bool, width: int) -> list[Line]:
    """Rows that differ in lifetime only show it at any width."""
    alike = Counter((tuple(hosts), *_named(rows)) for hosts, rows in folded)
    columns = [
        *([hosts_column(width)] if several else []),
        Column("WHERE"),
        Column("BACKING"),
        Column("OWNER", least=14),
        Column("LIFETIME", drop=0 if max(alike.values()) > 1 else 1),
        Column("BEFORE", right=True),
        Column("NOW", right=True),
        Column("CHANGE", right=True),
    ]
    return table_lines(columns, [_row(hosts, rows, several) for hosts, rows in folded], width)


def _named(rows: Sequence[SnapshotChange]) -> tuple[str, str, str]:
    one = rows[0]
    same = len({row["owner"] for row in rows}) == 1
    name = one["owner"] if same else template(one["owner"] or "")
    return safe(one["place"]), safe(one["backing"]), safe(name or NONE)


def _row(hosts: Sequence[str], rows: Sequence[SnapshotChange], several: bool) -> Row:
    style = _style(rows[0])
    figures = (
        _range([row["before_bytes"] for row in rows]),
        _range([row["after_bytes"] for row in rows]),
        _range([row["change_bytes"] for row in rows], sign=True),
    )
    where = [safe(fold_hosts(hosts))] if several else []
    named = [*_named(rows), safe(rows[0]["lifetime"] or NONE)]
    return Row([*where, *named, *(((figure, style),) for figure in figures)])


def _style(row: SnapshotChange) -> str:
    change = row["change_bytes"]
    if change is None:
        return "dim"
    if row["backing"] == "free":
        return "good" if change > 0 else ""
    return "warn" if row["backing"] == "unaccounted" and change > GIB else ""


def _range(sizes: Sequence[int | None], sign: bool = False) -> str:
    ends = span(sizes)
    if ends is None or None in sizes:
        return NONE
    places = 2 if max(map(abs, ends)) < 100 * GIB else 0
    if sign and ends[0] == ends[1] and abs(ends[0]) < GIB / 100:
        places = 3  # else a change of 1 MiB would be shown as none
    form = f"{{:{'+' if sign else ''}.{places}f}}"
    low, high = (form.format(end / GIB) for end in ends)
    if low == high:
        return low
    return f"{low} to {high}" if sign else f"{low}-{high}"
