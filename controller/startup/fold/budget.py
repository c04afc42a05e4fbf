"""Budget identities: what the printed parts must add up to, and what is left over.

Each follows the engine's own sizing code. Bytes throughout.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fleetmem.controller.startup.fold.build import Rank, on_host
from fleetmem.controller.startup.starts import GIB

ORDINARY = {
    "sglang": (0.5 * GIB, 1.8 * GIB),
    "vllm": (-0.1 * GIB, 0.3 * GIB),
    "ollama": (-0.3 * GIB, 0.3 * GIB),
    "llamacpp": (-0.1 * GIB, 1.0 * GIB),
}
"""What is usually left unaccounted: index tables, attention workspace, rounding."""


def unaccounted(
    engine: str | None,
    values: Mapping[str, Any],
    whole: Mapping[str, Any],
    config: Mapping[str, Any],
    ranks: Mapping[str, Rank],
) -> int | None:
    """Bytes that no printed part explains; None where a part is missing."""
    if engine == "sglang":
        return sglang_rest(values, config)
    if engine == "vllm":
        rest = vllm_rest(values)
        unseen = rest is not None and rest > 0.06 * GIB and "graph_estimated_bytes" not in values
        return None if unseen and may_count_graphs(whole, config) else rest
    if engine == "ollama":
        return _ollama(values, whole, ranks)
    if engine == "llamacpp" and "available_final_bytes" in values:
        printed = values.get("unaccounted_printed_bytes")
        return printed if isinstance(printed, int) else None
    return None


def sglang_weights(values: Mapping[str, Any]) -> int | None:
    """The target's weights: printed, or free before less free after the load."""
    if "weights_bytes" in values:
        return int(values["weights_bytes"])
    before, after = values.get("avail_before_load_bytes"), values.get("available_after_load_bytes")
    return int(before - after) if before is not None and after is not None else None


def sglang_rest(values: Mapping[str, Any], config: Mapping[str, Any]) -> int | None:
    """Free before load less every pool, the graphs and what is free at the end."""
    before, kv = values.get("avail_before_load_bytes"), values.get("kv_cache_bytes")
    weights, graphs = sglang_weights(values), values.get("graph_bytes")
    final = values.get("available_final_bytes")
    off = config.get("disable_cuda_graph") is True and not values.get("_graph_begun")
    if graphs is None and off:
        graphs = 0
    if before is None or kv is None or weights is None or graphs is None or final is None:
        return None
    more = sum(
        values.get(name) or 0
        for name in (
            "draft_weights_bytes",
            "mamba_cache_bytes",
            "mamba_checkpoint_bytes",
            "draft_kv_cache_bytes",
        )
    )
    return int(before - weights - kv - more - graphs - final)


def vllm_requested(values: Mapping[str, Any]) -> int | None:
    """total × utilization: printed, or computed from both."""
    if "requested_bytes" in values:
        return int(values["requested_bytes"])
    total, share = values.get("total_bytes"), values.get("gpu_memory_utilization")
    return round(total * share) if total is not None and share is not None else None


def vllm_rest(values: Mapping[str, Any]) -> int | None:
    """Requested less weights, activations, non-torch, counted graphs and the KV cache.

    A build counts estimated graphs apart, inside the printed peak of activations, or not at
    all: the way that leaves the least is the one it has.
    """
    requested = vllm_requested(values)
    kv = values.get("kv_available_bytes", values.get("kv_cache_bytes"))
    other = values.get("non_torch_bytes")
    if "peak_torch_bytes" in values:
        used = values["peak_torch_bytes"]
    elif "consumed_bytes" in values:
        active = values.get("activation_peak_bytes")
        used, other = (None if active is None else values["consumed_bytes"] + active), 0
    elif "weights_bytes" in values and "activation_peak_bytes" in values:
        used = values["weights_bytes"] + values["activation_peak_bytes"]
    else:
        return None
    if requested is None or kv is None or other is None or used is None:
        return None
    rest = int(requested - used - other - kv)
    estimate = values.get("graph_estimated_bytes") or 0
    if estimate <= 0 or values.get("graph_counted") is False:
        return rest
    return min(rest, rest - estimate, key=abs)


def may_count_graphs(whole: Mapping[str, Any], config: Mapping[str, Any]) -> bool:
    """Whether this build may take an estimate for CUDA graphs out of the budget (from 0.19)."""
    version = str(whole.get("version") or "")
    parts = version.split(".")
    old = version[:1].isdigit() and len(parts) > 1 and parts[0] == "0"
    if old and parts[1].isdigit() and int(parts[1]) < 19:
        return False
    return not whole.get("v0") and config.get("enforce_eager") is not True


def graphs_inside(values: Mapping[str, Any]) -> bool | None:
    """Whether the printed peak of activations holds the estimated graphs; None where nothing
    tells: a build says how only by the sum that closes."""
    estimate, rest = values.get("graph_estimated_bytes") or 0, values.get("unaccounted_bytes")
    if rest is None or estimate <= 0.06 * GIB or values.get("graph_counted") is False:
        return None
    if abs(rest) > 0.06 * GIB:
        return None
    return bool(_vllm_plain(values) == rest)


def _vllm_plain(values: Mapping[str, Any]) -> int | None:
    return vllm_rest({**values, "graph_estimated_bytes": 0})


def _ollama(
    values: Mapping[str, Any], whole: Mapping[str, Any], ranks: Mapping[str, Rank]
) -> int | None:
    """The printed total (GPU and CPU) less all parts; told on the only GPU, else nowhere."""
    total = whole.get("total_memory_bytes")
    gpus = [key for key in ranks if key != "_" and not on_host(key)]
    if total is None or len(gpus) != 1 or ranks[gpus[0]].values is not values:
        return None
    names = ("weights_bytes", "kv_cache_bytes", "compute_bytes")
    rest = int(total - sum(r.values.get(name) or 0 for r in ranks.values() for name in names))
    in_ram = any(on_host(key) for key in ranks)
    return rest if in_ram or abs(rest) <= 0.3 * GIB else None  # else a part in RAM is not shown
