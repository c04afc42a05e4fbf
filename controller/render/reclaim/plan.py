"""The plan of a reclaim as a block of columns: what would be stopped, what not, how. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from fleetmem.controller.answer.envelope import HostEntry, reading_of
from fleetmem.controller.reclaim.options import ReclaimOptions
from fleetmem.controller.render.kit.line import WIDTH, Line, cells, left, right, wrap
from fleetmem.controller.render.reclaim.plan_rows import Row, spared_rows, target_rows
from fleetmem.controller.render.reclaim.verdict_text import managed_bytes
from fleetmem.controller.text.safe import safe
from fleetmem.controller.text.sizes import count, gib, seconds_span

CLASS_STYLES = {
    "leftover": "good",
    "detached": "warn",
    "in_use": "dim",
    "protected": "dim",
    "foreign": "foreign",
}
_MAX_SPARED = 24
_MAX_HOSTS = 16
_USED, _PID, _AGE, _CLASS = 12, 7, 5, 9
_OWNER, _LEAST_OWNER = 13, 8


@dataclass(frozen=True, slots=True)
class _Widths:
    """Columns in cells; ``hosts`` 0 where there is one host only, which then has an age."""

    whole: int
    hosts: int
    gpus: int
    used: int
    holder: int
    owner: int

    @property
    def before(self) -> int:
        """Cells left of the holder."""
        return (self.hosts + 1 if self.hosts else 0) + self.gpus + 1 + self.used + 2

    @property
    def spared(self) -> int:
        """Cells of a spared process's text."""
        return self.whole - self.before - 2 - _CLASS


def plan_lines(
    entries: Sequence[HostEntry], options: ReclaimOptions | None, width: int = WIDTH
) -> list[Line]:
    """The plan block, *width* cells wide; without *options* (a recorded run) it has no ``steps``
    line.

    Empty where neither a target nor a spared process is known.
    """
    shown = [entry for entry in entries if "reclaim" in entry]
    targets = target_rows(shown)
    spared = spared_rows(shown)
    if not targets and not spared:
        return []
    widths = _widths([*targets, *spared], len(shown) > 1, width)
    lines = _title(shown, width)
    if targets:
        lines.append(_header(widths))
        lines += [line for row in targets for line in _target_lines(row, widths)]
        lines += _managed_lines(shown, width)
    if spared:
        lines.append((("SPARED", "dim"),))
        lines += [line for row in spared[:_MAX_SPARED] for line in _spared_lines(row, widths)]
    if len(spared) > _MAX_SPARED:
        more = count(len(spared) - _MAX_SPARED, "more kind")
        lines.append(((f"… {more}; -o json lists all", "dim"),))
    if targets and options is not None:
        lines += _steps(shown, options, width)
    return lines


def _title(entries: Sequence[HostEntry], width: int) -> list[Line]:
    """One host by name and plan; several by their number, the rows below name them."""
    if len(entries) == 1:
        plan = entries[0]["reclaim"]["plan"]
        name = f"PLAN {safe(plan['id'], 40)}" if plan else "PLAN"
        parts = [safe(entries[0]["host"]), _gpus(entries)]
    else:
        name = "PLAN"
        per_host = [len(entry["reclaim"]["targets"]) for entry in entries]
        what = count(sum(per_host), "process", "processes")
        what += f" on {count(sum(map(bool, per_host)), 'host')}" if any(per_host) else ""
        parts = [count(len(entries), "host"), _gpus(entries), what]
    if not any(entry["reclaim"]["rungs"] for entry in entries):
        parts.append("nothing has been changed")
    indent = len(name) + 2
    first, *more = wrap(" · ".join(parts), width - indent)
    return [
        ((f"{name}  ", "bold"), (first, "")),
        *(((" " * indent + piece, ""),) for piece in more),
    ]


def _gpus(entries: Iterable[HostEntry]) -> str:
    total, names = 0, set()
    for entry in entries:
        total += len(entry["reclaim"]["gpus"])
        devices = reading_of(entry, "gpu.devices")
        for gpu in devices["gpus"] if devices else ():
            names.add(safe(gpu["name"] or "GPU", 30))
    return f"{total} × {names.pop()}" if len(names) == 1 else count(total, "GPU")


