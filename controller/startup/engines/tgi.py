"""Text Generation Inference: prints tokens, no bytes, so no sum can be judged.

``FlashCausalLM.warmup`` in server/text_generation_server/models/flash_causal_lm.py: blocks =
free memory × (1 - reserve) / bytes of a block; both sides stay unprinted.
"""

from __future__ import annotations

from fleetmem.controller.startup.engines.equation import Equation, Summand
from fleetmem.controller.startup.starts import Invocation

_NEEDS = "TGI prints no bytes: compare tokens, or ask the host"


def tgi(inv: Invocation, rank: str) -> Equation | None:
    """The budget of *rank*: every size unknown."""
    return Equation(
        family="tgi",
        versions="0.9 and later",
        source="FlashCausalLM.warmup, server/text_generation_server/models/flash_causal_lm.py",
        rank=rank,
        terms=(Summand("free memory", 1, None, "unknown", _NEEDS),),
        pool=Summand("KV cache", 1, None, "unknown", _NEEDS),
        setting="cuda_memory_fraction",
        setting_flag="--cuda-memory-fraction",
        room_needs=_NEEDS,
    )
