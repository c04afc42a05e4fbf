"""Checks of a start against the one before: the pool, and which of two pool lines is whose."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fleetmem.controller.startup.engines.equation import smallest
from fleetmem.controller.startup.judge.caps import find_cap
from fleetmem.controller.startup.judge.compare import Change, changed, comparable, compare
from fleetmem.controller.startup.judge.figures import (
    Found,
    evidence_lines,
    kv_bytes,
    rank_token_bytes,
    tokens,
    worst_rank,
)
from fleetmem.controller.startup.starts import Invocation

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
    "graphs_estimate": ("graph_estimated_bytes",),
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
        "shrunk_percent": None if change.change_percent is None else -change.change_percent,
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
    values, then = inv.ranks[change.rank], old.ranks.get(change.rank, {})
    evidence.update(
        old_graph_bytes=then.get("graph_estimated_bytes"),
        new_graph_bytes=values.get("graph_estimated_bytes"),
        actual_graph_bytes=values.get("graph_bytes"),
        versions_text=_versions(inv, old),
        changed=[{"setting": n, "old": a, "new": b} for n, a, b in changed(inv, old)],
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
        "weights", "max_model_len", "activation_peak", "graphs_counted", "graphs_estimate",
    }  # fmt: skip
    form = cause if cause in known else ("other" if cause else "unknown")
    evidence["largest_cause"] = (cause or "").replace("_", " ")
    return Found("pool-shrank", evidence, lines, form)


def _versions(inv: Invocation, old: Invocation) -> str:
    if not inv.version or not old.version:
        return ""
    return f" (version {old.version} → {inv.version})" if inv.version != old.version else ""


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
