"""Checks of what failed: one finding for each kind of error, with the advice that is right."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fleetmem.controller.startup.engines.equation import (
    largest_share,
    of_all,
    setting,
    smallest,
)
from fleetmem.controller.startup.engines.families import identity_of
from fleetmem.controller.startup.fold.budget import vllm_requested
from fleetmem.controller.startup.judge.figures import Found, pattern_lines
from fleetmem.controller.startup.judge.phrases import count
from fleetmem.controller.startup.judge.xids import xid_is_mild, xid_meaning
from fleetmem.controller.startup.starts import GIB, Invocation

_OWN_RULE = {
    "negative_kv": ("kv-available", "profile-parts"),
    "free_below_requested": ("free-below-requested",),
    "weights_exceed_fraction": ("weights-exceed-fraction",),
    "negative_kv_tokens": ("profiled-smaller-than-argument",),
    "max_model_len_exceeds_kv": ("context-larger-v0", "context-larger-v1"),
    "cuda_oom": (
        "cuda-oom",
        "cuda-oom-plain",
        "warmup-oom",
        "buffer-oom",
        "buffer-not-allocated",
    ),
    "state_pool_without_room": ("state-pool-without-room",),
    "profile_disturbed": ("profile-disturbed",),
    "batch_exceeds_memory": ("batch-tokens-too-many",),
    "host_oom": ("kernel-oom", "host-pool-too-large", "unit-oom"),
    "rank_died": ("rank-died", "worker-died", "shard-failed"),
    "nccl": ("nccl",),
    "xid": ("xid",),
    "engine_core_failed": ("engine-core-failed",),
    "no_cache_blocks": ("no-cache-blocks", "no-room"),
}
_GENERIC = frozenset(("engine_core_failed", "rank_died"))


def check_errors(inv: Invocation, older: tuple[Invocation, ...]) -> Iterator[Found]:
    """Findings of the newest invocation's errors, how it ended first; *older* shows a loop."""
    seen: set[Any] = set()
    found: list[Found] = []
    for error in inv.errors:
        kind = str(error["kind"])
        key: Any = (kind, error.get("xid"), error.get("pci_address")) if kind == "xid" else kind
        if key in seen or (kind == "negative_kv_tokens" and "weights_exceed_fraction" in seen):
            continue
        seen.add(key)
        lines = pattern_lines(inv, _OWN_RULE.get(kind, ()))
        if kind == "xid":
            lines = [one for one in lines if f": {error.get('xid')}," in one["text"]] or lines
        found += _one(inv, kind, error, lines)
    own = [
        one for one in found if one.rule not in ("xid", "rank-died") and one.cause not in _GENERIC
    ]
    if inv.exception is not None and not own:
        # A worker without an exit code, or a core, that failed only passes the exception on.
        passed = [one for one in found if one.rule == "rank-died" and one.cause == "unknown"]
        found = [one for one in found if one not in passed and one.cause not in _GENERIC]
        found.insert(0, _exception(inv))
    yield from found
    loop = _loop(inv, older)
    if loop is not None:
        yield loop


def _exception(inv: Invocation) -> Found:
    """A start that ended with an exception which no pattern of errors knows."""
    error = inv.exception or {}
    rank = error.get("rank")
    evidence = {
        **error,
        "where": f" on {rank}" if rank else "",
        "kind": _told(error),
        "caused": "".join(f" Caused by {_told(one)}" for one in error.get("causes", [])[-2:]),
    }
    line = {"time": error.get("time"), "rank": rank, "text": evidence["kind"]}
    form = "exception" if inv.status == "failed" else "exception_seen"
    return Found("start-failed" if inv.status == "failed" else "exception", evidence, [line], form)


def _told(error: dict[str, Any]) -> str:
    return f"{error['type']}: {' '.join(str(error['message']).split())}".rstrip(": ")


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
        yield _context(error, lines)
    elif kind == "cuda_oom":
        yield _cuda_oom(inv, error, lines)
    elif kind == "host_oom":
        cause = "host_pool" if error.get("phase") == "host_pool" else "kernel"
        yield Found(
            "host-oom", error, lines, cause if "pid" in error or cause != "kernel" else "unit"
        )
    elif kind in _GENERIC and "ready_at" in inv.flags:
        yield Found("ended-after-ready", {**error, **inv.flags}, lines, kind)
    elif kind == "rank_died":
        code = error.get("exit_code")
        form = "unknown" if code is None else "killed" if code == -9 else "code"
        yield Found("rank-died", error, lines, form)
    elif kind == "nccl":
        yield Found("nccl", error, lines)
    elif kind == "xid":
        number = error.get("xid", 0)
        meaning, group, advice = xid_meaning(number)
        text = f" ({meaning})" if meaning else ""
        evidence = {**error, "meaning": text, "class": group, "class_advice": advice}
        yield Found("xid", evidence, lines, "mild" if xid_is_mild(number) else group)
    elif kind == "no_cache_blocks" and any(e["kind"] == "negative_kv" for e in inv.errors):
        return
    else:
        yield Found("start-failed", {**error, "kind": kind.replace("_", " ")}, lines, kind)


