"""Checks of where the memory went, from figures that the log shows and from nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Any

from fleetmem.controller.startup.engines.equation import closes, largest_share
from fleetmem.controller.startup.engines.vllm import GRAPHS, idle_bytes, suggestion
from fleetmem.controller.startup.fold.budget import ORDINARY
from fleetmem.controller.startup.judge.caps import PoolCap, find_cap
from fleetmem.controller.startup.judge.figures import (
    Found,
    evidence_lines,
    gpu_ranks,
    kv_bytes,
    last_free,
    pattern_lines,
    tokens,
    tokens_derived,
    worst_rank,
)
from fleetmem.controller.startup.judge.phrases import count, gib
from fleetmem.controller.startup.starts import GIB, Invocation

FOREIGN = 1.5 * GIB
OWN_SHARE = 0.06
"""What a card's reserve, the engine's own context and NCCL may take before it measures."""
RISE = 0.3 * GIB
IDLE = 3 * GIB
IDLE_SHARE = 0.12
_CAP_FIELDS = (
    "avail_before_load_bytes",
    "available_after_load_bytes",
    "kv_cache_bytes",
    "kv_available_bytes",
    "requested_bytes",
    "requested_max_total_tokens",
    "config.mem_fraction_static",
    "config.max_total_tokens",
)


def check_memory(inv: Invocation) -> Iterator[Found]:
    """Everything that the figures of one invocation say."""
    cap = find_cap(inv)
    if cap is not None:
        lines = evidence_lines(inv, _CAP_FIELDS, [cap.rank, cap.figures.get("before_rank")], 8)
        form = "open" if cap.closes is False else cap.by
        yield Found("capped-by", _cap_evidence(cap), lines, form)
    yield from _holders(inv)
    yield from _ranks(inv)
    yield from _idle(inv, cap)
    for rank, values in gpu_ranks(inv).items():
        found = list(_rank(inv, rank, values))
        if found:
            yield from found
            break
    yield from _engine(inv)


def _cap_evidence(cap: PoolCap) -> dict[str, Any]:
    return {
        "cause": cap.by,
        "rank": cap.rank,
        "closes": cap.closes,
        "expected_bytes": cap.expected_bytes,
        "printed_bytes": cap.printed_bytes,
        "needs": "; ".join(cap.needs),
        "fraction_rest": round(1 - (cap.figures.get("share") or 0.0), 4),
        **cap.figures,
    }


def rank_gap(figures: dict[str, int]) -> tuple[str, int, int] | None:
    """(odd rank, its figure, the others' median), where one is far from the rest.

    Free memory of the GPUs of one node differs by some hundred MiB: that is equal.
    """
    if len(figures) < 2:
        return None
    middle = median(figures.values()) if len(figures) > 2 else max(figures.values())
    least, most = min(figures, key=lambda k: figures[k]), max(figures, key=lambda k: figures[k])
    odd = least if middle - figures[least] >= figures[most] - middle else most
    if abs(figures[odd] - middle) <= max(0.5 * GIB, 0.006 * abs(middle)):
        return None
    return odd, figures[odd], round(middle)


def _ranks(inv: Invocation) -> Iterator[Found]:
    fields = (
        "avail_before_load_bytes",
        "initial_free_bytes",
        "kv_cache_bytes",
        "avail_after_pool_bytes",
    )
    if inv.engine_name in ("llamacpp", "ollama"):  # devices hold different layers
        return
    for field in fields:
        found = {k: v[field] for k, v in gpu_ranks(inv).items() if field in v}
        if field == "avail_after_pool_bytes":
            if _drafts(inv):
                continue  # of one rank after the target's pool, of another after the draft's
            found = {k: v for k, v in found.items() if "kv_cache_bytes" in inv.ranks[k]}
        gap = rank_gap(found)
        if gap is None:
            continue
        odd, value, usual = gap
        evidence = {
            "rank": odd,
            "least_bytes": min(value, usual),
            "most_bytes": max(value, usual),
            "odd_bytes": value,
            "usual_bytes": usual,
            "gap_bytes": abs(usual - value),
            "field": _FIELD_NAMES[field],
            "unseen": ", ".join(k for k in gpu_ranks(inv) if k not in found) or None,
        }
        form = "pool" if field == "kv_cache_bytes" else "less" if value < usual else "more"
        yield Found("ranks-differ", evidence, evidence_lines(inv, (field,), [odd]), form)
        return
    for rank, values in gpu_ranks(inv).items():
        most, low = values.get("local_gpu_memory_gib"), values.get("min_gpu_memory_gib")
        if most is None or low is None:
            continue
        evidence = {
            "rank": "one rank",
            "odd_bytes": round(min(most, low) * GIB),
            "usual_bytes": round(max(most, low) * GIB),
            "least_bytes": round(min(most, low) * GIB),
            "most_bytes": round(max(most, low) * GIB),
            "gap_bytes": round(abs(most - low) * GIB),
            "field": "free before load",
            "seen_by": rank,
        }
        yield Found("ranks-differ", evidence, pattern_lines(inv, ("unbalanced",)), "less")
        return


def _drafts(inv: Invocation) -> bool:
    return any("draft" in name for values in inv.ranks.values() for name in values)


_FIELD_NAMES = {
    "avail_before_load_bytes": "free before load",
    "initial_free_bytes": "free at the start",
    "kv_cache_bytes": "KV cache",
    "avail_after_pool_bytes": "free after the pools",
}


def foreign(inv: Invocation) -> dict[str, Any] | None:
    """A GPU that was partly taken when the engine came: how much, and by whom if told."""
    free = {
        k: v["initial_free_bytes"]
        for k, v in gpu_ranks(inv).items()
        if "initial_free_bytes" in v and "total_bytes" in v
    }
    if not free:
        return None
    rank = max(free, key=lambda key: inv.ranks[key]["total_bytes"] - free[key])
    desktop = inv.engine_name in ("llamacpp", "ollama")  # a screen may be on that GPU
    card = inv.ranks[rank]["total_bytes"]
    alike = [k for k in free if abs(inv.ranks[k]["total_bytes"] - card) <= 0.01 * card]
    most = max(free[key] for key in alike)
    apart = most - free[rank]
    own = max(2 * FOREIGN, 0.1 * card) if desktop else max(FOREIGN, OWN_SHARE * card)
    if apart <= (own if desktop else FOREIGN) and card - free[rank] <= own:
        return None
    held = most - free[rank] if most - free[rank] > FOREIGN else card - free[rank]
    other = next((e for e in inv.errors if e.get("other_pid") is not None), None)
    idle = _idle_elsewhere(inv, rank)
    return {
        "rank": rank,
        "free_bytes": free[rank],
        "total_bytes": card,
        "foreign_bytes": held,
        "other_pid": other["other_pid"] if other else None,
        "other_bytes": other.get("other_bytes") if other else None,
        "idle_bytes": idle[1] if idle else None,
        "idle_ranks": idle[0] if idle else None,
    }


def _idle_elsewhere(inv: Invocation, rank: str) -> tuple[str, int] | None:
    from fleetmem.controller.startup.engines.families import identity_of

    if inv.engine_name != "vllm":
        return None
    found = {}
    for key in gpu_ranks(inv):
        idle = idle_bytes(inv, key, identity_of(inv, key)) if key != rank else None
        if idle is not None:
            found[key] = idle
    if not found or min(found.values()) < IDLE:
        return None
    return ", ".join(found), min(found.values())


def _holders(inv: Invocation) -> Iterator[Found]:
    if any(error["kind"] == "free_below_requested" for error in inv.errors):
        return
    held = foreign(inv)
    if held is None:
        return
    form = "named" if held["other_pid"] is not None else "unnamed"
    if held["idle_bytes"] is not None:
        form += "_idle"
    lines = evidence_lines(inv, ("initial_free_bytes",), [held["rank"]])
    yield Found("foreign-at-start", held, lines, form)


def _idle(inv: Invocation, cap: PoolCap | None) -> Iterator[Found]:
    """Memory that stays free once the engine is up, and a pool that is small beside it."""
    rank = worst_rank(inv)
    if rank is None or inv.engine_name not in ("sglang", "trtllm", "lmdeploy", "vllm"):
        return
    values = inv.ranks[rank]
    free = last_free(values)
    if inv.engine_name == "vllm" and cap is not None and cap.identity is not None and free is None:
        idle = idle_bytes(inv, rank, cap.identity)
        free = ("once ready", idle) if idle is not None else None
        base = values.get("initial_free_bytes")
    else:
        base = values.get("avail_before_load_bytes") or values.get("total_bytes")
    if free is None:
        return
    pool = kv_bytes(values)
    tiny = pool is not None and 0 < pool < 0.1 * free[1]
    wide = free[1] > max(IDLE, IDLE_SHARE * base) if base else free[1] > 3 * IDLE
    if inv.engine_name == "vllm" and not tiny:
        return  # what utilization leaves is left on purpose
    if (free[0] != "once ready" and not tiny) or not (wide or (tiny and free[1] > IDLE)):
        return
    asked = cap is not None and cap.by in (
        "max_total_tokens",
        "num_gpu_blocks_override",
        "kv_cache_memory_bytes",
        "max_tokens",
        "profiled_tokens",
    )
    if asked:
        return  # the cap says it
    evidence = {
        "rank": rank,
        "pool_bytes": pool,
        "free_bytes": free[1],
        "moment": free[0],
        "tokens": tokens(inv, rank),
        "requests": inv.engine.get("max_running_requests"),
        "base_bytes": base,
    }
    lines = evidence_lines(inv, ("kv_cache_bytes", "available_final_bytes"), [rank])
    evidence["beside"] = _beside(evidence)
    rule = "pool-tiny" if tiny else "idle-memory"
    known = cap is not None and cap.closes is True and cap.identity is not None
    if known and cap is not None and cap.identity is not None:
        most = largest_share(cap.identity)
        evidence |= {
            "setting": cap.identity.setting_flag,
            "share": cap.identity.share,
            "largest": None if most is None else f"{int(most * 100) / 100:.2f}",
        }
        known = most is not None and most > (cap.identity.share or 1.0) + 0.005
    form = "known" if known else "bound" if cap is not None and cap.closes else "unknown"
    yield Found(rule, evidence, lines, form)


def _beside(evidence: dict[str, Any]) -> str:
    """The pool that memory stays idle beside, as far as the log shows it."""
    parts = []
    if evidence["pool_bytes"] is not None:
        parts.append(f"a pool of {gib(evidence['pool_bytes'])}")
    if evidence["tokens"] is not None:
        parts.append(f"{count(evidence['tokens'])} tokens")
    if evidence["requests"] is not None:
        parts.append(f"at most {count(evidence['requests'])} requests")
    return f", beside {', '.join(parts)}" if parts else ""


def _rank(inv: Invocation, rank: str, values: dict[str, Any]) -> Iterator[Found]:
    rise = values.get("free_rise_bytes")
    if rise is not None and rise > RISE:
        yield Found(
            "free-rises",
            {
                "rank": rank,
                "gap_bytes": rise,
                "after_pool_bytes": values["avail_before_graph_bytes"] - rise,
                "before_graph_bytes": values["avail_before_graph_bytes"],
            },
            evidence_lines(inv, ("avail_after_pool_bytes", "avail_before_graph_bytes"), [rank]),
        )
    yield from _graphs(inv, rank, values)
    active, weights = values.get("activation_peak_bytes"), values.get("weights_bytes")
    if active and values.get("graphs_inside_activations"):
        active -= values.get("graph_estimated_bytes", 0)
    sure = values.get("graphs_inside_activations") is not None or not values.get(
        "graph_estimated_bytes"
    )
    if active and weights and sure and active >= weights and inv.engine_name == "vllm":
        yield Found(
            "activation-large",
            {"rank": rank, "activation_bytes": active, "weights_bytes": weights},
            evidence_lines(inv, ("activation_peak_bytes",), [rank]),
        )
    pool, mamba = kv_bytes(values), values.get("mamba_cache_bytes")
    if mamba and pool is not None and mamba >= pool:
        yield Found(
            "mamba-large",
            {"rank": rank, "mamba_bytes": mamba, "pool_bytes": pool},
            evidence_lines(inv, ("mamba_ssm_bytes", "kv_cache_bytes"), [rank]),
        )
    rest = values.get("unaccounted_bytes")
    low, high = ORDINARY.get(inv.engine_name or "", (0.0, 2.0 * GIB))
    if rest is not None and rest > high and not values.get("projected"):
        yield Found(
            "unaccounted-high",
            {"rank": rank, "unaccounted_bytes": rest, "low_bytes": low, "high_bytes": high},
            evidence_lines(inv, ("avail_before_load_bytes", "available_final_bytes"), [rank]),
        )


def _graphs(inv: Invocation, rank: str, values: dict[str, Any]) -> Iterator[Found]:
    """What graphs cost, and figures and advice of the engine's own that cannot be."""
    taken, estimate = values.get("graph_bytes"), values.get("graph_estimated_bytes")
    if isinstance(taken, int) and taken < 0:
        yield Found(
            "graphs-negative",
            {
                "rank": rank,
                "graph_bytes": taken,
                "suggested_bytes": values.get("kv_suggested_fit_bytes"),
            },
            evidence_lines(inv, ("graph_bytes",), [rank]),
            "suggested" if "kv_suggested_fit_bytes" in values else "plain",
        )
    from fleetmem.controller.startup.engines.families import identity_of

    identity = identity_of(inv, rank)
    if identity is None or inv.engine_name != "vllm":
        return
    told = suggestion(inv, identity)
    right = told["right_bytes"] if told is not None else None
    if told is not None and right is not None and abs(right - told["printed_bytes"]) > 0.3 * GIB:
        yield Found(
            "suggestion-wrong",
            {"rank": rank, **told},
            evidence_lines(inv, ("kv_suggested_fit_bytes",), [rank]),
            "fits" if right > 0 else "none",
        )
    asked, most = values.get("suggested_utilization"), largest_share(identity)
    counted = any(term.name == GRAPHS for term in identity.terms) and closes(identity)
    pool = kv_bytes(values)
    large = estimate is not None and pool is not None and estimate > max(0.2 * pool, GIB)
    if values.get("graph_counted") is True or (counted and large):
        room = asked is not None and asked <= (most if most is not None else 1.0)
        impossible = asked is not None and (asked > 1 or (most is not None and asked > most))
        over = isinstance(taken, int) and taken >= 0 and estimate and estimate > 2 * taken + GIB / 2
        form = "over" if over else "impossible" if impossible else "room" if room else "plain"
        yield Found(
            "graphs-counted",
            {
                "rank": rank,
                "graph_bytes": estimate,
                "actual_bytes": taken,
                "utilization": identity.share,
                "without": values.get("effective_utilization"),
                "needed_utilization": asked,
                "largest": None if most is None else round(most, 3),
                "off_pool_bytes": pool + estimate if pool is not None and estimate else None,
            },
            evidence_lines(inv, ("graph_estimated_bytes", "effective_utilization"), [rank]),
            form,
        )


def _engine(inv: Invocation) -> Iterator[Found]:
    host = inv.engine.get("host_kv_total_bytes")
    if host:
        yield Found(
            "host-tier-only",
            {"host_bytes": host, "host_gb": f"{host / 1e9:.0f} GB"},
            evidence_lines(inv, ("host_kv_bytes", "host_other_bytes")),
        )
    waste = inv.engine.get("padding_waste_percent")
    if isinstance(waste, float) and waste >= 5:
        yield Found(
            "hybrid-padding", {"waste_percent": waste}, pattern_lines(inv, ("padding-layers",))
        )
    times = inv.engine.get("retractions")
    if times:
        yield Found("retractions", {"times": times}, pattern_lines(inv, ("pool-full",)))
    if tokens_derived(inv) and inv.engine_name == "vllm" and "engine.max_tokens" not in inv.derived:
        yield Found("tokens-derived", {"tokens": tokens(inv)}, pattern_lines(inv, ("kv-tokens",)))
