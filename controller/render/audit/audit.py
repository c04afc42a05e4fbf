"""``audit startup`` over hosts: whole screens for few, a fold with the odd ones first for many.

Pure: an envelope in, styled lines or flat rows out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fleetmem.controller.answer.envelope import Envelope, HostEntry, hosts_of, reading_of
from fleetmem.controller.answer.step import DIRECT, Reach, Step
from fleetmem.controller.render.audit.audit_fold import (
    FoldedRow,
    equal_row,
    finding_rows,
    fold_hosts,
    rest_rows,
)
from fleetmem.controller.render.kit import table
from fleetmem.controller.render.kit.data import flat_findings
from fleetmem.controller.render.kit.findings import finding_lines
from fleetmem.controller.render.kit.line import WIDTH, Line, block
from fleetmem.controller.render.kit.next_steps import finding_steps, next_lines
from fleetmem.controller.render.kit.signs import GOOD, OUTCOMES, SEVERITIES, UNKNOWN
from fleetmem.controller.render.kit.table import Column, hosts_column, table_lines
from fleetmem.controller.render.startup.startup import log_step, startup_lines
from fleetmem.controller.text.safe import safe
from fleetmem.controller.text.sizes import count

WHOLE_SCREENS = 2
"""Up to so many hosts are shown whole, one after the other."""

_SIGNS = {**SEVERITIES, "none": UNKNOWN, "equal": GOOD}
_NO_START = "no start-up of a known engine was found"
_NO_START_HINT = "name the engine with --engine; --unmatched shows lines that no pattern matched"


def audit_lines(
    envelope: Envelope,
    *,
    evidence: bool = False,
    unmatched: bool = False,
    every: bool = False,
    each_rank: bool = False,
    wide: bool = False,
    seconds: float | None = None,
    reach: Reach = DIRECT,
    width: int = WIDTH,
) -> list[Line]:
    """The screen of an ``audit startup`` run."""
    if len(envelope["hosts"]) > WHOLE_SCREENS:
        return _folded(envelope, seconds, reach, width)
    lines: list[Line] = []
    for entry in envelope["hosts"]:
        if lines:
            lines.append(())
        more = {"evidence": evidence, "unmatched": unmatched, "every": every,
                "each_rank": each_rank, "wide": wide}  # fmt: skip
        lines += _whole(entry, envelope, more, seconds, reach, width)
    return lines


def _whole(
    entry: HostEntry,
    envelope: Envelope,
    more: Mapping[str, bool],
    seconds: float | None,
    reach: Reach,
    width: int,
) -> list[Line]:
    lines: list[Line] = []
    started: Sequence[Mapping[str, Any]] = startups(entry)
    for one in started:
        if lines:
            lines.append(())
        if not _tells(one):
            named = one.get("unit") or one.get("source")
            lines.append(
                (
                    (safe(entry["host"]), "bold"),
                    (f"  {safe(named)} · no engine's start-up in this log", "dim"),
                )
            )
            continue
        lines += startup_lines(
            entry["host"],
            one if more["every"] else _two(one),
            [found for found in envelope["findings"] if _about(found, entry, one, len(started))],
            **more,
            free_now_bytes=free_now_bytes(entry),
            seconds=seconds,
            reach=reach,
        )
    if entry["error"] is not None:
        error = entry["error"]
        glyph, style = OUTCOMES[entry["outcome"]]
        text = f"{safe(entry['host'])}  {entry['outcome']}: {error['code']}: "
        lines += block(text + safe(error["message"]), width, style, first=f"{glyph} ")
        if error["hint"]:
            lines += block(safe(error["hint"]), width, "dim", 2)
    elif not started:
        said = reasons(entry) or [_NO_START, _NO_START_HINT]
        lines.append(((safe(entry["host"]), "bold"), (f"  {safe(said[0])}", "")))
        lines += [line for text in said[1:] for line in block(safe(text), width, "dim", 2)]
    others = [
        one
        for one in envelope["findings"]
        if not one["rule"].startswith("startup/") and entry["host"] in hosts_of(one, envelope)
    ]
    if others:
        lines += [(), *finding_lines(others, width), *finding_steps(others, width)]
    if started and entry["error"] is None:
        for text in reasons(entry):
            lines += block(safe(text), width, "warn", first="! ")
    return lines


def _tells(one: Mapping[str, Any]) -> bool:
    """Whether any start of a log has a figure, an error or an engine."""
    return any(inv["ranks"] or inv["errors"] or inv["engine_name"] for inv in one["invocations"])


def _two(one: Mapping[str, Any]) -> dict[str, Any]:
    """The newest start and the newest one before it that has figures: what fits the screen."""
    ordered = sorted(one["invocations"], key=lambda inv: int(inv["age"]))
    older = [inv for inv in ordered[1:] if inv["ranks"]] or ordered[1:]
    return {**one, "invocations": [*ordered[:1], *older[:1]]}


def _about(found: Mapping[str, Any], entry: HostEntry, one: Mapping[str, Any], many: int) -> bool:
    """Whether a finding belongs to this host and, where it has several logs, to this one."""
    if found["hosts"] != entry["host"]:
        return False
    if many == 1:
        return True
    return found["subject"] in (one.get("unit"), one.get("source"), one.get("engine"))


def startups(entry: HostEntry) -> list[dict[str, Any]]:
    """The host's ``startup`` section; empty where it has none."""
    found: list[dict[str, Any]] = entry.get("startup") or []
    return found


