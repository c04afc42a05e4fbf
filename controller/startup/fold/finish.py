"""The last pass over an invocation: keys, derived figures, sums that only the whole gives."""

from __future__ import annotations

from typing import Any

from fleetmem.controller.startup.fold.budget import graphs_inside, unaccounted
from fleetmem.controller.startup.fold.build import Build, Rank, on_host
from fleetmem.controller.startup.fold.last_exception import exception_of
from fleetmem.controller.startup.starts import Invocation

DEFAULT_BLOCK_TOKENS = 16
_MAMBA = (
    "mamba_conv_bytes",
    "mamba_ssm_bytes",
    "mamba_intermediate_ssm_bytes",
    "mamba_intermediate_conv_bytes",
    "mamba_replay_d_bytes",
    "mamba_replay_k_bytes",
    "mamba_replay_g_bytes",
    "mamba_replay_rawv_bytes",
    "mamba_replay_rawk_bytes",
    "mamba_replay_beta_bytes",
)
_HOST = ("host_kv_bytes", "host_other_bytes")


def finish_all(
    builds: list[Build], forced: str | None
) -> tuple[str | None, tuple[Invocation, ...]]:
    """All invocations, oldest first, with their ages; the engine of the newest that shows one."""
    kept = [build for build in builds if _says_something(build)]
    done = [
        _finish(build, index, len(kept) - 1 - index, forced) for index, build in enumerate(kept)
    ]
    names = [one.engine_name for one in reversed(done) if one.engine_name]
    return (forced or (names[0] if names else None)), tuple(done)


def _says_something(build: Build) -> bool:
    return bool(
        build.invocation_id
        or build.dirty
        or build.ranks
        or build.errors
        or build.config
        or build.engine
        or build.starts
    )


def _engine_name(build: Build, forced: str | None) -> str | None:
    if forced:
        return forced
    votes = {name: count for name, count in build.votes.items() if name != "lmcache"}
    if votes.get("ollama"):
        return "ollama"
    if not votes:
        return None
    return max(votes, key=lambda name: votes[name])


def _finish(build: Build, index: int, age: int, forced: str | None) -> Invocation:
    name = _engine_name(build, forced)
    derived: list[str] = []
    _gpu_list(build)
    _runner_on_host(build)
    _rename_single(build)
    _one_name(build)
    _whose_pool(build)
    _untagged(build, name)
    for key, rank in build.ranks.items():
        _rank(build, key, rank, derived)
    _engine(build, derived)
    if build.notes.get("projected"):
        for rank in build.ranks.values():
            if "self_bytes" in rank.values and "available_final_bytes" not in rank.values:
                rank.values["projected"] = True
    for key, rank in build.ranks.items():
        _budget(build, name, key, rank, derived)
    for rank in build.ranks.values():
        for field in [f for f in rank.values if f.startswith("_")]:
            del rank.values[field]
    if not build.ranks and (build.errors or build.engine):
        build.ranks["_"] = Rank()
    version = build.engine.pop("version", None)
    for internal in ("v0", "uvicorn"):
        build.engine.pop(internal, None)
    return Invocation(
        index=index,
        age=age,
        status=build.status,
        engine_name=name,
        version=version,
        invocation_id=build.invocation_id,
        started=build.started,
        ended=build.last,
        ranks={key: build.ranks[key].values for key in sorted(build.ranks, key=_rank_order)},
        engine=build.engine,
        config=build.config,
        errors=build.errors,
        flags={k: v for k, v in build.notes.items() if k not in ("fit", "projected", "systemd")},
        derived=tuple(derived),
        restart_counter_after=build.restart_counter_after,
        lines=tuple(build.lines),
        exception=exception_of(build.exceptions)
        if build.status == "failed" or (build.status == "unknown" and not build.was_ready)
        else None,
    )


def _rank_order(key: str) -> list[Any]:
    """Sort ``TP2`` before ``TP10``."""
    parts: list[Any] = []
    number = ""
    for char in key:
        if char.isdigit():
            number += char
            continue
        if number:
            parts.append((1, int(number), ""))
            number = ""
        parts.append((0, 0, char))
    if number:
        parts.append((1, int(number), ""))
    return parts


