"""Budgets of each engine, borders between starts, errors with the advice that is right."""

# ruff: noqa: E501  (log lines stand as engines print them)

from __future__ import annotations

from typing import Any

import pytest

from fleetmem.controller.startup.judge.diagnose import judge
from fleetmem.controller.startup.read.parse import parse
from fleetmem.controller.startup.starts import Invocation, Startup

GIB = 2**30


def _newest(text: str) -> Invocation:
    newest = parse(text.strip("\n").split("\n")).newest
    assert newest is not None
    return newest


def _gib(values: dict[str, Any], *names: str) -> list[float | None]:
    return [
        None if values.get(f"{n}_bytes") is None else round(values[f"{n}_bytes"] / GIB, 2)
        for n in names
    ]


def _found(startup: Startup) -> dict[str, dict[str, Any]]:
    return {one["rule"].removeprefix("startup/"): one for one in judge(startup, "h")}


# SGLang


def test_mamba_is_counted_beside_the_cache() -> None:
    inv = _newest("""
[2026-05-01 10:00:00 TP0] Load weight begin. avail mem=31.00 GB
[2026-05-01 10:00:05 TP0] Load weight end. elapsed=5.46 s, type=QwenHybrid, avail mem=20.00 GB, mem usage=11.00 GB.
[2026-05-01 10:00:06 TP0] Mamba Cache is allocated. max_mamba_cache_size: 90, conv_state size: 0.10GB, ssm_state size: 4.00GB intermediate_ssm_state_cache size: 1.00GB intermediate_conv_window_cache size: 0.20GB
[2026-05-01 10:00:06 TP0] KV Cache is allocated. #tokens: 100000, K size: 2.00 GB, V size: 2.00 GB
[2026-05-01 10:00:06 TP0] Memory pool end. avail mem=10.20 GB
[2026-05-01 10:00:09 TP0] Capture cuda graph end. Time elapsed: 4.86 s. mem usage=0.30 GB. avail mem=9.00 GB.
""")
    values = inv.ranks["TP0"]
    assert _gib(values, "mamba_cache", "kv_cache", "unaccounted") == [5.3, 4.0, 1.4]
    assert "TP0.available_final_bytes" in inv.derived


def test_sliding_window_pools_are_one_target() -> None:
    """Two pool lines with the window's and the full layers' tokens, then the draft's."""
    inv = _newest("""
[2026-05-01 10:00:06 TP0] Use sliding window memory pool. full_layer_tokens=50000, swa_layer_tokens=40000
[2026-05-01 10:00:06 TP0] KV Cache is allocated. #tokens: 40000, K size: 1.00 GB, V size: 1.00 GB
[2026-05-01 10:00:06 TP0] KV Cache is allocated. #tokens: 50000, K size: 0.50 GB, V size: 0.50 GB
[2026-05-01 10:00:07 TP0] KV Cache is allocated. #tokens: 50000, K size: 0.10 GB, V size: 0.10 GB
""")
    values = inv.ranks["TP0"]
    assert _gib(values, "kv_cache", "draft_kv_cache") == [3.0, 0.2]
    assert (values["max_tokens"], values["draft_max_tokens"]) == (50000, 50000)


def test_a_sliding_window_total_claims_both_pools() -> None:
    """Builds that name the window only after its pools."""
    inv = _newest("""
[2026-05-01 10:00:06 TP0] KV Cache is allocated. #tokens: 40000, K size: 1.00 GB, V size: 1.00 GB
[2026-05-01 10:00:06 TP0] KV Cache is allocated. #tokens: 50000, K size: 0.50 GB, V size: 0.50 GB
[2026-05-01 10:00:06 TP0] SWAKVPool mem usage: 3.00 GB, swa size: 40000, full size: 50000
[2026-05-01 10:00:07 TP0] KV Cache is allocated. #tokens: 50000, K size: 0.10 GB, V size: 0.10 GB
""")
    values = inv.ranks["TP0"]
    assert _gib(values, "kv_cache", "draft_kv_cache") == [3.0, 0.2]
    assert (values["max_tokens"], values["draft_max_tokens"]) == (50000, 50000)


