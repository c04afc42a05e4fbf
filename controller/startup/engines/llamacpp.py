"""llama.cpp and Ollama: the pool is asked for by the context, not cut out of what is free.

``common_fit_params`` in common/fit.cpp (since b7300) projects model + context + compute against
free memory less a margin of 1 GiB; ``llama_memory_breakdown_print`` prints card = free + self +
unaccounted at the end. No share sizes the pool: its lever is the context, and layers on the GPU.
"""

from __future__ import annotations

from fleetmem.controller.startup.engines.equation import Equation, known
from fleetmem.controller.startup.starts import Invocation

MARGIN = 1 << 30


def llamacpp(inv: Invocation, rank: str) -> Equation | None:
    """What *rank*'s device had free, and what was put there."""
    values = inv.ranks[rank]
    free = values.get("initial_free_bytes")
    if free is None and isinstance(values.get("available_final_bytes"), int):
        own = values.get("self_bytes")
        free = values["available_final_bytes"] + own if isinstance(own, int) else None
    needs = "the device's buffer size lines"
    used = [
        known(name, 1, values.get(field), needs)
        for name, field in (("weights", "weights_bytes"), ("compute", "compute_bytes"))
    ]
    pool = known("context", 1, values.get("kv_cache_bytes"), needs)
    room = None
    if isinstance(free, int) and all(one.bytes is not None for one in used):
        room = free - sum(one.bytes or 0 for one in used) - MARGIN
    return Equation(
        family="llamacpp",
        versions="b4000 and later",
        source="common_fit_params, common/fit.cpp",
        rank=rank,
        terms=(pool,),
        pool=pool,
        setting="n_ctx",
        setting_flag="-c",
        room_bytes=room,
        room_needs='the "using device … MiB free" line',
        figures={"free_bytes": free},
    )
