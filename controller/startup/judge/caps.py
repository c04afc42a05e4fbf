"""What capped the pool: the engine's own identity, solved with the log's own figures."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fleetmem.controller.startup.engines.equation import (
    Equation,
    closes,
    setting,
    total,
    unknown,
)
from fleetmem.controller.startup.engines.families import identity_of
from fleetmem.controller.startup.judge.figures import (
    kv_bytes,
    rank_token_bytes,
    tokens,
    worst_rank,
)
from fleetmem.controller.startup.starts import Invocation

PAGE_SLACK = 256
ASKED = frozenset(
    (
        "mem_fraction_static",
        "gpu_memory_utilization",
        "free_gpu_memory_fraction",
        "cache_max_entry_count",
    )
)
"""Settings that are a share of memory: solving the sum with another share gives another pool."""


@dataclass(frozen=True, slots=True)
class PoolCap:
    """``by`` names the setting or rank, ``unknown`` where a term of the sum is not in the log.

    ``expected_bytes`` is what the sum gives for the pool and ``printed_bytes`` what the engine
    printed; ``closes`` says whether they agree, None where one of them is unknown; ``needs``
    are the lines that would show the unknown terms.
    """

    by: str
    rank: str
    closes: bool | None
    expected_bytes: int | None = None
    printed_bytes: int | None = None
    figures: dict[str, Any] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    identity: Equation | None = None


def find_cap(inv: Invocation) -> PoolCap | None:
    """The cap of the rank with the smallest pool; None where the log shows no pool at all."""
    rank = worst_rank(inv)
    if rank is None:
        return None
    identity = identity_of(inv, rank)
    argument = _argument(inv, rank, identity)
    if argument is not None or identity is None:
        return argument
    if identity.setting not in ASKED or identity.pool.bytes is None:
        return None
    gives, agree = total(identity), closes(identity)
    figures = {
        **identity.figures,
        "setting": identity.setting_flag,
        "share": identity.share,
        "source": identity.source,
        "versions": identity.versions,
        "terms": [one.to_json() for one in identity.terms],
    }
    missing = unknown(identity)
    if missing:
        names = tuple(dict.fromkeys(one.needs for one in missing if one.needs))
        figures["missing"] = ", ".join(one.name for one in missing)
        return PoolCap("unknown", rank, None, None, identity.pool.bytes, figures, names, identity)
    if agree and identity.setting == "mem_fraction_static":
        figures |= _fraction_figures(identity)
    if agree and identity.setting == "gpu_memory_utilization":
        figures |= _utilization_figures(identity)
    by = identity.setting
    if agree and _other_rank(identity):
        by = "other_rank"
    return PoolCap(by, rank, agree, gives, identity.pool.bytes, figures, (), identity)


def _fraction_figures(identity: Equation) -> dict[str, Any]:
    share, after = identity.share or 0.0, identity.figures["after_bytes"]
    return {"fraction": share, "naive_bytes": round(after * share)}


def _utilization_figures(identity: Equation) -> dict[str, Any]:
    return {
        "requested_bytes": identity.terms[0].bytes,
        "utilization": identity.share,
        "used_bytes": sum(one.bytes or 0 for one in identity.terms[1:]),
        "total_bytes": identity.base_bytes,
        "parts": ", ".join(
            f"{one.name} {(one.bytes or 0) / 2**30:.2f}" for one in identity.terms[1:]
        ),
    }


def _other_rank(identity: Equation) -> bool:
    """SGLang: another rank's free memory, well below this one's, sizes the pool."""
    own, least = identity.figures.get("own_before_bytes"), identity.figures.get("before_bytes")
    return own is not None and least is not None and own - least > 0.02 * own


def _argument(inv: Invocation, rank: str, identity: Equation | None) -> PoolCap | None:
    """A setting that fixes the pool, whatever memory would have given."""
    if inv.engine_name == "sglang":
        return _sglang_tokens(inv, rank, identity)
    if inv.engine_name == "vllm":
        return _vllm_fixed(inv, rank)
    if inv.engine_name == "trtllm":
        return _trtllm_tokens(inv, rank)
    return None


def _sglang_tokens(inv: Invocation, rank: str, identity: Equation | None) -> PoolCap | None:
    """max_total_tokens against what the engine profiled, or what the sum says."""
    values, held = inv.ranks[rank], tokens(inv, rank)
    asked = _first(inv, "requested_max_total_tokens") or setting(inv, "max_total_tokens")
    asked = asked if isinstance(asked, int) and not isinstance(asked, bool) and asked > 0 else None
    profiled = _first(inv, "profiled_max_tokens")
    size, rest = kv_bytes(values), total(identity) if identity is not None else None
    figures = {
        "asked_tokens": asked,
        "held_tokens": held,
        "profiled_tokens": profiled,
        "idle_bytes": values.get("available_final_bytes"),
    }
    if profiled is not None and held is not None and 0 <= profiled - held <= PAGE_SLACK:
        agrees = identity is not None and closes(identity)
        if agrees is not True:  # the engine names its own figure, the sum of the lines differs
            return PoolCap("profiled_tokens", rank, True, None, size, figures)
        return None
    if asked is None:
        return None
    possible = profiled
    if possible is None and rest is not None and rest > 0 and size and held:
        each = rank_token_bytes(values)
        possible = rest // each if each else round(rest / size * held)
    if held is None:
        limited = possible is not None and asked < possible
    else:
        limited = asked - PAGE_SLACK <= held <= asked and (possible is None or possible > asked)
    if not limited:
        return None
    figures["possible_tokens"] = possible
    return PoolCap("max_total_tokens", rank, True, rest, size, figures)


def _first(inv: Invocation, field: str) -> int | None:
    found = [values[field] for values in inv.ranks.values() if field in values]
    return int(found[0]) if found else None


def _vllm_fixed(inv: Invocation, rank: str) -> PoolCap | None:
    values = inv.ranks[rank]
    kv, fixed = kv_bytes(values), setting(inv, "kv_cache_memory_bytes")
    if fixed is not None or any(line.pattern == "kv-fixed" for line in inv.lines):
        return PoolCap("kv_cache_memory_bytes", rank, True, kv, kv, {"asked_bytes": fixed})
    blocks, auto = inv.engine.get("num_gpu_blocks"), inv.engine.get("auto_gpu_blocks")
    if setting(inv, "num_gpu_blocks_override") is not None or auto is not None:
        available = values.get("kv_available_bytes")
        unused = available - kv if available is not None and kv is not None and auto else None
        figures = {
            "blocks": blocks,
            "auto_blocks": auto,
            "held_tokens": tokens(inv, rank),
            "available_bytes": available,
            "unused_bytes": unused,
            "ranks": len(inv.ranks),
        }
        return PoolCap("num_gpu_blocks_override", rank, True, None, kv if auto else None, figures)
    return None


def _trtllm_tokens(inv: Invocation, rank: str) -> PoolCap | None:
    """max_tokens beside the share: the smaller one counts."""
    values = inv.ranks[rank]
    asked, held = values.get("asked_max_tokens"), values.get("max_tokens")
    available, kv = values.get("kv_available_bytes"), values.get("kv_cache_bytes")
    if asked is None or held is None or not 0 <= held - asked < 128:
        return None
    if available is not None and kv is not None and abs(available - kv) < 0.02 * 2**30:
        return None  # the engine's own estimate, handed on as a number of tokens
    return PoolCap("max_tokens", rank, True, None, kv, {"asked_tokens": asked, "held_tokens": held})
