"""``signal.send`` on processes of the test's own: rechecked, at most once, on record."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fleetmem.agent import ledger
from fleetmem.agent.actions import signal as action
from fleetmem.agent.kernel import identity
from fleetmem.agent.model import Trouble
from tests.unit.agent.test_ledger import folder

__all__ = ["folder"]

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts Python code that prints a line when it is ready."""
    running = []

    def go(code: str = "") -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", f"{code}\nimport time\nprint(1, flush=True)\ntime.sleep(600)"],
            stdout=subprocess.PIPE,
            text=True,
        )
        running.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        return process

    yield go
    for process in running:
        process.kill()
        process.communicate()


def target(pid: int, **more: Any) -> dict[str, Any]:
    row = {
        "pid": pid,
        "start_time": identity.start_time(pid),
        "uid": os.geteuid(),
        "comm": "what the plan says",
        "cgroup": "",
        "files": False,
    }
    return {**row, **more}


def send(*targets: dict[str, Any], signal: str = "TERM", **more: Any) -> list[tuple[str, Any]]:
    options: dict[str, Any] = {"boot_id": action.read_boot_id(), "epoch": ledger.read_epoch()}
    found = action.send(signal=signal, targets=targets, operation="op", **{**options, **more})
    return [(row["result"], row["why"]) for row in found["results"]]


def test_a_signal_is_sent_once(folder: Path, start: Start) -> None:
    process = start("import signal; signal.signal(15, lambda *_: None)")
    one = target(process.pid)
    assert send(one) == [("sent", None)]
    assert send(one) == [("already", "SIGTERM was sent to this process before")]
    assert process.poll() is None
    assert send(one, signal="KILL") == [("sent", None)]
    assert process.wait(60) == -9
    trail = (folder / "audit.jsonl").read_text().splitlines()
    assert len(trail) == 2
    assert [(r["signal"], r["done"], r["result"]) for r in ledger.records()] == [
        ("KILL", True, "sent"),
        ("TERM", True, "sent"),
    ]


@pytest.mark.parametrize(
    ("change", "result"),
    [
        ({"start_time": 1}, ("gone", None)),
        ({"uid": 4242}, ("refused", "its user changed")),
        ({"cgroup": "/no/such"}, ("refused", "its control group changed")),
        ({"files": True}, ("refused", "it no longer has files of the driver")),
    ],
)
def test_what_is_not_as_planned_is_not_signalled(
    folder: Path, start: Start, change: dict[str, Any], result: tuple[str, Any]
) -> None:
    process = start()
    assert send(target(process.pid, **change), signal="KILL") == [result]
    assert process.poll() is None
    assert not folder.exists()


def test_a_dead_process_is_gone(folder: Path, start: Start) -> None:
    process = start()
    one = target(process.pid)
    process.kill()
    while identity.alive(process.pid):  # a zombie of ours: the number is still taken
        time.sleep(0.01)
    assert send(one) == [("gone", None)]
    process.wait()
    assert send(one) == [("gone", None)]
    assert not folder.exists()


def test_itself_its_ancestors_and_process_1_are_never_signalled(folder: Path) -> None:
    never = ("refused", "this process is never signalled")
    pids = [os.getpid(), os.getppid(), 1]
    assert send(*(target(pid) for pid in pids), signal="KILL") == [never] * 3
    assert send(target(0, start_time=0), target(-1, start_time=0)) == [never] * 2
    assert action.own_line()[:2] == pids[:2]


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"boot_id": "another"}, "the host was rebooted since the plan was made"),
        ({"epoch": 77}, "another run took the host's lock in between"),
        ({"signal": "STOP"}, "no such signal here: STOP"),
    ],
)
def test_a_stale_plan_signals_nobody(
    folder: Path, start: Start, more: dict[str, Any], text: str
) -> None:
    process = start()
    with pytest.raises(Trouble) as caught:
        send(target(process.pid), **more)
    assert str(caught.value) == text
    assert process.poll() is None


def test_without_a_trail_nothing_is_sent(folder: Path, start: Start) -> None:
    """The line comes before the signal; where it cannot be written the intent is taken back."""
    process = start()
    ledger.open_dir()
    (folder / "audit.jsonl").mkdir()
    options = {"boot_id": action.read_boot_id(), "epoch": ledger.read_epoch()}
    targets = [target(process.pid)]
    found = action.send(signal="KILL", targets=targets, operation="op", **options)
    (row,) = found["results"]
    assert (row["result"], row["code"]) == ("failed", "no_trail")
    assert process.poll() is None
    assert ledger.records() == []


def test_without_pidfd_it_is_said(
    folder: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(_pid: int) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(identity, "open_pidfd", absent)
    process = start()
    assert send(target(process.pid)) == [("sent", "without pidfd: this kernel has none")]
    assert process.wait(60) == -15


def test_a_number_that_is_reused_between_two_looks(
    folder: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pidfd is opened between them, so it can only be the one that both looks saw."""
    process = start()
    one = target(process.pid)
    looks = iter([one["start_time"], one["start_time"] + 1])
    monkeypatch.setattr(identity, "start_time", lambda _pid: next(looks))
    assert send(one, signal="KILL") == [("gone", None)]
    assert process.poll() is None


def test_the_trail_has_the_kernel_s_name_the_scope_and_the_reason(
    folder: Path, start: Start
) -> None:
    """A plan may say anything, a file that somebody edited above all."""
    process = start("open('/proc/self/comm', 'w').write('nv-hostengine')")
    options = {"boot_id": action.read_boot_id(), "epoch": ledger.read_epoch()}
    given = {"operation": "op", "scope": "--gpu 0", "reason": "ticket 7", **options}
    (row,) = action.send(targets=(target(process.pid),), **given)["results"]
    assert (row["result"], row["comm"]) == ("sent", "nv-hostengine")
    (line,) = (folder / "audit.jsonl").read_text().splitlines()
    event = json.loads(line)
    assert (event["comm"], event["scope"], event["reason"]) == (
        "nv-hostengine",
        "--gpu 0",
        "ticket 7",
    )
    assert "what the plan says" not in line


def test_term_that_cannot_work_is_said(folder: Path, start: Start) -> None:
    process = start("import signal; signal.signal(15, signal.SIG_IGN)")
    options: dict[str, Any] = {"boot_id": action.read_boot_id(), "epoch": ledger.read_epoch()}
    (row,) = action.send(targets=(target(process.pid),), **options)["results"]
    assert (row["result"], row["deaf"]) == ("sent", "ignored")
    (row,) = action.send(signal="KILL", targets=(target(process.pid),), **options)["results"]
    assert (row["result"], row["deaf"]) == ("sent", None)
    assert process.wait(60) == -9


def test_without_room_for_a_record_nothing_is_sent(
    folder: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_given: Any) -> None:
        raise Trouble("failed", "/run/fleetmem/signals: No space left", code="remote_disk_full")

    process = start()
    monkeypatch.setattr(ledger, "intend", full)
    (row,) = action.send(
        signal="KILL",
        targets=(target(process.pid),),
        boot_id=action.read_boot_id(),
        epoch=ledger.read_epoch(),
    )["results"]
    assert (row["result"], row["code"]) == ("failed", "remote_disk_full")
    assert process.poll() is None


def test_a_plan_of_it_changes_nothing(start: Start) -> None:
    process = start()
    assert action.plan("KILL", (target(process.pid, start_time=5),)) == [
        f"SIGKILL to {process.pid} (started 5)"
    ]
    assert process.poll() is None
