"""What a changed setting would give: the identity solved again, within the bounds that it has.

A lever is offered only where every term is known, the sum closes and the new start would fit.
"""

from __future__ import annotations

import math
from typing import Any

from fleetmem.controller.startup.engines.equation import (
    Equation,
    largest_share,
    setting,
    total,
    with_share,
    without,
)
from fleetmem.controller.startup.engines.vllm import GRAPHS
from fleetmem.controller.startup.judge.caps import ASKED, PoolCap, find_cap
from fleetmem.controller.startup.judge.figures import (
    gpu_ranks,
    kv_bytes,
    rank_token_bytes,
    tokens,
)
from fleetmem.controller.startup.starts import GIB, Invocation

STEP = 0.02
KEEP_FREE = 1.5 * GIB
WIDE = frozenset(("auto", "bfloat16", "float16", "bf16", "fp16", "half"))


def closes(inv: Invocation) -> bool:
    """True where every term of the start's budget is known and they add up."""
    cap = find_cap(inv)
    return cap is not None and cap.closes is True and inv.status != "failed"


def levers(
    inv: Invocation, free_now_bytes: int | None = None, host_memory_bytes: int | None = None
) -> list[dict[str, Any]]:
    """Settings with what they would give: pool bytes, tokens and free GPU bytes afterwards."""
    cap = find_cap(inv)
    if cap is None or cap.closes is not True or inv.status == "failed":
        return []
    values = inv.ranks[cap.rank]
    kv, held = kv_bytes(values), tokens(inv, cap.rank)
    if not kv or kv <= 0:
        return []
    free = free_now_bytes if free_now_bytes is not None else values.get("available_final_bytes")
    found: list[dict[str, Any]] = []
    if cap.by in ("max_total_tokens", "max_tokens"):
        found += _no_argument(cap, kv, held)
    elif cap.by == "num_gpu_blocks_override" and cap.figures["auto_blocks"] and held:
        available = cap.figures["available_bytes"]
        if available is not None and available > kv:
            found.append(
                _lever(
                    "no num_gpu_blocks_override",
                    available,
                    kv,
                    held,
                    None,
                    "as the engine sized it itself",
                )
            )
    elif cap.by in ASKED and cap.identity is not None:
        found += _share(inv, cap.identity, kv, held, free)
        found += _no_graphs(cap.identity, kv, held)
    dtype = values.get("kv_dtype") or setting(inv, "kv_cache_dtype") or "auto"
    if str(dtype) in WIDE and held and inv.engine_name in ("sglang", "vllm"):
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


def _lever(
    change: str,
    pool: int,
    kv: int,
    held: int | None,
    left: int | None,
    note: str | None,
    new_tokens: int | None = None,
) -> dict[str, Any]:
    if new_tokens is None and held:
        new_tokens = round(held * pool / kv)
    return {
        "change": change,
        "pool_bytes": pool,
        "tokens": new_tokens,
        "percent": round((pool / kv - 1) * 100),
        "free_bytes": left,
        "note": note,
    }


def _no_argument(cap: PoolCap, kv: int, held: int | None) -> list[dict[str, Any]]:
    possible = cap.figures.get("possible_tokens")
    if not possible or not held:
        return []
    pool = cap.expected_bytes or round(kv * possible / held)
    return [_lever(f"no {cap.by}", pool, kv, held, None, None, possible)]


def _share(
    inv: Invocation, identity: Equation, kv: int, held: int | None, free: int | None
) -> list[dict[str, Any]]:
    """A larger share, as far as memory was free: one step, and no further than it fits."""
    most = largest_share(identity)
    share, base = identity.share, identity.base_bytes
    if most is None or share is None or not base:
        return []
    step = STEP if share + STEP <= 0.98 else 0.01
    wanted = min(share + step, math.floor(most * 1000) / 1000)
    if wanted < share + 0.005:
        return []
    new = with_share(identity, wanted)
    if new is None:
        return []
    values = inv.ranks[identity.rank]
    kept = round(kv / (identity.pool.bytes or kv) * new)  # what is split keeps its parts
    if inv.engine_name == "sglang" and "mamba_cache_bytes" not in values:
        kept = new - ((identity.pool.bytes or kv) - kv)
    draft = values.get("draft_kv_cache_bytes") or 0
    left = None
    if free is not None:
        left = round(free - (kept - kv) - draft * (kept / kv - 1))
        if left < KEEP_FREE:
            return []
    each = rank_token_bytes(values)
    new_tokens = kept // each if each and held else None
    change = (
        f"{identity.setting_flag} {wanted:.2f}"
        if round(wanted, 2) == round(wanted, 3)
        else (f"{identity.setting_flag} {wanted:.3f}")
    )
    lever = _lever(change, kept, kv, held, left, None, new_tokens)
    return [{**lever, "bound": round(most, 3)}]


def _no_graphs(identity: Equation, kv: int, held: int | None) -> list[dict[str, Any]]:
    """Where estimated graphs take more than a fifth of the pool: what they cost."""
    graphs = next((t.bytes for t in identity.terms if t.name == GRAPHS and t.bytes), 0)
    freed = total(without(identity, GRAPHS))
    if graphs < max(0.2 * kv, GIB) or freed is None:
        return []
    return [_lever("--enforce-eager", freed, kv, held, None, "slower; or capture fewer sizes")]


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