def _budget(build: Build, name: str | None, key: str, rank: Rank, derived: list[str]) -> None:
    """What is left over; the free figure after the graphs stands for a missing final line."""
    after = rank.values.get("avail_after_graph_bytes")
    if after is not None and "available_final_bytes" not in rank.values:
        rank.values["available_final_bytes"] = after
        derived.append(f"{key}.available_final_bytes")
    rest = unaccounted(name, rank.values, build.engine, build.config, build.ranks)
    if rest is not None:
        rank.values["unaccounted_bytes"] = rest
    if name == "vllm" and (inside := graphs_inside(rank.values)) is not None:
        rank.values["graphs_inside_activations"] = inside


def _rename_single(build: Build) -> None:
    """A process with only a pid and no sibling is no rank."""
    bare = [key for key in build.ranks if key.startswith("pid")]
    if len(bare) == 1 and len(build.ranks) == 1:
        build.ranks["_"] = build.ranks.pop(bare[0])
        for error in build.errors:
            if error.get("rank") == bare[0]:
                error["rank"] = "_"


def _one_name(build: Build) -> None:
    """PyTorch's ``rank3`` is the engine's ``TP3`` where no other kind of rank is named."""
    for key in [one for one in build.ranks if one.startswith("rank")]:
        others = [one for one in build.ranks if one != key and not one.startswith("rank")]
        twin = f"TP{key[4:]}"
        if twin not in others or any(not one.startswith("TP") or " " in one for one in others):
            continue
        for name, value in build.ranks.pop(key).values.items():
            build.ranks[twin].values.setdefault(name, value)
        for error in build.errors:
            if error.get("rank") == key:
                error["rank"] = twin


def _whose_pool(build: Build) -> None:
    """The only pool line of a rank: the target's, or the draft's where the target's is missing.

    It is the draft's where other ranks show two and theirs is of another size, or where it comes
    after the draft's load and is small beside what was free.
    """
    sizes = [r.values.get("kv_cache_bytes") for r in build.ranks.values() if r.pools > 1]
    usual = [size for size in sizes if isinstance(size, int)]
    for rank in build.ranks.values():
        values = rank.values
        pool, free = values.get("kv_cache_bytes"), values.get("available_after_load_bytes")
        if rank.pools != 1 or pool is None:
            continue
        other = bool(usual) and all(abs(pool - size) > 0.3 * size for size in usual)
        small = values.get("_after_draft") and (free is None or pool < 0.05 * free)
        if other or (small and not usual):
            for name in ("kv_cache_bytes", "kv_k_bytes", "kv_v_bytes"):
                if name in values:
                    values[f"draft_{name}"] = values.pop(name)


def _untagged(build: Build, name: str | None) -> None:
    """A line without a tag belongs to no rank where the others have one.

    TensorRT-LLM's C++ lines never carry one: they are kept where no tagged rank has a pool.
    """
    tagged = [key for key in build.ranks if key != "_" and not on_host(key)]
    if "_" not in build.ranks or not tagged or name in ("llamacpp", "ollama"):
        return
    sized = any("kv_cache_bytes" in build.ranks[k].values for k in tagged)
    if name == "trtllm" and not sized and "kv_cache_bytes" in build.ranks["_"].values:
        return
    lost = build.ranks.pop("_").values
    figures = {k: v for k, v in lost.items() if not k.startswith("_") and k != "pid"}
    if figures:
        build.notes["untagged"] = figures
    for error in build.errors:
        if error.get("rank") == "_":
            error["rank"] = None


def _rank(build: Build, key: str, rank: Rank, derived: list[str]) -> None:
    values = rank.values
    mamba = [values[name] for name in _MAMBA if name in values]
    if mamba:
        values["mamba_cache_bytes"] = sum(mamba)
    before, after = values.get("avail_before_load_bytes"), values.get("available_after_load_bytes")
    if before is not None and after is not None and "weights_bytes" not in values:
        values["weights_bytes"] = before - after  # what SGLang since 0.4.3 prints itself
        derived.append(f"{key}.weights_bytes")
    _pool(build, key, values, derived)
    _negative(build, key, values, derived)
    asked, profiled = values.get("requested_max_total_tokens"), values.get("profiled_max_tokens")
    if asked is not None and build.config.get("max_total_tokens") is None:
        build.config["max_total_tokens"] = asked
    if asked is not None and profiled is not None:
        if profiled < 0:
            known = [one for one in build.errors if one["kind"] == "negative_kv_tokens"]
            if known:
                known[0]["ranks"] = known[0].get("ranks", 1) + 1
            else:
                error = {"kind": "negative_kv_tokens", "rank": key, "kv_tokens": profiled}
                build.errors.append(error)
            if not build.was_ready:
                build.status = "failed" if build.status == "unknown" else build.status
        elif asked < profiled:
            build.engine["capped_by"] = "max_total_tokens"


