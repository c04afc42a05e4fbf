# ruff: noqa: E501 - log lines
"""Judgements rest on what the log shows: each kind that was once said wrongly, with own numbers."""

from __future__ import annotations

from typing import Any

import pytest

from fleetmem.controller.render.kit.line import WIDTH, cells, plain
from fleetmem.controller.render.startup.startup import startup_lines
from fleetmem.controller.startup.judge.diagnose import judge
from fleetmem.controller.startup.read.parse import parse
from fleetmem.controller.startup.starts import GIB, Startup


def read(text: str) -> Startup:
    return parse(text.strip("\n").split("\n"))


def found(text: str, host: str = "file:x") -> dict[str, dict[str, Any]]:
    return {one["rule"].removeprefix("startup/"): one for one in judge(read(text), host)}


def say(text: str) -> dict[str, str]:
    return {rule: one["evidence"]["say"] for rule, one in found(text).items()}


def screen(text: str, **options: Any) -> str:
    startup = read(text)
    lines = startup_lines("h", startup.to_json(), judge(startup, "h"), **options)
    assert all(cells(plain(line)) <= WIDTH for line in lines)
    return "\n".join(plain(line) for line in lines)


VLLM = """
(APIServer pid=3) INFO 09-20 10:00:00 [api_server.py:1839] vLLM API server version 0.30.0
(APIServer pid=3) INFO 09-20 10:00:00 [utils.py:233] non-default args: {{'model': '/m', 'gpu_memory_utilization': {share}}}
(EngineCore pid=9) INFO 09-20 10:01:00 [a.py:1] Model loading took 40.0 GiB memory and 41.9 seconds
(EngineCore pid=9) INFO 09-20 10:02:00 [a.py:1] Estimated CUDA graph memory: {estimate} GiB total
(EngineCore pid=9) INFO 09-20 10:02:00 [a.py:1] CUDA graph memory profiling is enabled (default since v0.21.0). The current --gpu-memory-utilization={share} is equivalent to --gpu-memory-utilization=0.5 without CUDA graph memory profiling. To maintain the same effective KV cache size as before, increase --gpu-memory-utilization to {asked}. To disable, set X=0.
(EngineCore pid=9) INFO 09-20 10:02:00 [a.py:1] Available KV cache memory: {kv} GiB
(EngineCore pid=9) INFO 09-20 10:02:00 [a.py:1] GPU KV cache size: 400,000 tokens, Maximum concurrency for 100,000 tokens per request: 4.00x
(EngineCore pid=9) INFO 09-20 10:04:00 [a.py:1] Graph capturing finished in 82 secs, took {graphs} GiB
(EngineCore pid=9) INFO 09-20 10:04:00 [a.py:1] Free memory on device (138.0/140.0 GiB) on startup. Desired GPU memory utilization is ({share}, {wanted} GiB). Actual usage is 41.0 GiB for consumed memory (weights + non-torch), {peak} GiB for peak activation, and {graphs} GiB for CUDAGraph memory. Replace gpu_memory_utilization config with `--kv-cache-memory={advice}` (x GiB) to fit into requested memory.
(APIServer pid=3) INFO:     Application startup complete.
"""


def vllm(share: float = 0.9, estimate: float = 30.0, graphs: float = 34.0, **more: Any) -> str:
    """A start of a build that counts its estimate once, inside the peak of activations."""
    wanted, active = 140.0 * share, 5.0
    peak, kv = active + estimate, wanted - 41.0 - active - estimate
    advice = round((wanted - 41.0 - peak - graphs - 150 / 1024) * GIB)
    return VLLM.format(share=share, estimate=estimate, graphs=graphs, wanted=wanted, peak=peak,
                       kv=f"{kv:.2f}", advice=advice, asked=1.1143, **more)  # fmt: skip


def test_graphs_are_counted_once() -> None:
    """The printed peak holds the estimate: the sum closes, activations are not large."""
    rules = found(vllm())
    cap = rules["capped-by"]["evidence"]
    assert cap["closes"] is True
    assert "activations 5.00, estimated graphs 30.00" in cap["say"]
    assert "activation-large" not in rules


