"""The start-up screen: bars per step, the start before beside it, findings, levers (pure).

Takes what the envelope holds (a ``startup`` entry and findings) and gives styled lines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fleetmem.controller.answer.step import DIRECT, Reach, Step, complete, next_step
from fleetmem.controller.render.kit.line import WIDTH, Line, cells, left, right, wrap
from fleetmem.controller.render.kit.next_steps import next_lines
from fleetmem.controller.render.startup.details import changed_lines, detail_lines
from fleetmem.controller.render.startup.rank_groups import fold_ranks, groups, spread
from fleetmem.controller.render.startup.startup_rows import NAMES, StartupRow, rows_for
from fleetmem.controller.render.startup.table import MAX_COLUMNS, table, when
from fleetmem.controller.text.safe import safe

GIB = 2**30
_GLYPHS = {"critical": ("✗", "bad"), "warn": ("!", "warn"), "info": ("·", "dim")}
_HEADLINES = ("startup/pool-shrank", "startup/same-pool")


def startup_lines(
    host: str,
    entry: Mapping[str, Any],
    findings: Sequence[Mapping[str, Any]],
    *,
    evidence: bool = False,
    unmatched: bool = False,
    every: bool = False,
    each_rank: bool = False,
    wide: bool = False,
    free_now_bytes: int | None = None,
    seconds: float | None = None,
    reach: Reach = DIRECT,
) -> list[Line]:
    """The screen of one ``startup`` entry of *host* with the host's *findings*.

    *evidence* shows the lines behind the figures, *unmatched* the memory-related lines that no
    pattern knew, *every* one line for each older invocation, *each_rank* a row for each rank,
    *wide* everything that was read of each start.
    """
    invocations = sorted(entry.get("invocations") or [], key=lambda inv: inv["age"])
    out: list[Line] = []
    if not invocations:
        out.append(((safe(host), "bold"), ("  no start-up in this log", "")))
        out += _unmatched(entry, unmatched)
        return out
    newest = invocations[0]
    out.append(_header(host, entry, newest, seconds))
    out.append(())
    figures = table(entry, invocations, free_now_bytes, each_rank)
    if figures:
        out += figures
        out.append(())
    about = detail_lines(invocations, wide) + changed_lines(invocations)
    if about:
        out += [*about, ()]
    if every:
        out += [_one_line(inv) for inv in invocations[MAX_COLUMNS:]]
    for finding in findings:
        out += _finding(finding)
    if evidence:
        out += _evidence(invocations, findings)
    out += _unmatched(entry, unmatched)
    return out + _next(host, entry, findings, evidence, reach)


def _next(
    host: str,
    entry: Mapping[str, Any],
    findings: Sequence[Mapping[str, Any]],
    evidence: bool,
    reach: Reach,
) -> list[Line]:
    """The commands at the end, each once."""
    steps: list[str | Step] = [step for one in findings for step in one.get("next") or []]
    if not evidence:
        steps.append(log_step(host, entry, reach, lines=True))
    return next_lines(steps)


def log_step(host: str, entry: Mapping[str, Any], reach: Reach, *, lines: bool = False) -> Step:
    """The audit of one log alone: the unit, file or container that it was read from."""
    unit, source = entry.get("unit"), str(entry.get("source") or "")
    if host.startswith("file:"):
        saved = next_step("audit startup", log=source or host[5:], lines=lines)
        return complete(saved, reach)
    file = source if not unit and source.startswith("/") else None
    container = source if not unit and not file and source not in ("", "journal") else None
    step = next_step("audit startup", host, unit=unit, file=file, container=container, lines=lines)
    return complete(step, reach)


def _header(
    host: str, entry: Mapping[str, Any], newest: Mapping[str, Any], seconds: float | None
) -> Line:
    engine = entry.get("engine")
    name = NAMES.get(engine or "", engine or "engine unknown")
    version = newest.get("engine_version")
    parts = [str(entry["unit"])] if entry.get("unit") else []
    parts.append(f"{name} {version}" if version else name)
    ranks = newest.get("ranks") or {}
    rows = rows_for(engine, list(ranks.values()))
    if len(ranks) > 1:
        parted = groups(ranks, rows)
        parts.append(f"{fold_ranks(list(ranks))}, {len(ranks)} ranks{_equal(ranks, rows, parted)}")
    parts.append('GiB (SGLang prints GiB as "GB")' if engine == "sglang" else "GiB")
    if seconds is not None:
        parts.append(f"{seconds:.1f} s")
    return ((safe(host), "bold"), ("  " + safe(" · ".join(parts)), ""))


def _equal(
    ranks: Mapping[str, Mapping[str, Any]],
    rows: Sequence[StartupRow],
    parted: Sequence[Sequence[str]],
) -> str:
    if not rows:
        return ""
    if len(parted) > 1:
        return ", not equal"
    apart = spread(ranks, list(ranks), rows)
    return f" equal within {apart / GIB:.1f}" if apart > 0.05 * GIB else " equal"


def _size(value: Any) -> str:
    return f"{value / GIB:.2f}" if isinstance(value, int | float) else "–"


def _one_line(inv: Mapping[str, Any]) -> Line:
    ranks = inv.get("ranks") or {}
    kv = next(
        (v["kv_cache_bytes"] for v in ranks.values() if v.get("kv_cache_bytes") is not None), None
    )
    kinds = ", ".join(sorted({str(error["kind"]).replace("_", " ") for error in inv["errors"]}))
    text = f"{right('-' + str(inv['age']), 5)}  {left(when(inv), 22)}  KV {_size(kv)}"
    return ((safe(text + (f"  {kinds}" if kinds else "")), "dim"),)


def _finding(finding: Mapping[str, Any]) -> list[Line]:
    glyph, style = _GLYPHS[finding["severity"]]
    if finding["rule"] == "startup/same-pool":
        glyph, style = "✓", "good"
    name = str(finding["rule"]).removeprefix("startup/")
    evidence = finding["evidence"]
    out: list[Line] = []
    label = f"{glyph} {name}"
    width = max(13, len(label) + 2)
    room = WIDTH - 15
    for number, piece in enumerate(
        wrap(safe(evidence.get("say", "")), WIDTH - width if width > 15 else room)
    ):
        head = left(label, max(width, 15)) if number == 0 else " " * max(width, 15)
        out.append(((head, style if number == 0 else ""), (piece, "")))
    if finding["severity"] == "critical" and evidence.get("lines"):
        for piece in wrap(
            safe(evidence["lines"][-1 if _failed(finding) else 0]["text"], 300), room
        ):
            out.append(((" " * 15, ""), (piece, "bad")))
    if finding.get("advice") and finding["rule"] not in _HEADLINES[1:]:
        for number, piece in enumerate(wrap(safe(finding["advice"]), room)):
            out.append(((left("  advice" if number == 0 else "", 15), "dim"), (piece, "")))
    offered = evidence.get("levers") or []
    wide = max([20, *(cells(safe(one["change"])) for one in offered)])
    for number, lever in enumerate(offered):
        out += _lever(lever, number == 0, wide)
    return out


def _failed(finding: Mapping[str, Any]) -> bool:
    return not str(finding["rule"]).endswith("pool-shrank")


def _lever(lever: Mapping[str, Any], first: bool, wide: int) -> list[Line]:
    tokens = lever.get("tokens")
    parts: list[str] = []
    if lever.get("host_bytes"):
        parts.append(f"+{tokens:,} tokens in RAM".replace(",", " "))
        memory = lever.get("host_memory_bytes")
        of = f" of {memory / 1e9:.0f} GB" if memory else ""
        parts.append(f"({lever['host_bytes'] / 1e9:.0f} GB{of}); GPU pool unchanged")
    else:
        if lever.get("percent") != 100 or not lever.get("note"):
            parts.append(f"pool {lever['pool_bytes'] / GIB:.2f},")
        if tokens is not None:
            parts.append(f"{tokens:,} tokens".replace(",", " "))
        if lever.get("percent") is not None:
            parts.append(f"({lever['percent']:+d} %)")
        if lever.get("note"):
            parts.append(f"· {lever['note']}")
        elif lever.get("free_bytes") is not None:
            parts.append(f"· {lever['free_bytes'] / GIB:.1f} GiB still free")
    text = f"{left(safe(lever['change']), wide)} {' '.join(parts)}"
    pieces = wrap(safe(text), WIDTH - 15)
    heads = [left("  levers" if first else "", 15), *[" " * 15] * (len(pieces) - 1)]
    return [((head, "dim"), (piece, "")) for head, piece in zip(heads, pieces, strict=True)]


def _evidence(
    invocations: Sequence[Mapping[str, Any]], findings: Sequence[Mapping[str, Any]]
) -> list[Line]:
    """The lines behind the figures: of each invocation where kept, else of the findings."""
    out: list[Line] = [()]
    for inv in invocations[:MAX_COLUMNS]:
        if not inv.get("lines"):
            continue
        out.append(((f"LINES  {when(inv)}", "dim"),))
        out += [_log_line(line) for line in inv["lines"]]
    if len(out) == 1:
        out.append((("LINES", "dim"),))
        seen: list[Mapping[str, Any]] = []
        for finding in findings:
            for line in finding["evidence"].get("lines") or []:
                if line not in seen:
                    seen.append(line)
                    out.append(_log_line(line))
    return out


def _log_line(line: Mapping[str, Any]) -> Line:
    time, rank = line.get("time") or "–", line.get("rank") or "–"
    return (
        (left(safe(str(time)[:23]), 24), "dim"),
        (left(safe(str(rank), 14), 15), "dim"),
        (safe(line["text"], 400), ""),
    )


def _unmatched(entry: Mapping[str, Any], shown: bool) -> list[Line]:
    number = entry.get("unmatched_count") or 0
    if not number:
        return []
    word = "line" if number == 1 else "lines"
    out: list[Line] = [((f"· {number} memory-related {word} matched no pattern", "dim"),)]
    if shown:
        out += [(("    ", ""), (safe(text, 300), "dim")) for text in entry.get("unmatched") or []]
    else:
        out[0] = (*out[0], (" (--unmatched lists them)", "dim"))
    return out
