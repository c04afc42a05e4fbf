"""vLLM: requested = card × utilization; less weights, non-torch, activations and, since 0.21,
estimated CUDA graphs.

V1: ``Worker.determine_available_memory`` in vllm/v1/worker/gpu_worker.py. V0 (up to 0.10):
``determine_num_available_blocks`` in vllm/worker/worker.py, the same sum without graphs. The
closing suggestion (``--kv-cache-memory``) is computed after the capture in
``compile_or_warm_up_model``, less 150 MiB.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from fleetmem.controller.startup.engines.equation import (
    SLACK,
    Equation,
    Summand,
    closes,
    derived,
    known,
    off_of,
    setting,
    total,
)
from fleetmem.controller.startup.fold.budget import may_count_graphs
from fleetmem.controller.startup.starts import GIB, Invocation

RESERVE = 150 << 20
"""What the engine keeps back in its own suggestion."""
_USAGE = 'the "Actual usage is" line (VLLM_LOGGING_LEVEL=DEBUG before 0.26)'
_CARD = 'the "Free memory on device" line (VLLM_LOGGING_LEVEL=DEBUG before 0.26)'
_ESTIMATE = 'the "Estimated CUDA graph memory" line'
GRAPHS = "estimated graphs"


def vllm(inv: Invocation, rank: str) -> Equation | None:
    """The budget of *rank*; where graphs may be counted in two ways, the one that closes."""
    values = inv.ranks[rank]
    forms = list(_forms(inv, rank, values))
    for one in forms:
        if closes(one):
            return one
    open_ = [one for one in forms if closes(one) is None]
    return open_[0] if open_ else forms[0] if forms else None


def _forms(inv: Invocation, rank: str, values: Mapping[str, Any]) -> Iterator[Equation]:
    """The first is what this build prints most likely, the others are other builds' ways."""
    plain = _identity(inv, rank, values)
    estimate = values.get("graph_estimated_bytes")
    counted = values.get("graph_counted")
    if estimate is None or counted is False:
        yield plain
        whole = {**inv.engine, "version": inv.version, "v0": "num_cpu_blocks" in inv.engine}
        gives, pool = total(plain), plain.pool.bytes
        more = gives is not None and pool is not None and gives > pool
        if counted is not False and more and may_count_graphs(whole, inv.config):
            yield replace(plain, terms=(*plain.terms, known(GRAPHS, -1, None, _ESTIMATE)))
        return
    apart = known(GRAPHS, -1, estimate, _ESTIMATE, off_of(values, "graph_estimated_bytes"))
    inside = _inside(plain, apart)
    if inside is not None and "consumed_bytes" in values:
        yield inside
    yield replace(plain, terms=(*plain.terms, apart))
    if inside is not None:
        yield inside
    if counted is None:
        yield plain


def _inside(plain: Equation, graphs: Summand) -> Equation | None:
    """Since 0.26 the printed peak activation holds the estimate: taken apart here."""
    terms: list[Summand] = []
    split = False
    for term in plain.terms:
        if term.name == "activations" and term.bytes is not None and graphs.bytes is not None:
            rest = term.bytes - graphs.bytes
            if rest < -SLACK:
                return None
            terms += [derived("activations", -1, max(rest, 0), _USAGE, term.off), graphs]
            split = True
        else:
            terms.append(term)
    return replace(plain, terms=tuple(terms)) if split else None


def _identity(inv: Invocation, rank: str, values: Mapping[str, Any]) -> Equation:
    share = values.get("gpu_memory_utilization", setting(inv, "gpu_memory_utilization"))
    share = float(share) if isinstance(share, int | float) else None
    card = values.get("total_bytes")
    asked = known("asked for", 1, values.get("requested_bytes"), _CARD, 0.006 * GIB)
    if asked.bytes is None and card is not None and share is not None:
        asked = derived("asked for", 1, card * share, _CARD, 0.006 * GIB)
    terms = (asked, *_used(values))
    pool = values.get("kv_available_bytes", values.get("kv_cache_bytes"))
    printed = isinstance(pool, int | float)
    least = min(
        (v["initial_free_bytes"] for v in inv.ranks.values() if "initial_free_bytes" in v),
        default=None,
    )
    return Equation(
        family="vllm",
        versions="0.6.6 and later",
        source="Worker.determine_available_memory, vllm/v1/worker/gpu_worker.py",
        rank=rank,
        terms=terms,
        pool=Summand("KV cache", 1, int(pool), "printed", off=0.006 * GIB)
        if printed
        else Summand("KV cache", 1, None, "unknown", 'the "Available KV cache memory" line'),
        setting="gpu_memory_utilization",
        setting_flag="utilization",
        share=share,
        base_bytes=card,
        room_bytes=_room(values, terms, least),
        room_share=least / card if least is not None and card else None,
        room_needs=_CARD,
        figures={"card_bytes": card, "free_bytes": least},
    )


