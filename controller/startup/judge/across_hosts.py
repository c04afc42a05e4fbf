"""Hosts that run the same thing against each other: whose pool is below the group's (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from fleetmem.controller.startup.engines.equation import setting, smallest
from fleetmem.controller.startup.judge.caps import find_cap
from fleetmem.controller.startup.judge.diagnose import finding
from fleetmem.controller.startup.judge.figures import (
    Found,
    evidence_lines,
    gpu_ranks,
    kv_bytes,
    weights_of,
    worst_rank,
)
from fleetmem.controller.startup.starts import GIB, Invocation, Startup

LEAST_HOSTS = 3
BELOW_SHARE = 0.05
BELOW_BYTES = 0.3 * GIB
_SETTINGS = (
    "mem_fraction_static",
    "gpu_memory_utilization",
    "max_total_tokens",
    "kv_cache_dtype",
    "max_model_len",
    "context_length",
)


Row = tuple[str, Startup, Invocation, str, int]


def outliers(startups: Sequence[tuple[str, Startup]]) -> list[dict[str, Any]]:
    """Findings for hosts whose newest pool is well below the median of at least three.

    *startups* are (host, start-up) pairs. Only starts of the same engine and model with as
    many ranks and equal weights are compared.
    """
    groups: dict[tuple[object, ...], list[Row]] = {}
    for host, startup in startups:
        newest = startup.newest
        rank = worst_rank(newest) if newest is not None else None
        if newest is None or rank is None:
            continue
        kv, weights = kv_bytes(newest.ranks[rank]), weights_of(newest.ranks[rank])
        if kv is not None and weights is not None:
            model = setting(newest, "model_path", "model") or newest.flags.get("model_type")
            key = (newest.engine_name, model, len(gpu_ranks(newest)), round(weights / BELOW_BYTES))
            groups.setdefault(key, []).append((host, startup, newest, rank, kv))
    return [one for rows in groups.values() for one in _odd(rows)]


def _odd(rows: list[Row]) -> list[dict[str, Any]]:
    if len(rows) < LEAST_HOSTS:
        return []
    middle = median(row[4] for row in rows)
    odd = [r for r in rows if middle - r[4] > max(BELOW_SHARE * middle, BELOW_BYTES)]
    even = [row[2] for row in rows if row not in odd]
    return [
        finding(
            _why(newest, even, rank, kv, round(middle)),
            host,
            startup.unit or startup.source or "log",
        )
        for host, startup, newest, rank, kv in odd
    ]


def _why(newest: Invocation, even: list[Invocation], rank: str, kv: int, middle: int) -> Found:
    evidence: dict[str, Any] = {
        "rank": rank,
        "kv_bytes": kv,
        "group_bytes": middle,
        "change_percent": (kv - middle) / middle * 100 if middle > 0 else None,
    }
    lines = evidence_lines(
        newest, ("kv_cache_bytes", "kv_available_bytes", "avail_before_load_bytes"), [rank]
    )
    cap = find_cap(newest)
    if cap is not None and cap.by == "max_total_tokens":
        return Found("kv-below-group", evidence, lines, "max_total_tokens")
    for field in ("avail_before_load_bytes", "initial_free_bytes"):
        own = smallest(newest, field)
        others = [one[1] for one in (smallest(inv, field) for inv in even) if one is not None]
        if own and others and median(others) - own[1] > BELOW_BYTES:
            evidence["foreign_bytes"] = round(median(others) - own[1])
            evidence["rank"] = own[0]
            return Found("kv-below-group", evidence, lines, "foreign_process")
    for name in _SETTINGS:
        mine = setting(newest, name)
        theirs = {str(setting(inv, name)) for inv in even}
        if len(theirs) == 1 and str(mine) not in theirs:
            evidence["differs"] = name.replace("_", "-")
            return Found("kv-below-group", evidence, lines, "settings")
    return Found("kv-below-group", evidence, lines, "unknown")
