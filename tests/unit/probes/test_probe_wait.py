"""gpu.wait: identities that end, memory that falls, and what keeps either."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from fleetmem.agent.kernel import tasks
from fleetmem.agent.model import Trouble
from fleetmem.agent.probes import gpu_wait as wait
from fleetmem.agent.services import nvml
from tests.unit.agent.nvml_fake import GIB, Binding, Gpu, NVMLError, record
from tests.unit.agent.probe_actors import actor, others_sleep, state_of, until


def put(monkeypatch: pytest.MonkeyPatch, *gpus: Gpu) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", Binding(list(gpus)))
    monkeypatch.setattr(nvml, "_session", None)


def memory(used: int) -> tuple[int, int, int, int]:
    return (140 * GIB, GIB, 139 * GIB - used, used)


def start_of(pid: int) -> int:
    found = tasks.stat(pid)
    assert found is not None
    return found.start_time


def test_nothing_to_wait_for_is_met_at_once() -> None:
    reading = wait.gpu_wait(timeout_seconds=3600)
    assert reading["met"] is True
    assert reading["gpus"] == reading["processes"] == []


def test_memory_that_falls_below_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[float] = []

    def falling() -> tuple[int, int, int, int]:
        looks.append(time.monotonic())
        return memory(90 * GIB if looks[-1] - looks[0] < 0.3 else 0)

    fall = Gpu(0, memory_v2=falling)
    stay = Gpu(1, memory_v2=memory(5 * GIB), compute=[record(77, GIB)], mps=[record(77, GIB)])
    put(monkeypatch, fall, stay)
    chunks: list[Any] = []
    reading = wait.gpu_wait(
        gpus=[0, 1], below_bytes=[GIB, None], timeout_seconds=300, emit=chunks.append
    )
    assert reading["met"] is True
    first, second = reading["gpus"]
    assert first["start_bytes"] == 90 * GIB
    assert first["used_bytes"] == 0
    assert first["met"] is True
    assert first["met_after_seconds"] is not None
    assert first["met_after_seconds"] >= 0.25
    assert first["falling"] is True
    assert second["used_bytes"] == 5 * GIB
    assert second["pids"] == [77]
    assert second["falling"] is False
    assert chunks[0]["used_bytes"] == [90 * GIB, 5 * GIB]
    assert chunks[-1]["used_bytes"] == [0, 5 * GIB]
    assert len(chunks) <= 2 + reading["seconds"] / wait.EMIT_SECONDS


def test_a_bound_that_is_not_reached_ends_with_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch, Gpu(0, memory_v2=memory(2 * GIB)))
    reading = wait.gpu_wait(gpus=[0], below_bytes=[GIB], timeout_seconds=0.2)
    assert reading["met"] is False
    assert reading["seconds"] >= 0.2
    assert reading["gpus"][0]["met_after_seconds"] is None


def test_no_time_still_takes_one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch, Gpu(0, memory_v2=memory(GIB)))
    reading = wait.gpu_wait(gpus=[0], below_bytes=[GIB], timeout_seconds=0)
    assert reading["met"] is True
    assert reading["gpus"][0]["used_bytes"] == GIB


def test_a_gpu_that_cannot_be_read_is_not_met(monkeypatch: pytest.MonkeyPatch) -> None:
    put(
        monkeypatch,
        Gpu(0, handle=NVMLError(15)),
        Gpu(1, memory_v2=NVMLError(15)),
        Gpu(2, memory_v2=memory(0)),
    )
    reading = wait.gpu_wait(gpus=[0, 1, 2], below_bytes=[GIB] * 3, timeout_seconds=0.1)
    assert [row["used_bytes"] for row in reading["gpus"]] == [None, None, 0]
    assert [row["met"] for row in reading["gpus"]] == [False, False, True]
    assert reading["met"] is False


def test_a_gpu_that_comes_back_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([NVMLError(15), memory(0)])
    put(monkeypatch, Gpu(0, memory_v2=lambda: next(answers)))
    reading = wait.gpu_wait(gpus=[0], below_bytes=[GIB], timeout_seconds=300)
    assert reading["met"] is True


def test_an_identity_that_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    child = subprocess.Popen([sys.executable, "-I", "-S", "-c", "import time; time.sleep(0.3)"])
    reading = wait.gpu_wait(pids=[child.pid], start_times=[start_of(child.pid)], timeout_seconds=99)
    # Not collected yet: a zombie holds nothing.
    assert state_of(child.pid) == "Z"
    child.wait()
    assert reading["met"] is True
    assert reading["processes"][0]["state"] == "gone"


def test_a_number_that_now_is_another_process_is_gone() -> None:
    reading = wait.gpu_wait(
        pids=[os.getpid()], start_times=[start_of(os.getpid()) - 1], timeout_seconds=5
    )
    assert reading["met"] is True
    assert reading["processes"][0]["state"] == "gone"


def test_who_is_left_is_described() -> None:
    with actor("say('ready'); rest()") as one:
        until(lambda: state_of(one.pid) == "S")
        reading = wait.gpu_wait(
            pids=[one.pid], start_times=[start_of(one.pid)], timeout_seconds=0.05
        )
    assert reading["met"] is False
    row = reading["processes"][0]
    assert row["state"] == "S"
    assert row["kill_pending"] is False
    assert row["wchan"] is None or "nanosleep" in row["wchan"]


def test_a_leader_that_exited_does_not_hide_its_threads() -> None:
    script = """
    started = threading.Event()
    def stay():
        started.set()
        rest()
    threading.Thread(target=stay).start()
    started.wait()
    say("ready")
    libc.syscall(EXIT, 0)
    """
    with actor(script) as one:
        until(lambda: state_of(one.pid) == "Z" and others_sleep(one.pid))
        reading = wait.gpu_wait(
            pids=[one.pid], start_times=[start_of(one.pid)], timeout_seconds=0.05
        )
    assert reading["met"] is False
    assert reading["processes"][0]["state"] == "S"


def test_a_kill_that_waits_is_seen(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from fleetmem.agent.kernel import sysroot

    task = tmp_path / "proc/700/task/700"
    task.mkdir(parents=True)
    line = "700 (python3) D 1 700 700 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 77 0 0\n"
    for place in (task, task.parent.parent):
        (place / "stat").write_text(line)
    (task / "wchan").write_text("nv_close")
    (task / "status").write_text("SigPnd:\t0000000000000000\nShdPnd:\t0000000000000100\n")
    monkeypatch.setattr(sysroot, "ROOT", str(tmp_path))
    row = wait.describe(700, 77)
    assert row == {
        "pid": 700,
        "start_time": 77,
        "state": "D",
        "kill_pending": True,
        "wchan": "nv_close",
    }
    (task / "status").write_text("SigPnd:\t0000000000004000\nShdPnd:\t0000000000000000\n")
    assert wait.describe(700, 77)["kill_pending"] is False


def test_lists_that_go_together_must_have_one_length() -> None:
    for arguments in ({"pids": [1]}, {"gpus": [0], "below_bytes": [1, 2]}):
        with pytest.raises(Trouble) as caught:
            wait.gpu_wait(**arguments)  # type: ignore[arg-type]
        assert "differ in length" in caught.value.reason


class Clock:
    """The probe's clocks, moved by the test alone: a look costs what the test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self.cpu = 0.0
        monkeypatch.setattr(wait, "monotonic", lambda: self.now)
        monkeypatch.setattr(wait, "process_time", lambda: self.cpu)
        monkeypatch.setattr(wait, "sleep", self.sleep)

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def work(self, seconds: float) -> None:
        self.now += seconds
        self.cpu += seconds


def looks_of(monkeypatch: pytest.MonkeyPatch, look: Callable[[], None], seconds: float) -> int:
    """How often a GPU is looked at within a time, if a look does this."""
    looks = 0

    def answer() -> tuple[int, int, int, int]:
        nonlocal looks
        looks += 1
        look()
        return memory(2 * GIB)

    put(monkeypatch, Gpu(0, memory_v2=answer))
    wait.gpu_wait(gpus=[0], below_bytes=[GIB], timeout_seconds=seconds)
    return looks


def test_looking_costs_a_tenth_of_the_time_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    assert looks_of(monkeypatch, lambda: clock.work(0.02), 2.0) in (9, 10, 11)


def test_a_driver_that_lets_callers_wait_does_not_delay_the_next_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As the driver does while it tears a process down: 0.9 s were seen."""
    clock = Clock(monkeypatch)
    assert looks_of(monkeypatch, lambda: clock.sleep(0.1), 1.5) >= 12
