"""SGLang: pools = free after load - (1 - mem_fraction_static) × free before load.

``ModelRunner.profile_max_num_token`` (up to 0.5.13) and the memory profiler that replaced it, in
sglang/srt/model_executor/: both free figures are the smallest over the ranks. The rest is split
into KV, Mamba state and, since 0.5.14, the draft's KV.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fleetmem.controller.startup.engines.equation import (
    Equation,
    Summand,
    closes,
    derived,
    known,
    of_all,
    setting,
    smallest,
)
from fleetmem.controller.startup.starts import GIB, Invocation

KEEP_FREE = 1.5 * GIB
"""What activations and the attention workspace need beside the pools."""
TOLERANCE = 0.06 * GIB
_BEFORE = 'the "Load weight begin" line'
_AFTER = 'the "Load weight end" line'
_FRACTION = "the server_args line, for mem_fraction_static"


def sglang(inv: Invocation, rank: str) -> Equation | None:
    """The budget of *rank*: the smallest free memory over all ranks sizes every pool."""
    values = inv.ranks[rank]
    fraction = setting(inv, "mem_fraction_static")
    share = float(fraction) if isinstance(fraction, int | float) else None
    before = smallest(inv, "avail_before_load_bytes")
    after, pool = _best(inv, values, share, before)
    kept = None if before is None or share is None else before[1] * (1 - share)
    final = smallest(inv, "available_final_bytes")
    room = None
    if final is not None and pool.bytes is not None:
        room = int(pool.bytes + final[1] - KEEP_FREE)
    identity = Equation(
        family="sglang",
        versions="0.3 and later",
        source="ModelRunner.profile_max_num_token, sglang/srt/model_executor/model_runner.py",
        rank=rank,
        terms=(
            known("free after load", 1, after, _AFTER, 0.005 * GIB),
            derived("kept free", -1, kept, _FRACTION if share is None else _BEFORE, 0.02 * GIB),
        ),
        pool=pool,
        setting="mem_fraction_static",
        setting_flag="mem-fraction",
        share=share,
        base_bytes=before[1] if before is not None else None,
        room_bytes=room,
        room_needs="the max_total_num_tokens= line, for available_gpu_mem",
        figures={
            "before_bytes": before[1] if before else None,
            "before_rank": before[0] if before else None,
            "after_bytes": after,
            "own_before_bytes": values.get("avail_before_load_bytes"),
        },
    )
    whole = all(of_all(inv, f"avail{one}_bytes") for one in ("_before_load", "able_after_load"))
    if closes(identity) is False and not whole:  # a rank that is not seen may have had less
        least = Summand(
            "free before load, of every rank", 1, None, "unknown", _BEFORE + " of every rank"
        )
        return replace(identity, terms=(*identity.terms, least))
    return identity


def _best(
    inv: Invocation, values: Mapping[str, Any], share: float | None, before: tuple[str, int] | None
) -> tuple[int | None, Summand]:
    """Builds measure after the target's or the draft's load, and budget the draft's KV or not:
    the pair that agrees; else the target's."""
    least = smallest(inv, "available_after_load_bytes")
    loads = [least[1]] if least is not None else []
    for name in ("available_after_load_bytes", "available_after_draft_load_bytes"):
        if name in values:
            loads.append(values[name])
    sums = [
        Summand("pools", 1, size, "derived" if n else "printed", off=0.02 * GIB)
        for n, size in enumerate(pool_sums(values))
        if size is not None
    ]
    first = (
        sums[0]
        if sums
        else Summand("pools", 1, None, "unknown", 'the "KV Cache is allocated" line')
    )
    if not loads or share is None or before is None or not sums:
        return (loads[0] if loads else None), first
    pairs = [
        (abs(after - before[1] * (1 - share) - (pool.bytes or 0)), number, after, pool)
        for number, (after, pool) in enumerate((a, p) for a in loads for p in sums)
    ]
    off, _, after, pool = min(pairs, key=lambda one: (one[0] > TOLERANCE, one[0], one[1]))
    return (after, pool) if off <= TOLERANCE else (loads[0], first)


def pool_sums(values: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """What the rest is split into: without, and with the draft's pool."""
    kv = values.get("kv_cache_bytes")
    if kv is None:
        return None, None
    plain = int(kv + (values.get("mamba_cache_bytes") or 0))
    draft = values.get("draft_kv_cache_bytes")
    return plain, None if draft is None else int(plain + draft)
