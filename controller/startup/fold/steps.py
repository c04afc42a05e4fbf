"""What a line does to the invocation it belongs to: one function for each step word."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fleetmem.controller.startup.fold.build import MAX_ERRORS, Build, Rank
from fleetmem.controller.startup.starts import Event

FATAL = frozenset(
    (
        "negative_kv",
        "no_cache_blocks",
        "negative_kv_tokens",
        "max_model_len_exceeds_kv",
        "free_below_requested",
        "weights_exceed_fraction",
        "cuda_oom",
        "host_oom",
        "nccl",
        "rank_died",
        "engine_core_failed",
        "state_pool_without_room",
        "profile_disturbed",
        "batch_exceeds_memory",
    )
)
DRAFT_TYPES = ("NextN", "MTP", "Eagle", "DFlash", "Medusa", "Draft")
ENDING = frozenset(("rank_died", "engine_core_failed"))
_POOL_FIELDS = ("kv_cache_bytes", "kv_k_bytes", "kv_v_bytes", "max_tokens", "kv_dtype")


def scatter(build: Build, rank: Rank | None, event: Event, add: bool = False) -> None:
    """Put the event's figures where their names say they belong."""
    for name, value in event.values.items():
        scope, _, rest = name.partition(".")
        spread = event.error_bytes.get(name)
        if not rest:
            if rank is not None and not _draft_repeats(rank, name):
                (rank.add if add and name.endswith("_bytes") else rank.set)(name, value, spread)
        elif scope == "engine":
            build.engine[rest] = value
        elif scope == "config":
            build.config[rest] = value


def _draft_repeats(rank: Rank, name: str) -> bool:
    """A draft prints its own set-up after the target's: the target's stays."""
    if name not in rank.values:
        return False
    if name == "dist_init_bytes":
        return rank.loads > 0
    own = name in ("kv_dtype", "max_mamba_cache_size") or name.startswith("mamba_")
    return own and rank.pools > 0


def step_set(build: Build, rank: Rank | None, event: Event) -> None:
    scatter(build, rank, event)


def step_add(build: Build, rank: Rank | None, event: Event) -> None:
    scatter(build, rank, event, add=True)


def step_load_begin(build: Build, rank: Rank | None, event: Event) -> None:
    assert rank is not None
    name = "avail_before_load_bytes"
    value, spread = event.values[name], event.error_bytes[name]
    if rank.loads or name in rank.values or _is_up(rank):  # the draft's
        rank.begin_again = (value, spread)
    else:
        rank.set(name, value, spread)


def _is_up(rank: Rank) -> bool:
    """Whether the target was loaded before these lines begin."""
    return rank.pools > 0 or rank.pool_ends > 0 or "graph_bytes" in rank.values


def step_load_end(build: Build, rank: Rank | None, event: Event) -> None:
    """The first load of a rank is the target's, the next the draft's (restarts are split off)."""
    assert rank is not None
    values, spread = event.values, event.error_bytes
    first = rank.loads == 0
    if not first and event.engine == "trtllm":  # another rank's, without its number
        return
    kind = values.get("model_type")
    drafts = first and (event.engine == "sglang" and _is_up(rank))
    drafts = drafts or (first and any(word in str(kind or "") for word in DRAFT_TYPES))
    rank.begin_again = None
    if drafts:  # the excerpt begins after the target's load
        first = False
        rank.values.pop("avail_before_load_bytes", None)
    else:
        rank.loads += 1
    if first:
        rank.model_type = kind
    if kind is not None:
        build.notes["model_type" if first else "draft_model_type"] = kind
    for name, new in (
        ("weights_bytes", "weights_bytes" if first else "draft_weights_bytes"),
        (
            "available_after_load_bytes",
            "available_after_load_bytes" if first else "available_after_draft_load_bytes",
        ),
    ):
        if name in values:
            rank.set(new, values[name], spread.get(name))


