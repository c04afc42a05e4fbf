"""What stands before a message: containers, journals, Ray, loggers, ranks."""

# ruff: noqa: E501  (log lines stand as engines print them)

from __future__ import annotations

import pytest

from fleetmem.controller.startup.read.prefix import pieces, split_head

MESSAGE = "Memory pool end. avail mem=4.49 GB"
SGLANG = f"[2026-03-01 11:52:01 TP3] {MESSAGE}"


@pytest.mark.parametrize(
    "prefix",
    [
        "",
        "2026-03-01T11:52:02.713348595Z ",
        "2026-03-01T11:52:02.713348595+01:00 ",
        "2026-03-01T11:52:02.7Z stdout F ",
        "2026-03-01 12:52:01.609 | ",
        "sglang-1  | ",
        "sglang-gpu-7-1 | ",
        "  | ",
        "Mar 01 11:52:01 gpu-7 python3[4101]: ",
        "Mar  1 11:52:01 gpu-7.example.org sglang[4101]: ",
        "2026-03-01T11:52:01+0000 gpu-7 python3[4101]: ",
        "2026-03-01T11:52:01.123456+00:00 gpu-7 python3[4101]: ",
        "Sun 2026-03-01 11:52:01 UTC gpu-7 python3[4101]: ",
        "[  123.456789] gpu-7 python3[4101]: ",
        "2026-03-01T11:52:01+0000 gpu-7 dockerd[77]: sglang-1  | ",
        "2026-03-01T11:52:02.7Z 2026-03-01 12:52:01.609 | sglang-1  | ",
        "[pod/kimi-0/server] ",
        "[1,3]<stdout>:",
        "3: ",
        "1772365921.123456 gpu-7 python3[4101]: ",
        "[  123.456789 <    0.000012 >] gpu-7 python3[4101]: ",
        "    MESSAGE=",
        '        "MESSAGE" : "',
        # Nobody's list holds all that may stand there: the engine's own head decides.
        "kimi-6c9f7bd4d5-4x2qk server ",
        "stack_kimi.1.x8s9a7dk2@gpu-7    | ",
        "[rank3]: ",
        "[node-3] ",
        "gh200-01: ",
        "server.log:17:",
        "    ",
        "> ",
        "Feb 26 17:41:22 ",
        "2026-02-26 17:41:22 ",
        "2026-02-26 17:41:22,123 - INFO - ",
        "2026-02-26 17:41:22.123 | INFO     | app.run:main:12 - ",
        "2026-02-26T17:41:22.123456Z  INFO core.run_engine: ",
        "1772365921000\t",
        "(pid=4711) ",
    ],
)
def test_outer_prefixes_come_off(prefix: str) -> None:
    head = split_head(prefix + SGLANG)
    assert (head.text, head.rank, head.time) == (MESSAGE, "TP3", "2026-03-01 11:52:01")


def test_the_journal_names_the_process() -> None:
    head = split_head("Feb 26 17:41:22 gpu-7 python3.12[409240]: hello")
    assert (head.text, head.name, head.name_pid) == ("hello", "python3.12", 409240)
    assert head.time == "Feb 26 17:41:22"