def test_the_engines_own_advice_is_computed_and_contradicted() -> None:
    """-14.15 GiB is printed where 45.85 fit (126 - 41 - 5 - 34 - 0.15)."""
    rules = found(vllm())
    wrong = rules["suggestion-wrong"]
    assert round(wrong["evidence"]["right_bytes"] / GIB, 2) == 45.85
    assert "15.85 GiB" in wrong["evidence"]["say"]
    assert "counts CUDA graphs twice" in wrong["evidence"]["say"]
    graphs = rules["graphs-counted"]["evidence"]
    assert "1.1143 that the engine suggests cannot be" in graphs["say"]


def test_no_lever_outside_its_bounds() -> None:
    levers = found(vllm())["capped-by"]["evidence"]["levers"]
    share = next(one for one in levers if one["change"].startswith("utilization"))
    assert 0.9 < float(share["change"].split()[1]) <= share["bound"] <= 138.0 / 140.0
    # 138 were free; less 41, 5, 34 and 0.15 leaves at most 57.85 for a pool of 50.0.
    assert share["pool_bytes"] <= 57.86 * GIB
    tight = found(vllm(share=0.98, estimate=30.0, graphs=48.0))["capped-by"]["evidence"]["levers"]
    assert not [one for one in tight if one["change"].startswith("utilization")]


def test_negative_graphs_are_no_figure() -> None:
    rules = found(vllm(estimate=1.0, graphs=-9.0))
    assert (
        "-9.00 GiB for CUDA graphs. That cannot be" in rules["graphs-negative"]["evidence"]["say"]
    )
    assert "suggestion-wrong" not in rules


def test_a_tail_without_its_head_says_what_is_missing() -> None:
    """No term is guessed: the sum is unknown, and the finding is no warning."""
    one = found(
        "(EngineCore pid=9) INFO 09-20 10:02:00 [a.py:1] Available KV cache memory: 50.2 GiB"
    )
    cap = one["capped-by"]
    assert (cap["severity"], cap["evidence"]["cause"], cap["evidence"]["closes"]) == (
        "info",
        "unknown",
        None,
    )
    assert (
        "the log does not show asked for, weights, activations, non-torch" in cap["evidence"]["say"]
    )
    assert cap["evidence"]["levers"] == []


def test_an_estimate_that_rose_is_at_fault() -> None:
    run = """
(APIServer pid={pid}) INFO 07-20 10:00:00 [api_server.py:1839] vLLM API server version {version}
(EngineCore pid={pid}1) INFO 07-20 10:01:00 [a.py:1] Model loading took 34.9 GiB memory and 4 seconds
(EngineCore pid={pid}1) INFO 07-20 10:02:00 [a.py:1] Estimated CUDA graph memory: {estimate} GiB total
(EngineCore pid={pid}1) INFO 07-20 10:02:00 [a.py:1] CUDA graph memory profiling is enabled (default since v0.21.0). The current --gpu-memory-utilization=0.9000 is equivalent to --gpu-memory-utilization=0.8900 without CUDA graph memory profiling.
(EngineCore pid={pid}1) INFO 07-20 10:02:00 [a.py:1] Available KV cache memory: {kv} GiB
(EngineCore pid={pid}1) INFO 07-20 10:04:00 [a.py:1] Graph capturing finished in 22 secs, took 0.75 GiB
"""
    text = run.format(pid=1, version="0.25.3", estimate="0.80", kv="40.00") + run.format(
        pid=2, version="0.26.1", estimate="5.80", kv="35.00"
    )
    shrank = found(text)["pool-shrank"]
    assert shrank["evidence"]["cause"] == "graphs_estimate"
    assert (
        "rose from 0.80 GiB to 5.80 GiB (version 0.25.3 → 0.26.1); the graphs took 0.75 GiB"
        in (shrank["evidence"]["say"])
    )


