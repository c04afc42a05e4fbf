"""Which figures of a start-up make its table, engine by engine (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class StartupRow:
    """One row: label, the rank's field, its sign, the bar's style, the field with tokens."""

    label: str
    field: str
    sign: int = 1
    style: str = "dim"
    tokens: str | None = None


ROWS: dict[str, tuple[StartupRow, ...]] = {
    "sglang": (
        StartupRow("free before load", "avail_before_load_bytes"),
        StartupRow("  weights", "weights_bytes", -1, "blue"),
        StartupRow("  Mamba state", "mamba_cache_bytes", -1, "magenta"),
        StartupRow("  target KV pool", "kv_cache_bytes", -1, "good", "max_tokens"),
        StartupRow("  graphs", "graph_bytes", -1, "dim"),
        StartupRow("  draft weights", "draft_weights_bytes", -1, "magenta"),
        StartupRow("  draft KV pool", "draft_kv_cache_bytes", -1, "magenta", "draft_max_tokens"),
        StartupRow("  unaccounted", "unaccounted_bytes", -1, "warn"),
        StartupRow("free after pools", "avail_after_pool_bytes"),
        StartupRow("free when ready", "available_final_bytes"),
        StartupRow("host KV pool (RAM)", "host_kv_bytes", 1, "dim", "host_kv_tokens"),
    ),
    "vllm": (
        StartupRow("card", "total_bytes"),
        StartupRow("free at start", "initial_free_bytes"),
        StartupRow("asked for", "requested_bytes"),
        StartupRow("  weights", "weights_bytes", -1, "blue"),
        StartupRow("  weights + non-torch", "consumed_bytes", -1, "blue"),
        StartupRow("  peak of PyTorch", "peak_torch_bytes", -1, "blue"),
        StartupRow("  activations", "activation_peak_bytes", -1, "magenta"),
        StartupRow("  non-torch", "non_torch_bytes", -1, "dim"),
        StartupRow("  graphs (estimated)", "graph_estimated_bytes", -1, "dim"),
        StartupRow("  KV cache", "kv_cache_bytes", -1, "good", "max_tokens"),
        StartupRow("  KV cache (available)", "kv_available_bytes", -1, "good", "max_tokens"),
        StartupRow("  unaccounted", "unaccounted_bytes", -1, "warn"),
        StartupRow("graphs", "graph_bytes", 1, "dim"),
        StartupRow("host KV pool (RAM)", "host_kv_bytes", 1, "dim"),
    ),
    "trtllm": (
        StartupRow("card", "total_bytes"),
        StartupRow("  weights", "weights_bytes", -1, "blue"),
        StartupRow("  execution context", "activation_peak_bytes", -1, "magenta"),
        StartupRow("  runtime buffers", "runtime_buffer_bytes", -1, "dim"),
        StartupRow("  decoder", "decoder_bytes", -1, "dim"),
        StartupRow("free after load", "available_after_load_bytes"),
        StartupRow("  KV cache", "kv_cache_bytes", -1, "good", "max_tokens"),
    ),
}
OTHER = (
    StartupRow("card", "total_bytes"),
    StartupRow("free at start", "initial_free_bytes"),
    StartupRow("  weights", "weights_bytes", -1, "blue"),
    StartupRow("  KV cache", "kv_cache_bytes", -1, "good", "max_tokens"),
    StartupRow("  KV cache (available)", "kv_available_bytes", -1, "good"),
    StartupRow("  recurrent state", "mamba_cache_bytes", -1, "magenta"),
    StartupRow("  compute", "compute_bytes", -1, "magenta"),
    StartupRow("  unaccounted", "unaccounted_bytes", -1, "warn"),
    StartupRow("free when ready", "available_final_bytes"),
)
_APART = "graphs (estimated)"
NAMES = {
    "sglang": "SGLang",
    "vllm": "vLLM",
    "trtllm": "TensorRT-LLM",
    "llamacpp": "llama.cpp",
    "ollama": "Ollama",
    "tgi": "TGI",
    "lmdeploy": "LMDeploy",
}


def rows_for(engine: str | None, ranks: Sequence[Mapping[str, Any]]) -> list[StartupRow]:
    """The rows of *engine* for which any of *ranks* has a figure."""
    rows = ROWS.get(engine or "", OTHER)
    kept = [row for row in rows if any(rank.get(row.field) is not None for rank in ranks)]
    fields = {row.field for row in kept}
    kept = sorted((_graphs(row, ranks) for row in kept), key=lambda row: row.label == _APART)
    if "available_final_bytes" in fields:
        kept = [row for row in kept if row.field != "avail_after_pool_bytes"]
    if fields & {"peak_torch_bytes", "consumed_bytes"}:  # both include the weights
        inside = StartupRow("    of which weights", "weights_bytes", 1, "blue")
        kept = [inside if row.field == "weights_bytes" else row for row in kept]
        kept.sort(key=lambda row: _after_whole(rows, row))
    if "kv_cache_bytes" in fields:
        kept = [row for row in kept if row.field != "kv_available_bytes"]
    return kept


def _graphs(row: StartupRow, ranks: Sequence[Mapping[str, Any]]) -> StartupRow:
    """Estimated graphs are a term of the sum only where it closes with them apart."""
    inside = {rank.get("graphs_inside_activations") for rank in ranks} - {None}
    if row.field == "graph_estimated_bytes" and inside != {False}:
        return StartupRow(_APART, row.field, 1, "dim")
    if row.field == "activation_peak_bytes" and inside == {True}:
        return StartupRow("  activations + graphs", row.field, -1, "magenta")
    return row


def _after_whole(rows: Sequence[StartupRow], row: StartupRow) -> float:
    """The weights stand below the figure that includes them."""
    fields = [one.field for one in rows]
    if row.field == "weights_bytes":
        return fields.index("peak_torch_bytes") + 0.5
    return fields.index(row.field)