def _widths(rows: Sequence[Row], many: bool, width: int) -> _Widths:
    """Room for the longest holder's name, the rest for the owner; on a narrow terminal the columns
    before it are as wide as what is in them."""
    narrow = width < WIDTH
    hosts = max(5, *(min(cells(row.hosts), _MAX_HOSTS) for row in rows)) if many else 0
    gpus = 5 if many else 7
    used = max(8, *(cells(row.used) for row in rows)) if narrow else _USED
    named = [cells(row.text) for row in rows if row.owner]
    holder = min(max([12, *named]), 26)
    fixed = _Widths(width, hosts, gpus, used, 0, 0).before + 1 + _PID + 2 + 2 + _CLASS
    fixed += 0 if many else _AGE + 2
    holder = min(holder, max(12, width - fixed - _OWNER))
    owner = max(_LEAST_OWNER, width - fixed - holder)
    return _Widths(width, hosts, gpus, used, holder, owner)


def _header(widths: _Widths) -> Line:
    hosts = f"{'HOSTS':<{widths.hosts}} " if widths.hosts else ""
    ages = "" if widths.hosts else f"{'AGE':>{_AGE}}  "
    text = (
        f"{hosts}{'GPU':<{widths.gpus}} {'USED MiB':>{widths.used}}  {'HOLDER':<{widths.holder}} "
        f"{'PID':>{_PID}}  {ages}{'OWNER':<{widths.owner}}  CLASS"
    )
    return ((text, "dim"),)


def _target_lines(row: Row, widths: _Widths) -> list[Line]:
    names, owners = wrap(row.text, widths.holder), wrap(row.owner, widths.owner)
    ages = "" if widths.hosts else f"{right(row.age, _AGE)}  "
    first = (
        f"{left(row.gpus, widths.gpus)} {right(row.used, widths.used)}  "
        f"{left(names[0], widths.holder)} {right(row.pid, _PID)}  {ages}"
        f"{left(owners[0], widths.owner)}  "
    )
    lines = _with_hosts(row, widths, first, "")
    gap = widths.holder + 1 + _PID + 2 + len(ages)
    for name, owner in zip_longest(names[1:], owners[1:], fillvalue=""):
        lines.append(((" " * widths.before + left(name, gap) + owner, ""),))
    return lines


def _managed_lines(entries: Sequence[HostEntry], width: int) -> list[Line]:
    """What USED leaves out: NVML lists no managed memory."""
    size = managed_bytes(entry["reclaim"] for entry in entries)
    if not size:
        return []
    text = f"managed memory, which no list of NVML has: at most {gib(size)} GiB more are theirs"
    return [((piece, "warn"),) for piece in wrap(text, width)]


def _spared_lines(row: Row, widths: _Widths) -> list[Line]:
    first, *more = wrap(row.text, widths.spared)
    head = f"{left(row.gpus, widths.gpus)} {right(row.used, widths.used)}  "
    lines = _with_hosts(row, widths, f"{head}{left(first, widths.spared)}  ", "dim")
    return [*lines, *(((" " * widths.before + piece, "dim"),) for piece in more)]


def _with_hosts(row: Row, widths: _Widths, text: str, style: str) -> list[Line]:
    tail = (row.kind.replace("_", " "), CLASS_STYLES.get(row.kind, ""))
    if not widths.hosts:
        return [((text, style), tail)]
    return hosts_first(row.hosts, widths.hosts, ((f" {text}", style), tail), widths.whole)


def hosts_first(folded: str, width: int, rest: Line, whole: int = WIDTH) -> list[Line]:
    """A row that begins with a node set; a set longer than its column has lines of its own."""
    if cells(folded) <= width:
        return [((left(folded, width), ""), *rest)]
    lines: list[Line] = [((piece, ""),) for piece in wrap(folded, whole)]
    return [*lines, ((" " * width, ""), *rest)]


def _steps(entries: Sequence[HostEntry], options: ReclaimOptions, width: int) -> list[Line]:
    targets = [target for entry in entries for target in entry["reclaim"]["targets"]]
    heirs = sum(target["conditional"] for target in targets)
    words = {
        "drain": "drain",
        "term": f"TERM {len(targets) - heirs}",
        "kill": f"KILL after {options.grace_period_seconds:g} s",
        "heirs": f"heirs {heirs}" if heirs else "rescan",
    }
    steps = " → ".join(words[rung] for rung in options.rungs if rung in words)
    expected = [entry["reclaim"].get("expect_seconds") for entry in entries]
    text = f"steps   {steps}"
    if any(value is not None for value in expected):
        text += f" · expect {seconds_span(expected)} after KILL"
    return [((piece, ""),) for piece in wrap(text, width)]