def _used(values: Mapping[str, Any]) -> Iterator[Summand]:
    """What was in use before the pool, in whichever parts this build prints it."""
    if "peak_torch_bytes" in values:
        yield known("peak of PyTorch", -1, values["peak_torch_bytes"], _USAGE, 0.006 * GIB)
    elif "consumed_bytes" in values:
        yield known("weights + non-torch", -1, values["consumed_bytes"], _USAGE, 0.006 * GIB)
        yield known("activations", -1, values.get("activation_peak_bytes"), _USAGE, 0.006 * GIB)
        return
    else:
        yield known(
            "weights", -1, values.get("weights_bytes"), 'the "Model loading took" line', 0.006 * GIB
        )
        yield known("activations", -1, values.get("activation_peak_bytes"), _USAGE, 0.006 * GIB)
    yield known("non-torch", -1, values.get("non_torch_bytes"), _USAGE, 0.006 * GIB)


def _graphs(values: Mapping[str, Any]) -> int | None:
    """Graphs as captured, else as estimated; none with eager mode is not known here."""
    for name in ("graph_bytes", "graph_estimated_bytes"):
        size = values.get(name)
        if isinstance(size, int) and size >= 0:
            return size
    return None


def _room(values: Mapping[str, Any], terms: tuple[Summand, ...], least: int | None) -> int | None:
    """The largest pool that leaves the graphs and the engine's own reserve."""
    used = [term.bytes for term in terms[1:]]
    graphs = _graphs(values)
    if least is None or graphs is None or any(size is None for size in used):
        return None
    spent = sum(size or 0 for size in used)
    if "activation_peak_bytes" in values and "consumed_bytes" in values:
        estimate = values.get("graph_estimated_bytes")
        if values.get("graph_counted") and isinstance(estimate, int):
            spent -= min(max(estimate, 0), values["activation_peak_bytes"])
    return int(least - spent - graphs - RESERVE)


def suggestion(inv: Invocation, identity: Equation) -> dict[str, Any] | None:
    """The engine's ``--kv-cache-memory`` beside what the same sum gives, each graph once."""
    values = inv.ranks[identity.rank]
    printed, graphs = values.get("kv_suggested_fit_bytes"), values.get("graph_bytes")
    if printed is None or total(identity) is None or closes(identity) is not True:
        return None
    if not isinstance(graphs, int) or graphs < 0:
        return {"printed_bytes": printed, "right_bytes": None, "graph_bytes": graphs}
    spent = sum(term.bytes or 0 for term in identity.terms[1:] if term.name != GRAPHS)
    right = (identity.terms[0].bytes or 0) - spent - graphs - RESERVE
    return {"printed_bytes": printed, "right_bytes": int(right), "graph_bytes": graphs}


def idle_bytes(inv: Invocation, rank: str, identity: Equation | None) -> int | None:
    """Free on *rank*'s GPU once it is ready: free at the start less every part; else None."""
    values = inv.ranks[rank]
    free, graphs = values.get("initial_free_bytes"), _graphs(values)
    kv = values.get("kv_cache_bytes", values.get("kv_available_bytes"))
    if identity is None or free is None or graphs is None or kv is None or kv < 0:
        return None
    used = [term.bytes for term in identity.terms[1:] if term.name != GRAPHS]
    if any(size is None for size in used):
        return None
    return int(free - sum(size or 0 for size in used) - graphs - kv)
