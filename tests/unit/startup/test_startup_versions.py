"""What versions before and after print: one test for each way of printing that was misread."""

# ruff: noqa: E501  (log lines stand as engines print them)

from __future__ import annotations

from typing import Any

from fleetmem.controller.startup.judge.diagnose import judge
from fleetmem.controller.startup.read.parse import parse
from fleetmem.controller.startup.starts import Invocation

GIB = 2**30
MIB = 2**20


def _newest(text: str) -> Invocation:
    (inv,) = parse(text.strip("\n").split("\n")).invocations
    return inv


def _found(text: str) -> dict[str, dict[str, Any]]:
    startup = parse(text.strip("\n").split("\n"))
    return {one["rule"].removeprefix("startup/"): one for one in judge(startup, "h")}


# SGLang


def test_a_small_draft_of_the_same_kind_is_no_second_start() -> None:
    inv = _newest("""
[2025-11-20 07:00:14 TP0] Load weight begin. avail mem=78.50 GB
[2025-11-20 07:00:17 TP0] Load weight end. type=QwenForCausalLM, dtype=torch.bfloat16, avail mem=17.00 GB, mem usage=61.50 GB.
[2025-11-20 07:00:17 TP0] KV Cache is allocated. #tokens: 20000, K size: 2.50 GB, V size: 2.50 GB
[2025-11-20 07:00:26 TP0] Load weight begin. avail mem=10.50 GB
[2025-11-20 07:00:27 TP0] Load weight end. type=QwenForCausalLM, dtype=torch.bfloat16, avail mem=9.25 GB, mem usage=1.25 GB.
[2025-11-20 07:00:27 TP0] KV Cache is allocated. #tokens: 20000, K size: 1.00 GB, V size: 1.00 GB
""")
    values = inv.ranks["TP0"]
    assert values["weights_bytes"] == 61.5 * GIB
    assert values["draft_weights_bytes"] == 1.25 * GIB
    assert (values["kv_cache_bytes"], values["draft_kv_cache_bytes"]) == (5 * GIB, 2 * GIB)


def test_the_same_weights_again_are_a_second_start() -> None:
    lines = [
        "[2025-11-20 07:00:14 TP0] Load weight begin. avail mem=78.50 GB",
        "[2025-11-20 07:00:17 TP0] Load weight end. type=QwenForCausalLM, dtype=torch.bfloat16, avail mem=66.00 GB, mem usage=12.50 GB.",
        "[2025-11-20 07:05:14 TP0] Load weight begin. avail mem=60.00 GB",
        "[2025-11-20 07:05:17 TP0] Load weight end. type=QwenForCausalLM, dtype=torch.bfloat16, avail mem=47.50 GB, mem usage=12.50 GB.",
    ]
    assert len(parse(lines).invocations) == 2


def test_pools_sized_after_the_graphs_replace_their_bounds() -> None:
    inv = _newest("""
[2026-11-02 09:01:14 TP0] Load weight begin. avail mem=138.00 GB
[2026-11-02 09:02:14 TP0] Load weight end. elapsed=60.01 s, type=KimiForCausalLM, quant=fp8, avail mem=58.00 GB, mem usage=80.00 GB.
[2026-11-02 09:02:19 TP0] Use sliding window memory pool. full_layer_tokens=600000, swa_layer_tokens=120000
[2026-11-02 09:02:19 TP0] KV Cache VA upper bound. dtype: torch.bfloat16, #tokens: 120000, K size: 5.00 GB, V size: 5.00 GB
[2026-11-02 09:02:19 TP0] KV Cache VA upper bound. dtype: torch.bfloat16, #tokens: 600000, K size: 15.00 GB, V size: 15.00 GB
[2026-11-02 09:02:19 TP0] SWAKVPool VA upper bound: 40.00 GB, swa size: 120000, full size: 600000
[2026-11-02 09:02:30 TP0] Capture target verify CUDA graph end. bs=[1, 2], elapsed=10.00 s, mem usage=1.25 GB, avail mem=53.75 GB.
[2026-11-02 09:02:38 TP0] Capture single-CG draft extend end. elapsed=2.00 s, mem usage=0.25 GB, avail mem=53.50 GB.
[2026-11-02 09:02:39 TP0] Capture UNO tree draft CUDA graph end. elapsed=1.00 s, mem usage=0.50 GB, avail mem=53.00 GB.
[2026-11-02 09:02:40 TP0] Post-capture KV sizing: max_running_requests 256 -> 200
[2026-11-02 09:02:40 TP0] Post-capture KV sizing: full_layer_tokens=480000, swa_layer_tokens=96000
[2026-11-02 09:02:40 TP0] Post-capture KV sizing: KV cache allocated. dtype: torch.bfloat16, #tokens: 480000, KV size: 32.00 GB, avail mem=21.00 GB
""")
    values = inv.ranks["TP0"]
    assert (values["full_layer_tokens"], values["swa_layer_tokens"]) == (480000, 96000)
    assert (values["kv_cache_bytes"], values["max_tokens"]) == (32 * GIB, 480000)
    assert (values["graph_bytes"], values["avail_after_graph_bytes"]) == (2 * GIB, 53 * GIB)
    assert inv.engine["max_running_requests"] == 200


