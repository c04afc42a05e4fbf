"""What capped the pool, by arithmetic: the engine's own formula with the log's own figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fleetmem.controller.startup.fold.budget import ORDINARY, sglang_weights, vllm_requested
from fleetmem.controller.startup.judge.figures import (
    kv_bytes,
    rank_token_bytes,
    setting,
    smallest,
    tokens,
    worst_rank,
)
from fleetmem.controller.startup.model import GIB, Invocation

TOLERANCE = 0.06 * GIB
PAGE_SLACK = 256


@dataclass(frozen=True, slots=True)
class Cap:
    """``by`` names the setting or rank; ``expected_bytes`` is what the formula gives for the
    pool and ``printed_bytes`` what the engine printed; ``closes`` says that they agree."""

    by: str
    rank: str
    closes: bool
    expected_bytes: int | None = None
    printed_bytes: int | None = None
    figures: dict[str, Any] = field(default_factory=dict)


def find_cap(inv: Invocation) -> Cap | None:
    """The cap of the rank with the smallest pool; None where the log does not tell."""
    rank = worst_rank(inv)
    if rank is None:
        return None
    if inv.engine_name == "sglang":
        return _sglang(inv, rank)
    if inv.engine_name == "vllm":
        return _vllm(inv, rank)
    return None


def pool_sums(values: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """What SGLang's rest is split into: without, and with the draft's pool."""
    kv = values.get("kv_cache_bytes")
    if kv is None:
        return None, None
    plain = int(kv + (values.get("mamba_cache_bytes") or 0))
    draft = values.get("draft_kv_cache_bytes")
    return plain, None if draft is None else int(plain + draft)


def sglang_expected(inv: Invocation, rank: str) -> dict[str, Any] | None:
    """rest = after load - smallest free before load × (1 - fraction), with its figures."""
    values = inv.ranks[rank]
    fraction = setting(inv, "mem_fraction_static")
    least = smallest(inv, "avail_before_load_bytes")
    least_after = smallest(inv, "available_after_load_bytes")
    if least_after is None or least is None or not isinstance(fraction, float):
        return None
    names = ("available_after_load_bytes", "available_after_draft_load_bytes")
    loads = [values[name] for name in names if name in values] + [least_after[1]]
    pools, with_draft = pool_sums(values)
    sums: list[int | None] = [one for one in (pools, with_draft) if one is not None]
    sums = sums or [None]
    best: dict[str, Any] | None = None
    for loaded in loads:
        rest = round(loaded - least[1] * (1 - fraction))
        for printed in sums:
            off = abs(rest - printed) if printed is not None else 0
            # Without a match the target's own load is the one that sizes the pool.
            if best is None or (off < best["off_bytes"] and off <= TOLERANCE):
                best = {
                    "expected_bytes": rest,
                    "printed_bytes": printed,
                    "after_bytes": loaded,
                    "before_bytes": least[1],
                    "before_rank": least[0],
                    "fraction": fraction,
                    "off_bytes": off,
                    "naive_bytes": round(loaded * fraction),
                }
    return best


def _sglang(inv: Invocation, rank: str) -> Cap | None:
    values = inv.ranks[rank]
    told = sglang_expected(inv, rank)
    argument = _token_argument(inv, rank, told)
    if argument is not None:
        return argument
    if told is None or told["printed_bytes"] is None:
        return None
    closes = told["off_bytes"] <= TOLERANCE
    own = values.get("avail_before_load_bytes")
    other = own is not None and own - told["before_bytes"] > 0.02 * own
    return Cap(
        by="other_rank" if other and closes else "mem_fraction_static",
        rank=rank,
        closes=closes,
        expected_bytes=told["expected_bytes"],
        printed_bytes=told["printed_bytes"],
        figures={**told, "own_before_bytes": own, "fraction_rest": round(1 - told["fraction"], 4)},
    )


def _token_argument(inv: Invocation, rank: str, told: dict[str, Any] | None) -> Cap | None:
    """A max_total_tokens argument below what memory would have given."""
    values = inv.ranks[rank]
    held = tokens(inv, rank)
    asked = values.get("requested_max_total_tokens")
    if asked is None:
        found = [
            v["requested_max_total_tokens"]
            for v in inv.ranks.values()
            if "requested_max_total_tokens" in v
        ]
        asked = found[0] if found else setting(inv, "max_total_tokens")
    if not isinstance(asked, int) or isinstance(asked, bool) or asked <= 0:
        return None
    profiled = [v["profiled_max_tokens"] for v in inv.ranks.values() if "profiled_max_tokens" in v]
    size = kv_bytes(values)
    possible = profiled[0] if profiled else None
    rest = told["expected_bytes"] if told else None
    if possible is None and rest is not None and size and held:
        each = rank_token_bytes(values)
        possible = rest // each if each else round(rest / size * held)
    if held is None:
        limited = possible is not None and asked < possible
    else:
        limited = asked - PAGE_SLACK <= held <= asked and (possible is None or possible > asked)
    if not limited:
        return None
    return Cap(
        by="max_total_tokens",
        rank=rank,
        closes=True,
        expected_bytes=rest,
        printed_bytes=size,
        figures={"asked_tokens": asked, "held_tokens": held, "possible_tokens": possible},
    )


def _vllm(inv: Invocation, rank: str) -> Cap | None:
    values = inv.ranks[rank]
    requested, kv = vllm_requested(values), kv_bytes(values)
    share = values.get("gpu_memory_utilization", setting(inv, "gpu_memory_utilization"))
    fixed = setting(inv, "kv_cache_memory_bytes")
    if fixed is not None or any(line.pattern == "kv-fixed" for line in inv.lines):
        return Cap("kv_cache_memory_bytes", rank, True, kv, kv, {"asked_bytes": fixed})
    if setting(inv, "num_gpu_blocks_override") is not None:
        return Cap("num_gpu_blocks_override", rank, True, None, kv, {})
    rest = values.get("unaccounted_bytes")
    if requested is None or kv is None or rest is None:
        return None
    low, high = ORDINARY["vllm"]
    return Cap(
        by="gpu_memory_utilization",
        rank=rank,
        closes=low <= rest <= high,
        expected_bytes=kv + rest,
        printed_bytes=kv,
        figures={
            "requested_bytes": requested,
            "utilization": share,
            "used_bytes": requested - kv - rest,
            "total_bytes": values.get("total_bytes"),
        },
    )


def weights_of(values: Mapping[str, Any]) -> int | None:
    """Weights of a rank, printed or from the free figures around the load."""
    return sglang_weights(values)
