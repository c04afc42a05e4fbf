"""How a start ended: its exception whole, from the process that failed; every Xid once."""

# ruff: noqa: E501  (log lines stand as engines print them)

from __future__ import annotations

from typing import Any

import pytest

from fleetmem.controller.startup.judge.diagnose import judge
from fleetmem.controller.startup.read.parse import parse
from fleetmem.controller.startup.starts import Invocation, Startup


def newest(text: str) -> Invocation:
    found = parse(text.strip("\n").split("\n")).newest
    assert found is not None
    return found


def rules(startup: Startup) -> list[tuple[str, str]]:
    return [(one["rule"][8:], one["evidence"]["say"]) for one in judge(startup, "file:x")]


WORKERS = """
(Worker_TP1 pid=11) ERROR 04-19 10:21:55 [multiproc_executor.py:700] WorkerProc failed to start.
(Worker_TP1 pid=11) ERROR 04-19 10:21:55 [multiproc_executor.py:700] Traceback (most recent call last):
(Worker_TP1 pid=11) ERROR 04-19 10:21:55 [multiproc_executor.py:700]   File "/opt/vllm/worker.py", line 9, in init
(Worker_TP1 pid=11) ERROR 04-19 10:21:55 [multiproc_executor.py:700]     check()
(Worker_TP1 pid=11) ERROR 04-19 10:21:55 [multiproc_executor.py:700] KeyError: 'head_dim'
(Worker_TP1 pid=11) ERROR 04-19 10:21:55 [multiproc_executor.py:700]
(Worker_TP1 pid=11) ERROR 04-19 10:21:55 [multiproc_executor.py:700] The above exception was the direct cause of the following exception:
(Worker_TP1 pid=11) ERROR 04-19 10:21:55 [multiproc_executor.py:700]
(Worker_TP1 pid=11) ERROR 04-19 10:21:55 [multiproc_executor.py:700] Traceback (most recent call last):
(Worker_TP1 pid=11) ERROR 04-19 10:21:55 [multiproc_executor.py:700]   File "/opt/vllm/worker.py", line 12, in init
(Worker_TP1 pid=11) ERROR 04-19 10:21:55 [multiproc_executor.py:700] ValueError: the configuration of this model cannot be read:
(Worker_TP1 pid=11) ERROR 04-19 10:21:55 [multiproc_executor.py:700] head_dim is missing from the text config
(EngineCore pid=9) ERROR 04-19 10:21:57 [core.py:1132] EngineCore failed to start.
(EngineCore pid=9) ERROR 04-19 10:21:57 [core.py:1132] Traceback (most recent call last):
(EngineCore pid=9) ERROR 04-19 10:21:57 [core.py:1132]   File "/opt/vllm/core.py", line 1106, in run_engine_core
(EngineCore pid=9) ERROR 04-19 10:21:57 [core.py:1132] Exception: WorkerProc initialization failed due to an exception in a background process. See stack trace for root cause.
(APIServer pid=3) Traceback (most recent call last):
(APIServer pid=3)   File "/opt/vllm/serve.py", line 1, in main
(APIServer pid=3) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
"""


def test_the_exception_of_the_process_that_failed_first() -> None:
    inv = newest(WORKERS)
    assert inv.status == "failed"
    assert inv.exception is not None
    assert inv.exception["type"] == "ValueError"
    assert inv.exception["message"] == (
        "the configuration of this model cannot be read:\nhead_dim is missing from the text config"
    )
    assert inv.exception["rank"] == "TP1"
    assert inv.exception["causes"] == [{"type": "KeyError", "message": "'head_dim'"}]


def test_it_is_the_diagnosis() -> None:
    first = judge(parse(WORKERS.split("\n")), "file:x")[0]
    assert (first["rule"], first["severity"]) == ("startup/start-failed", "critical")
    say = first["evidence"]["say"]
    assert say.startswith("The start failed on TP1: ValueError: the configuration")
    assert say.endswith("head_dim is missing from the text config Caused by KeyError: 'head_dim'")
    assert "engine core failed" not in str(judge(parse(WORKERS.split("\n")), "file:x"))


def test_three_starts_that_end_with_one_exception() -> None:
    lines = []
    for n in range(3):
        lines += [
            f"Feb 26 17:4{n}:22 h python3[{n + 50}]: (EngineCore_DP0 pid={n + 50}) INFO 02-26 17:41:39 [core.py:76] Initializing a V1 LLM engine (v0.11.0) with config: model='m'",
            f"Feb 26 17:4{n}:22 h python3[{n + 50}]: (EngineCore_DP0 pid={n + 50}) ERROR 02-26 17:41:39 [core.py:946] ValueError: rope_scaling must have a factor",
            f"Feb 26 17:4{n}:24 h systemd[1]: v.service: Main process exited, code=exited, status=1/FAILURE",
            f"Feb 26 17:4{n}:24 h systemd[1]: v.service: Failed with result 'exit-code'.",
            f"Feb 26 17:4{n}:29 h systemd[1]: v.service: Scheduled restart job, restart counter is at {n + 1}.",
        ]
    told = dict(rules(parse(lines)))
    assert told["start-failed"] == (
        "The start failed on DP0: ValueError: rope_scaling must have a factor"
    )
    assert told["crash-loop"] == (
        "3 failed starts one after another, restart counter 3: ValueError each time."
    )