def test_every_part_of_the_mamba_state_is_counted() -> None:
    inv = _newest("""
[2026-11-02 09:01:14 TP0] Load weight begin. avail mem=94.00 GB
[2026-11-02 09:02:14 TP0] Load weight end. elapsed=60.01 s, type=QwenHybrid, avail mem=54.00 GB, mem usage=40.00 GB.
[2026-11-02 09:02:15 TP0] Mamba Cache is allocated. max_mamba_cache_size: 380, conv_state size: 0.25GB, ssm_state size: 14.25GB
[2026-11-02 09:02:15 TP0] GDN ReplaySSM ring buffers allocated (record_len=8, fold=True): d=0.125GB, k=0.250GB, g=0.125GB
[2026-11-02 09:02:15 TP0] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 700000, K size: 8.00 GB, V size: 8.00 GB
[2026-11-02 09:02:15 TP0] int8 mamba checkpoint pool: 100 slots, 3.75GB (qdata 3.50 + scale 0.20 + conv 0.05); active mamba pool 380 slots
[2026-11-02 09:02:20 TP0] Capture target decode CUDA graph end. elapsed=1.00 s, mem usage=1.00 GB, avail mem=17.25 GB.
[2026-11-02 09:02:21 TP0] max_total_num_tokens=700000, chunked_prefill_size=8192, max_prefill_tokens=16384, max_running_requests=62, context_len=262144, available_gpu_mem=17.25 GB
""")
    values = inv.ranks["TP0"]
    assert values["mamba_cache_bytes"] == 15 * GIB
    assert values["mamba_checkpoint_bytes"] == 3.75 * GIB
    assert values["unaccounted_bytes"] == GIB


def test_a_state_pool_without_room_says_so() -> None:
    found = _found("""
[2026-11-02 09:01:14 TP0] Load weight begin. avail mem=94.00 GB
RuntimeError: Not enough GPU memory for hybrid (mamba/linear-attention) state cache. Computed max_mamba_cache_size=-4 (total_rest_memory=-1.25 GB, mamba_cache_per_req=82.50 MB).
""")["start-failed"]
    assert "-1.25 GiB were to be shared" in found["evidence"]["say"]
    assert "fewer requests" in found["advice"]


# vLLM


def test_workers_that_print_other_token_counts_use_the_smallest() -> None:
    inv = _newest("""
INFO 04-20 10:00:10 [core.py:61] Initializing a V1 LLM engine (v0.8.4) with config: model='/m/x', tensor_parallel_size=2
INFO 04-20 10:01:20 [kv_cache_utils.py:634] GPU KV cache size: 300,112 tokens
INFO 04-20 10:01:20 [kv_cache_utils.py:637] Maximum concurrency for 32,768 tokens per request: 9.15x
INFO 04-20 10:01:20 [kv_cache_utils.py:634] GPU KV cache size: 300,240 tokens
INFO 04-20 10:01:20 [kv_cache_utils.py:637] Maximum concurrency for 32,768 tokens per request: 9.16x
""")
    assert inv.engine == {"max_tokens": 300112, "max_model_len": 32768, "max_concurrency": 9.15}


def test_blocks_without_cpu_blocks_give_tokens() -> None:
    inv = _newest("""
INFO 02-20 00:00:40 core.py:50] Initializing an V1 LLM engine (v0.7.2) with config: model='/m/x'
INFO 02-20 00:01:02 kv_cache_utils.py:522] # GPU blocks: 91220
""")
    assert inv.engine == {"num_gpu_blocks": 91220, "max_tokens": 91220 * 16}


