"""What a changed setting would give, for a budget whose identity closes; else nothing."""

from __future__ import annotations

from typing import Any

from fleetmem.controller.startup.fold.budget import ORDINARY
from fleetmem.controller.startup.judge.caps import find_cap
from fleetmem.controller.startup.judge.figures import (
    gpu_ranks,
    kv_bytes,
    rank_token_bytes,
    setting,
    tokens,
)
from fleetmem.controller.startup.model import GIB, Invocation

STEP = 0.02
KEEP_FREE = 1.5 * GIB
WIDE = frozenset(("auto", "bfloat16", "float16", "bf16", "fp16", "half"))


def closes(inv: Invocation) -> bool:
    """True where every printed part adds up within the ordinary range."""
    cap = find_cap(inv)
    if cap is None or not cap.closes or inv.status == "failed":
        return False
    _, high = ORDINARY.get(inv.engine_name or "", (0.0, 0.5 * GIB))
    rest = inv.ranks[cap.rank].get("unaccounted_bytes")
    return rest is not None and -0.2 * GIB <= rest <= high


def levers(
    inv: Invocation, free_now_bytes: int | None = None, host_memory_bytes: int | None = None
) -> list[dict[str, Any]]:
    """Settings with what they would give: pool bytes, tokens and free GPU bytes afterwards."""
    cap = find_cap(inv)
    if cap is None or not closes(inv):
        return []
    values = inv.ranks[cap.rank]
    kv, held = kv_bytes(values), tokens(inv, cap.rank)
    if not kv or kv <= 0:
        return []
    free = free_now_bytes if free_now_bytes is not None else values.get("available_final_bytes")
    found: list[dict[str, Any]] = []
    if cap.by == "max_total_tokens":
        possible = cap.figures.get("possible_tokens")
        if possible and held:
            found.append(
                {
                    "change": "no max_total_tokens",
                    "pool_bytes": cap.expected_bytes or round(kv * possible / held),
                    "tokens": possible,
                    "percent": round((possible / held - 1) * 100),
                    "free_bytes": None,
                    "note": None,
                }
            )
    elif cap.by in ("mem_fraction_static", "gpu_memory_utilization"):
        found += _share(inv, cap.by, cap.figures, values, kv, held, free)
    dtype = values.get("kv_dtype") or setting(inv, "kv_cache_dtype") or "auto"
    if str(dtype) in WIDE and held:
        found.append(
            {
                "change": "fp8 KV cache",
                "pool_bytes": kv,
                "tokens": held * 2,
                "percent": 100,
                "free_bytes": free,
                "note": "same bytes; check accuracy first",
            }
        )
    if inv.engine_name == "sglang" and held:
        found += _host(inv, values, held, host_memory_bytes)
    return found


def _share(
    inv: Invocation,
    name: str,
    figures: dict[str, Any],
    values: dict[str, Any],
    kv: int,
    held: int | None,
    free: int | None,
) -> list[dict[str, Any]]:
    share = figures["fraction"] if name == "mem_fraction_static" else figures["utilization"]
    base = figures["before_bytes"] if name == "mem_fraction_static" else figures["total_bytes"]
    if not isinstance(share, float) or base is None:
        return []
    step = STEP if share + STEP <= 0.98 else 0.01
    more = step * base
    rest = figures.get("expected_bytes", kv) if name == "mem_fraction_static" else kv
    pool = round(rest - (values.get("mamba_cache_bytes") or 0) + more)
    growth = pool / kv - 1
    draft = values.get("draft_kv_cache_bytes") or 0
    left = None if free is None else round(free - (pool - kv) - draft * growth)
    if share + step > 0.99 or (left is not None and left < KEEP_FREE):
        return []
    each = rank_token_bytes(values)
    new_tokens = None
    if each and held:
        new_tokens = pool // each
    elif held:
        new_tokens = round(held * pool / kv)
    return [
        {
            "change": f"{'mem-fraction' if name == 'mem_fraction_static' else 'utilization'} "
            f"{share + step:.2f}",
            "pool_bytes": pool,
            "tokens": new_tokens,
            "percent": round(growth * 100),
            "free_bytes": left,
            "note": None,
        }
    ]


def _host(
    inv: Invocation, values: dict[str, Any], held: int, memory: int | None
) -> list[dict[str, Any]]:
    each = rank_token_bytes(values)
    if each is None or setting(inv, "enable_hierarchical_cache") is True:
        return []
    ratio = 4
    ranks = len(gpu_ranks(inv))
    size = ratio * held * each * ranks
    fits = memory is None or size < 0.95 * memory
    while memory is not None and not fits and ratio > 1:
        ratio -= 1
        size = ratio * held * each * ranks
        fits = size < 0.95 * memory
    if not fits:
        return []
    return [
        {
            "change": f"--hicache-ratio {ratio}",
            "pool_bytes": kv_bytes(values),
            "tokens": ratio * held,
            "percent": None,
            "free_bytes": None,
            "host_bytes": size,
            "host_memory_bytes": memory,
            "note": "tokens in RAM; the GPU pool is unchanged",
        }
    ]
