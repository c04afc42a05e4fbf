"""``diff``: what changed, the largest first, equal changes of several hosts folded. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from fleetmem.controller.answer.envelope import Envelope, HostEntry
from fleetmem.controller.answer.fold import fold_hosts, template
from fleetmem.controller.memory.parts import Change
from fleetmem.controller.render.kit.findings import finding_lines
from fleetmem.controller.render.kit.line import WIDTH, Line, cells, left, right, wrap
from fleetmem.controller.render.kit.next_steps import finding_steps
from fleetmem.controller.text.safe import safe
from fleetmem.controller.text.sizes import GIB, NONE, count, span

_HOSTS = 18
_OWNER = 25
_BACKING = 12
_FIGURE = 12
_MAX = 24


def diff_lines(envelope: Envelope, first: str, second: str) -> list[Line]:
    """The screen; *first* and *second* are what was asked for."""
    entries = [entry for entry in envelope["hosts"] if "diff" in entry]
    title = f"{safe(first)} → {safe(second)} · {count(len(entries), 'host')} in both · GiB"
    lines: list[Line] = [((piece, "bold"),) for piece in wrap(title, WIDTH)]
    again = [entry["host"] for entry in entries if entry["diff"]["same_boot"] is False]
    if again:
        lines.append(((f"started again in between: {safe(fold_hosts(again))}", "warn"),))
    several = len(envelope["hosts"]) > 1
    rows = _folded(entries)
    if rows:
        head = (left("HOSTS", _HOSTS) if several else "") + left("WHERE", 9)
        head += left("BACKING", _BACKING) + left("OWNER", _OWNER + (0 if several else _HOSTS))
        head += "".join(right(name, _FIGURE) for name in ("BEFORE", "NOW", "CHANGE"))
        lines += [(), ((head, "dim"),)]
    for hosts, changes in rows[:_MAX]:
        lines += _row(hosts if several else None, changes)
    if len(rows) > _MAX:
        lines.append(((f"… {len(rows) - _MAX} more; -o json lists all", "dim"),))
    still = [entry["host"] for entry in entries if not entry["diff"]["rows"]]
    if still:
        lines.append(((f"· {safe(fold_hosts(still))}: nothing changed by 1 MiB or more", "dim"),))
    for entry in envelope["hosts"]:
        if entry["error"] is not None:
            text = f"– {safe(entry['host'])}: {entry['error']['message']}"
            lines.append(((text, "dim"),))
    if envelope["findings"]:
        lines += [(), *finding_lines(envelope["findings"])]
        lines += finding_steps(envelope["findings"])
    return lines


def _folded(entries: Sequence[HostEntry]) -> list[tuple[list[str], list[Change]]]:
    """Changes of the same thing in the same direction, over all hosts; the largest first."""
    groups: dict[tuple[object, ...], tuple[list[str], list[Change]]] = {}
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


def _row(hosts: Sequence[str] | None, rows: Sequence[Change]) -> list[Line]:
    one = rows[0]
    name = (
        one["owner"] if len({row["owner"] for row in rows}) == 1 else template(one["owner"] or "")
    )
    wide = _OWNER + (_HOSTS if hosts is None else 0)
    text = left(one["place"], 9) + left(one["backing"], _BACKING) + left(safe(name or NONE), wide)
    figures = [
        _range([row["before_bytes"] for row in rows]),
        _range([row["after_bytes"] for row in rows]),
        _range([row["change_bytes"] for row in rows], sign=True),
    ]
    numbers = "".join(right(figure, _FIGURE) for figure in figures)
    style = _style(one)
    tail: Line = ((text, ""), (numbers, style))
    if hosts is None:
        return [tail]
    folded = safe(fold_hosts(hosts))
    if cells(folded) < _HOSTS:
        return [((left(folded, _HOSTS), ""), *tail)]
    return [*(((piece, ""),) for piece in wrap(folded, WIDTH)), ((" " * _HOSTS, ""), *tail)]


def _style(row: Change) -> str:
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
    return low if low == high else f"{low}…{high}"