def _pool_values(event: Event) -> tuple[dict[str, Any], dict[str, float]]:
    values = {name: event.values[name] for name in _POOL_FIELDS if name in event.values}
    spread = {name: event.error_bytes.get(name, 0.5) for name in values}
    if "kv_cache_bytes" not in values and "kv_k_bytes" in values and "kv_v_bytes" in values:
        values["kv_cache_bytes"] = values["kv_k_bytes"] + values["kv_v_bytes"]
        spread["kv_cache_bytes"] = spread["kv_k_bytes"] + spread["kv_v_bytes"]
    return values, spread


def step_pool(build: Build, rank: Rank | None, event: Event) -> None:
    """The first pool of a rank is the target's, the second its draft's.

    A sliding-window model allocates its target pool in two parts, full and window.
    """
    assert rank is not None
    values, spread = _pool_values(event)
    window = rank.values.get("swa_layer_tokens")
    tokens = values.get("max_tokens")
    if window is not None and rank.window_pools < 2 and tokens in (
        window,
        rank.values.get("full_layer_tokens"),
    ):  # fmt: skip
        rank.window_pools += 1
        rank.pools = 1
        for name in ("kv_cache_bytes", "kv_k_bytes", "kv_v_bytes"):
            if name in values:
                rank.add(name, values[name], spread[name])
        rank.set("max_tokens", rank.values.get("full_layer_tokens"), 0.5)
        if "kv_dtype" in values:
            rank.set("kv_dtype", values["kv_dtype"])
        return
    if rank.pools == 0:
        rank.pools = 1
        rank.values["_after_draft"] = "draft_weights_bytes" in rank.values
        for name, value in values.items():
            rank.set(name, value, spread.get(name) if name != "kv_dtype" else None)
        return
    _draft_pool(rank, values, spread)


def step_window_total(build: Build, rank: Rank | None, event: Event) -> None:
    """The sum over a sliding-window model's two pools: both belong to the target."""
    assert rank is not None
    tokens = (event.values.get("swa_layer_tokens"), event.values.get("full_layer_tokens"))
    pair = [rank.values[n] for n in ("max_tokens", "draft_max_tokens") if n in rank.values]
    if rank.window_pools == 0 and len(pair) == 2 and set(pair) <= set(tokens):
        for name in ("kv_cache_bytes", "kv_k_bytes", "kv_v_bytes"):
            if f"draft_{name}" in rank.values:
                moved, spread = rank.values.pop(f"draft_{name}"), rank.spread.pop(f"draft_{name}")
                rank.add(name, moved, spread)
        del rank.values["draft_max_tokens"]
        rank.pools, rank.window_pools = 1, 2
        rank.set("max_tokens", max(pair))
    if rank.pools <= 1:
        rank.pools = 1
        scatter(build, rank, event)
        if tokens[1] is not None and "max_tokens" not in rank.values:
            rank.set("max_tokens", tokens[1])


def step_pool_draft(build: Build, rank: Rank | None, event: Event) -> None:
    assert rank is not None
    _draft_pool(rank, *_pool_values(event))


def _draft_pool(rank: Rank, values: dict[str, Any], spread: dict[str, float]) -> None:
    rank.pools = max(rank.pools, 1) + 1
    if "draft_kv_cache_bytes" in rank.values:  # several draft layers, each with a pool
        if "kv_cache_bytes" in values:
            rank.add("draft_kv_cache_bytes", values["kv_cache_bytes"], spread["kv_cache_bytes"])
        return
    for name in ("kv_cache_bytes", "kv_k_bytes", "kv_v_bytes", "max_tokens"):
        if name in values:
            rank.set(f"draft_{name}", values[name], spread[name])


def step_pool_end(build: Build, rank: Rank | None, event: Event) -> None:
    assert rank is not None
    name = "avail_after_pool_bytes"
    if rank.pool_ends and "avail_after_target_pool_bytes" not in rank.values:
        rank.set("avail_after_target_pool_bytes", rank.values[name], rank.spread[name])
    rank.pool_ends += 1
    rank.values.pop(name, None)
    rank.spread.pop(name, None)
    rank.set(name, event.values[name], event.error_bytes[name])


