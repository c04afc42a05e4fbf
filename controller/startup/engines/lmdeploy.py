"""LMDeploy's TurboMind: pool = blocks × bytes of one block; asked for as a share of free memory.

``BlockManager`` in src/turbomind/models/llama/BlockManager.cc (0.2 to 0.6) and the object cache
budget that replaced it (0.18): cache_max_entry_count × free memory after the weights.
"""

from __future__ import annotations

from fleetmem.controller.startup.engines.equation import Equation, derived, known
from fleetmem.controller.startup.starts import GIB, Invocation


def lmdeploy(inv: Invocation, rank: str) -> Equation | None:
    """The budget of *rank*."""
    values = inv.ranks[rank]
    pool = known(
        "KV cache",
        1,
        values.get("kv_available_bytes", values.get("kv_cache_bytes")),
        "the block_size and max_block_count lines (log level INFO)",
        0.01 * GIB,
    )
    free, share = values.get("available_after_load_bytes"), values.get("cache_ratio")
    share = float(share) if isinstance(share, int | float) else None
    asked = None if free is None or share is None else free * share
    return Equation(
        family="lmdeploy",
        versions="0.2 and later",
        source="BlockManager, src/turbomind/models/llama/BlockManager.cc",
        rank=rank,
        terms=(
            derived(
                "share of free memory",
                1,
                asked,
                'the "Object cache budget" line (0.18 and later)',
                0.02 * GIB,
            ),
        ),
        pool=pool,
        setting="cache_max_entry_count",
        setting_flag="cache_max_entry_count",
        share=share,
        base_bytes=free,
        room_bytes=free,
        room_needs='the "Object cache budget" line (0.18 and later)',
        figures={"free_bytes": free},
    )
