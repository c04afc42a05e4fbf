"""TensorRT-LLM: pool = share × free memory; the PyTorch backend measures, the C++ one asks.

PyTorch backend (0.17 and later): ``KvCacheCreator`` in tensorrt_llm/_torch/pyexecutor/_util.py,
(card - peak + the trial pool) × free_gpu_memory_fraction. C++ executor: available ×
kvCacheFreeGpuMemFraction in ``KVCacheManager::calculateMaxNumBlocks``.
"""

from __future__ import annotations

from fleetmem.controller.startup.engines.equation import Equation, Summand, derived, known, setting
from fleetmem.controller.startup.starts import GIB, Invocation

_PEAK = 'the "Peak memory during memory usage profiling" line'
_AVAILABLE = 'the "Memory usage when calculating max tokens" line'


def trtllm(inv: Invocation, rank: str) -> Equation | None:
    """The budget of *rank*."""
    values = inv.ranks[rank]
    pool = known(
        "KV cache",
        1,
        values.get("kv_available_bytes", values.get("kv_cache_bytes")),
        'the "Allocated … for max tokens in paged KV cache" line',
        0.006 * GIB,
    )
    share = values.get("kv_fraction", setting(inv, "free_gpu_memory_fraction"))
    share = float(share) if isinstance(share, int | float) else None
    if "peak_torch_bytes" in values:
        return _measured(rank, values.get("total_bytes"), values, pool, share)
    free = values.get("available_after_load_bytes")
    asked = None if free is None or share is None else free * share
    return Equation(
        family="trtllm",
        versions="C++ executor",
        source="KVCacheManager::calculateMaxNumBlocks, cpp/tensorrt_llm/batch_manager/",
        rank=rank,
        terms=(
            derived(
                "share of free memory",
                1,
                asked,
                _AVAILABLE if free is None else "free_gpu_memory_fraction",
                0.02 * GIB,
            ),
        ),
        pool=pool,
        setting="free_gpu_memory_fraction",
        setting_flag="free_gpu_memory_fraction",
        share=share,
        base_bytes=free,
        room_bytes=free,
        room_needs=_AVAILABLE,
        figures={"free_bytes": free},
    )


def _measured(
    rank: str, card: int | None, values: dict[str, object], pool: Summand, share: float | None
) -> Equation:
    peak, trial = values.get("peak_torch_bytes"), values.get("trial_kv_bytes")
    free = None
    if isinstance(card, int) and isinstance(peak, int):
        free = card - peak + (trial if isinstance(trial, int) else 0)
    asked = None if free is None or share is None or trial is None else free * share
    needs = _PEAK
    if free is not None:
        needs = "the trial pool (tmp kv_mem)" if trial is None else "free_gpu_memory_fraction"
    return Equation(
        family="trtllm",
        versions="0.17 and later, PyTorch backend",
        source="KvCacheCreator, tensorrt_llm/_torch/pyexecutor/_util.py",
        rank=rank,
        terms=(derived("share of (card - peak + trial pool)", 1, asked, needs, 0.02 * GIB),),
        pool=pool,
        setting="free_gpu_memory_fraction",
        setting_flag="free_gpu_memory_fraction",
        share=share,
        base_bytes=free,
        room_bytes=free,
        room_needs=_PEAK,
        figures={"card_bytes": card, "peak_bytes": peak, "trial_bytes": trial, "free_bytes": free},
    )