def step_graph_begin(build: Build, rank: Rank | None, event: Event) -> None:
    assert rank is not None
    name = "avail_before_graph_bytes"
    rank.values["_graph_begun"] = True
    if name in event.values and name not in rank.values:
        rank.set(name, event.values[name], event.error_bytes[name])
        after = rank.values.get("avail_after_pool_bytes")  # of the pool that was made last
        if after is not None:
            rank.set("free_rise_bytes", event.values[name] - after, 0.01 * 2**30)


def step_graph_end(build: Build, rank: Rank | None, event: Event) -> None:
    assert rank is not None
    if "graph_bytes" in event.values:
        rank.add("graph_bytes", event.values["graph_bytes"], event.error_bytes["graph_bytes"])
    name = "avail_after_graph_bytes"
    if name in event.values:
        rank.values.pop(name, None)
        rank.spread.pop(name, None)
        rank.set(name, event.values[name], event.error_bytes[name])


def step_breakdown(build: Build, rank: Rank | None, event: Event) -> None:
    """llama.cpp and Ollama: a device is a rank. A table replaces what buffers added up."""
    assert rank is not None
    adds = bool(event.values.get("adds"))
    free, own = event.values.get("free_now_bytes"), event.values.get("self_bytes")
    card = event.values.get("total_bytes")
    if free is not None and own is not None and card and free + own > card + (64 << 20):
        build.notes["fit"] = True  # that much is free only before it is taken
    for name, value in event.values.items():
        if name in ("device", "adds", "free_now_bytes"):
            continue
        spread = event.error_bytes.get(name)
        if adds and name.endswith("_bytes"):
            build.notes.pop("fit", None)
            if rank.values.get("_table"):
                continue
            if name in rank.planned:  # the runner's own line replaces what Ollama planned
                rank.planned.discard(name)
                del rank.values[name]
            rank.add(name, value, spread)
        else:
            rank.values[name] = value
            if event.engine == "ollama":
                rank.planned.add(name)
            if spread is not None:
                rank.spread[name] = spread
    if "free_now_bytes" in event.values:
        free, spread = event.values["free_now_bytes"], event.error_bytes["free_now_bytes"]
        rank.values["_table"] = True
        if build.notes.get("fit"):
            rank.values["projected"] = True
            rank.set("initial_free_bytes", free, spread)
        else:
            rank.values.pop("projected", None)
            rank.set("available_final_bytes", free, spread)


def step_gpu_list(build: Build, rank: Rank | None, event: Event) -> None:
    if len(build.gpu_list) < 256:
        build.gpu_list.append(dict(event.values))


def step_phase(build: Build, rank: Rank | None, event: Event) -> None:
    for name, value in event.values.items():
        if name != "phase":
            build.notes[name] = value
    phase = event.values.get("phase")
    if phase == "traceback":
        build.phases.pop(event.head.rank, None)
    elif isinstance(phase, str):
        known = build.phases.get(event.head.rank)
        order = ("weights", "profile", "kv_pool", "graph_capture")
        if known is None or order.index(phase) > order.index(known):
            build.phases[event.head.rank] = phase


def step_ready(build: Build, rank: Rank | None, event: Event) -> None:
    if event.values.get("engine.uvicorn") and build.votes.get("sglang", 0):
        return  # SGLang's web server is up before its model answers
    build.status = "ready"
    if not build.was_ready:
        build.notes["ready_at"] = event.head.time or build.last
    build.was_ready = True


def step_stopped(build: Build, rank: Rank | None, event: Event) -> None:
    if build.status != "failed":
        build.status = "stopped"
    build.ended = build.ended or bool(event.values.get("systemd"))


def ended_cleanly(status: str) -> bool:
    """Whether an exit status, as systemd prints it, is one of a process that was to end."""
    return status.startswith("0/") or status.endswith(("/TERM", "/INT"))