@pytest.mark.parametrize(
    ("tag", "rank"),
    [
        ("[2026-03-01 11:52:01]", None),
        ("[2026-03-01 11:52:01.123]", None),
        ("[2026-03-01 11:52:01 TP0]", "TP0"),
        ("[2026-03-01 11:52:01 DP2 TP2]", "DP2 TP2"),
        ("[2026-03-01 11:52:01 DP1 PP0 ATTN_CP0 MOE_DP1 TP3 EP3]", "DP1 PP0 ATTN_CP0 MOE_DP1 TP3 EP3"),
        ("[2026-03-01 11:52:01 DP1 TP3 EP3 PP0]", "DP1 TP3 EP3 PP0"),
        ("[2026-03-01 11:52:01 TP1 EP1]", "TP1 EP1"),
        ("(VllmWorkerProcess pid=521) INFO 04-12 08:21:19 [worker.py:267]", "pid521"),
        ("(VllmWorker rank=3 pid=521) INFO 04-12 08:21:19 [worker.py:267]", "rank3"),
        ("(Worker_TP3 pid=9) INFO 04-12 08:21:19 [gpu_worker.py:298]", "TP3"),
        ("(Worker_DP0_PP1_TP2_EP6 pid=9) INFO 04-12 08:21:19 [gpu_worker.py:298]", "DP0 PP1 TP2 EP6"),
        ("(Worker_PP0_TP1_DCP1 pid=9) INFO 04-12 08:21:19 [gpu_worker.py:298]", "PP0 TP1 DCP1"),
        ("(Worker pid=9) INFO 04-12 08:21:19 [gpu_worker.py:298]", "pid9"),
        ("(EngineCore_DP0 pid=9) INFO 04-12 08:21:19 [gpu_worker.py:298]", "DP0"),
        ("(EngineCore_0 pid=9) INFO 04-12 08:21:19 [gpu_worker.py:298]", "DP0"),
        ("(EngineCore pid=9) INFO 04-12 08:21:19 [gpu_worker.py:298]", "_"),
        ("(APIServer pid=9) INFO 04-12 08:21:19 [loggers.py:1]", None),
        ("INFO 04-12 08:21:19 [v1/worker/gpu_worker.py:298] (EngineCore pid=9)", "_"),
        ("INFO 04-12 08:21:19.123 [gpu_worker.py:298]", None),
        ("INFO 2026-04-12 08:21:19 [gpu_worker.py:298]", None),
        ("INFO 04-12 08:21:19 model_runner.py:1077]", None),
        ("(EngineCore_1 pid=4396) (VllmWorker rank=1 pid=4418) INFO 05-20 22:23:45 [w.py:682]", "rank1"),
        ("(Worker_TP1 pid=18) (Worker_TP0 pid=17) INFO 04-18 14:33:17 [w.py:69]", "TP0"),
        ("(RayWorkerWrapper pid=14, ip=192.0.2.60) INFO 03-27 10:29:01 [worker.py:267]", "192.0.2.60/pid14"),
        ("RayWorkerWrapper pid=14) INFO 03-27 10:29:01 [worker.py:267]", "pid14"),
        ("(EngineCore_0 pid=9) (RayWorkerWrapper pid=14, ip=192.0.2.60) INFO 03-27 10:29:01 [w.py:1]", "192.0.2.60/pid14"),
        ("(EngineCore_DP1 pid=9) (RayWorkerWrapper pid=14) INFO 03-27 10:29:01 [w.py:1]", "pid14"),
        ("(RayWorkerWrapper pid=14, ip=192.0.2.60) (Worker_TP5 pid=14) INFO 03-27 10:29:01 [w.py:1]", "TP5"),
    ],
)  # fmt: skip
def test_rank_tags(tag: str, rank: str | None) -> None:
    head = split_head(f"{tag} {MESSAGE}")
    assert (head.text.strip(), head.rank) == (MESSAGE, rank)


def test_ray_repeats() -> None:
    """One line stands for 31 workers."""
    head = split_head(
        f"(RayWorkerWrapper pid=1, ip=192.0.2.6) {MESSAGE} [repeated 30x across cluster]"
    )
    assert (head.text, head.repeated, head.ip) == (MESSAGE, 30, "192.0.2.6")


def test_colours_are_no_text() -> None:
    line = f"\x1b[1;36m(EngineCore_DP0 pid=9)\x1b[0;0m INFO 04-12 08:21:19 [w.py:1] \x1b[32m{MESSAGE}\x1b[0m"
    (piece,) = pieces(line)
    assert split_head(piece).text == MESSAGE


