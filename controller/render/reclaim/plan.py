"""The plan of a reclaim as a block of columns: what would be stopped, what not, how. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from fleetmem.controller.answer.envelope import HostEntry, reading_of
from fleetmem.controller.reclaim.options import ReclaimOptions
from fleetmem.controller.render.kit.line import WIDTH, Line, block, cells, wrap
from fleetmem.controller.render.kit.table import GAP, Column, hosts_column, measured, table_lines
from fleetmem.controller.render.kit.table import Row as TableRow
from fleetmem.controller.render.reclaim.plan_rows import PlanRow, spared_rows, target_rows
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
_MAX_CONSEQUENCES = 8


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
    many = len(shown) > 1
    columns = _columns([*targets, *spared], many, width)
    held = [_target(row, many) for row in targets]
    lines = _title(shown, width)
    lines += table_lines(columns, held, width)
    lines += _managed_lines(shown, width)
    lines += _consequence_lines(shown, width)
    if spared:
        lines.append((("SPARED", "dim"),))
        kept = [_spared(row, many) for row in spared[:_MAX_SPARED]]
        beside = _spared_columns(columns, measured(columns, held, width) if held else {})
        lines += table_lines(beside, kept, width, heads=not held)
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


def _columns(rows: Sequence[PlanRow], many: bool, width: int) -> list[Column]:
    """Columns that targets and spared processes share have room for both."""

    def size(texts: Iterable[str]) -> int:
        return max(map(cells, texts), default=0)

    hosts = hosts_column(width)
    beside = [row.hosts for row in rows if cells(row.hosts) <= hosts.most]
    return [
        *([replace(hosts, size=size(beside))] if many else []),
        Column("GPU", size=size(row.gpus for row in rows)),
        Column("USED MiB", right=True, size=size(row.used for row in rows)),
        Column("HOLDER", least=18),
        Column("PID", right=True),
        *([] if many else [Column("AGE", right=True, drop=1)]),
        Column("OWNER", least=12, place="below"),
        Column("USER", drop=3),
        Column("COMMAND", least=24, lines=1, drop=4),
        Column("CLASS", size=size(_class(row) for row in rows)),
    ]


def _target(row: PlanRow, many: bool) -> TableRow:
    hosts = [row.hosts] if many else []
    ages = [] if many else [row.age]
    kind: Line = ((_class(row), CLASS_STYLES.get(row.kind, "")),)
    texts = [*hosts, row.gpus, row.used, row.text, row.pid, *ages, row.owner, row.user, row.command]
    return TableRow([*texts, kind])


def _spared_columns(columns: Sequence[Column], widths: Mapping[str, int]) -> list[Column]:
    """The text of a spared process takes the room of a target's columns from HOLDER to CLASS."""
    names = [column.title for column in columns]
    between = [widths[name] for name in names[names.index("HOLDER") : -1] if name in widths]
    size = sum(between) + GAP * (len(between) - 1) if between else 0
    first = columns[: names.index("HOLDER")]
    text = Column("HOLDER", size=size, most=size, least=min(size or 30, 30), place="below")
    return [*first, text, columns[-1]]


def _spared(row: PlanRow, many: bool) -> TableRow:
    hosts = [row.hosts] if many else []
    kind: Line = ((_class(row), CLASS_STYLES.get(row.kind, "")),)
    return TableRow([*hosts, row.gpus, row.used, row.text, kind], style="dim")


def _class(row: PlanRow) -> str:
    return row.kind.replace("_", " ")


def _managed_lines(entries: Sequence[HostEntry], width: int) -> list[Line]:
    """What USED leaves out: NVML lists no managed memory."""
    size = managed_bytes(entry["reclaim"] for entry in entries)
    if not size:
        return []
    text = f"plus at most {gib(size)} GiB of managed memory, which NVML does not list"
    return block(text, width, "warn")


def _consequence_lines(entries: Sequence[HostEntry], width: int) -> list[Line]:
    """What ending the targets means for others: equal sentences once, a few of them."""
    said = dict.fromkeys(
        f"{safe(target['name'], 40)} {target['pid']}: {safe(text, 120)}"
        for entry in entries
        for target in entry["reclaim"]["targets"]
        for text in target.get("consequences", ())
    )
    lines = [line for text in list(said)[:_MAX_CONSEQUENCES] for line in block(text, width, "warn")]
    if len(said) > _MAX_CONSEQUENCES:
        more = count(len(said) - _MAX_CONSEQUENCES, "more consequence")
        lines.append(((f"… {more}; -o json lists all", "dim"),))
    return lines


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
    return block(text, width)