def _context(error: dict[str, Any], lines: list[dict[str, Any]]) -> Found:
    room = (
        f"{count(error['kv_tokens'])} tokens fit"
        if "kv_tokens" in error
        else f"one request needs {error['needed_bytes'] / GIB:.2f} GiB"
        if "needed_bytes" in error
        else "the log does not say what fits"
    )
    if "value_bytes" in error and "kv_tokens" not in error:
        room += f", {error['value_bytes'] / GIB:.2f} GiB are there"
    most = error.get("estimated_max_model_len", error.get("kv_tokens"))
    evidence = {**error, "room": room, "largest_tokens": most}
    return Found("context-exceeds-pool", evidence, lines, "known" if most else "unknown")


def _negative(inv: Invocation, error: dict[str, Any], lines: list[dict[str, Any]]) -> Found:
    """The share that would leave a pool, and whether the card had that much free."""
    rank = str(error.get("rank") or next(iter(inv.ranks), "_"))
    values = inv.ranks.get(rank, {})
    identity = identity_of(inv, rank) if rank in inv.ranks else None
    share = values.get("gpu_memory_utilization", setting(inv, "gpu_memory_utilization"))
    card, requested = values.get("total_bytes"), vllm_requested(values)
    evidence = {
        **error,
        "rank": rank,
        "requested_bytes": requested,
        "utilization": share,
        "short_bytes": -error["value_bytes"],
    }
    estimate = values.get("graph_estimated_bytes")
    if values.get("graph_counted") and isinstance(estimate, int):
        evidence["eager_bytes"] = error["value_bytes"] + estimate
    eager = (evidence.get("eager_bytes") or 0) > 0.05 * GIB
    if not isinstance(share, float) or not card:
        return Found("negative-kv", evidence, lines, "eager" if eager else "unknown")
    needed = round(share - error["value_bytes"] / card + 0.005, 2)
    evidence["needed_utilization"] = needed
    most = largest_share(identity) if identity is not None else None
    free = identity.figures.get("free_bytes") if identity is not None else None
    evidence |= {"largest": None if most is None else round(most, 3), "free_bytes": free}
    if needed >= 0.99 or (free is not None and needed * card > free):
        return Found("negative-kv", evidence, lines, "eager" if eager else "too_large")
    return Found("negative-kv", evidence, lines, "utilization" if free is not None else "if_free")


def _weights(inv: Invocation, error: dict[str, Any], lines: list[dict[str, Any]]) -> Found:
    """The smallest fraction that leaves a pool is 1 - after / before: solved where both are
    known for every rank, else the engine's own figure, else unknown."""
    before = smallest(inv, "avail_before_load_bytes")
    after = smallest(inv, "available_after_load_bytes")
    whole = of_all(inv, "avail_before_load_bytes") and of_all(inv, "available_after_load_bytes")
    fraction = setting(inv, "mem_fraction_static")
    if fraction is None:
        fraction = error.get("fraction")
    evidence: dict[str, Any] = {
        "before_bytes": before[1] if before and whole else None,
        "after_bytes": after[1] if after and whole else None,
        "fraction": fraction,
        "kv_tokens": error.get("kv_tokens"),
    }
    needed = error.get("suggested_fraction")
    if whole and before and after and before[1] > 0:
        needed = round(1 - after[1] / before[1], 3)
    evidence["needed_fraction"] = needed
    if needed is None:
        return Found("weights-exceed-fraction", evidence, lines, "unknown")
    if evidence["before_bytes"] is None:
        return Found("weights-exceed-fraction", evidence, lines, "engines_word")
    if needed > 0.95:
        return Found("weights-exceed-fraction", evidence, lines, "too_large")
    if isinstance(fraction, float) and fraction > needed + 0.005:
        return Found("weights-exceed-fraction", evidence, lines, "not_the_fraction")
    return Found("weights-exceed-fraction", evidence, lines, "fraction")


def _cuda_oom(inv: Invocation, error: dict[str, Any], lines: list[dict[str, Any]]) -> Found:
    phase = error.get("phase")
    known = ("kv_pool", "graph_capture", "serving", "weights", "warmup")
    cause = phase if phase in known else "other" if "tried_bytes" in error else "unsized"
    if "tried_bytes" in error and "free_bytes" not in error and cause != "warmup":
        cause = "tried"
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
    if inv.status != "failed":
        return None
    ending = _ending(inv)
    failures, same = 1, True
    counter = inv.restart_counter_after
    for one in reversed(older):
        if one.status != "failed":
            break
        if ending is not None and _ending(one) not in (None, ending):
            break
        same = same and _ending(one) == ending
        failures += 1
        counter = counter or one.restart_counter_after
    if failures < 3 and (counter or 0) < 3:
        return None
    kind = ending or "how they ended is not in the log"
    lines = pattern_lines(inv, ("unit-restart", "unit-exited"))
    each = ": " + kind + (" each time" if same and ending and failures > 1 else "")
    counted = f", restart counter {counter}" if counter is not None else ""
    evidence = {
        "failures": failures,
        "counter": counter,
        "kind": kind,
        "each": each,
        "counted": counted,
    }
    return Found("crash-loop", evidence, lines, "several" if failures > 1 else "one")


def _ending(inv: Invocation) -> str | None:
    """How a start ended, in a word: its kinds of error, else its exception."""
    kinds = sorted({str(e["kind"]) for e in inv.errors} - _GENERIC)
    if kinds:
        return ", ".join(kinds).replace("_", " ")
    if inv.exception is not None:
        return str(inv.exception["type"])
    generic = sorted({str(e["kind"]) for e in inv.errors})
    return ", ".join(generic).replace("_", " ") or None