def test_virtual_pools_are_no_memory() -> None:
    inv = _newest("""
[2026-11-02 09:02:01 TP1] KV Cache VA upper bound. dtype: torch.bfloat16, #tokens: 1203344, K size: 31.20 GB, V size: 31.20 GB
[2026-11-02 09:02:01 TP1] draft KV Cache VA upper bound. dtype: torch.bfloat16, #tokens: 1203344, KV size: 9.20 GB
[2026-11-02 09:02:44 TP1] Post-capture KV sizing: KV cache allocated. dtype: torch.bfloat16, #tokens: 611008, KV size: 31.70 GB
[2026-11-02 09:02:44 TP1] Post-capture KV sizing: draft KV cache allocated. dtype: torch.bfloat16, #tokens: 611008, KV size: 0.52 GB
""")
    values = inv.ranks["TP1"]
    assert _gib(values, "kv_cache", "draft_kv_cache") == [31.7, 0.52]
    assert values["max_tokens"] == 611008


def test_ranks_without_a_line_have_no_figure() -> None:
    """Nothing is copied from one rank to another."""
    inv = _newest("""
[2026-05-01 10:00:00 TP0] Load weight begin. avail mem=31.00 GB
[2026-05-01 10:00:00 TP1] Load weight begin. avail mem=31.00 GB
[2026-05-01 10:00:09 TP0] Capture cuda graph end. Time elapsed: 4.86 s. mem usage=0.30 GB. avail mem=9.00 GB.
""")
    assert "graph_bytes" not in inv.ranks["TP1"]
    assert "unaccounted_bytes" not in inv.ranks["TP1"]
    assert "weights_bytes" not in inv.ranks["TP0"]


def test_several_graphs_add_up() -> None:
    inv = _newest("""
[2026-06-02 09:02:10 TP1] Capture target prefill CUDA graph begin. backend=breakable, num_tokens=[4], avail mem=14.50 GB
[2026-06-02 09:02:40 TP1] Capture target prefill CUDA graph end. elapsed=3.10 s, mem usage=0.50 GB, avail mem=14.00 GB
[2026-06-02 09:02:41 TP1] Capture draft decode CUDA graph begin. avail mem=14.00 GB
[2026-06-02 09:02:44 TP1] Capture draft decode CUDA graph end. elapsed=3.10 s, mem usage=0.25 GB, avail mem=13.75 GB
""")
    values = inv.ranks["TP1"]
    assert _gib(values, "graph", "avail_before_graph", "avail_after_graph") == [0.75, 14.5, 13.75]


RUN = """
[2026-05-01 10:00:00 TP0] Load weight begin. avail mem=31.00 GB
[2026-05-01 10:00:00 TP1] Load weight begin. avail mem=31.00 GB
[2026-05-01 10:00:05 TP1] Load weight end. type=LlamaForCausalLM, avail mem=20.00 GB, mem usage=11.00 GB.
[2026-05-01 10:00:05 TP0] Load weight end. type=LlamaForCausalLM, avail mem=20.00 GB, mem usage=11.00 GB.
[2026-05-01 10:00:06 TP0] KV Cache is allocated. #tokens: 100000, K size: 2.00 GB, V size: 2.00 GB
[2026-05-01 10:00:06 TP1] KV Cache is allocated. #tokens: 100000, K size: 2.00 GB, V size: 2.00 GB
"""


def test_a_second_target_load_is_a_new_start() -> None:
    """Without any marker: free memory is back before the second load."""
    startup = parse((RUN + RUN.replace("100000", "90000")).split("\n"))
    tokens = [[v["max_tokens"] for v in inv.ranks.values()] for inv in startup.invocations]
    assert tokens == [[100000, 100000], [90000, 90000]]


def test_a_second_load_while_memory_is_taken_is_a_draft() -> None:
    draft = """
[2026-05-01 10:00:07 TP0] Load weight begin. avail mem=16.00 GB
[2026-05-01 10:00:08 TP0] Load weight end. type=LlamaForCausalLM2, avail mem=15.00 GB, mem usage=1.00 GB.
"""
    startup = parse((RUN + draft).split("\n"))
    assert len(startup.invocations) == 1
    assert _gib(startup.invocations[0].ranks["TP0"], "weights", "draft_weights") == [11.0, 1.0]


