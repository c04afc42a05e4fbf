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
        Row("  KV cache", "kv_cache_bytes", -1, "good", "max_tokens"),
        Row("  KV cache (available)", "kv_available_bytes", -1, "good", "max_tokens"),
        Row("  unaccounted", "unaccounted_bytes", -1, "warn"),
        Row("graphs", "graph_bytes", 1, "dim"),
        Row("graphs (estimated)", "graph_estimated_bytes", 1, "dim"),
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
    Row("free afterwards", "available_final_bytes"),
)
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
    if "available_final_bytes" in fields:
        kept = [row for row in kept if row.field != "avail_after_pool_bytes"]
    if fields & {"peak_torch_bytes", "consumed_bytes"}:  # both include the weights
        inside = Row("    of which weights", "weights_bytes", 1, "blue")
        kept = [inside if row.field == "weights_bytes" else row for row in kept]
        kept.sort(key=lambda row: _after_whole(rows, row))
    if "kv_cache_bytes" in fields:
        kept = [row for row in kept if row.field != "kv_available_bytes"]
    return kept


def _after_whole(rows: Sequence[Row], row: Row) -> float:
    """The weights stand below the figure that includes them."""
    fields = [one.field for one in rows]
    if row.field == "weights_bytes":
        return fields.index("peak_torch_bytes") + 0.5
    return fields.index(row.field)


def groups(ranks: Mapping[str, Mapping[str, Any]], rows: Sequence[Row]) -> list[list[str]]:
    """Ranks with equal figures together; the smallest group (the odd one) first."""
    found: dict[tuple[Any, ...], list[str]] = {}
    for key, values in ranks.items():
        # A figure that only one rank prints does not make it odd.
        shown = tuple(
            None if values.get(row.field) is None else round(values[row.field] / 2**30, 2)
            for row in rows
        )
        home = next((known for known in found if _agree(known, shown)), shown)
        found.setdefault(home, []).append(key)
    return sorted(found.values(), key=len)


def _agree(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    pairs = zip(one, other, strict=True)
    return all(a is None or b is None or abs(a - b) <= 0.011 for a, b in pairs)


def merged(ranks: Mapping[str, Mapping[str, Any]], keys: Sequence[str]) -> dict[str, Any]:
    """The figures of ranks that agree; the first that has one gives it."""
    out: dict[str, Any] = {}
    for key in keys:
        for name, value in ranks[key].items():
            if out.get(name) is None:
                out[name] = value
    return out


def fold_ranks(keys: Sequence[str]) -> str:
    """``TP[0-2,4-7]`` for ranks that differ in their last number only; else a list."""
    parts = [(key.rstrip("0123456789"), key) for key in keys]
    heads = {head for head, _ in parts}
    if len(keys) == 1 or len(heads) != 1 or any(head == key for head, key in parts):
        shown = ",".join(keys[:3])
        return shown + (f",… ({len(keys)})" if len(keys) > 3 else "")
    head = parts[0][0]
    numbers = sorted(int(key[len(head) :]) for _, key in parts)
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    text = ",".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)
    return f"{head}[{text}]"
