"""Work that may hang or die is lost alone: the rest goes on."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleetmem.agent import isolate as apart
from fleetmem.agent import lifeline
from fleetmem.agent.page_cache import pages
from tests.unit.agent.probe_actors import until
from tests.unit.page_cache.cache_ground import PAGE

PATIENCE = 3.0
"""Seconds without a sign: much longer than a busy machine lets a child wait."""


def soon(seconds: float = 300.0) -> float:
    return time.monotonic() + seconds


def work(item: str) -> Iterator[object]:
    if item.startswith("hang"):
        time.sleep(600)
    if item.startswith("slow"):
        for _ in range(80):
            time.sleep(0.05)
            yield None
    if item.startswith("die"):
        os._exit(3)
    yield item.upper()


def test_values_come_in_order_and_several_for_one_item() -> None:
    def twice(item: int) -> Iterator[object]:
        yield item
        yield None
        yield [item, "ü"]

    found = list(apart.run([1, 2], twice, str, 60.0, soon(), set()))
    assert found == [(0, 1, None), (0, [1, "ü"], None), (1, 2, None), (1, [2, "ü"], None)]


def test_a_hanging_item_takes_its_file_system_along_and_no_other() -> None:
    items = ["hang-a", "x-a", "y-b", "z-a"]
    silent: set[str] = set()
    found = list(apart.run(items, work, lambda item: item[-1], PATIENCE, soon(), silent))
    assert found == [
        (0, None, apart.SILENT),
        (1, None, apart.SILENT),
        (3, None, apart.SILENT),
        (2, "Y-B", None),
    ]
    assert silent == {"a"}
    assert list(apart.run(["q-a"], work, lambda item: item[-1], PATIENCE, soon(), silent)) == [
        (0, None, apart.SILENT)
    ]


def test_signs_of_life_keep_a_slow_item_alive() -> None:
    began = time.monotonic()
    found = list(apart.run(["slow"], work, str, PATIENCE, soon(), set()))
    assert found == [(0, "SLOW", None)]
    assert time.monotonic() - began > PATIENCE


def test_a_dead_child_costs_one_item() -> None:
    found = list(apart.run(["a", "die", "b"], work, str, 60.0, soon(), set()))
    assert found[0] == (0, "A", None)
    assert found[1][0] == 1
    assert "status 3" in str(found[1][2])
    assert found[2] == (2, "B", None)


def test_the_deadline_ends_everything_once() -> None:
    found = list(apart.run(["a", "hang", "b"], work, str, 200.0, soon(2.0), set()))
    assert found == [(0, "A", None), (1, None, apart.STOPPED)]


def test_no_child_is_left_when_the_caller_stops_listening() -> None:
    answers = apart.run(["a", "hang"], work, str, 200.0, soon(), set())
    assert next(answers) == (0, "A", None)
    assert children()
    answers.close()
    assert not children()


def children() -> list[int]:
    """This process's children of that kind; other tests may have left others."""
    return [pid for pid in lifeline.children() if lifeline.comm(pid).startswith(apart.NAME)]


def test_a_child_of_a_run_beside_this_one_is_not_stuck() -> None:
    """Its file system answers: only a child that a kill does not end says that it does not."""
    items = ["a:1", "hang:1"]
    answers = apart.run(items, work, str, 200.0, soon(), set())
    assert next(answers) == (0, "A:1", None)
    until(lambda: [lifeline.comm(pid) for pid in children()] == ["fleetmem@hang:1"])
    assert "hang:1" not in apart.stuck()
    answers.close()


@pytest.mark.parametrize(
    ("state", "pending", "is_stuck"),
    [
        ("D (disk sleep)", 0x100, True),
        ("D (disk sleep)", 0x4000, False),
        ("Z (zombie)", 0x100, False),
    ],
)
def test_stuck_is_what_a_kill_does_not_end(
    monkeypatch: pytest.MonkeyPatch, state: str, pending: int, is_stuck: bool
) -> None:
    def status(name: str, _mode: str) -> io.BytesIO:
        assert name == "/proc/4711/status"
        text = f"Name:\tx\nState:\t{state}\nSigPnd:\t{pending:016x}\nShdPnd:\t{0:016x}\n"
        return io.BytesIO(text.encode())

    monkeypatch.setattr(apart.os, "listdir", lambda _path: ["4711", "self"])
    monkeypatch.setattr(lifeline, "comm", lambda _pid: "fleetmem@9:9")
    monkeypatch.setattr(apart, "open", status, raising=False)
    assert apart.stuck() == ({"9:9"} if is_stuck else set())


def test_a_file_that_shrinks_while_it_is_read_is_told_as_such(tmp_path: Path) -> None:
    path = tmp_path / "shrinks"
    path.write_bytes(b"x" * 8 * PAGE)

    def shrink(item: str) -> Iterator[object]:
        with open(item, "r+b") as file:
            window = pages.Window(file.fileno(), 0, 8 * PAGE)
            file.truncate(0)
            window.touch()
        yield "touched"

    found = list(apart.run([str(path)], shrink, str, 60.0, soon(), set()))
    assert found == [(0, None, apart.SHRANK)]
