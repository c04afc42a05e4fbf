"""The start-up screen: bars per step, the start before beside it, findings, levers (pure).

Takes what the envelope holds (a ``startup`` entry and findings) and gives styled lines.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from fleetmem.controller.answer.step import DIRECT, Reach, Step, complete, next_step
from fleetmem.controller.render.kit.line import STYLES, WIDTH, Line, Span, cells, left, right, wrap
from fleetmem.controller.render.kit.next_steps import next_lines
from fleetmem.controller.render.startup.startup_rows import (
    NAMES,
    Row,
    fold_ranks,
    groups,
    merged,
    rows_for,
)
from fleetmem.controller.text.safe import safe
from fleetmem.controller.text.sizes import count

GIB = 2**30
LABEL, VALUE, BAR, CHANGE = 24, 8, 22, 8
BAR_CELLS = 20
MAX_COLUMNS = 3
_SLASHED = re.compile(r"(\d\d)/(\d\d)/\d{4}-(\d\d:\d\d)")
_EIGHTHS = " ▏▎▍▌▋▊▉"
_GLYPHS = {"critical": ("✗", "bad"), "warn": ("!", "warn"), "info": ("✓", "good")}
_HEADLINES = ("startup/pool-shrank", "startup/same-pool")
_ORDINARY = {"sglang": (0.5, 1.8)}


def startup_lines(
    host: str,
    entry: Mapping[str, Any],
    findings: Sequence[Mapping[str, Any]],
    *,
    evidence: bool = False,
    unmatched: bool = False,
    every: bool = False,
    free_now_bytes: int | None = None,
    seconds: float | None = None,
    reach: Reach = DIRECT,
) -> list[Line]:
    """The screen of one ``startup`` entry of *host* with the host's *findings*.

    *evidence* shows the lines behind the figures, *unmatched* the memory-looking lines that no
    pattern knew, *every* one line for each older invocation.
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
    table = _table(entry, invocations, free_now_bytes)
    if table:
        out += table
        out.append(())
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
        equal = f"{len(ranks)} ranks" + (" equal" if len(parted) == 1 else ", not equal")
        parts.append(f"{fold_ranks(list(ranks))}, {equal}")
    parts.append('GiB (SGLang prints GiB as "GB")' if engine == "sglang" else "GiB")
    if seconds is not None:
        parts.append(f"{seconds:.1f} s")
    return ((safe(host), "bold"), ("  " + safe(" · ".join(parts)), ""))


def _table(
    entry: Mapping[str, Any], invocations: Sequence[Mapping[str, Any]], free_now: int | None
) -> list[Line]:
    engine, newest = entry.get("engine"), invocations[0]
    ranks = newest.get("ranks") or {}
    older = [inv for inv in invocations[1:] if inv.get("ranks")][: MAX_COLUMNS - 1]
    everything = list(ranks.values()) + [v for inv in older for v in inv["ranks"].values()]
    rows = rows_for(engine, everything)
    if not any(row.tokens for row in rows) and (newest.get("engine") or {}).get("max_tokens"):
        rows.append(Row("  KV cache", "kv_cache_bytes", -1, "good", "max_tokens"))
    if not rows:
        return []
    parted = groups(ranks, rows) or [[]]
    if len(parted) > 1:
        return _rank_columns(ranks, rows, parted, older[:1])
    now = merged(ranks, parted[0])
    before = [merged(inv["ranks"], list(inv["ranks"])) for inv in older]
    _with_engine_tokens(now, newest)
    for values, inv in zip(before, older, strict=True):
        _with_engine_tokens(values, inv)
    out = [_column_heads(newest, older)]
    scale = _scale(rows, now, bool(older), engine)
    for row in rows:
        out.append(_row(row, now, before, scale, engine))
    if free_now is not None:
        out.append(((left("free now (NVML)", LABEL), ""), (_number(free_now, 1), "")))
    return out


def _with_engine_tokens(values: dict[str, Any], inv: Mapping[str, Any]) -> None:
    """An engine that prints its tokens once for all ranks."""
    whole = inv.get("engine") or {}
    if values.get("max_tokens") is None and whole.get("max_tokens") is not None:
        values["max_tokens"] = whole["max_tokens"]