def test_lines_after_an_exit_are_a_new_start() -> None:
    startup = parse(
        [
            *RUN.split("\n"),
            "RuntimeError: Rank 1 scheduler died during initialization (exit code: -3). If exit code is -9 (SIGKILL), a common cause is the OS OOM killer.",
            "RuntimeError: sglang subprocess exited with code 1 before reporting ready",
            "[2026-05-01 10:10:00 TP0] max_total_num_tokens=7, max_running_requests=2, context_len=8, available_gpu_mem=3.00 GB",
        ]
    )
    assert [one.status for one in startup.invocations] == ["failed", "unknown"]
    (error,) = startup.invocations[0].errors
    assert (error["kind"], error["rank"], error["exit_code"]) == ("rank_died", 1, -3)
    assert startup.invocations[1].ranks["TP0"]["max_tokens"] == 7


@pytest.mark.parametrize(
    ("line", "needed"),
    [("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.", 0.875)],
)
def test_weights_that_exceed_the_fraction_need_a_larger_one(line: str, needed: float) -> None:
    text = [
        "[2026-05-01 10:00:00] server_args=ServerArgs(mem_fraction_static=0.8, tp_size=1)",
        "[2026-05-01 10:00:00] Load weight begin. avail mem=80.00 GB",
        "[2026-05-01 10:00:05] Load weight end. type=X, avail mem=10.00 GB, mem usage=70.00 GB.",
        line,
    ]
    found = _found(parse(text))["weights-exceed-fraction"]
    assert found["evidence"]["needed_fraction"] == needed
    assert found["advice"].startswith("Increase mem-fraction-static above 0.875")


def test_memory_that_comes_back_too_late() -> None:
    startup = parse(
        [
            "Memory pool end.   avail mem=0.40 GB",
            "Capture target verify CUDA graph begin.  avail mem=2.90 GB",
        ]
    )
    assert round(_found(startup)["free-rises"]["evidence"]["gap_bytes"] / GIB, 2) == 2.5


def test_an_unbalanced_node() -> None:
    startup = parse(
        [
            "[2026-05-01 10:00:00 TP3] The memory capacity is unbalanced. Some GPUs may be occupied by other processes. pre_model_load_memory=61.2, local_gpu_memory=94.0, local_gpu_memory * 0.9=84.6"
        ]
    )
    evidence = _found(startup)["ranks-differ"]["evidence"]
    assert round(evidence["gap_bytes"] / GIB, 1) == 32.8
    assert evidence["lines"][0]["rank"] == "TP3"


def test_advice_about_the_oom_killer_is_no_proof() -> None:
    startup = parse(
        [
            "RuntimeError: Rank 0 scheduler died during initialization (exit code: -9). If exit code is -9 (SIGKILL), a common cause is the OS OOM killer."
        ]
    )
    assert startup.newest is not None
    assert [e["kind"] for e in startup.newest.errors] == ["rank_died"]


def test_host_pools() -> None:
    startup = parse(
        [
            f"[2026-09-01 08:10:52 DP{n} TP{n}] Allocating kv hierarchical KV host pool: 5000 tokens, 50.00 GB host memory."
            for n in range(2)
        ]
        + [
            "[2026-09-01 08:10:53 DP0 TP0] Allocating 5.00 GB host memory for DSA indexer (layout=page_first)."
        ]
    )
    assert startup.newest is not None
    assert startup.newest.engine["host_kv_total_bytes"] == 105 * 10**9
    assert "host-tier-only" in _found(startup)


# vLLM


def _vllm(extra: str = "", util: str = "0.9", kv: str = "50.00") -> list[str]:
    return f"""
(EngineCore_DP0 pid=11) INFO 09-23 18:11:58 [core.py:76] Initializing a V1 LLM engine (v0.11.2) with config: model='/m'
(EngineCore_DP0 pid=11) INFO 09-23 18:12:21 [gpu_model_runner.py:2392] Model loading took 15.5000 GiB and 10.2 seconds
(EngineCore_DP0 pid=11) INFO 09-23 18:12:33 [gpu_worker.py:298] Available KV cache memory: {kv} GiB
(EngineCore_DP0 pid=11) INFO 09-23 18:12:34 [kv_cache_utils.py:864] GPU KV cache size: 400,000 tokens
(EngineCore_DP0 pid=11) INFO 09-23 18:12:39 [gpu_model_runner.py:3118] Graph capturing finished in 5 secs, took 0.67 GiB
(EngineCore_DP0 pid=11) INFO 09-23 18:12:39 [gpu_worker.py:391] Free memory on device (78.70/79.10 GiB) on startup. Desired GPU memory utilization is ({util}, 71.19 GiB). Actual usage is 15.5 GiB for weight, 5.60 GiB for peak activation, 0.08 GiB for non-torch memory, and 0.67 GiB for CUDAGraph memory.
{extra}(APIServer pid=10) INFO:     Application startup complete.
""".strip("\n").split("\n")  # fmt: skip