def free_now_bytes(entry: HostEntry) -> int | None:
    """What NVML says is free now on the fullest GPU."""
    devices = reading_of(entry, "gpu.devices")
    free = [gpu["free_bytes"] for gpu in devices["gpus"]] if devices else []
    known = [value for value in free if value is not None]
    return min(known) if known else None


def reasons(entry: HostEntry) -> list[str]:
    """Why a host's logs are only partly read, a line each; other readings only sharpen."""
    return [
        f"{probe}: {reading['outcome']}: {reading['reason'] or 'no reason given'}"
        for probe, reading in entry["readings"].items()
        if reading["outcome"] != "ok" and not probe.startswith(("gpu.", "numa.", "processes."))
    ]


def _folded(envelope: Envelope, seconds: float | None, reach: Reach, width: int) -> list[Line]:
    equal, text = equal_row(envelope)
    rows = finding_rows(envelope)
    rows += rest_rows(envelope, rows, equal, reasons)
    columns = [
        Column(""),
        Column("N", right=True),
        hosts_column(width),
        Column("FINDING"),
        Column("EVIDENCE", least=30, lines=3, place="below"),
    ]
    shown = [_row(row) for row in rows]
    if equal:
        shown.append(_row(FoldedRow("equal", tuple(equal), "equal", text)))
    lines = [*block(_title(envelope, seconds), width, "bold"), ()]
    lines += table_lines(columns, shown, width)
    lines += [(), *block(_tally(rows, equal), width)]
    return [*lines, *next_lines(_next(envelope, rows, reach), width)]


def _title(envelope: Envelope, seconds: float | None) -> str:
    summary = envelope["summary"]
    parts = [f"{n} {word}" for word, n in summary.items() if word != "targeted" and n]
    logs = all(entry["host"].startswith("file:") for entry in envelope["hosts"])
    text = f"{count(summary['targeted'], 'log' if logs else 'host')}: {', '.join(parts)} · startup"
    text += f" · run {envelope['run']['id']}"
    return text + (f" · {seconds:.1f} s" if seconds is not None else "")


def _row(row: FoldedRow) -> table.Row:
    glyph, style = _SIGNS[row.kind]
    dim = "dim" if row.kind in ("info", "none", "equal") else ""
    return table.Row(
        [
            ((glyph, style),),
            str(len(row.hosts)),
            safe(fold_hosts(row.hosts)),
            ((safe(row.rule), style),),
            ((safe(row.text), dim),),
        ]
    )


def _tally(rows: Sequence[FoldedRow], equal: Sequence[str]) -> str:
    parts = []
    for kind in ("critical", "warn"):
        number = sum(row.kind == kind for row in rows)
        if number:
            parts.append(f"{number} {kind}")
    odd = {host for row in rows for host in row.hosts if row.kind in ("critical", "warn")}
    text = f"{', '.join(parts)} on {count(len(odd), 'host')}" if parts else "nothing to report"
    return f"{text} · {len(equal)} equal" if equal else text


def _next(envelope: Envelope, rows: Sequence[FoldedRow], reach: Reach) -> list[Step]:
    """The whole screen of the worst host."""
    worst = next((row for row in rows if row.kind in ("critical", "warn")), None)
    if worst is None:
        return []
    host = worst.hosts[0]
    entry = next(one for one in envelope["hosts"] if one["host"] == host)
    one = startups(entry)[0] if startups(entry) else {}
    return [log_step(host, one, reach)]


def audit_rows(envelope: Envelope) -> list[dict[str, Any]]:
    """One flat row for each rank of each start, for csv; where no log was read, one for each
    finding. Absent is empty."""
    answered = [entry for entry in envelope["hosts"] if entry["error"] is None]
    if answered and not any("startup" in entry for entry in answered):
        return flat_findings(envelope)
    rows: list[dict[str, Any]] = []
    for entry in envelope["hosts"]:
        head = {
            "run": envelope["run"]["id"],
            "host": entry["host"],
            "outcome": entry["outcome"],
            "error": entry["error"]["code"] if entry["error"] else None,
        }
        found = False
        for one in startups(entry):
            for inv in one["invocations"]:
                for rank, values in (inv["ranks"] or {"": {}}).items():
                    found = True
                    rows.append(head | _flat(one, inv, rank, values))
        if not found:
            rows.append(head | _flat({}, {}, None, {}))
    return rows


_FIGURES = (
    "avail_before_load_bytes", "total_bytes", "initial_free_bytes", "requested_bytes",
    "weights_bytes", "kv_cache_bytes", "max_tokens", "mamba_cache_bytes", "graph_bytes",
    "draft_weights_bytes", "draft_kv_cache_bytes", "draft_max_tokens", "host_kv_bytes",
    "available_final_bytes", "unaccounted_bytes",
)  # fmt: skip


def _flat(
    one: Mapping[str, Any], inv: Mapping[str, Any], rank: str | None, values: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "engine": inv.get("engine_name") or one.get("engine"),
        "version": inv.get("engine_version"),
        "unit": one.get("unit"),
        "source": one.get("source"),
        "age": inv.get("age"),
        "status": inv.get("status"),
        "started": inv.get("started"),
        "invocation_id": inv.get("invocation_id"),
        "rank": rank,
        **{name: values.get(name) for name in _FIGURES},
    }