def test_colours_without_their_escape() -> None:
    """Copied terminals lose the escape character."""
    line = f"[1;36m(VllmWorker rank=1 pid=219)[0;0m INFO 08-31 14:45:44 [w.py:232] {MESSAGE}"
    (piece,) = pieces(line)
    head = split_head(piece)
    assert (head.text, head.rank) == (MESSAGE, "rank1")


@pytest.mark.parametrize(
    "glued",
    [
        "  0%|     | 0/13 [00:00<?, ?it/s][2026-03-01 11:52:01 TP1] ",
        "100%|█████| 67/67 [00:02<00:00, 23.9it/s](Worker_TP1 pid=9) INFO 10-06 15:57:53 [w.py:1] ",
        "Memory pool end. avail mem=1.00 GB[2026-03-01 11:52:01 TP1] ",
    ],
)
def test_glued_records_come_apart(glued: str) -> None:
    first, second = pieces(glued + MESSAGE)
    head = split_head(second, split_head(first))
    assert (head.text, head.rank) == (MESSAGE, "TP1")


def test_glued_records_share_the_outer_prefix() -> None:
    line = "Mar 01 11:52:01 gpu-7 python3[41]: 0/13 [00:00<?, ?it/s][2026-03-01 11:52:01 TP1] x"
    first, second = pieces(line)
    assert split_head(second, split_head(first)).name_pid == 41


def test_structured_lines() -> None:
    """JSON log records carry the message, the process and the level."""
    head = split_head(
        '{"timestamp": "2026-03-01T11:52:01Z", "level": "INFO", "process_name": "Worker_TP2",'
        ' "pid": 9, "message": "Available KV cache memory: 2.31 GiB"}'
    )
    assert (head.text, head.rank, head.pid) == ("Available KV cache memory: 2.31 GiB", "TP2", 9)


def test_tensorrt_llm() -> None:
    head = split_head("[01/16/2026-06:20:17] [TRT-LLM] [RANK 2] [I] hello")
    assert (head.time, head.rank) == ("01/16/2026-06:20:17", "RANK 2")


def test_lmcache() -> None:
    head = split_head("[2026-05-02 11:22:33,123] LMCache INFO: Adjusted CPU memory size")
    assert head.text == "Adjusted CPU memory size"


def test_a_foreign_prefix_hides_no_process_tag() -> None:
    head = split_head(
        "vllm-0 app (Worker_TP1 pid=61) INFO 10-06 15:57:50 [gpu_worker.py:298] Available"
    )
    assert (head.text, head.rank, head.pid) == ("Available", "TP1", 61)


def test_a_log_line_quoted_in_a_message_is_no_head() -> None:
    head = split_head("[2026-03-01 11:52:01 TP3] echo: [2026-03-01 10:00:00 TP1] Load weight begin")
    assert head.rank == "TP3"


def test_a_level_is_no_host() -> None:
    """Rust's tracing writes a five-letter level with one space on each side."""
    head = split_head("2026-05-01T10:00:00.000000Z ERROR text_generation_launcher: Shard 0 failed")
    assert head.text == "ERROR text_generation_launcher: Shard 0 failed"
    assert head.name is None


@pytest.mark.parametrize("prefix", ["[1,3]<stdout>:", "[1,3]<stderr>: ", "3: "])
def test_mpi_numbers_the_ranks_that_tensorrt_llm_does_not(prefix: str) -> None:
    head = split_head(f"{prefix}[TensorRT-LLM][INFO] Loaded engine size: 3404 MiB")
    assert head.rank == "RANK 3"
    assert split_head(f"{prefix}(EngineCore pid=7) INFO 10-06 15:57:50 [a.py:1] m").rank == "_"


def test_the_library_that_fails_is_no_host() -> None:
    head = split_head("2026-02-26T17:41:22.1Z CUDA Error: out of memory at /workspace/a.cpp:62")
    assert head.text.startswith("CUDA Error: out of memory")