def test_vllm_budget_closes() -> None:
    startup = parse(_vllm())
    assert startup.engine == "vllm"
    inv = startup.newest
    assert inv is not None
    assert (inv.version, inv.status) == ("0.11.2", "ready")
    values = inv.ranks["DP0"]
    assert _gib(values, "weights", "requested", "unaccounted") == [15.5, 71.19, 0.01]
    cap = _found(startup)["capped-by"]["evidence"]
    assert (cap["cause"], cap["closes"]) == ("gpu_memory_utilization", True)


def test_the_more_precise_print_stays() -> None:
    """``15.5000 GiB`` from the loader is not replaced by the summary's ``15.5``."""
    values = parse(_vllm()[:2] + _vllm()[5:]).invocations[0].ranks["DP0"]
    assert values["weights_bytes"] == round(15.5 * GIB)


def test_counted_graphs_belong_to_the_budget() -> None:
    lines = [
        "(EngineCore pid=7) INFO 07-02 21:33:32 [gpu_model_runner.py:6588] Estimated CUDA graph memory: 1.00 GiB total",
        "(EngineCore pid=7) INFO 07-02 21:33:32 [gpu_worker.py:515] Available KV cache memory: 50.00 GiB",
        "(EngineCore pid=7) INFO 07-02 21:33:32 [gpu_worker.py:530] CUDA graph memory profiling is enabled (default since v0.21.0). The current --gpu-memory-utilization=0.9000 is equivalent to --gpu-memory-utilization=0.8874 without CUDA graph memory profiling. To maintain the same effective KV cache size as before, increase --gpu-memory-utilization to 0.9126. To disable, set X=0.",
        "(EngineCore pid=7) INFO 07-02 21:37:26 [gpu_worker.py:391] Free memory on device cuda:0 (78.70/79.10 GiB) on startup. Desired GPU memory utilization is (0.9, 71.19 GiB). Actual usage is 14.5 GiB for consumed memory (weights + non-torch), 5.60 GiB for peak activation, and 0.67 GiB for CUDAGraph memory.",
        "(EngineCore pid=7) INFO 07-02 21:37:26 [kv_cache_utils.py:2395] GPU KV cache size: 661,808 tokens, Maximum concurrency for 32,768 tokens per request: 20.20x",
    ]
    startup = parse(lines)
    inv = startup.newest
    assert inv is not None
    values = inv.ranks["_"]
    assert values["graph_counted"] is True
    assert values["effective_utilization"] == 0.8874
    assert _gib(values, "unaccounted") == [0.09]
    found = _found(startup)
    assert "graphs-counted" in found
    assert "tokens-derived" in found


def test_negative_cache() -> None:
    lines = [
        *_vllm(kv="-4.43")[:3],
        "(EngineCore_DP0 pid=11) ERROR 09-23 18:12:33 [core.py:708] EngineCore failed to start.",
        "(EngineCore_DP0 pid=11) ERROR 09-23 18:12:33 [core.py:708] ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`.",
    ]
    inv = parse(lines).newest
    assert inv is not None
    assert inv.status == "failed"
    assert [e["kind"] for e in inv.errors] == ["negative_kv", "no_cache_blocks"]
    assert inv.errors[0]["value_bytes"] == round(-4.43 * GIB)
    assert inv.ranks["DP0"]["kv_cache_bytes"] == 0
    assert "shorter context" in _found(parse(lines))["negative-kv"]["advice"]


def test_v0_tokens_are_derived() -> None:
    inv = parse(
        ["# GPU blocks: 1000, # CPU blocks: 500", "Loading model weights took 1.0 GB"]
    ).newest
    assert inv is not None
    assert inv.engine["max_tokens"] == 16000
    assert "engine.max_tokens" in inv.derived


