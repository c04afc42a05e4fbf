"""Starts made from each engine's identity: the planted cap is named, or it is unknown.

Taking any line away never makes a statement false, and no lever leaves its bounds.
"""

# ruff: noqa: E501  (log lines stand as engines print them)

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fleetmem.controller.startup.judge.diagnose import judge
from fleetmem.controller.startup.read.parse import parse
from fleetmem.controller.startup.starts import GIB

MANY = settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
NEVER = ("pool-shrank", "unaccounted-high", "free-rises", "negative-kv", "start-failed")


@dataclass(frozen=True)
class Planted:
    """A log whose every figure is known. ``room`` is the largest pool that fits, ``truth`` the
    figures that evidence may show, ``odd`` a rank whose GPU somebody else uses."""

    lines: list[str]
    cap: str
    pool: float
    share: float
    room: float | None
    truth: dict[str, float] = field(default_factory=dict)
    odd: str | None = None


def sizes(low: float, high: float) -> Any:
    return st.integers(round(low * 100), round(high * 100)).map(lambda n: n / 100)


@st.composite
def vllm(draw: Any) -> Planted:
    """One rank. Graphs are not estimated, counted apart, or counted inside the activations."""
    card = draw(st.sampled_from([24.0, 80.0, 140.0, 180.0]))
    share = draw(st.integers(60, 95)) / 100
    free = round(card * draw(st.integers(970, 995)) / 1000, 2)
    weights, other = round(card * draw(st.integers(10, 40)) / 100, 2), draw(sizes(0.1, 1.0))
    active, graphs = draw(sizes(0.5, 3.0)), draw(sizes(0.2, 2.0))
    estimate = draw(sizes(0.2, 2.0))
    form = draw(st.sampled_from(["none", "apart", "inside"]))
    asked = round(card * share, 2)
    counted = estimate if form != "none" else 0.0
    pool = round(asked - weights - other - active - counted, 2)
    head = "(EngineCore pid=9) INFO 09-20 10:02:00 [a.py:1] "
    used = (
        f"{weights + other:.2f} GiB for consumed memory (weights + non-torch), {active + counted:.2f} GiB for peak activation"
        if form == "inside"
        else f"{weights:.2f} GiB for weight, {active:.2f} GiB for peak activation, {other:.2f} GiB for non-torch memory"
    )
    fit = asked - weights - other - active - graphs - 150 / 1024
    lines = [
        f"(APIServer pid=3) INFO 09-20 10:00:00 [a.py:1] non-default args: {{'model': '/m', 'gpu_memory_utilization': {share}}}",
        f"{head}Model loading took {weights:.2f} GiB memory and 41.9 seconds",
        *([f"{head}Estimated CUDA graph memory: {estimate:.2f} GiB total"] if form != "none" else []),
        f"{head}Available KV cache memory: {pool:.2f} GiB",
        f"{head}GPU KV cache size: 400,000 tokens",
        f"{head}Graph capturing finished in 82 secs, took {graphs:.2f} GiB",
        f"{head}Free memory on device ({free}/{card} GiB) on startup. Desired GPU memory utilization is ({share}, {asked:.2f} GiB). Actual usage is {used}, and {graphs:.2f} GiB for CUDAGraph memory.",
        "(APIServer pid=3) INFO:     Application startup complete.",
    ]  # fmt: skip
    room = free - weights - other - active - graphs - 150 / 1024
    return Planted(lines, "gpu_memory_utilization", pool, share, room, {"right_bytes": fit})


@st.composite
def sglang(draw: Any) -> Planted:
    """Up to four ranks with a spread; one of them may be shared with another process."""
    many = draw(st.integers(1, 4))
    share = draw(st.integers(60, 95)) / 100
    base = draw(st.sampled_from([40.0, 78.0, 94.0]))
    free = [round(base - draw(st.integers(0, 30)) / 100, 2) for _ in range(many)]
    odd = None
    if many > 1 and draw(st.booleans()):
        number = draw(st.integers(0, many - 1))
        free[number] = round(base - base * draw(st.integers(10, 25)) / 100, 2)
        odd = f"TP{number}"
    weights = round(base * draw(st.integers(10, 30)) / 100, 2)
    pool = round(min(free) - weights - (1 - share) * min(free), 2)
    graphs = draw(sizes(0.2, 1.0))
    draft = draw(st.booleans())
    lines = [
        f"[2026-03-01 10:00:00] server_args=ServerArgs(mem_fraction_static={share}, tp_size={many}, disable_cuda_graph=False)"
    ]
    for n, one in enumerate(free):
        tag = f"[2026-03-01 10:00:10 TP{n}]"
        left = one - weights
        lines += [
            f"{tag} Load weight begin. avail mem={one:.2f} GB",
            f"{tag} Load weight end. elapsed=5 s, type=LlamaForCausalLM, quant=None, avail mem={left:.2f} GB, mem usage={weights:.2f} GB.",
            f"{tag} KV Cache is allocated. #tokens: 200000, KV size: {pool:.2f} GB",
            f"{tag} Memory pool end. avail mem={left - pool:.2f} GB",
            f"{tag} Capture cuda graph begin. This can take up to several minutes. avail mem={left - pool:.2f} GB",
            f"{tag} Capture cuda graph end. Time elapsed: 9 s. mem usage={graphs:.2f} GB. avail mem={left - pool - graphs:.2f} GB.",
        ]
        if draft:
            lines += [
                f"{tag} Load weight begin. avail mem={left - pool - graphs:.2f} GB",
                f"{tag} Load weight end. elapsed=5 s, type=LlamaForCausalLMEagle3, quant=None, avail mem={left - pool - graphs - 0.1:.2f} GB, mem usage=0.10 GB.",
                f"{tag} KV Cache is allocated. #tokens: 200000, K size: 0.05 GB, V size: 0.05 GB",
                f"{tag} Memory pool end. avail mem={left - pool - graphs - 0.2:.2f} GB",
            ]
    last = [one - weights - pool - graphs - (0.2 if draft else 0.0) for one in free]
    lines += [
        f"[2026-03-01 10:01:00 TP0] max_total_num_tokens=200000, chunked_prefill_size=8192, max_running_requests=48, context_len=32768, available_gpu_mem={last[0]:.2f} GB",
        "[2026-03-01 10:01:02] The server is fired up and ready to roll!",
    ]
    cap = "mem_fraction_static"
    return Planted(lines, cap, pool, share, pool + min(last), {"final": last[0]}, odd)


