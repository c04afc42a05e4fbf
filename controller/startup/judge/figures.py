"""What a check found, and the questions to an invocation that several checks ask."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fleetmem.controller.startup.fold.budget import sglang_weights
from fleetmem.controller.startup.fold.build import on_host
from fleetmem.controller.startup.starts import Invocation

MLA_STEP = 576 * 2
PAIR_STEP = 512


@dataclass(frozen=True, slots=True)
class Found:
    """``rule`` is an id of ``playbooks/startup.yaml``, ``cause`` chooses among its sentences;
    ``lines`` are the log lines it rests on."""

    rule: str
    evidence: dict[str, Any]
    lines: list[dict[str, Any]] = field(default_factory=list)
    cause: str | None = None


def kv_bytes(values: Mapping[str, Any]) -> int | None:
    """The KV cache of a rank: allocated, else what was computed for it."""
    value = values.get("kv_cache_bytes", values.get("kv_available_bytes"))
    return int(value) if isinstance(value, int | float) else None


def gpu_ranks(inv: Invocation) -> dict[str, dict[str, Any]]:
    """The ranks that stand for a GPU."""
    return {key: values for key, values in inv.ranks.items() if not on_host(key)}


def worst_rank(inv: Invocation) -> str | None:
    """The rank with the smallest KV cache, else the first."""
    found = [(kv, key) for key, v in gpu_ranks(inv).items() if (kv := kv_bytes(v)) is not None]
    if found:
        least = min(kv for kv, _ in found)
        return next(key for kv, key in found if kv == least)
    return next(iter(gpu_ranks(inv)), None)


def tokens(inv: Invocation, rank: str | None = None) -> int | None:
    """How many tokens the pool holds, by rank where printed, else for the engine."""
    if rank is not None and isinstance(inv.ranks.get(rank, {}).get("max_tokens"), int):
        return int(inv.ranks[rank]["max_tokens"])
    for name in ("max_total_num_tokens", "max_tokens"):
        if isinstance(inv.engine.get(name), int):
            return int(inv.engine[name])
    found = [v["max_tokens"] for v in inv.ranks.values() if isinstance(v.get("max_tokens"), int)]
    return min(found) if found else None


def tokens_derived(inv: Invocation) -> bool:
    """True where the token count is computed from the context length (vLLM 0.25 and later)."""
    if "engine.max_tokens" in inv.derived:
        return True
    for line in inv.lines:
        if line.pattern == "kv-tokens" and "Maximum concurrency" in line.text:
            return True
    return False


def token_bytes(size: int | None, spread: float, held: int | None, pair: bool) -> int | None:
    """Bytes for one token: the one layout multiple within the rounding, else the quotient.

    *spread* is half the last printed digit of *size*. A layer keeps 576 latents of two bytes
    (MLA), or keys and values in steps of 512 bytes (*pair*).
    """
    if not size or not held or size < 0 or held < 0:
        return None
    low, high = (size - spread) / held, (size + spread) / held
    step = PAIR_STEP if pair else MLA_STEP
    first = -(-low // step) * step
    if first <= high < first + step and first > 0:
        return int(first)
    return round(size / held)


def rank_token_bytes(values: Mapping[str, Any], draft: bool = False) -> int | None:
    """Bytes for one token of a rank's target pool, or its draft's."""
    prefix = "draft_" if draft else ""
    pair = f"{prefix}kv_k_bytes" in values
    size = values.get(f"{prefix}kv_cache_bytes")
    spread = (0.01 if pair else 0.005) * 2**30
    return token_bytes(size, spread, values.get(f"{prefix}max_tokens"), pair)


def evidence_lines(
    inv: Invocation, fields: Iterable[str], ranks: Iterable[str | None] = (), limit: int = 6
) -> list[dict[str, Any]]:
    """The log lines that gave *fields*, for *ranks* first; rank, time and text."""
    wanted, prefer = set(fields), set(ranks)
    found = [line for line in inv.lines if wanted & set(line.fields)]
    if prefer:
        found = [line for line in found if line.rank in prefer] or found
    return [{"time": one.time, "rank": one.rank, "text": one.text} for one in found[:limit]]


def pattern_lines(inv: Invocation, names: Iterable[str], limit: int = 4) -> list[dict[str, Any]]:
    """The lines that the patterns *names* matched."""
    wanted = set(names)
    found = [line for line in inv.lines if line.pattern in wanted]
    return [{"time": one.time, "rank": one.rank, "text": one.text} for one in found[:limit]]


def weights_of(values: Mapping[str, Any]) -> int | None:
    """Weights of a rank, printed or from the free figures around the load."""
    return sglang_weights(values)


def last_free(values: Mapping[str, Any]) -> tuple[str, int] | None:
    """The last figure of free GPU memory that a rank printed, and the moment it is of."""
    for name, moment in (
        ("available_final_bytes", "once ready"),
        ("avail_after_graph_bytes", "after the graphs"),
        ("avail_after_pool_bytes", "after the pools"),
    ):
        if isinstance(values.get(name), int):
            return moment, values[name]
    return None