def test_workers_with_a_pid_only() -> None:
    parts = "INFO 04-12 08:21:19 [worker.py:267] model weights take 21.00GiB; non_torch_memory takes 0.20GiB; PyTorch activation peak memory takes 0.30GiB; the rest of the memory reserved for KV Cache is 1.50GiB."
    two = parse([f"(VllmWorkerProcess pid=5) {parts}", f"(VllmWorkerProcess pid=6) {parts}"]).newest
    one = parse([f"(VllmWorkerProcess pid=5) {parts}"]).newest
    assert two is not None
    assert one is not None
    assert list(two.ranks) == ["pid5", "pid6"]
    assert list(one.ranks) == ["_"]
    assert one.ranks["_"]["pid"] == 5


def test_a_new_engine_pid_is_a_new_start() -> None:
    """Late lines of the old process stay with it."""
    line = "(EngineCore_DP0 pid={pid}) INFO 09-23 18:12:33 [gpu_worker.py:298] Available KV cache memory: {kv} GiB"
    late = "(EngineCore_DP0 pid=1) INFO 09-23 18:13:39 [gpu_model_runner.py:3118] Graph capturing finished in 5 secs, took 0.67 GiB"
    startup = parse([line.format(pid=1, kv="9.00"), line.format(pid=2, kv="8.00"), late])
    assert [_gib(inv.ranks["DP0"], "kv_available", "graph") for inv in startup.invocations] == [
        [9.0, 0.67],
        [8.0, None],
    ]


def test_several_engine_cores_are_one_start() -> None:
    lines = []
    for n in range(2):
        lines += [
            f"(EngineCore_DP{n} pid={n + 5}) INFO 09-23 18:11:58 [core.py:76] Initializing a V1 LLM engine (v0.11.2) with config: model='/m'",
            f"(EngineCore_DP{n} pid={n + 5}) INFO 09-23 18:12:21 [r.py:2392] Model loading took 15.5000 GiB and 10.2 seconds",
        ]
    startup = parse(lines)
    assert [list(inv.ranks) for inv in startup.invocations] == [["DP0", "DP1"]]


def test_crash_loop() -> None:
    """The same error five times is one finding; each start counts its error once."""
    lines = []
    for n in range(5):
        error = f"ValueError: Free memory on device cuda:0 (1.0{n}/23.56 GiB) on startup is less than desired GPU memory utilization (0.9, 21.2 GiB)."
        lines += [
            f"Feb 26 17:4{n}:22 h python3[{n + 50}]: (EngineCore_DP0 pid={n + 50}) ERROR 02-26 17:41:39 [core.py:946] {error}",
            f"Feb 26 17:4{n}:22 h python3[{n + 50}]: (EngineCore_DP0 pid={n + 50}) {error}",
            f"Feb 26 17:4{n}:24 h systemd[1]: v.service: Main process exited, code=exited, status=1/FAILURE",
            f"Feb 26 17:4{n}:24 h systemd[1]: v.service: Failed with result 'exit-code'.",
            f"Feb 26 17:4{n}:29 h systemd[1]: v.service: Scheduled restart job, restart counter is at {n + 1}.",
        ]
    startup = parse(lines)
    assert [
        (inv.status, len(inv.errors), inv.restart_counter_after) for inv in startup.invocations
    ] == [("failed", 1, n + 1) for n in range(5)]
    found = _found(startup)
    assert found["crash-loop"]["evidence"]["failures"] == 5
    assert round(found["free-below-requested"]["evidence"]["foreign_bytes"] / GIB, 2) == 22.52


def test_context_larger_than_the_pool() -> None:
    found = _found(
        parse(
            [
                "ValueError: To serve at least one request with the models's max seq len (131072), (16.00 GiB KV cache is needed, which is larger than the available KV cache memory (11.25 GiB)."
            ]
        )
    )
    assert found["context-exceeds-pool"]["evidence"]["max_model_len"] == 131072


