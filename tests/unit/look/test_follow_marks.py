"""Which line of an engine's log is the moment of a phase. Logs of our own making."""

# ruff: noqa: E501  (log lines stand as engines print them)

from __future__ import annotations

from pathlib import Path

import pytest

from fleetmem.controller.errors import PlaybookInvalid
from fleetmem.controller.logs.reading import LogLine
from fleetmem.controller.look.follow.marks import Told, due, marking, told, words
from fleetmem.controller.startup.read.patterns import builtin, load

ROWS = marking(builtin())
START = "Started engine.service - An engine."


def lines(*texts: str, first_us: int = 1_000_000) -> list[LogLine]:
    """A line a second, of the unit; those that begin with ``systemd:`` are its manager's."""
    found = []
    for at, text in enumerate(texts):
        managed = text.startswith("systemd:")
        said = text.removeprefix("systemd:")
        found.append(
            LogLine(first_us + at * 1_000_000, 0, 1, None, 6, 1 if managed else 0, True, said)
        )
    return found


def read(*texts: str) -> Told:
    return told(lines(f"systemd:{START}", *texts), ROWS, 5)


def seconds(found: Told) -> dict[str, int]:
    """The number of the line (0 is the manager's) that each phase rests on."""
    return {name: mark.microseconds // 1_000_000 - 1 for name, mark in found.marks.items()}


SGLANG = (
    "[2026-05-04 09:10:12 TP0] Load weight begin. avail mem=77.00 GB",
    "[2026-05-04 09:10:12 TP1] Load weight begin. avail mem=77.00 GB",
    "[2026-05-04 09:10:40 TP1] Load weight end. type=MForCausalLM, dtype=torch.bfloat16, avail mem=37.00 GB, mem usage=40.00 GB.",
    "[2026-05-04 09:10:44 TP0] Load weight end. type=MForCausalLM, dtype=torch.bfloat16, avail mem=37.00 GB, mem usage=40.00 GB.",
    "INFO:     Application startup complete.",
    "INFO:     Uvicorn running on http://0.0.0.0:30000 (Press CTRL+C to quit)",
    "[2026-05-04 09:11:31] The server is fired up and ready to roll!",
)
VLLM = (
    "(APIServer pid=7) INFO 10-06 15:56:30 [api_server.py:1839] vLLM API server version 0.11.2",
    "(Worker_TP0 pid=8) INFO 10-06 15:56:51 [gpu_model_runner.py:2602] Starting to load model /models/q...",
    "(Worker_TP1 pid=9) INFO 10-06 15:56:51 [gpu_model_runner.py:2602] Starting to load model /models/q...",
    "(Worker_TP0 pid=8) INFO 10-06 15:57:41 [gpu_model_runner.py:2653] Model loading took 14.2488 GiB and 49.1 seconds",
    "(Worker_TP1 pid=9) INFO 10-06 15:57:44 [gpu_model_runner.py:2653] Model loading took 14.2488 GiB and 52.0 seconds",
    "(Worker_TP0 pid=8) INFO 10-06 15:58:20 [gpu_worker.py:298] Available KV cache memory: 51.10 GiB",
    "(APIServer pid=7) INFO:     Application startup complete.",
)
LLAMA = (
    "main: loading model",
    "load_tensors:        CUDA0 model buffer size =  4155.99 MiB",
    "llama_context: constructing llama_context",
    "llama_kv_cache:      CUDA0 KV buffer size =  1152.00 MiB",
    "main: server is listening on http://127.0.0.1:8080 - starting the main loop",
)
OLLAMA = (
    'time=2026-05-04T09:00:00.000Z level=INFO msg="system memory" total="62.0 GiB" free="58.1 GiB"',
    "llama_context: constructing llama_context",
    'time=2026-05-04T09:00:09.000Z level=INFO source=server.go:1 msg="llama runner started in 8.10 seconds"',
)
TRTLLM = (
    "[TensorRT-LLM][INFO] Loaded engine size: 15321 MiB",
    "INFO:     Application startup complete.",
)


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        (SGLANG, {"before-load": 0, "after-load": 4, "after-init": 7}),
        (VLLM, {"before-load": 0, "after-load": 5, "after-init": 7}),
        (LLAMA, {"before-load": 0, "after-load": 3, "after-init": 5}),
        (OLLAMA, {"before-load": 0, "after-load": 2, "after-init": 3}),
        (TRTLLM, {"before-load": 0, "after-load": 1, "after-init": 2}),
    ],
    ids=["sglang", "vllm", "llamacpp", "ollama", "trtllm"],
)
def test_each_engine_has_its_marks(log: tuple[str, ...], expected: dict[str, int]) -> None:
    assert seconds(read(*log)) == expected