def test_sleeping_changes_no_figure_of_the_start() -> None:
    inv = _newest("""
INFO 07-10 10:00:10 [core.py:70] Initializing a V1 LLM engine (v0.9.2) with config: model='/m/x'
INFO 07-10 10:00:30 [gpu_model_runner.py:1801] Model loading took 14.2500 GiB and 3.300 seconds
INFO 07-10 10:05:00 [gpu_worker.py:98] Sleep mode freed 69.75 GiB memory, 1.25 GiB memory is still in use.
""")
    assert inv.ranks == {"_": {"weights_bytes": 14.25 * GIB}}
    assert inv.flags["sleep_kept_bytes"] == 1.25 * GIB


def test_running_out_when_warming_up_is_an_error_with_its_own_advice() -> None:
    log = """
(EngineCore_DP0 pid=9) INFO 10-06 15:57:16 [gpu_model_runner.py:2653] Model loading took 14.7500 GiB and 24.3 seconds
(EngineCore_DP0 pid=9) ERROR 10-06 15:57:53 [core.py:708] RuntimeError: CUDA out of memory occurred when warming up sampler with 768 dummy requests. Please try lowering `max_num_seqs` or `gpu_memory_utilization` when initializing the engine.
"""
    assert _newest(log).status == "failed"
    assert "max_num_seqs" in _found(log)["cuda-oom"]["advice"]


# Others


def test_tensorrt_llm_ranks_without_numbers_are_one_start() -> None:
    lines = ["[TensorRT-LLM][INFO] Loaded engine size: 3404 MiB"] * 4
    lines += [
        "[TensorRT-LLM][INFO] [MemUsageChange] Allocated 2265.50 MiB for execution context memory."
    ] * 4
    lines += [
        "[TensorRT-LLM][INFO] [MemUsageChange] Allocated 62.50 GiB for max tokens in paged KV cache (294848)."
    ] * 4
    (inv,) = parse(lines).invocations
    assert inv.ranks["_"] == {
        "weights_bytes": 3404 * MIB,
        "activation_peak_bytes": 2265.5 * MIB,
        "kv_cache_bytes": 62.5 * GIB,
        "max_tokens": 294848,
    }
    assert len(parse(lines + lines).invocations) == 2


def test_a_size_that_wrapped_is_negative() -> None:
    """llama.cpp prints the unaccounted rest without a sign."""
    inv = _newest("""
main: loading model
common_memory_breakdown_print: |   - CUDA0 (RTX 5060 Ti) | 15841 = 15630 + (15302 = 14736 +      72 +     493) + 17592186029325 |
common_memory_breakdown_print: |   - Host                |                   6371 =  6362 +       0 +       9                   |
""")
    assert inv.ranks["CUDA0"]["unaccounted_printed_bytes"] == (17592186029325 - 2**44) * MIB


def test_llama_cpp_does_not_size_its_pool_by_what_is_free() -> None:
    found = _found("""
main: loading model
common_memory_breakdown_print: |   - CUDA0 (RTX 5060 Ti) | 15841 = 14630 + (1302 = 1136 +      72 +      93) + 100 |
""")
    assert "pool-tiny" not in found


def test_host_devices_are_no_gpus() -> None:
    inv = _newest("""
load_tensors:      ROCm0 model buffer size =   604.00 MiB
llama_kv_cache_unified:      ROCm0 KV buffer size =   448.00 MiB
llama_context:  ROCm_Host  output buffer size =     0.50 MiB
llama_context:  ROCm_Host compute buffer size =    10.00 MiB
load_tensors:   CPU_REPACK model buffer size =    99.00 MiB
""")
    from fleetmem.controller.startup.judge.figures import gpu_ranks

    assert list(gpu_ranks(inv)) == ["ROCm0"]
    assert inv.ranks["ROCm_Host"] == {"output_bytes": 0.5 * MIB, "compute_bytes": 10 * MIB}


def test_weights_that_no_line_prints_are_the_difference() -> None:
    """SGLang before 0.4.3 prints what is free before and after, and no pool."""
    log = """
[2024-11-30 02:11:07] server_args=ServerArgs(model_path='/m/l', mem_fraction_static=0.87, tp_size=1)
[2024-11-30 02:11:21 TP0] Load weight begin. avail mem=78.50 GB
[2024-11-30 02:11:25 TP0] Load weight end. type=LlamaForCausalLM, dtype=torch.bfloat16, avail mem=70.75 GB
[2024-11-30 02:11:25 TP0] Memory pool end. avail mem=9.50 GB
"""
    inv = _newest(log)
    assert inv.ranks["TP0"]["weights_bytes"] == 7.75 * GIB
    assert "TP0.weights_bytes" in inv.derived
    assert "capped-by" not in _found(log)  # no pool is printed: nothing to compare