def test_a_longer_context_costs_cache() -> None:
    run = """
Loading model weights took 15.0000 GB
Memory profiling results: total_gpu_memory=24.00GiB peak_torch_memory={peak}GiB non_torch_memory=0.40GiB kv_cache_size={kv}GiB gpu_memory_utilization=0.90
Maximum concurrency for {length} tokens per request: 1.56x
"""
    text = run.format(peak="17.20", kv="4.00", length=20000) + run.format(
        peak="18.70", kv="2.50", length=40000
    )
    evidence = _found(parse(text.split("\n")))["pool-shrank"]["evidence"]
    assert evidence["cause"] == "max_model_len"


# The others


def test_llamacpp_projection_and_end() -> None:
    """The fit phase only projects; the table at the end is what was."""
    row = "llama_memory_breakdown_print: |   - CUDA0 (RTX)   | 32000 = {free} + (21000 = 16000 +    4500 +     500) +      {rest} |"
    fit = [
        "common_params_fit_impl: getting device memory data for initial parameters:",
        row.format(free=30000, rest=-19000),
    ]
    projected = parse(fit).newest
    assert projected is not None
    values = projected.ranks["CUDA0"]
    assert values["projected"] is True
    assert values["initial_free_bytes"] == 30000 * 2**20
    assert "unaccounted_bytes" not in values
    loaded = [
        "load_tensors:        CUDA0 model buffer size =  16000.00 MiB",
        row.format(free=10000, rest=1000),
    ]
    ended = parse(fit + loaded).newest
    assert ended is not None
    values = ended.ranks["CUDA0"]
    assert "projected" not in values
    assert values["unaccounted_bytes"] == 1000 * 2**20
    assert values["weights_bytes"] == 16000 * 2**20


def test_llamacpp_buffers_add_up() -> None:
    inv = _newest("""
llama_kv_cache:      CUDA0 KV buffer size =  1000.00 MiB
llama_kv_cache:      CUDA0 KV buffer size =   500.00 MiB
load_tensors: offloaded 29/33 layers to GPU
""")
    assert inv.ranks["CUDA0"]["kv_cache_bytes"] == 1500 * 2**20
    assert (inv.engine["layers_offloaded"], inv.engine["layers_total"]) == (29, 33)


def test_ollama_two_devices() -> None:
    lines = ['msg="system memory" total="62.5 GiB" free="40.0 GiB"']
    for n in range(2):
        lines.append(
            f'msg="gpu memory" id=GPU-{n} library=CUDA available="1{n}.0 GiB" free="2{n}.0 GiB"'
        )
    for n in range(2):
        lines.append(f'msg="model weights" device=CUDA{n} size="{n + 4}.0 GiB"')
    startup = parse(
        [f"time=2026-05-05T01:30:33.796+08:00 level=INFO source=a.go:1 {line}" for line in lines]
    )
    assert startup.engine == "ollama"
    assert startup.newest is not None
    shown = {
        k: _gib(v, "initial_free", "available", "weights") for k, v in startup.newest.ranks.items()
    }
    assert shown == {"CUDA0": [20.0, 10.0, 4.0], "CUDA1": [21.0, 11.0, 5.0]}


@pytest.mark.parametrize(
    ("line", "engine", "field", "value"),
    [
        (
            '{"timestamp":"2026-05-01T10:00:10Z","level":"INFO","fields":{"message":"Setting max batch total tokens to 31000"},"target":"text_generation_router"}',
            "tgi",
            "max_tokens",
            31000,
        ),
        ("[TM][INFO] [BlockManager] max_block_count = 5733", "lmdeploy", None, 5733),
    ],
)
def test_token_only_engines(line: str, engine: str, field: str | None, value: int) -> None:
    startup = parse([line])
    assert startup.engine == engine
    assert startup.newest is not None
    got = startup.newest.engine[field] if field else startup.newest.ranks["_"]["num_gpu_blocks"]
    assert got == value


def test_tgi_is_ready_in_json() -> None:
    row = '{"timestamp":"2026-03-09T05:08:19Z","level":"INFO","message":"Connected","target":"text_generation_router"}'
    newest = parse([row]).newest
    assert newest is not None
    assert newest.status == "ready"


# Errors