def _column_heads(newest: Mapping[str, Any], older: Sequence[Mapping[str, Any]]) -> Line:
    spans: list[Span] = [
        (left("PER RANK", LABEL), "dim"),
        (right("NOW", VALUE) + "  ", "bold"),
        (left(_when(newest), BAR), "dim"),
    ]
    for inv in older:
        spans.append((right(f"-{inv['age']}", VALUE) + "  ", "bold"))
        spans.append((left(_when(inv), 20 if len(older) == 1 else 14), "dim"))
    if older:
        spans.append((right("CHANGE", CHANGE), "dim"))
    return tuple(spans)


def _when(inv: Mapping[str, Any]) -> str:
    started = str(inv.get("started") or "").replace("T", " ")
    if started[:4].isdigit() and started[4:5] == "-":
        clock = started[5:16]
    elif found := _SLASHED.match(started):  # TensorRT-LLM
        clock = f"{found[1]}-{found[2]} {found[3]}"
    else:
        clock = started[:12].rstrip(" :")
    return safe(f"{clock} {inv['status']}".strip())


def _row(
    row: Row,
    now: Mapping[str, Any],
    before: Sequence[Mapping[str, Any]],
    scale: float,
    engine: str | None,
) -> Line:
    value = now.get(row.field)
    bar, note = _bar(value, scale), _note(row, now, engine)
    spans: list[Span] = [
        (left(row.label, LABEL), ""),
        (_number(value, row.sign) + "  ", ""),
        (bar, _style(row, value, engine)),
    ]
    gap = "  " if bar and note else ""
    if not before:
        return (*spans, (gap + note, "dim"))
    spans.append((left(gap + note, BAR - cells(bar)), "dim"))
    wide = 20 if len(before) == 1 else 14
    for values in before:
        tokens = _tokens(row, values) if len(before) == 1 else ""
        spans += [
            (_number(values.get(row.field), row.sign) + "  ", ""),
            (left(tokens, wide), "dim"),
        ]
    return (*spans, _change(row, value, before[0].get(row.field)))


def _scale(rows: Sequence[Row], now: Mapping[str, Any], older: bool, engine: str | None) -> float:
    """Bytes of one bar cell: the largest figure fills the bar, and every note has its place."""
    each = 0.0
    for row in rows:
        value = now.get(row.field)
        if not isinstance(value, int | float):
            continue
        note = _note(row, now, engine)
        room = BAR - 2 - cells(note) if note and older else BAR_CELLS
        each = max(each, abs(value) / max(room, 2))
    return each


def _note(row: Row, values: Mapping[str, Any], engine: str | None) -> str:
    if row.field == "unaccounted_bytes" and engine in _ORDINARY:
        low, high = _ORDINARY[engine]
        return f"(ordinary {low}-{high})"
    return _tokens(row, values)


def _tokens(row: Row, values: Mapping[str, Any]) -> str:
    held = values.get(row.tokens) if row.tokens else None
    return f"{held:,} tokens".replace(",", " ") if isinstance(held, int) else ""


def _style(row: Row, value: Any, engine: str | None) -> str:
    if row.field == "unaccounted_bytes" and value is not None and engine in _ORDINARY:
        return "bad" if value > _ORDINARY[engine][1] * GIB else "warn"
    return row.style if row.style in STYLES else ""


def _number(value: Any, sign: int) -> str:
    if not isinstance(value, int | float):
        return right("–", VALUE)
    shown = value * sign / GIB
    return right(f"{shown + 0:.2f}" if abs(shown) >= 0.005 else "0.00", VALUE)


def _bar(value: Any, scale: float) -> str:
    if not isinstance(value, int | float) or scale <= 0:
        return ""
    whole, part = divmod(min(round(abs(value) / scale * 8), BAR_CELLS * 8), 8)
    return "█" * whole + (_EIGHTHS[part] if part else "")