def test_the_order_in_which_lines_came_makes_no_difference() -> None:
    given = lines(f"systemd:{START}", *SGLANG)
    assert told(reversed(given), ROWS, 5) == told(given, ROWS, 5)
    assert told([*given, *given], ROWS, 5) == told(given, ROWS, 5)


def test_after_load_is_the_last_rank_that_began() -> None:
    """One rank's word is not enough while another one loads; its line is named."""
    half = read(*SGLANG[:3])
    assert "after-load" not in half.marks
    assert half.loading == ("TP0",)
    assert half.closed_us == {"before-load": 2_000_000}
    whole = read(*SGLANG[:4]).marks["after-load"]
    assert (whole.rank, whole.pattern, whole.text) == ("TP0", "sglang/load-end", SGLANG[3])


@pytest.mark.parametrize(
    ("log", "pool"),
    [
        ((*SGLANG[:4], "[2026-05-04 09:10:44 TP0] KV Cache is allocated. #tokens: 9, K size: 2.50 GB, V size: 2.50 GB"), 5),
        ((*VLLM[:6], "(EngineCore pid=5) INFO 10-06 15:58:20 [k.py:1] GPU KV cache size: 327,310 tokens"), 7),
        (LLAMA, 4),
    ],
    ids=["sglang", "vllm", "llamacpp"],
)  # fmt: skip
def test_the_pool_ends_what_after_load_may_hold(log: tuple[str, ...], pool: int) -> None:
    found = read(*log)
    assert found.closed_us["after-load"] == (pool + 1) * 1_000_000
    assert "kv-pool" not in found.marks


def test_a_line_that_names_no_rank_waits_for_none() -> None:
    begin = "INFO 10-06 15:56:51 [gpu_model_runner.py:2602] Starting to load model /models/q..."
    assert read(begin).loading == ("_",)
    assert seconds(read(begin, VLLM[3]))["after-load"] == 2


def test_a_draft_model_is_not_the_moment_of_the_weights() -> None:
    """The second load of a rank is its draft's: the first one stays the mark."""
    draft = "[2026-05-04 09:11:02 TP0] Load weight end. type=MForCausalLMNextN, dtype=torch.bfloat16, avail mem=30.00 GB, mem usage=1.00 GB."
    assert seconds(read(*SGLANG[:4], draft))["after-load"] == 4


def test_a_line_glued_behind_a_progress_bar_and_coloured() -> None:
    bar = "Loading shards: 100% 4/4 [00:41<00:00]\r"
    glued = f"{bar}\x1b[36m(Worker_TP1 pid=9)\x1b[0;0m INFO 10-06 15:57:44 [gpu_model_runner.py:2653] Model loading took 14.2488 GiB and 52.0 seconds"
    assert seconds(read(*VLLM[:4], glued))["after-load"] == 5