@pytest.mark.parametrize(
    ("trace", "phase", "word"),
    [
        (
            '  File "/x/sglang/srt/model_executor/model_runner.py", line 1, in init_memory_pool',
            "kv_pool",
            "Decrease",
        ),
        (
            '  File "/x/sglang/srt/model_executor/cuda_graph_runner.py", line 1, in capture_one_batch_size',
            "graph_capture",
            "Decrease",
        ),
        (
            '  File "/x/vllm/v1/worker/gpu_worker.py", line 1, in load_model',
            "weights",
            "Use more GPUs",
        ),
    ],
)
def test_where_memory_ran_out(trace: str, phase: str, word: str) -> None:
    oom = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 448.00 MiB. GPU 5 has a total capacity of 79.10 GiB of which 101.88 MiB is free."
    startup = parse(["Traceback (most recent call last):", trace, oom])
    assert startup.newest is not None
    (error,) = startup.newest.errors
    assert (error["phase"], error["gpu"], startup.newest.status) == (phase, 5, "failed")
    assert _found(startup)["cuda-oom"]["advice"].startswith(word)


def test_an_error_printed_twice_counts_once() -> None:
    oom = "CUDA out of memory. Tried to allocate 448.00 MiB. GPU 5 has a total capacity of 79.10 GiB of which 101.88 MiB is free."
    startup = parse([oom, f"(Worker_TP5 pid=9) ERROR 04-12 08:21:19 [x.py:1] {oom}"])
    assert startup.newest is not None
    (error,) = startup.newest.errors
    assert error["rank"] == "TP5"


def test_quoted_source_is_no_error() -> None:
    startup = parse(
        [
            '    raise RuntimeError(f"NCCL error: {error_str}")',
            "RuntimeError: NCCL error: unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
        ]
    )
    assert startup.newest is not None
    assert [(e["kind"], e["text"]) for e in startup.newest.errors] == [
        ("nccl", "unhandled cuda error")
    ]


def test_the_kernel_kills() -> None:
    startup = parse(
        [
            "Feb 27 18:40:00 h kernel: Memory cgroup out of memory: Killed process 51 (sglang::schedul) total-vm:9kB, anon-rss:2kB, file-rss:1kB, shmem-rss:5kB, UID:0"
        ]
    )
    assert startup.newest is not None
    (error,) = startup.newest.errors
    assert (error["kind"], error["scope"], error["shmem_rss_bytes"]) == ("host_oom", "memcg", 5120)
    assert _found(startup)["host-oom"]["severity"] == "critical"


def test_xid() -> None:
    found = _found(
        parse(
            [
                "Feb 27 18:40:00 h kernel: NVRM: Xid (PCI:0009:01:00): 79, pid=5101, name=python3, GPU has fallen off the bus."
            ]
        )
    )
    assert "fallen off the bus" in found["xid"]["evidence"]["say"]


def test_shm_broadcast_waits_are_no_error() -> None:
    startup = parse(
        [
            *_vllm(),
            "(EngineCore_DP0 pid=11) INFO 10-06 15:57:53 [shm_broadcast.py:466] No available shared memory broadcast block found in 60 seconds.",
        ]
    )
    assert startup.newest is not None
    assert startup.newest.errors == []


def test_memory_looking_lines_without_a_pattern_are_listed() -> None:
    startup = parse(
        ["[2026-05-01 10:00:00 TP0] the frobnicator took 3.5 GiB of everything", "GET /metrics 200"]
    )
    assert startup.unmatched_count == 1
    assert startup.unmatched == ("the frobnicator took 3.5 GiB of everything",)


# systemd


def test_other_units_are_no_border() -> None:
    """A whole host's journal carries other units' starts, stops and failures."""
    other = [
        "Feb 26 17:00:01 h systemd[1]: Started cron.service - Regular background program.",
        "Feb 26 17:00:02 h systemd[1]: Started Session 5 of User root.",
    ]
    run = [f"Feb 26 17:00:03 h python3[9]: {line}" for line in RUN.strip().split("\n")]
    noise = [
        "Feb 26 17:00:04 h systemd[1]: Started apt-daily.service - Daily apt download activities.",
        "Feb 26 17:00:04 h systemd[1]: apt-daily.service: Main process exited, code=exited, status=1/FAILURE",
        "Feb 26 17:00:04 h systemd[1]: apt-daily.service: Deactivated successfully.",
    ]
    more = "Feb 26 17:00:05 h python3[9]: [2026-05-01 10:00:07 TP0] Memory pool end. avail mem=15.00 GB"
    own = "Feb 26 17:00:00 h systemd[1]: Started sglang-a.service - SGLang A."
    startup = parse([own, *other, *run[:3], *noise, *run[3:], *noise, more])
    (inv,) = startup.invocations
    assert inv.status == "unknown"
    assert startup.unit == "sglang-a"
    assert _gib(inv.ranks["TP0"], "avail_after_pool") == [15.0]


