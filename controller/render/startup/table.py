"""The table of a start-up: a row a figure, a column a start or a rank that stands out (pure)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from fleetmem.controller.render.kit.line import STYLES, WIDTH, Line, Span, cells, left, right
from fleetmem.controller.render.startup.rank_groups import fold_ranks, groups, merged
from fleetmem.controller.render.startup.startup_rows import StartupRow, rows_for
from fleetmem.controller.text.safe import safe

GIB = 2**30
LABEL, VALUE, BAR, CHANGE = 24, 8, 22, 8
BAR_CELLS = 20
MAX_COLUMNS = 3
RANK_COLUMNS = 4
_SLASHED = re.compile(r"(\d\d)/(\d\d)/\d{4}-(\d\d:\d\d)")
_EIGHTHS = " ▏▎▍▌▋▊▉"
_ORDINARY = {"sglang": (0.5, 1.8)}


def table(
    entry: Mapping[str, Any],
    invocations: Sequence[Mapping[str, Any]],
    free_now: int | None,
    each: bool = False,
) -> list[Line]:
    """The newest start and those before it; *each* shows every rank in a row of its own."""
    engine, newest = entry.get("engine"), invocations[0]
    ranks = newest.get("ranks") or {}
    older = [inv for inv in invocations[1:] if inv.get("ranks")][: MAX_COLUMNS - 1]
    everything = list(ranks.values()) + [v for inv in older for v in inv["ranks"].values()]
    rows = rows_for(engine, everything)
    if not any(row.tokens for row in rows) and (newest.get("engine") or {}).get("max_tokens"):
        rows.append(StartupRow("  KV cache", "kv_cache_bytes", -1, "good", "max_tokens"))
    if not rows:
        return []
    parted = groups(ranks, rows) or [[]]
    if each and len(ranks) > 1:
        return _rank_rows(newest, rows, [[key] for key in ranks])
    if len(parted) > RANK_COLUMNS:
        return _rank_rows(newest, rows, parted)
    if len(parted) > 1:
        return _rank_columns(newest, rows, parted, older[:1])
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
        (left(when(newest), BAR), "dim"),
    ]
    for inv in older:
        spans.append((right(f"-{inv['age']}", VALUE) + "  ", "bold"))
        spans.append((left(when(inv), 20 if len(older) == 1 else 14), "dim"))
    if older:
        spans.append((right("CHANGE", CHANGE), "dim"))
    return tuple(spans)


def when(inv: Mapping[str, Any]) -> str:
    started = str(inv.get("started") or "").replace("T", " ")
    if started[:4].isdigit() and started[4:5] == "-":
        clock = started[5:16]
    elif found := _SLASHED.match(started):  # TensorRT-LLM
        clock = f"{found[1]}-{found[2]} {found[3]}"
    else:
        clock = started[:12].rstrip(" :")
    return safe(f"{clock} {inv['status']}".strip())


def _row(
    row: StartupRow,
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


def _scale(
    rows: Sequence[StartupRow], now: Mapping[str, Any], older: bool, engine: str | None
) -> float:
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


def _note(row: StartupRow, values: Mapping[str, Any], engine: str | None) -> str:
    if row.field == "unaccounted_bytes" and engine in _ORDINARY:
        low, high = _ORDINARY[engine]
        return f"(ordinary {low}-{high})"
    return _tokens(row, values)


def _tokens(row: StartupRow, values: Mapping[str, Any]) -> str:
    held = values.get(row.tokens) if row.tokens else None
    return f"{held:,} tokens".replace(",", " ") if isinstance(held, int) else ""


def _style(row: StartupRow, value: Any, engine: str | None) -> str:
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


def _change(row: StartupRow, new: Any, old: Any) -> Span:
    if not isinstance(new, int | float) or not isinstance(old, int | float):
        return (right("" if new is None and old is None else "–", CHANGE), "dim")
    if abs(new - old) <= 0.006 * GIB:
        return (right("=", CHANGE), "dim")
    if row.field == "unaccounted_bytes" or old <= 0:  # a share of a rest says nothing
        return (right(f"{(new - old) / GIB:+.2f}", CHANGE), "dim")
    share = round((new - old) / old * 100)
    return (right(f"{share:+d} %", CHANGE), "bad" if share < 0 else "good")


def _rank_columns(
    newest: Mapping[str, Any],
    rows: Sequence[StartupRow],
    parted: Sequence[Sequence[str]],
    older: Sequence[Mapping[str, Any]],
) -> list[Line]:
    """Ranks that differ: one column each group, the odd one first; then the start before."""
    ranks = newest["ranks"]
    width = 18 if len(parted) + len(older) < 4 else 15
    out: list[Line] = [((f"NOW  {when(newest)}", "dim"),)]
    heads: list[Span] = [(left("PER RANK", LABEL), "dim")]
    heads += [(right(safe(fold_ranks(list(k)), width - 1), width), "bold") for k in parted]
    heads += [(right(f"-{inv['age']} {inv['status']}", width), "dim") for inv in older]
    if older:
        heads.append((right("CHANGE", CHANGE), "dim"))
    out.append(tuple(heads))
    before = [merged(inv["ranks"], list(inv["ranks"])) for inv in older]
    columns = [merged(ranks, list(keys)) for keys in parted]
    most = columns[-1] if columns[-1] else columns[0]
    for row in rows:
        spans: list[Span] = [(left(row.label, LABEL), "")]
        for values in columns:
            value, usual = values.get(row.field), most.get(row.field)
            odd = value is not None and usual is not None and abs(value - usual) > 0.5 * GIB
            spans.append((right(_number(value, row.sign), width), "warn" if odd else ""))
        spans += [(right(_number(old.get(row.field), row.sign), width), "dim") for old in before]
        if before:
            spans.append(_change(row, columns[0].get(row.field), before[0].get(row.field)))
        out.append(tuple(spans))
    out += _token_row(columns, before, width)
    return out


def _token_row(
    columns: Sequence[Mapping[str, Any]], before: Sequence[Mapping[str, Any]], width: int
) -> list[Line]:
    held = [values.get("max_tokens") for values in [*columns, *before]]
    if not any(isinstance(one, int) for one in held):
        return []
    texts = [f"{one:,}".replace(",", " ") if isinstance(one, int) else "–" for one in held]
    return [((left("tokens", LABEL), ""), *((right(text, width), "") for text in texts))]


def _rank_rows(
    newest: Mapping[str, Any], rows: Sequence[StartupRow], parted: Sequence[Sequence[str]]
) -> list[Line]:
    """A row each group of ranks, a column each figure: nothing is left out."""
    ranks = newest["ranks"]
    names = [safe(fold_ranks(list(keys)), 20) for keys in parted]
    wide = max(4, *(cells(name) for name in names)) + 1
    columns = [(row, row.label.strip()) for row in rows]
    width = 12
    per = max(1, (WIDTH - wide) // width)
    out: list[Line] = [((f"NOW  {when(newest)}", "dim"),)]
    for at in range(0, len(columns), per):
        part = columns[at : at + per]
        pieces = [_two(label, width - 1) for _, label in part]
        for number in (0, 1):
            if any(piece[number] for piece in pieces):
                head = left("RANK" if number == 1 else "", wide)
                out.append(((head + "".join(right(p[number], width) for p in pieces), "dim"),))
        for name, keys in zip(names, parted, strict=True):
            values = merged(ranks, list(keys))
            spans: list[Span] = [(left(name, wide), "bold")]
            spans += [
                (right(_number(values.get(row.field), row.sign), width), "") for row, _ in part
            ]
            out.append(tuple(spans))
    return out


def _two(label: str, width: int) -> tuple[str, str]:
    """A label on two lines; the second holds it where one is enough."""
    if cells(label) <= width:
        return "", label
    words, first = label.split(" "), ""
    while len(words) > 1 and cells(f"{first} {words[0]}".strip()) <= width:
        first = f"{first} {words.pop(0)}".strip()
    return first, " ".join(words)