def test_a_shared_gpu_sizes_all_pools() -> None:
    """One rank's GPU is shared: no utilization is advised, the idle memory of others is told."""
    line = "(EngineCore_DP{n} pid=10{n}) INFO 08-29 09:03:00 [a.py:1] Free memory on device ({free}/95.00 GiB) on startup. Desired GPU memory utilization is (0.8, 76.00 GiB). Actual usage is 38.0 GiB for consumed memory (weights + non-torch), 6.00 GiB for peak activation, and 2.00 GiB for CUDAGraph memory."
    pool = "(EngineCore_DP{n} pid=10{n}) INFO 08-29 09:02:00 [a.py:1] Available KV cache memory: 32.00 GiB"
    text = "\n".join(
        [pool.format(n=n) for n in range(3)]
        + [line.format(n=n, free="76.20" if n == 0 else "94.20") for n in range(3)]
        + ["(EngineCore_DP0 pid=100) ERROR 08-29 11:03:00 [core.py:800] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB. GPU 0 has a total capacity of 95.00 GiB of which 151.00 MiB is free. Process 7001 has 18.00 GiB memory in use."]
    )  # fmt: skip
    rules = found(text)
    shared = rules["foreign-at-start"]["evidence"]["say"]
    assert "76.20 GiB of 95.00 GiB were free at the start on DP0" in shared
    assert "pid 7001 (18.00 GiB)" in shared
    assert "16.20 GiB stay idle on DP1, DP2" in shared
    advice = " ".join(str(one["advice"]) for one in rules.values())
    assert "utilization" not in advice
    assert "levers" not in rules["capped-by"]["evidence"]


SGLANG = """
[2026-08-27 10:00:00] server_args=ServerArgs(model_path='/m', mem_fraction_static=0.8, tp_size=1)
[2026-08-27 10:00:10 TP0] Load weight begin. avail mem=40.00 GB
[2026-08-27 10:01:10 TP0] Load weight end. elapsed=60 s, type=LlamaForCausalLM, quant=fp8, avail mem=30.00 GB, mem usage=10.00 GB.
[2026-08-27 10:01:12 TP0] KV Cache is allocated. #tokens: 220000, KV size: 22.00 GB
[2026-08-27 10:01:12 TP0] Memory pool end. avail mem=8.00 GB
[2026-08-27 10:01:30 TP0] Capture cuda graph end. Time elapsed: 12.00 s. mem usage=0.60 GB. avail mem=7.40 GB.
[2026-08-27 10:01:31 TP0] max_total_num_tokens=220000, chunked_prefill_size=4096, max_running_requests=16, context_len=32768, available_gpu_mem=7.40 GB
"""


def test_a_profile_below_the_argument_is_the_cap() -> None:
    text = SGLANG.replace("KV size: 22.00 GB", "KV size: 1.20 GB").replace(
        "[2026-08-27 10:01:12 TP0] KV",
        "[2026-08-27 10:01:11 TP0] max_total_tokens=900000 is larger than the profiled value 220000. Use the profiled value instead.\n[2026-08-27 10:01:12 TP0] KV",
    )
    cap = found(text)["capped-by"]["evidence"]
    assert cap["cause"] == "profiled_tokens"
    assert "Capped by the 220 000 tokens" in cap["say"]
    assert "900 000 were asked for" in cap["say"]
    assert "7.40 GiB stay free once ready" in cap["say"]


def test_one_line_tells_of_idle_memory() -> None:
    line = "[2026-06-28 15:16:45] max_total_num_tokens=1800000, chunked_prefill_size=8192, max_prefill_tokens=16384, max_running_requests=24, context_len=256000, available_gpu_mem=19.50 GB"
    idle = found(line)["idle-memory"]
    assert idle["severity"] == "info"
    assert idle["evidence"]["say"].startswith("19.50 GiB stay free once ready, beside 1 800 000")
    assert "at most 24 requests" in idle["evidence"]["say"]
    assert "not known" in idle["advice"]
    text = screen(line)
    assert "1 800 000 tokens · 256 000 context · 24 requests at most" in text


def test_a_tiny_pool_beside_idle_memory() -> None:
    """With and without the line that would close the sum; a known cause is no fact."""
    text = SGLANG.replace("KV size: 22.00 GB", "KV size: 0.25 GB")
    for one in (text, "\n".join(line for line in text.split("\n") if "weight begin" not in line)):
        tiny = found(one)["pool-tiny"]
        assert tiny["evidence"]["say"] == (
            "The pool is 0.25 GiB while 7.40 GiB stay free once ready. The log does not show why."
        )
        assert "one known cause is" in tiny["advice"]