def test_starts_that_say_nothing_still_count() -> None:
    """A unit that fails before its engine speaks."""
    lines = []
    for n in range(3):
        lines += [
            f"Feb 26 17:0{n}:00 h systemd[1]: Started vllm-a.service - vLLM A.",
            f"Feb 26 17:0{n}:01 h systemd[1]: vllm-a.service: Main process exited, code=exited, status=2/INVALIDARGUMENT",
            f"Feb 26 17:0{n}:01 h systemd[1]: vllm-a.service: Failed with result 'exit-code'.",
            f"Feb 26 17:0{n}:02 h systemd[1]: vllm-a.service: Scheduled restart job, restart counter is at {n + 4}.",
        ]
    startup = parse(lines)
    assert [(inv.status, inv.restart_counter_after) for inv in startup.invocations] == [
        ("failed", 4),
        ("failed", 5),
        ("failed", 6),
    ]
    assert "crash-loop" in _found(startup)


def test_a_unit_killed_for_memory() -> None:
    startup = parse(
        [
            "Feb 26 17:00:00 h systemd[1]: Started vllm-a.service - vLLM A.",
            *(f"Feb 26 17:00:03 h python3[9]: {line}" for line in _vllm()),
            "Feb 26 18:00:00 h systemd[1]: vllm-a.service: A process of this unit has been killed by the OOM killer.",
            "Feb 26 18:00:00 h systemd[1]: vllm-a.service: Main process exited, code=killed, status=9/KILL",
            "Feb 26 18:00:00 h systemd[1]: vllm-a.service: Failed with result 'oom-kill'.",
        ]
    )
    (inv,) = startup.invocations
    assert (inv.status, [e["kind"] for e in inv.errors]) == ("failed", ["host_oom"])
    assert inv.started == "Feb 26 17:00:00"


def test_a_stop_is_no_failure() -> None:
    startup = parse(
        [
            *(f"Feb 26 17:00:03 h python3[9]: {line}" for line in _vllm()),
            "Feb 26 18:00:00 h systemd[1]: vllm-a.service: Main process exited, code=killed, status=15/TERM",
            "Feb 26 18:00:00 h systemd[1]: Stopped vllm-a.service - vLLM A.",
        ]
    )
    assert [inv.status for inv in startup.invocations] == ["stopped"]


def test_a_draft_repeats_the_set_up() -> None:
    """What the draft's own runner prints again does not replace the target's."""
    inv = _newest("""
[2026-05-01 10:00:00 TP0] Init torch distributed ends. elapsed=1.44 s, mem usage=0.37 GB
[2026-05-01 10:00:00 TP0] Load weight begin. avail mem=31.00 GB
[2026-05-01 10:00:05 TP0] Load weight end. type=X, avail mem=20.00 GB, mem usage=11.00 GB.
[2026-05-01 10:00:06 TP0] Using KV cache dtype: torch.float8_e4m3fn
[2026-05-01 10:00:06 TP0] KV Cache is allocated. #tokens: 1000, K size: 2.00 GB, V size: 2.00 GB
[2026-05-01 10:00:07 TP0] Init torch distributed ends. elapsed=0.00 s, mem usage=0.00 GB
[2026-05-01 10:00:07 TP0] Using KV cache dtype: torch.bfloat16
[2026-05-01 10:00:07 TP0] KV Cache is allocated. #tokens: 1000, K size: 0.10 GB, V size: 0.10 GB
""")
    values = inv.ranks["TP0"]
    assert (_gib(values, "dist_init"), values["kv_dtype"]) == ([0.37], "float8_e4m3fn")


def test_clock_only_brackets() -> None:
    """Old SGLang prints the time without a date."""
    inv = _newest("[17:05:54 TP1] Load weight begin. avail mem=78.59 GB")
    assert _gib(inv.ranks["TP1"], "avail_before_load") == [78.59]