def step_exit(build: Build, rank: Rank | None, event: Event) -> None:
    status = str(event.values.get("exit_status", ""))
    build.ended = True
    if status:
        build.notes["exit_status"] = status
    if result := event.values.get("unit_result"):
        build.notes["unit_result"] = result
    if ended_cleanly(status):
        step_stopped(build, rank, event)
    elif status or result or event.pattern == "subprocess-exited":
        build.status = "failed"


def step_restart(build: Build, rank: Rank | None, event: Event) -> None:
    build.restart_counter_after = event.values["restart_counter_after"]
    build.ended = True


def step_count(build: Build, rank: Rank | None, event: Event) -> None:
    for name, value in event.values.items():
        rest = name.partition(".")[2]
        build.engine[rest] = build.engine.get(rest, 0) + value


def step_least(build: Build, rank: Rank | None, event: Event) -> None:
    """Printed once for each worker: all use as many blocks as the one with the fewest."""
    for name, value in event.values.items():
        rest = name.partition(".")[2]
        build.engine[rest] = min(value, build.engine.get(rest, value))


def step_error(build: Build, rank: Rank | None, event: Event) -> None:
    """An error, once: the same figures printed again are the same error."""
    scatter(build, rank, event)
    error = {n[6:]: v for n, v in event.values.items() if n.startswith("error.")}
    if "comm" in error:
        cgroup = "MEMCG" in str(build.notes.pop("oom_constraint", ""))  # says it of this kill
        memcg = cgroup or "Memory cgroup" in event.head.text
        error["scope"] = "memcg" if memcg else "global"
    error.pop("code", None)
    before = error.pop("torch_allocated_before_bytes", None)  # PyTorch before 2.0
    if before is not None:
        error["torch_allocated_bytes"] = before
    if error["kind"] == "nccl":
        error["text"] = str(error.get("text", "")).split(" (run with")[0].strip()
    if error["kind"] == "free_below_requested":
        for name in ("initial_free_bytes", "total_bytes", "requested_bytes"):
            error[name.replace("initial_", "")] = event.values[name]
    same = [e for e in build.errors if all(e.get(k) == v for k, v in error.items() if k != "rank")]
    key = event.head.rank
    if error["kind"] == "cuda_oom" and "phase" not in error:
        phase = build.phases.get(key) or build.phases.get(None)
        if "graph failed" in event.head.text:
            phase = "graph_capture"
        error.update(
            {"phase": "serving" if build.was_ready else phase} if phase or build.was_ready else {}
        )
    if "rank" not in error:
        error["rank"] = key
    known = [
        e for e in same if None in (e.get("rank"), error["rank"]) or e["rank"] == error["rank"]
    ]
    if known:
        if known[0].get("rank") is None:
            known[0]["rank"] = error["rank"]
    elif len(build.errors) < MAX_ERRORS:
        build.errors.append(error)
    if error["kind"] in ENDING and build.was_ready:  # it had started: this is how it ended
        build.status = "stopped" if build.status != "failed" else "failed"
    elif error["kind"] in FATAL:
        build.status = "failed"


def step_nothing(build: Build, rank: Rank | None, event: Event) -> None:
    """``presence`` and ``ignore``: the line is understood, and says nothing more."""


STEPS: dict[str, Callable[[Build, Rank | None, Event], None]] = {
    "set": step_set,
    "add": step_add,
    "load_begin": step_load_begin,
    "load_end": step_load_end,
    "pool": step_pool,
    "pool_draft": step_pool_draft,
    "window_total": step_window_total,
    "pool_end": step_pool_end,
    "graph_begin": step_graph_begin,
    "graph_end": step_graph_end,
    "start": step_set,
    "config": step_set,
    "ready": step_ready,
    "stopped": step_stopped,
    "failed": lambda build, rank, event: setattr(build, "status", "failed"),
    "exit": step_exit,
    "restart": step_restart,
    "error": step_error,
    "phase": step_phase,
    "presence": step_nothing,
    "gpu_list": step_gpu_list,
    "breakdown": step_breakdown,
    "count": step_count,
    "least": step_least,
    "ignore": step_nothing,
}
