"""One invocation against an older one: what changed, and what made the pool change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fleetmem.controller.startup.engines.equation import setting, smallest
from fleetmem.controller.startup.fold.budget import vllm_requested
from fleetmem.controller.startup.judge.caps import find_cap
from fleetmem.controller.startup.judge.figures import (
    gpu_ranks,
    kv_bytes,
    tokens,
    tokens_derived,
    weights_of,
    worst_rank,
)
from fleetmem.controller.startup.starts import GIB, Invocation

SAME_SHARE = 0.02
SAME_BYTES = 0.03 * GIB


@dataclass(frozen=True, slots=True)
class Change:
    """How the worst rank's pool differs; ``parts`` are (cause, bytes gained or lost), the
    largest loss first. ``cause`` is ``None`` where the log does not tell."""

    rank: str
    old_bytes: int | None
    new_bytes: int | None
    old_tokens: int | None
    new_tokens: int | None
    change_percent: float | None
    same: bool
    cause: str | None
    parts: tuple[tuple[str, int], ...]


def comparable(newest: Invocation, older: tuple[Invocation, ...]) -> Invocation | None:
    """The newest older invocation of the same engine that has a pool figure."""
    for inv in reversed(older):
        if inv.engine_name != newest.engine_name:
            continue
        has_bytes = any(kv_bytes(v) is not None for v in gpu_ranks(inv).values())
        if has_bytes or tokens(inv) is not None:
            return inv
    return None


def compare(new: Invocation, old: Invocation) -> Change | None:
    """Bytes before tokens: token counts of some builds are derived and not comparable."""
    rank = worst_rank(new)
    if rank is None:
        return None
    old_rank = rank if rank in old.ranks else worst_rank(old)
    if old_rank is None:
        return None
    now, then = new.ranks[rank], old.ranks[old_rank]
    new_kv, old_kv = kv_bytes(now), kv_bytes(then)
    new_tokens, old_tokens = tokens(new, rank), tokens(old, old_rank)
    by_tokens = new_kv is None or old_kv is None
    if by_tokens and (tokens_derived(new) or tokens_derived(old)):
        return None
    first, second = (old_tokens, new_tokens) if by_tokens else (old_kv, new_kv)
    if first is None or second is None:
        return None
    change = (second - first) / first * 100 if first > 0 else None
    near = abs(second - first) <= max(SAME_SHARE * abs(first), 0 if by_tokens else SAME_BYTES)
    parts = () if near else tuple(sorted(_parts(new, old, rank, old_rank), key=lambda p: p[1]))
    cause = None
    if (
        parts
        and second < first
        and parts[0][1] < -0.25 * abs(first - second if not by_tokens else 0)
    ):
        cause = parts[0][0]
    return Change(rank, old_kv, new_kv, old_tokens, new_tokens, change, near, cause, parts)


def _parts(new: Invocation, old: Invocation, rank: str, old_rank: str) -> list[tuple[str, int]]:
    if new.engine_name == "sglang":
        return _sglang_parts(new, old, rank, old_rank)
    if new.engine_name == "vllm":
        return _vllm_parts(new, old, rank, old_rank)
    return []


def _sglang_parts(
    new: Invocation, old: Invocation, rank: str, old_rank: str
) -> list[tuple[str, int]]:
    now, then = new.ranks[rank], old.ranks[old_rank]
    cap, kv, old_kv = find_cap(new), kv_bytes(now), kv_bytes(then)
    old_cap = find_cap(old)
    limited = cap is not None and cap.by == "max_total_tokens"
    if limited and not (old_cap is not None and old_cap.by == "max_total_tokens"):
        return [("max_total_tokens", (kv or 0) - (old_kv or 0))]
    parts: list[tuple[str, int]] = []
    fraction = setting(new, "mem_fraction_static")
    old_fraction = setting(old, "mem_fraction_static")
    least, old_least = (
        smallest(new, "avail_before_load_bytes"),
        smallest(old, "avail_before_load_bytes"),
    )
    if least and old_least:
        # The worst rank sizes all pools: what a foreign holder takes there is lost, less the
        # share of it that would have stayed free anyway.
        share = fraction if isinstance(fraction, float) else 1.0
        parts.append(("foreign_process", round((least[1] - old_least[1]) * share)))
        if isinstance(fraction, float) and isinstance(old_fraction, float):
            moved = round((fraction - old_fraction) * old_least[1])
            parts.append(("mem_fraction_static", moved))
    weights, old_weights = weights_of(now), weights_of(then)
    if weights is not None and old_weights is not None:
        parts.append(("weights", old_weights - weights))
    for name in ("mamba_cache_bytes", "draft_kv_cache_bytes", "draft_weights_bytes"):
        if name in now or name in then:
            lost = (then.get(name) or 0) - (now.get(name) or 0)
            parts.append((name.removesuffix("_bytes"), lost))
    return [part for part in parts if abs(part[1]) > SAME_BYTES]


def _vllm_parts(
    new: Invocation, old: Invocation, rank: str, old_rank: str
) -> list[tuple[str, int]]:
    now, then = new.ranks[rank], old.ranks[old_rank]
    parts: list[tuple[str, int]] = []
    requested, old_requested = vllm_requested(now), vllm_requested(then)
    if requested is not None and old_requested is not None:
        parts.append(("gpu_memory_utilization", requested - old_requested))
    length, before = new.engine.get("max_model_len"), old.engine.get("max_model_len")
    longer = length is not None and before is not None and length > before
    pairs = {
        "weights_bytes": "weights",
        "activation_peak_bytes": "max_model_len" if longer else "activation_peak",
        "peak_torch_bytes": "max_model_len" if longer else "activation_peak",
        "non_torch_bytes": "non_torch",
        "consumed_bytes": "weights",
    }
    for name, cause in pairs.items():
        if name in now and name in then:
            parts.append((cause, then[name] - now[name]))
    before, after = then.get("graph_estimated_bytes"), now.get("graph_estimated_bytes")
    if before is not None and after is not None:
        ways = (then.get("graph_counted"), now.get("graph_counted"))
        if ways == (False, True):
            parts.append(("graphs_counted", -after))
        elif False not in ways:
            parts.append(("graphs_estimate", before - after))
    return [part for part in parts if abs(part[1]) > SAME_BYTES]


def changed(new: Invocation, old: Invocation) -> list[tuple[str, Any, Any]]:
    """(setting, before, now) of everything both starts show and that differs."""
    found: list[tuple[str, Any, Any]] = []
    if new.version and old.version and new.version != old.version:
        found.append(("version", old.version, new.version))
    for name in sorted(set(new.config) & set(old.config)):
        if new.config[name] != old.config[name]:
            found.append((name, old.config[name], new.config[name]))
    return found