def _pool(build: Build, key: str, values: dict[str, Any], derived: list[str]) -> None:
    """Pools that no line prints: blocks × bytes of a block, or the blocks that were asked for."""
    blocks, size = values.get("num_gpu_blocks"), values.get("block_bytes")
    if isinstance(blocks, int) and isinstance(size, int) and "kv_cache_bytes" not in values:
        values["kv_cache_bytes"] = blocks * size
        derived.append(f"{key}.kv_cache_bytes")
    auto, asked = build.engine.get("auto_gpu_blocks"), build.engine.get("num_gpu_blocks")
    available = values.get("kv_available_bytes")
    if auto and asked and available and available > 0 and "kv_cache_bytes" not in values:
        values["kv_cache_bytes"] = round(available * asked / auto)
        derived.append(f"{key}.kv_cache_bytes")


def _negative(build: Build, key: str, values: dict[str, Any], derived: list[str]) -> None:
    available = values.get("kv_available_bytes")
    if available is None and (values.get("kv_cache_bytes") or 0) < 0:
        available = values["kv_cache_bytes"]
    if available is None or available > 0:
        return
    if "kv_cache_bytes" not in values:
        values["kv_cache_bytes"] = 0
        derived.append(f"{key}.kv_cache_bytes")
    build.errors.insert(0, {"kind": "negative_kv", "rank": key, "value_bytes": available})
    if build.status == "unknown":
        build.status = "failed"


def _engine(build: Build, derived: list[str]) -> None:
    engine = build.engine
    blocks = engine.get("num_gpu_blocks")
    if engine.get("v0") and "max_tokens" not in engine and isinstance(blocks, int):
        size = build.config.get("block_size")
        engine["max_tokens"] = blocks * (size if isinstance(size, int) else DEFAULT_BLOCK_TOKENS)
        derived.append("engine.max_tokens")
    host = [r.values.get(name, 0) for r in build.ranks.values() for name in _HOST]
    if any(host):
        engine["host_kv_total_bytes"] = sum(host)
        derived.append("engine.host_kv_total_bytes")
    others = [one for one in build.errors if one["kind"] not in ("engine_core_failed", "xid")]
    if others:
        build.errors[:] = [one for one in build.errors if one["kind"] != "engine_core_failed"]
    if build.notes.pop("unit_oom", None) or build.notes.get("unit_result") == "oom-kill":
        if not any(one["kind"] == "host_oom" for one in build.errors):
            build.errors.append({"kind": "host_oom", "rank": None, "scope": "unit"})
        if build.status != "stopped":
            build.status = "failed"


def _runner_on_host(build: Build) -> None:
    """What Ollama planned for "CPU" its runner allocates as "CPU_Mapped" and the like."""
    plan = build.ranks.get("CPU")
    others = [rank for key, rank in build.ranks.items() if on_host(key) and key != "CPU"]
    for name in list(plan.planned) if plan is not None else []:
        if plan is not None and any(name in rank.values for rank in others):
            plan.values.pop(name, None)
    if plan is not None and plan.planned and not plan.values:
        del build.ranks["CPU"]


def _gpu_list(build: Build) -> None:
    """Ollama lists GPUs by uuid and devices by name: the same order, if the counts agree."""
    if not build.gpu_list:
        return
    devices = sorted((k for k in build.ranks if k != "_" and not on_host(k)), key=_rank_order)
    for number, row in enumerate(build.gpu_list[-len(devices) :] if devices else build.gpu_list):
        same = len({one["device"] for one in build.gpu_list}) == len(devices)
        rank = build.rank(devices[number] if same else str(row["device"]))
        for name in ("initial_free_bytes", "available_bytes"):
            if name in row:
                rank.values.setdefault(name, row[name])
