"""Checks of what failed: one finding for each kind of error, with the advice that is right."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fleetmem.controller.startup.fold.budget import vllm_requested
from fleetmem.controller.startup.judge.figures import pattern_lines, setting, smallest
from fleetmem.controller.startup.judge.found import Found
from fleetmem.controller.startup.judge.phrases import count
from fleetmem.controller.startup.model import GIB, Invocation

XIDS = {
    48: "double-bit ECC error",
    63: "row remapped",
    64: "row remapping failed",
    74: "NVLink error",
    79: "the GPU has fallen off the bus",
    94: "contained ECC error",
    95: "uncontained ECC error",
    119: "GSP timeout",
    120: "GSP error",
}
_OWN_RULE = {
    "negative_kv": ("kv-available", "profile-parts"),
    "free_below_requested": ("free-below-requested",),
    "weights_exceed_fraction": ("weights-exceed-fraction",),
    "negative_kv_tokens": ("profiled-smaller-than-argument",),
    "max_model_len_exceeds_kv": ("context-larger-v0", "context-larger-v1"),
    "cuda_oom": (
        "cuda-oom", "cuda-oom-plain", "warmup-oom", "buffer-oom", "buffer-not-allocated",
    ),
    "state_pool_without_room": ("state-pool-without-room",),
    "profile_disturbed": ("profile-disturbed",),
    "batch_exceeds_memory": ("batch-tokens-too-many",),
    "host_oom": ("kernel-oom", "host-pool-too-large", "unit-oom", "unit-failed"),
    "rank_died": ("rank-died", "worker-died", "shard-failed"),
    "nccl": ("nccl",),
    "xid": ("xid",),
}  # fmt: skip


def check_errors(inv: Invocation, older: tuple[Invocation, ...]) -> Iterator[Found]:
    """Findings of the newest invocation's errors; *older* shows a loop."""
    loop = _loop(inv, older)
    if loop is not None:
        yield loop
    seen: set[str] = set()
    for error in inv.errors:
        kind = str(error["kind"])
        if kind in seen or (kind == "negative_kv_tokens" and "weights_exceed_fraction" in seen):
            continue
        seen.add(kind)
        lines = pattern_lines(inv, _OWN_RULE.get(kind, ()))
        yield from _one(inv, kind, error, lines)


def _one(
    inv: Invocation, kind: str, error: dict[str, Any], lines: list[dict[str, Any]]
) -> Iterator[Found]:
    if kind == "negative_kv":
        yield _negative(inv, error, lines)
    elif kind in ("weights_exceed_fraction", "negative_kv_tokens"):
        yield _weights(inv, error, lines)
    elif kind == "free_below_requested":
        foreign = error["total_bytes"] - error["free_bytes"]
        yield Found("free-below-requested", {**error, "foreign_bytes": foreign}, lines)
    elif kind == "max_model_len_exceeds_kv":
        room = (
            f"{count(error['kv_tokens'])} tokens fit"
            if "kv_tokens" in error
            else f"{error.get('needed_bytes', 0) / GIB:.2f} GiB are needed for one request"
        )
        yield Found("context-exceeds-pool", {**error, "room": room}, lines)
    elif kind == "cuda_oom":
        yield _cuda_oom(inv, error, lines)
    elif kind == "host_oom":
        cause = "host_pool" if error.get("phase") == "host_pool" else "kernel"
        yield Found(
            "host-oom", error, lines, cause if "pid" in error or cause != "kernel" else "unit"
        )
    elif kind == "rank_died":
        yield Found("rank-died", error, lines)
    elif kind == "nccl":
        yield Found("nccl", error, lines)
    elif kind == "xid":
        name = XIDS.get(error.get("xid", 0))
        yield Found("xid", {**error, "meaning": f" ({name})" if name else ""}, lines)
    elif kind == "no_cache_blocks" and any(e["kind"] == "negative_kv" for e in inv.errors):
        return
    else:
        yield Found("start-failed", {**error, "kind": kind.replace("_", " ")}, lines, kind)


def _negative(inv: Invocation, error: dict[str, Any], lines: list[dict[str, Any]]) -> Found:
    rank = str(error.get("rank") or next(iter(inv.ranks), "_"))
    values = inv.ranks.get(rank, {})
    share, total = values.get("gpu_memory_utilization"), values.get("total_bytes")
    requested = vllm_requested(values)
    evidence = {**error, "rank": rank, "requested_bytes": requested, "utilization": share}
    if isinstance(share, float) and total:
        evidence["needed_utilization"] = round(share - error["value_bytes"] / total + 0.005, 2)
        return Found("negative-kv", evidence, lines, "utilization")
    return Found("negative-kv", evidence, lines, "unknown")


def _weights(inv: Invocation, error: dict[str, Any], lines: list[dict[str, Any]]) -> Found:
    """The smallest fraction that leaves a pool is 1 - after / before, recomputed here."""
    before = smallest(inv, "avail_before_load_bytes")
    after = smallest(inv, "available_after_load_bytes")
    evidence: dict[str, Any] = {
        "before_bytes": before[1] if before else None,
        "after_bytes": after[1] if after else None,
        "fraction": setting(inv, "mem_fraction_static") or error.get("fraction"),
    }
    if before and after and before[1] > 0:
        evidence["needed_fraction"] = round(1 - after[1] / before[1], 3)
    return Found("weights-exceed-fraction", evidence, lines)


def _cuda_oom(inv: Invocation, error: dict[str, Any], lines: list[dict[str, Any]]) -> Found:
    phase = error.get("phase")
    known = ("kv_pool", "graph_capture", "serving", "weights", "warmup")
    cause = phase if phase in known else "other" if "tried_bytes" in error else "unsized"
    other = error.get("other_bytes")
    if other is not None and other > 0.05 * error.get("total_bytes", 0):
        cause = "foreign"
    elif cause == "kv_pool" and inv.engine_name == "sglang":
        target = any("kv_cache_bytes" in values for values in inv.ranks.values())
        draft = any("draft_weights_bytes" in values for values in inv.ranks.values())
        if target and draft:
            cause = "draft_pool"
    return Found("cuda-oom", error, lines, cause)


def _loop(inv: Invocation, older: tuple[Invocation, ...]) -> Found | None:
    """Failed starts in a row with the same error, or a restart counter that says so."""
    kinds = {str(error["kind"]) for error in inv.errors}
    if inv.status != "failed":
        return None
    failures = 1
    counter = inv.restart_counter_after
    for one in reversed(older):
        if one.status != "failed" or not (
            kinds & {str(e["kind"]) for e in one.errors} or not kinds
        ):
            break
        failures += 1
        counter = counter or one.restart_counter_after
    if failures < 3 and (counter or 0) < 3:
        return None
    kind = ", ".join(sorted(kinds)).replace("_", " ") or "no error in the log"
    lines = pattern_lines(inv, ("unit-restart", "unit-exited"))
    return Found("crash-loop", {"failures": failures, "counter": counter, "kind": kind}, lines)
