"""Ranks that are equal, the odd ones, and names of many ranks in few characters (pure).

Free memory of the GPUs of one node differs by some hundred MiB, and what an engine takes by some
percent: such ranks are equal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from fleetmem.controller.render.startup.startup_rows import StartupRow

GIB = 2**30
_RESTS = ("unaccounted_bytes",)


def groups(ranks: Mapping[str, Mapping[str, Any]], rows: Sequence[StartupRow]) -> list[list[str]]:
    """Equal ranks together: the ones that stand out first, the fullest GPU before others."""
    shown = [row for row in rows if row.field not in _RESTS]
    usual: dict[str, float] = {}
    base = 0.0
    for row in shown:
        found = [v[row.field] for v in ranks.values() if v.get(row.field) is not None]
        if found:
            usual[row.field] = median(found)
            base = max(base, *found)
    even: list[str] = []
    homes: list[list[str]] = []
    for key, values in ranks.items():
        known = [row for row in shown if values.get(row.field) is not None]
        if known and all(_near(values[r.field], usual[r.field], base) for r in known):
            even.append(key)
            continue
        home = next((one for one in homes if _alike(ranks[one[0]], values, shown, base)), None)
        if home is None:
            homes.append([key])
        else:
            home.append(key)
    if not usual:
        return [list(ranks)] if ranks else []
    found = [*homes, even] if even else homes
    return sorted(found, key=lambda one: _order(ranks[one[0]], shown, one is even))


def _order(values: Mapping[str, Any], rows: Sequence[StartupRow], even: bool) -> tuple[int, float]:
    known = [values[row.field] for row in rows if values.get(row.field) is not None]
    if not known:  # a rank of which nothing is known
        return (2, 0.0)
    return (1 if even else 0, float(known[0]))


def _near(value: float, usual: float, base: float) -> bool:
    wide = max(0.5 * GIB, 0.006 * base)
    return abs(value - usual) <= min(wide, max(0.011 * GIB, 0.25 * abs(usual)))


def _alike(
    one: Mapping[str, Any], other: Mapping[str, Any], rows: Sequence[StartupRow], base: float
) -> bool:
    known = [any(v.get(row.field) is not None for row in rows) for v in (one, other)]
    if known[0] != known[1]:
        return False
    pairs = [(one.get(row.field), other.get(row.field)) for row in rows]
    return all(a is None or b is None or _near(a, b, base) for a, b in pairs)


def spread(
    ranks: Mapping[str, Mapping[str, Any]], keys: Sequence[str], rows: Sequence[StartupRow]
) -> int:
    """The largest difference between equal ranks, in bytes."""
    most = 0
    for row in rows:
        found = [ranks[k][row.field] for k in keys if ranks[k].get(row.field) is not None]
        if len(found) > 1:
            most = max(most, max(found) - min(found))
    return most


def merged(ranks: Mapping[str, Mapping[str, Any]], keys: Sequence[str]) -> dict[str, Any]:
    """The figures of one rank of several that agree, the one with the smallest pool; what it
    does not show comes from the first other that does."""

    def size(key: str) -> tuple[float, float]:
        values = ranks[key]
        pool = values.get("kv_cache_bytes", values.get("kv_available_bytes"))
        free = values.get("avail_before_load_bytes", values.get("initial_free_bytes"))
        return (
            float("inf") if pool is None else float(pool),
            float("inf") if free is None else float(free),
        )

    out: dict[str, Any] = {}
    for key in sorted(keys, key=size):
        for name, value in ranks[key].items():
            if out.get(name) is None:
                out[name] = value
    return out


def fold_ranks(keys: Sequence[str]) -> str:
    """``TP[0-2,4-7]`` for ranks that differ in their last number only; else a list."""
    parts = [(key.rstrip("0123456789"), key) for key in keys]
    heads = {head for head, _ in parts}
    if len(keys) == 1 or len(heads) != 1 or any(head == key for head, key in parts):
        shown = ",".join(keys[:3])
        return shown + (f",… ({len(keys)})" if len(keys) > 3 else "")
    head = parts[0][0]
    numbers = sorted(int(key[len(head) :]) for _, key in parts)
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    text = ",".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)
    return f"{head}[{text}]"