def test_each_kill_has_its_own_scope() -> None:
    """Kernels before 5 say it on the line before; a kill after another is not of its group."""
    inv = _newest("""
Feb 27 18:40:00 gpu-7 kernel: oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),task=python3,pid=51,uid=0
Feb 27 18:40:00 gpu-7 kernel: Killed process 51 (python3) total-vm:90kB, anon-rss:2kB, file-rss:1kB, shmem-rss:5kB
Feb 27 18:41:00 gpu-7 kernel: Out of memory: Kill process 77 (python3) score 901 or sacrifice child
Feb 27 18:41:00 gpu-7 kernel: Killed process 77 (python3), UID 0, total-vm:90kB, anon-rss:2kB, file-rss:1kB, shmem-rss:5kB
Feb 27 18:42:00 gpu-7 kernel: Memory cgroup out of memory: Kill process 78 (python3) score 901 or sacrifice child
Feb 27 18:42:00 gpu-7 kernel: Killed process 78 (python3), UID 0, total-vm:90kB, anon-rss:2kB, file-rss:1kB, shmem-rss:5kB
""")
    assert [(one["pid"], one["scope"]) for one in inv.errors] == [
        (51, "memcg"), (77, "global"), (78, "memcg"),
    ]  # fmt: skip


def test_what_ollama_plans_and_its_runner_allocates_is_one_figure() -> None:
    inv = _newest("""
time=2026-01-04T09:59:31.155-06:00 level=INFO source=sched.go:443 msg="system memory" total="62.5 GiB" free="41.0 GiB" free_swap="6.0 GiB"
time=2026-01-04T09:59:31.287-06:00 level=INFO source=device.go:240 msg="model weights" device=CUDA0 size="4.0 GiB"
time=2026-01-04T09:59:31.288-06:00 level=INFO source=device.go:245 msg="model weights" device=CPU size="256.0 MiB"
time=2026-01-04T09:59:31.514-06:00 level=INFO source=device.go:251 msg="kv cache" device=CUDA0 size="512.0 MiB"
time=2026-01-04T09:59:31.515-06:00 level=INFO source=device.go:262 msg="compute graph" device=CUDA0 size="300.0 MiB"
time=2026-01-04T09:59:31.518-06:00 level=INFO source=device.go:272 msg="total memory" size="5.0 GiB"
load_tensors:   CPU_Mapped model buffer size =   256.00 MiB
load_tensors:        CUDA0 model buffer size =  2048.00 MiB
load_tensors:        CUDA0 model buffer size =  2050.00 MiB
llama_kv_cache:      CUDA0 KV buffer size =   512.00 MiB
llama_context:      CUDA0 compute buffer size =   254.00 MiB
""")
    assert set(inv.ranks) == {"CUDA0", "CPU_Mapped"}
    gpu = inv.ranks["CUDA0"]
    assert (gpu["weights_bytes"], gpu["kv_cache_bytes"]) == (4098 * MIB, 512 * MIB)
    assert gpu["unaccounted_bytes"] == (5 * 1024 - 256 - 4098 - 512 - 254) * MIB


def test_llama_cpp_of_2023_prints_vram_without_a_device() -> None:
    inv = _newest("""
llm_load_tensors: system memory used  = 5506.50 MiB
llm_load_tensors: VRAM used           = 1701.50 MiB
llama_kv_cache_init: VRAM kv self = 162.50 MB
llama_new_context_with_model: KV self size  = 1600.00 MiB, K (f16):  800.00 MiB, V (f16):  800.00 MiB
llama_new_context_with_model: VRAM scratch buffer: 194.00 MiB
llama_new_context_with_model: total VRAM used: 2058.00 MiB (model: 1701.50 MiB, context: 356.50 MiB)
""")
    assert inv.ranks == {
        "CPU": {"weights_bytes": 5506.5 * MIB},
        "_": {
            "weights_bytes": 1701.5 * MIB,
            "kv_cache_bytes": 162.5 * MIB,
            "compute_bytes": 194 * MIB,
        },
    }
