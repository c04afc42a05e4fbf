"""Which figures of a start-up make its table, engine by engine (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Row:
    """One row: label, the rank's field, its sign, the bar's style, the field with tokens."""

    label: str
    field: str
    sign: int = 1
    style: str = "dim"
    tokens: str | None = None


ROWS: dict[str, tuple[Row, ...]] = {
    "sglang": (
        Row("free before load", "avail_before_load_bytes"),
        Row("  weights", "weights_bytes", -1, "blue"),
        Row("  Mamba state", "mamba_cache_bytes", -1, "magenta"),
        Row("  target KV pool", "kv_cache_bytes", -1, "good", "max_tokens"),
        Row("  graphs", "graph_bytes", -1, "dim"),
        Row("  draft weights", "draft_weights_bytes", -1, "magenta"),
        Row("  draft KV pool", "draft_kv_cache_bytes", -1, "magenta", "draft_max_tokens"),
        Row("  unaccounted", "unaccounted_bytes", -1, "warn"),
        Row("free after pools", "avail_after_pool_bytes"),
        Row("free when ready", "available_final_bytes"),
        Row("host KV pool (RAM)", "host_kv_bytes", 1, "dim", "host_kv_tokens"),
    ),
    "vllm": (
        Row("card", "total_bytes"),
        Row("free at start", "initial_free_bytes"),
        Row("asked for", "requested_bytes"),
        Row("  weights", "weights_bytes", -1, "blue"),
        Row("  weights + non-torch", "consumed_bytes", -1, "blue"),
        Row("  peak of PyTorch", "peak_torch_bytes", -1, "blue"),
        Row("  activations", "activation_peak_bytes", -1, "magenta"),
        Row("  non-torch", "non_torch_bytes", -1, "dim"),
        Row("  graphs (estimated)", "graph_estimated_bytes", -1, "dim"),
        Row("  KV cache", "kv_cache_bytes", -1, "good", "max_tokens"),
        Row("  KV cache (available)", "kv_available_bytes", -1, "good", "max_tokens"),
        Row("  unaccounted", "unaccounted_bytes", -1, "warn"),
        Row("graphs", "graph_bytes", 1, "dim"),
        Row("host KV pool (RAM)", "host_kv_bytes", 1, "dim"),
    ),
    "trtllm": (
        Row("card", "total_bytes"),
        Row("  weights", "weights_bytes", -1, "blue"),
        Row("  execution context", "activation_peak_bytes", -1, "magenta"),
        Row("  runtime buffers", "runtime_buffer_bytes", -1, "dim"),
        Row("  decoder", "decoder_bytes", -1, "dim"),
        Row("free after load", "available_after_load_bytes"),
        Row("  KV cache", "kv_cache_bytes", -1, "good", "max_tokens"),
    ),
}
OTHER = (
    Row("card", "total_bytes"),
    Row("free at start", "initial_free_bytes"),
    Row("  weights", "weights_bytes", -1, "blue"),
    Row("  KV cache", "kv_cache_bytes", -1, "good", "max_tokens"),
    Row("  KV cache (available)", "kv_available_bytes", -1, "good"),
    Row("  recurrent state", "mamba_cache_bytes", -1, "magenta"),
    Row("  compute", "compute_bytes", -1, "magenta"),
    Row("  unaccounted", "unaccounted_bytes", -1, "warn"),
    Row("free when ready", "available_final_bytes"),
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


def rows_for(engine: str | None, ranks: Sequence[Mapping[str, Any]]) -> list[Row]:
    """The rows of *engine* for which any of *ranks* has a figure."""
    rows = ROWS.get(engine or "", OTHER)
    kept = [row for row in rows if any(rank.get(row.field) is not None for rank in ranks)]
    fields = {row.field for row in kept}
    kept = sorted((_graphs(row, ranks) for row in kept), key=lambda row: row.label == _APART)
    if "available_final_bytes" in fields:
        kept = [row for row in kept if row.field != "avail_after_pool_bytes"]
    if fields & {"peak_torch_bytes", "consumed_bytes"}:  # both include the weights
        inside = Row("    of which weights", "weights_bytes", 1, "blue")
        kept = [inside if row.field == "weights_bytes" else row for row in kept]
        kept.sort(key=lambda row: _after_whole(rows, row))
    if "kv_cache_bytes" in fields:
        kept = [row for row in kept if row.field != "kv_available_bytes"]
    return kept


def _graphs(row: Row, ranks: Sequence[Mapping[str, Any]]) -> Row:
    """Estimated graphs are a term of the sum only where it closes with them apart."""
    inside = {rank.get("graphs_inside_activations") for rank in ranks} - {None}
    if row.field == "graph_estimated_bytes" and inside != {False}:
        return Row(_APART, row.field, 1, "dim")
    if row.field == "activation_peak_bytes" and inside == {True}:
        return Row("  activations + graphs", row.field, -1, "magenta")
    return row


def _after_whole(rows: Sequence[Row], row: Row) -> float:
    """The weights stand below the figure that includes them."""
    fields = [one.field for one in rows]
    if row.field == "weights_bytes":
        return fields.index("peak_torch_bytes") + 0.5
    return fields.index(row.field)