@pytest.mark.parametrize(
    ("line", "pattern"),
    [
        ("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.", "sglang/weights-exceed-fraction"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 448.00 MiB. GPU 0 has a total capacity of 79.10 GiB of which 101.88 MiB is free.", "common/cuda-oom"),
        ("llama_model_load: error loading model: unable to allocate CUDA0 buffer", "llamacpp/load-failed"),
        ("systemd:engine.service: Main process exited, code=exited, status=1/FAILURE", "common/unit-exited"),
        ("systemd:engine.service: Failed with result 'start-limit-hit'.", "common/unit-failed"),
        ("systemd:engine.service: A process of this unit has been killed by the OOM killer.", "common/unit-oom"),
    ],
)  # fmt: skip
def test_a_failure_is_the_first_line_that_says_so(line: str, pattern: str) -> None:
    found = read(*VLLM[:2], line, "systemd:engine.service: Failed with result 'exit-code'.")
    assert found.over == "failed"
    assert found.marks["failed"].pattern == pattern
    assert found.marks["failed"].text == line.removeprefix("systemd:")
    assert due(found, ["before-load"]) == "failed"
    assert due(found, ["failed"]) is None


def test_an_error_says_more_than_that_something_ended() -> None:
    """The traceback's head comes first, the reason after it."""
    why = "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static."
    head = (
        "[2026-05-04 09:10:22 TP0] Scheduler hit an exception: Traceback (most recent call last):"
    )
    assert read(*SGLANG[:4], head).marks["failed"].text == head
    assert read(*SGLANG[:4], head, why).marks["failed"].text == why


@pytest.mark.parametrize(
    "line",
    [
        "systemd:Stopping engine.service - An engine...",
        "systemd:engine.service: Main process exited, code=killed, status=15/TERM",
        "systemd:engine.service: Deactivated successfully.",
    ],
)
def test_a_unit_that_was_stopped_did_not_fail(line: str) -> None:
    found = read(*SGLANG[:4], line)
    assert found.over == "stopped"
    assert due(found, []) is None


def test_what_systemd_says_counts_only_from_systemd() -> None:
    """An engine that prints systemd's words has neither stopped nor failed."""
    found = read("Stopping the old cache", "x: Main process exited, code=exited, status=1/FAILURE")
    assert found.over is None


def test_what_is_due_is_the_newest_phase_only() -> None:
    """A phase whose moment is over is missed, not taken late."""
    assert due(read(), []) == "before-load"
    assert due(read(), ["before-load"]) is None
    assert due(read(*VLLM[:5]), []) == "after-load"
    assert due(read(*VLLM), ["before-load"]) == "after-init"
    assert due(read(*VLLM), ["after-init"]) is None


def test_a_start_without_a_line_of_its_manager() -> None:
    """The first moment that the journal knows stands in."""
    mark = told(lines(*VLLM), ROWS, 123).marks["before-load"]
    assert (mark.microseconds, mark.text) == (123, None)


def test_few_words_choose_the_lines_on_the_host() -> None:
    """Every mark passes the words that are sent, and ordinary lines do not."""
    chosen = words(ROWS)
    for row in ROWS:
        assert all(any(word in line for word in chosen) for line, _ in row.tests)
    assert not any(word in "Decode batch. #running-req: 7, token usage: 0.41" for word in chosen)
    assert len(chosen) < 80


def test_a_user_adds_an_engine(tmp_path: Path) -> None:
    """Marks of a new engine need a file, no code."""
    path = tmp_path / "nano.yaml"
    path.write_text(
        "engine: nanoserve\nabout: Ours.\npatterns:\n"
        "  - id: up\n    find: nanoserve is up\n    match: 'nanoserve is up'\n"
        "    step: ready\n    phase: after-init\n    tests: [{line: nanoserve is up, gives: {}}]\n"
    )
    rows = marking(load([str(path)]))
    assert "after-init" in told(lines("nanoserve is up"), rows, 0).marks


def test_a_phase_that_is_none_has_a_place(tmp_path: Path) -> None:
    path = tmp_path / "nano.yaml"
    path.write_text(
        "engine: nanoserve\nabout: Ours.\npatterns:\n"
        "  - id: up\n    find: nanoserve is up\n    match: 'nanoserve is up'\n"
        "    phase: afterload\n    tests: [{line: nanoserve is up, gives: {}}]\n"
    )
    with pytest.raises(PlaybookInvalid, match=r"nano\.yaml:7:12: patterns\[0\]\.phase: "):
        load([str(path)])