def _change(row: Row, new: Any, old: Any) -> Span:
    if not isinstance(new, int | float) or not isinstance(old, int | float):
        return (right("" if new is None and old is None else "–", CHANGE), "dim")
    if abs(new - old) <= 0.006 * GIB:
        return (right("=", CHANGE), "dim")
    if row.field == "unaccounted_bytes" or old <= 0:  # a share of a rest says nothing
        return (right(f"{(new - old) / GIB:+.2f}", CHANGE), "dim")
    share = round((new - old) / old * 100)
    return (right(f"{share:+d} %", CHANGE), "bad" if share < 0 else "good")


def _rank_columns(
    ranks: Mapping[str, Mapping[str, Any]],
    rows: Sequence[Row],
    parted: Sequence[Sequence[str]],
    older: Sequence[Mapping[str, Any]],
) -> list[Line]:
    """Ranks that differ: one column each group, the odd one first; then the start before."""
    shown = list(parted[:3])
    width = 18
    heads: list[Span] = [(left("PER RANK", LABEL), "dim")]
    heads += [(right(safe(fold_ranks(list(keys)), width - 1), width), "bold") for keys in shown]
    heads += [(right(f"-{inv['age']} {inv['status']}", width), "dim") for inv in older]
    before = [merged(inv["ranks"], list(inv["ranks"])) for inv in older]
    out: list[Line] = [tuple(heads)]
    columns = [merged(ranks, list(keys)) for keys in shown]
    most = columns[-1]
    for row in rows:
        spans: list[Span] = [(left(row.label, LABEL), "")]
        for values in columns:
            value, usual = values.get(row.field), most.get(row.field)
            odd = value is not None and usual is not None and abs(value - usual) > 0.02 * GIB
            spans.append((right(_number(value, row.sign), width), "warn" if odd else ""))
        spans += [(right(_number(old.get(row.field), row.sign), width), "dim") for old in before]
        out.append(tuple(spans))
    if len(parted) > len(shown):
        more = count(len(parted) - len(shown), "more group", "more groups")
        out.append(((f"{more} of ranks", "dim"),))
    return out


def _one_line(inv: Mapping[str, Any]) -> Line:
    ranks = inv.get("ranks") or {}
    kv = next(
        (v["kv_cache_bytes"] for v in ranks.values() if v.get("kv_cache_bytes") is not None), None
    )
    kinds = ", ".join(sorted({str(error["kind"]).replace("_", " ") for error in inv["errors"]}))
    text = f"{right('-' + str(inv['age']), 5)}  {left(_when(inv), 22)}  KV {_number(kv, 1).strip()}"
    return ((safe(text + (f"  {kinds}" if kinds else "")), "dim"),)


def _finding(finding: Mapping[str, Any]) -> list[Line]:
    glyph, style = _GLYPHS[finding["severity"]]
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
    for number, lever in enumerate(evidence.get("levers") or []):
        out += _lever(lever, number == 0)
    return out


def _failed(finding: Mapping[str, Any]) -> bool:
    return not str(finding["rule"]).endswith("pool-shrank")


def _lever(lever: Mapping[str, Any], first: bool) -> list[Line]:
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
            parts.append(f"(+{lever['percent']} %)")
        if lever.get("note"):
            parts.append(f"· {lever['note']}")
        elif lever.get("free_bytes") is not None:
            parts.append(f"· {lever['free_bytes'] / GIB:.1f} GiB still free")
    text = f"{left(safe(lever['change']), 20)} {' '.join(parts)}"
    return [((left("  levers" if first else "", 15), "dim"), (safe(text), ""))]


def _evidence(
    invocations: Sequence[Mapping[str, Any]], findings: Sequence[Mapping[str, Any]]
) -> list[Line]:
    """The lines behind the figures: of each invocation where kept, else of the findings."""
    out: list[Line] = [()]
    for inv in invocations[:MAX_COLUMNS]:
        if not inv.get("lines"):
            continue
        out.append(((f"LINES  {_when(inv)}", "dim"),))
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
    out: list[Line] = [((f"· {number} memory-looking {word} matched no pattern", "dim"),)]
    if shown:
        out += [(("    ", ""), (safe(text, 300), "dim")) for text in entry.get("unmatched") or []]
    else:
        out[0] = (*out[0], (" (--unmatched lists them)", "dim"))
    return out