def test_tags_without_a_clock_are_ranks() -> None:
    text = """
[TP0] Load weight begin. avail mem=90.00 GB
[TP1] Load weight begin. avail mem=38.00 GB
[TP0] Load weight end. elapsed=5 s, type=LlamaForCausalLM, avail mem=60.00 GB, mem usage=30.00 GB.
[TP1] Load weight end. elapsed=5 s, type=LlamaForCausalLM, avail mem=8.00 GB, mem usage=30.00 GB.
[TP0] KV Cache is allocated. #tokens: 150000, KV size: 5.00 GB
[TP1] KV Cache is allocated. #tokens: 150000, KV size: 5.00 GB
KV Cache is allocated. #tokens: 150000, KV size: 5.00 GB
"""
    startup = read(text)
    assert len(startup.invocations) == 1
    assert list(startup.invocations[0].ranks) == ["TP0", "TP1"]
    assert "draft_kv_cache_bytes" not in startup.invocations[0].ranks["TP0"]
    differ = found(text)["ranks-differ"]["evidence"]
    assert (differ["rank"], round(differ["gap_bytes"] / GIB)) == ("TP1", 52)
    assert "same-pool" not in found(text)


@pytest.mark.parametrize(
    ("tag", "key"),
    [
        ("[TP3]", "TP3"),
        ("[DP1 TP3]:", "DP1 TP3"),
        ("(TP3)", "TP3"),
        ("TP3:", "TP3"),
        ("[2026-03-01 10:00:00 PP1 TP3]", "PP1 TP3"),
        ("[2026-03-01 10:00:00 TP3] [DP0]", "TP3"),
        ("[rank3]:", "rank3"),
        ("[Rank 3]", "rank3"),
    ],
)
def test_a_tag_in_any_form(tag: str, key: str) -> None:
    newest = read(f"{tag} Memory pool end. avail mem=10.00 GB").newest
    assert newest is not None
    assert list(newest.ranks) == [key]


def test_one_rank_under_two_names() -> None:
    newest = read(
        "[TP1 EP1] Load weight begin. avail mem=90.00 GB\n[EP1 TP1] Memory pool end. avail mem=9.00 GB"
    ).newest
    assert newest is not None
    assert list(newest.ranks) == ["TP1 EP1"]


def ranks(spread: list[float], odd: dict[int, float] | None = None) -> str:
    """Eight ranks of one node whose free memory differs as on every real host."""
    lines = ["[2026-03-01 10:00:00] server_args=ServerArgs(mem_fraction_static=0.9, tp_size=8)"]
    for n, less in enumerate(spread):
        free = (odd or {}).get(n, 90.0 - less)
        lines += [
            f"[2026-03-01 10:00:10 TP{n}] Load weight begin. avail mem={free:.2f} GB",
            f"[2026-03-01 10:01:00 TP{n}] Load weight end. elapsed=5 s, type=LlamaForCausalLM, quant=None, avail mem={free - 60:.2f} GB, mem usage=60.00 GB.",
        ]
    least = min((odd or {}).get(n, 90.0 - less) for n, less in enumerate(spread))
    pool = least - 60 - 0.1 * least
    for n, less in enumerate(spread):
        free = (odd or {}).get(n, 90.0 - less)
        lines += [
            f"[2026-03-01 10:01:05 TP{n}] KV Cache is allocated. #tokens: 200000, KV size: {pool:.2f} GB",
            f"[2026-03-01 10:01:06 TP{n}] Memory pool end. avail mem={free - 60 - pool:.2f} GB",
        ]
    return "\n".join(lines)


SPREAD = [0.0, 0.4, 0.1, 0.3, 0.2, 0.35, 0.15, 0.25]


def test_ranks_that_spread_by_some_hundred_mib_are_one_row() -> None:
    text = ranks(SPREAD) + "\n" + ranks(SPREAD).replace("2026-03-01", "2026-03-02")
    shown = screen(text)
    assert "TP[0-7], 8 ranks equal within 0.4" in shown
    assert "CHANGE" in shown
    assert "03-02 10:00" in shown
    assert "200 000 tokens" in shown
    rules = found(text)
    assert rules["capped-by"]["evidence"]["cause"] == "mem_fraction_static"
    assert "ranks-differ" not in rules
    assert "same-pool" in rules


def test_the_fullest_gpu_is_never_hidden() -> None:
    odd = {2: 70.0, 5: 75.0, 6: 80.0, 7: 85.0}
    shown = screen(ranks(SPREAD, odd))
    assert "not equal" in shown
    rows = [line for line in shown.split("\n") if line.startswith("TP")]
    assert rows[0].startswith("TP2 ")
    assert "70.00" in rows[0]
    assert len(rows) == 5  # four odd ones and the equal rest
    every = screen(ranks(SPREAD), each_rank=True)
    assert [line.split()[0] for line in every.split("\n") if line.startswith("TP")] == [
        f"TP{n}" for n in range(8)
    ]