@st.composite
def trtllm(draw: Any) -> Planted:
    card, share = draw(st.sampled_from([80.0, 140.0])), draw(st.integers(50, 95)) / 100
    peak = round(card * draw(st.integers(20, 70)) / 100, 2)
    trial = draw(sizes(0.2, 1.0))
    pool = round((card - peak + trial) * share, 2)
    lines = [
        f"[01/16/2026-06:20:17] [TRT-LLM] [I] Peak memory during memory usage profiling (torch + non-torch): {peak:.2f} GiB, available KV cache memory when calculating max tokens: {pool:.2f} GiB, fraction is set {share}, kv size is 35136. device total memory {card:.2f} GiB, , tmp kv_mem {trial:.2f} GiB",
        f"[01/16/2026-06:20:18] [TRT-LLM] [I] Estimated max memory in KV cache : {pool:.2f} GiB",
        f"[TensorRT-LLM][INFO] [MemUsageChange] Allocated {pool:.2f} GiB for max tokens in paged KV cache (391680).",
        "INFO:     Application startup complete.",
    ]
    return Planted(lines, "free_gpu_memory_fraction", pool, share, card - peak + trial)


@st.composite
def lmdeploy(draw: Any) -> Planted:
    free, share = draw(st.integers(20_000, 90_000)), draw(st.integers(20, 95)) / 100
    pool = round(free * share)
    lines = [
        f"[TM][INFO] Object cache budget: {pool} MB from free {free} MB and ratio {share}",
        "INFO:     Application startup complete.",
    ]
    return Planted(lines, "cache_max_entry_count", pool / 1024, share, free / 1024)


def check(planted: Planted, lines: list[str], whole: bool) -> None:
    found = {one["rule"][8:]: one for one in judge(parse(lines), "file:x")}
    for rule in NEVER:
        assert rule not in found, (rule, found[rule]["evidence"]["say"])
    cap = found.get("capped-by")
    if whole:
        assert cap is not None
    if cap is not None:
        _cap(planted, cap, whole)
    differ = found.get("ranks-differ")
    if differ is not None and not _begins_at_a_drafts_pool(lines):
        assert planted.odd is not None
    if "foreign-at-start" in found:
        assert planted.odd is not None
    wrong = found.get("suggestion-wrong")
    assert wrong is None, wrong
    for rule in ("idle-memory", "pool-tiny"):
        if rule in found and "final" in planted.truth:
            told = found[rule]["evidence"]["free_bytes"] / GIB
            assert told <= planted.truth["final"] + 25.0


def _begins_at_a_drafts_pool(lines: list[str]) -> bool:
    """An unlabelled pool line without any load before it: nothing tells that it is a draft's."""
    first = next((line for line in lines if " TP" in line), "")
    return "K size" in first


def _cap(planted: Planted, cap: dict[str, Any], whole: bool) -> None:
    told = cap["evidence"]
    right = (planted.cap, "other_rank") if planted.odd else (planted.cap,)
    assert told["cause"] in right if whole else told["cause"] in (*right, "unknown"), told["say"]
    if told["cause"] == "unknown":
        assert cap["severity"] == "info"
        assert told["needs"]
        assert not told.get("levers")
        return
    assert told["closes"] is True, told["say"]
    assert abs(told["expected_bytes"] / GIB - planted.pool) < 0.2
    for lever in told.get("levers") or []:
        if "bound" not in lever:
            continue
        new = float(lever["change"].rpartition(" ")[2])
        assert planted.share < new <= lever["bound"] + 0.0006
        assert planted.room is not None
        assert lever["pool_bytes"] / GIB <= planted.room + 0.1


@MANY
@given(st.one_of(vllm(), sglang(), trtllm(), lmdeploy()))
def test_the_planted_cap_is_named(planted: Planted) -> None:
    check(planted, planted.lines, True)


@MANY
@given(st.one_of(vllm(), sglang(), trtllm(), lmdeploy()), st.data())
def test_no_line_taken_away_makes_a_statement_false(planted: Planted, data: st.DataObject) -> None:
    lines = list(planted.lines)
    for _ in range(data.draw(st.integers(1, 3))):
        if len(lines) > 1:
            del lines[data.draw(st.integers(0, len(lines) - 1))]
    check(planted, lines, False)


@MANY
@given(st.one_of(vllm(), sglang(), trtllm(), lmdeploy()), st.data())
def test_no_tail_and_no_head_makes_a_statement_false(planted: Planted, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, len(planted.lines) - 1))
    last = data.draw(st.integers(first, len(planted.lines)))
    check(planted, planted.lines[first:last], False)
