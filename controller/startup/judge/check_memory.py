"""Checks of where the memory went in a start that did not fail for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fleetmem.controller.startup.fold.budget import ORDINARY
from fleetmem.controller.startup.judge.caps import find_cap
from fleetmem.controller.startup.judge.compare import Change, cap_evidence, comparable, compare
from fleetmem.controller.startup.judge.figures import (
    evidence_lines,
    gpu_ranks,
    kv_bytes,
    pattern_lines,
    rank_token_bytes,
    smallest,
    tokens,
    tokens_derived,
    worst_rank,
)
from fleetmem.controller.startup.judge.found import Found
from fleetmem.controller.startup.model import GIB, Invocation

RANK_GAP = 0.5 * GIB
FOREIGN = 1.5 * GIB
RISE = 0.3 * GIB
_POOL_PATTERNS = ("kv-allocated", "kv-post-capture", "kv-post-capture-draft")
_CAUSE_FIELDS = {
    "foreign_process": ("avail_before_load_bytes",),
    "max_total_tokens": ("requested_max_total_tokens", "config.max_total_tokens"),
    "mem_fraction_static": ("config.mem_fraction_static",),
    "gpu_memory_utilization": ("requested_bytes", "gpu_memory_utilization"),
    "weights": ("weights_bytes", "consumed_bytes"),
    "max_model_len": ("peak_torch_bytes", "activation_peak_bytes"),
    "activation_peak": ("peak_torch_bytes", "activation_peak_bytes"),
    "graphs_counted": ("graph_estimated_bytes",),
}
_CHANGE_FIELDS = (
    "avail_before_load_bytes",
    "weights_bytes",
    "kv_cache_bytes",
    "kv_available_bytes",
    "config.max_total_tokens",
    "requested_max_total_tokens",
    "requested_bytes",
    "activation_peak_bytes",
)


def check_change(inv: Invocation, older: tuple[Invocation, ...]) -> Iterator[Found]:
    """Did the pool shrink since the start before? Answers the other way round too."""
    old = comparable(inv, older)
    change = compare(inv, old) if old is not None else None
    if old is None or change is None:
        if worst_rank(inv) is not None:
            yield from _two_pools(inv, None)
        return
    if change.same:
        yield from _two_pools(inv, change, older[0])
        return
    first = change.new_bytes if change.old_bytes is not None else change.new_tokens
    second = change.old_bytes if change.new_bytes is not None else change.old_tokens
    if first is not None and second is not None and first < second:
        yield _shrank(inv, old, change)


def _shrank(inv: Invocation, old: Invocation, change: Change) -> Found:
    cause = change.cause
    evidence: dict[str, Any] = {
        "rank": change.rank,
        "old_bytes": change.old_bytes,
        "new_bytes": change.new_bytes,
        "old_tokens": change.old_tokens,
        "new_tokens": change.new_tokens,
        "change_percent": change.change_percent,
        "parts": [{"cause": name, "bytes": value} for name, value in change.parts],
        "cause": cause,
        "old_started": old.started,
    }
    least, before = (
        smallest(inv, "avail_before_load_bytes"),
        smallest(old, "avail_before_load_bytes"),
    )
    if least and before:
        evidence.update(
            cause_rank=least[0], before_bytes=least[1], foreign_bytes=before[1] - least[1]
        )
    cap = find_cap(inv)
    if cap is not None and cap.by == "max_total_tokens":
        evidence.update(cap.figures)
    ranks = [evidence.get("cause_rank"), change.rank]
    first = ranks[:1] if cause == "foreign_process" else ranks
    lines = evidence_lines(inv, _CAUSE_FIELDS.get(cause or "", ()), first, limit=2)
    more = evidence_lines(inv, _CHANGE_FIELDS, ranks, limit=8)
    lines += [line for line in more if line not in lines]
    lines += [
        {**line, "age": old.age}
        for line in evidence_lines(old, ("kv_cache_bytes", "avail_before_load_bytes"), ranks, 3)
    ]
    known = {
        "foreign_process", "max_total_tokens", "mem_fraction_static", "gpu_memory_utilization",
        "weights", "max_model_len", "activation_peak", "graphs_counted",
    }  # fmt: skip
    form = cause if cause in known else ("other" if cause else "unknown")
    evidence["largest_cause"] = (cause or "").replace("_", " ")
    return Found("pool-shrank", evidence, lines, form)


def _two_pools(
    inv: Invocation, change: Change | None, oldest: Invocation | None = None
) -> Iterator[Found]:
    """The pool is the same; where a draft has its own pool, say which line is whose."""
    rank = change.rank if change is not None else worst_rank(inv)
    values = inv.ranks[rank] if rank is not None else {}
    pools = [line for line in inv.lines if line.pattern in _POOL_PATTERNS and line.rank == rank]
    draft = "draft_kv_cache_bytes" in values and len(pools) >= 2
    if change is None and not draft:
        return
    evidence: dict[str, Any] = {
        "rank": rank,
        "new_bytes": kv_bytes(values),
        "new_tokens": tokens(inv, rank),
        "old_bytes": change.old_bytes if change else None,
        "old_tokens": change.old_tokens if change else None,
        "change_percent": change.change_percent if change else None,
        "draft_bytes": values.get("draft_kv_cache_bytes"),
    }
    if draft:
        each, small = rank_token_bytes(values), rank_token_bytes(values, draft=True)
        evidence.update(
            target_line=_short(pools[0].text),
            draft_line=_short(pools[1].text),
            token_bytes=each,
            draft_token_bytes=small,
            token_bytes_text=_bytes_text(each),
            draft_token_bytes_text=_bytes_text(small),
        )
        pool, extra = kv_bytes(values), values["draft_kv_cache_bytes"]
        if pool:
            evidence["misread_percent"] = (extra - pool) / pool * 100
    evidence["first_match_text"] = ""
    first = (
        next((line for line in oldest.lines if line.pattern in _POOL_PATTERNS), None)
        if oldest
        else None
    )
    if oldest is not None and first is not None:
        evidence["first_match"] = first.to_json()
        evidence["first_match_text"] = (
            f" The first match in the log is of the start of {oldest.started or 'before'}."
        )
    lines = evidence_lines(inv, ("kv_cache_bytes", "kv_k_bytes", "kv_available_bytes"), [rank])
    yield Found("same-pool", evidence, lines, "draft" if draft else "plain")


def _short(text: str) -> str:
    """The sizes of a pool line, as printed."""
    for mark in ("KV size", "K size"):
        at = text.find(mark)
        if at >= 0:
            return text[at : at + 60].split(", layout", maxsplit=1)[0].strip(" .")
    return text[:60]


def _bytes_text(value: int | None) -> str:
    return "–" if value is None else f"{value:,} B".replace(",", " ")


def check_memory(inv: Invocation) -> Iterator[Found]:
    """Everything else that the figures of one invocation say."""
    cap = find_cap(inv)
    if cap is not None:
        form = cap.by if cap.closes else "open"
        fields = (
            "avail_before_load_bytes", "available_after_load_bytes", "kv_cache_bytes",
            "kv_available_bytes", "requested_bytes", "requested_max_total_tokens",
            "config.mem_fraction_static", "config.max_total_tokens",
        )  # fmt: skip
        lines = evidence_lines(inv, fields, [cap.rank, cap.figures.get("before_rank")], limit=8)
        yield Found("capped-by", cap_evidence(cap), lines, form)
    yield from _ranks(inv)
    yield from _holders(inv)
    for rank, values in gpu_ranks(inv).items():
        found = list(_rank(inv, rank, values))
        if found:
            yield from found
            break
    yield from _engine(inv)


def _ranks(inv: Invocation) -> Iterator[Found]:
    for field in ("avail_before_load_bytes", "initial_free_bytes", "avail_after_pool_bytes"):
        found = {k: v[field] for k, v in gpu_ranks(inv).items() if field in v}
        if len(found) < 2:
            continue
        least = min(found, key=lambda key: found[key])
        gap = max(found.values()) - found[least]
        if gap > RANK_GAP:
            evidence = {
                "rank": least,
                "least_bytes": found[least],
                "most_bytes": max(found.values()),
                "gap_bytes": gap,
                "field": field.removesuffix("_bytes").replace("_", " "),
            }
            yield Found("ranks-differ", evidence, evidence_lines(inv, (field,), [least]))
            return
    for rank, values in gpu_ranks(inv).items():
        most, low = values.get("local_gpu_memory_gib"), values.get("min_gpu_memory_gib")
        if most is None or low is None:
            continue
        evidence = {
            "rank": "one rank",
            "least_bytes": round(min(most, low) * GIB),
            "most_bytes": round(max(most, low) * GIB),
            "gap_bytes": round(abs(most - low) * GIB),
            "field": "free before load",
            "seen_by": rank,
        }
        yield Found("ranks-differ", evidence, pattern_lines(inv, ("unbalanced",)))
        return


def _holders(inv: Invocation) -> Iterator[Found]:
    if any(error["kind"] == "free_below_requested" for error in inv.errors):
        return
    for rank, values in gpu_ranks(inv).items():
        total, free = values.get("total_bytes"), values.get("initial_free_bytes")
        if total and free is not None and total - free > max(FOREIGN, 0.03 * total):
            evidence = {
                "rank": rank, "free_bytes": free, "total_bytes": total,
                "foreign_bytes": total - free,
            }  # fmt: skip
            yield Found(
                "foreign-at-start", evidence, evidence_lines(inv, ("initial_free_bytes",), [rank])
            )
            return


def _rank(inv: Invocation, rank: str, values: dict[str, Any]) -> Iterator[Found]:
    after, before = values.get("avail_after_pool_bytes"), values.get("avail_before_graph_bytes")
    if after is not None and before is not None and before - after > RISE:
        yield Found(
            "free-rises",
            {
                "rank": rank, "gap_bytes": before - after, "after_pool_bytes": after,
                "before_graph_bytes": before,
            },
            evidence_lines(inv, ("avail_after_pool_bytes", "avail_before_graph_bytes"), [rank]),
        )  # fmt: skip
    pool, final = kv_bytes(values), values.get("available_final_bytes")
    base = values.get("avail_before_load_bytes") or values.get("total_bytes")
    capped = find_cap(inv)
    asked = capped is not None and capped.by == "max_total_tokens"
    sized = inv.engine_name in ("sglang", "vllm")  # others size the pool by the context
    tiny = pool is not None and final and base and pool < 0.1 * final > 0.02 * base
    if tiny and sized and not asked:
        yield Found(
            "pool-tiny",
            {"rank": rank, "pool_bytes": pool, "free_bytes": final},
            evidence_lines(inv, ("kv_cache_bytes", "available_final_bytes"), [rank]),
        )
    active, weights = values.get("activation_peak_bytes"), values.get("weights_bytes")
    if active and weights and active >= weights and inv.engine_name == "vllm":
        yield Found(
            "activation-large",
            {"rank": rank, "activation_bytes": active, "weights_bytes": weights},
            evidence_lines(inv, ("activation_peak_bytes",), [rank]),
        )
    if values.get("graph_counted") is True:
        share, total = values.get("gpu_memory_utilization"), values.get("total_bytes")
        graphs = values.get("graph_estimated_bytes")
        needed = values.get("suggested_utilization")
        if isinstance(share, float) and total and graphs:
            needed = round(share + graphs / total, 4)
        yield Found(
            "graphs-counted",
            {
                "rank": rank, "graph_bytes": graphs, "utilization": share,
                "without": values.get("effective_utilization"), "needed_utilization": needed,
            },
            evidence_lines(inv, ("graph_estimated_bytes", "effective_utilization"), [rank]),
        )  # fmt: skip
    mamba = values.get("mamba_cache_bytes")
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