def test_a_rank_of_which_nothing_is_known_is_not_equal() -> None:
    text = """
[2026-05-07 13:39:12 TP0] Init torch distributed ends. elapsed=1.44 s, mem usage=0.37 GB
[2026-05-07 13:39:13 TP1] KV Cache is allocated. #tokens: 1029389, K size: 6.00 GB, V size: 6.00 GB
[2026-05-07 13:39:13 TP2] KV Cache is allocated. #tokens: 1029389, K size: 46.00 GB, V size: 46.00 GB
"""
    assert "3 ranks, not equal" in screen(text)
    differ = found(text)["ranks-differ"]["evidence"]
    assert "Not in the log: TP0" in differ["say"]


def test_free_memory_rises_only_where_lines_follow_each_other() -> None:
    """A draft's pool end is not compared with the target's graph begin."""
    text = (
        SGLANG.replace(
            "[2026-08-27 10:01:30 TP0] Capture cuda",
            "[2026-08-27 10:01:13 TP0] Capture cuda graph begin. This can take up to several minutes. avail mem=8.00 GB\n[2026-08-27 10:01:30 TP0] Capture cuda",
        )
        + """[2026-08-27 10:01:32 TP0] Load weight begin. avail mem=7.40 GB
[2026-08-27 10:01:40 TP0] Load weight end. elapsed=5 s, type=LlamaForCausalLMEagle3, quant=None, avail mem=6.50 GB, mem usage=0.90 GB.
[2026-08-27 10:01:41 TP0] KV Cache is allocated. #tokens: 220000, K size: 0.50 GB, V size: 0.50 GB
[2026-08-27 10:01:41 TP0] Memory pool end. avail mem=5.50 GB"""
    )
    assert "free-rises" not in found(text)
    late = SGLANG.replace(
        "[2026-08-27 10:01:30 TP0] Capture",
        "[2026-08-27 10:01:13 TP0] Capture cuda graph begin. This can take up to several minutes. avail mem=11.00 GB\n[2026-08-27 10:01:30 TP0] Capture",
    )
    assert round(found(late)["free-rises"]["evidence"]["gap_bytes"] / GIB, 2) == 3.0


def test_cards_of_other_sizes_are_not_compared() -> None:
    """A smaller card has less memory free; nobody holds the difference."""
    row = "common_memory_breakdown_print: |   - {} | {} = {} + (5000 = 4000 +    800 +    200) +      -4000 |"
    fit = "common_params_fit_impl: getting device memory data for initial parameters:"
    text = "\n".join(
        [fit, row.format("CUDA0 (A)", 24000, 23700), row.format("CUDA1 (B)", 12000, 11800)]
    )
    assert "foreign-at-start" not in found(text)
    held = text.replace("24000 = 23700", "24000 = 9000")
    assert found(held)["foreign-at-start"]["evidence"]["rank"] == "CUDA0"


def test_a_total_is_not_judged_without_the_part_in_ram() -> None:
    lines = """
level=INFO source=device.go:212 msg="model weights" device=CUDA0 size="3.0 GiB"
level=INFO source=device.go:223 msg="kv cache" device=CUDA0 size="0.5 GiB"
level=INFO source=device.go:244 msg="total memory" size="6.2 GiB"
"""
    assert "unaccounted-high" not in found(lines)
    known = (
        lines + 'level=INFO source=device.go:234 msg="model weights" device=CPU size="0.2 GiB"\n'
    )
    assert round(found(known)["unaccounted-high"]["evidence"]["unaccounted_bytes"] / GIB, 1) == 2.5


def test_the_engines_own_fraction_stands_without_the_lines_before_it() -> None:
    line = "ValueError: Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=0.80. Raise --mem-fraction-static above 0.851 (minimum viable = 1 - available/pre = 0.8504)."
    one = found(line)["weights-exceed-fraction"]
    assert "–" not in one["evidence"]["say"]
    assert "must be above 0.851" in one["evidence"]["say"]
    assert "Increase mem-fraction-static above 0.851" in one["advice"]