def test_an_exception_of_a_running_engine_is_no_failed_start() -> None:
    text = """
[2026-03-01 11:50:53 TP0] Load weight begin. avail mem=90.00 GB
[2026-03-01 11:52:44] The server is fired up and ready to roll!
[2026-03-01 12:00:00] ERROR: Traceback (most recent call last):
  File "/opt/serve.py", line 3, in handle
ValueError: the request is too long
"""
    inv = newest(text)
    assert inv.status == "ready"
    assert inv.exception is None
    assert "start-failed" not in dict(rules(parse(text.split("\n"))))


def test_a_start_that_was_ready_is_said_to_have_ended_later() -> None:
    text = """
(EngineCore pid=9) INFO 11-30 06:27:30 [kv_cache_utils.py:2084] Overriding num_gpu_blocks=80000 with num_gpu_blocks_override=2000
(Worker_TP0 pid=21) INFO 11-30 06:27:30 [gpu_worker.py:538] Available KV cache memory: 40.00 GiB
(EngineCore pid=9) INFO 11-30 06:27:30 [kv_cache_utils.py:2146] GPU KV cache size: 32,000 tokens
(APIServer pid=3) INFO 11-30 06:28:03 [api_server.py:616] Starting vLLM server on http://0.0.0.0:8000
(APIServer pid=3) INFO:     Application startup complete.
(EngineCore pid=9) ERROR 11-30 06:28:44 [multiproc_executor.py:284] Worker proc VllmWorker-1 died unexpectedly, shutting down executor.
"""
    inv = newest(text)
    assert (inv.status, inv.flags["ready_at"]) == ("stopped", "11-30 06:28:03")
    told = dict(rules(parse(text.split("\n"))))
    assert "ready (11-30 06:28:03) and ended later" in told["ended-after-ready"]
    assert "rank-died" not in told
    cap = told["capped-by"]
    assert "2 000 blocks (32 000 tokens) where the engine's own figure was 80 000" in cap
    assert "1.00 GiB a rank, 39.00 GiB of 40.00 GiB stay unused" in cap


def xid(number: int) -> dict[str, Any]:
    found = judge(parse([f"kernel: NVRM: Xid (PCI:0009:01:00): {number}, pid=5, name=x"]), "h")
    one: dict[str, Any] = next(one for one in found if one["rule"] == "startup/xid")
    return one


# NVIDIA's Xid catalogue: who is at fault where it says so, and its immediate action.
RESET, RESTART, DECODE = "needs a GPU reset", "a restart of the host", "name the action"
CATALOGUE = {
    "application": {13: "", 31: "", 43: "", 45: "", 69: "", 137: ""},
    "driver": {38: "nothing at once", 66: "nothing at once", 119: RESET, 120: RESET},
    "hardware": {
        32: "",
        48: RESET,
        63: "nothing at once",
        64: RESET,
        74: RESET,
        79: RESTART,
        92: "nothing at once",
        94: "reset when convenient",
        95: RESET,
        110: RESET,
        121: "nothing at once",
        136: RESET,
        140: RESET,
        144: DECODE,
    },
    "unknown": {
        8: "",
        46: RESET,
        61: "",
        62: RESET,
        68: "",
        109: RESET,
        143: RESET,
        145: DECODE,
        149: DECODE,
        154: DECODE,
        90: "",
        777: "",
    },
}
ACTIONS = ("nothing at once", "reset when convenient", RESET, RESTART, DECODE)


@pytest.mark.parametrize(
    ("number", "group", "action"),
    [(number, group, action) for group, rows in CATALOGUE.items() for number, action in rows.items()],
)  # fmt: skip
def test_an_xid_has_the_class_and_action_of_the_catalogue(
    number: int, group: str, action: str
) -> None:
    one = xid(number)
    assert one["evidence"]["class"] == group
    assert [word for word in ACTIONS if word in one["advice"]] == ([action] if action else [])
    mild = group == "application" or action == "nothing at once"
    assert one["severity"] == ("warn" if mild else "critical")


@pytest.mark.parametrize(
    ("number", "meaning"),
    [
        (137, "access over NVLink"),
        (121, "corrected errors"),
        (154, "recovery action changed"),
        (43, "the GPU is healthy"),
        (94, "contained memory error"),
        (109, "context switch timeout"),
    ],
)
def test_an_xid_has_the_meaning_of_the_catalogue(number: int, meaning: str) -> None:
    assert meaning in xid(number)["evidence"]["say"]


@pytest.mark.parametrize("number", [90, 91, 777])
def test_a_number_without_a_confirmed_meaning_has_none(number: int) -> None:
    one = xid(number)
    assert f"Xid {number} on 0009:01:00, class unknown" in one["evidence"]["say"]
    assert "Look the number up" in one["advice"]


def test_every_xid_is_told_once_with_its_own_line() -> None:
    lines = [
        "[2026-03-01 11:50:53 TP0] Load weight begin. avail mem=90.00 GB",
        "kernel: NVRM: Xid (PCI:0009:01:00): 31, pid=5, name=x, Ch 1",
        "kernel: NVRM: Xid (PCI:0009:01:00): 31, pid=5, name=x, Ch 1",
        "kernel: NVRM: Xid (PCI:0009:01:00): 79, pid=5, name=x",
        "kernel: NVRM: Xid (PCI:000a:01:00): 79, pid=6, name=y",
    ]
    told: list[dict[str, Any]] = [
        one for one in judge(parse(lines), "h") if one["rule"] == "startup/xid"
    ]
    assert sorted((one["evidence"]["xid"], one["evidence"]["pci_address"]) for one in told) == [
        (31, "0009:01:00"),
        (79, "0009:01:00"),
        (79, "000a:01:00"),
    ]
    for one in told:
        number = one["evidence"]["xid"]
        assert all(f": {number}," in line["text"] for line in one["evidence"]["lines"])
