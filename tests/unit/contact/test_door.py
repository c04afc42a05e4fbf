"""What a host says is checked, cleaned and bounded before anything looks at it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetmem.agent import shapes
from fleetmem.agent.declare import CALLS, shape_at
from fleetmem.controller.contact import door, gather
from fleetmem.controller.contact.session import Result
from tests.unit.contact.readings import sample

NAMES = sorted(CALLS)
ASKED: dict[str, dict[str, Any]] = {
    "processes.identity": {"pids": [7]},
    "signal.send": {"signal": "text", "targets": [{"pid": 7, "start_time": 7}]},
    "gpu.wait": {"gpus": [7], "pids": [7], "start_times": [7]},
}
"""What the samples answer to."""


def checked(name: str, reading: Any, args: dict[str, Any] | None = None) -> gather.Reading:
    return gather.checked(name, Result("ok", None, reading, 0.1), args)


def untrusted(row: gather.Reading) -> str:
    assert (row["outcome"], row["code"], row["reading"]) == ("failed", "untrusted_output", None)
    assert row["reason"] is not None
    return row["reason"]


# --- one answer ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_sound_reading_passes_unchanged(name: str) -> None:
    reading = sample(shape_at(CALLS[name].shape))
    assert door.misfit(name, reading) is None
    assert door.enter(name, reading) == reading


@pytest.mark.parametrize("name", NAMES)
def test_unknown_keys_are_left_out_and_said(name: str) -> None:
    reading = {**sample(shape_at(CALLS[name].shape)), "extra": ["x" * 1000] * 1000}
    row = checked(name, reading)
    assert (row["outcome"], row["code"]) == ("partial", "untrusted_output")
    assert row["reason"] == "the agent sent 1 unknown key; left out"
    assert "extra" not in row["reading"]


@pytest.mark.parametrize(
    ("path", "value", "what"),
    [
        (("total_bytes",), 10**24, "total_bytes: a number from 0 to 1125899906842624"),
        (("total_bytes",), -1, "total_bytes: a number from 0 to"),
        (("total_bytes",), True, "total_bytes: a whole number is expected"),
        (("total_bytes",), 1.5, "total_bytes: a whole number is expected"),
        (("kernel",), "k" * 20_000, "kernel: at most 16384 characters are expected"),
        (("kernel",), None, "kernel: text is expected"),
        (("uptime_seconds",), 1e300, "uptime_seconds: a number of ordinary size is expected"),
        (("uptime_seconds",), 10**400, "uptime_seconds: a number of ordinary size is expected"),
        (("agent_pids",), {}, "agent_pids: a list is expected"),
        (("agent_pids",), [1, 1 << 40], "agent_pids[1]: a number from 0 to 4294967295"),
        (("agent_pids",), [1] * 200_000, "agent_pids: at most 100000 rows are expected"),
        (("systemd",), 1, "systemd: true or false is expected"),
    ],
)
def test_what_no_agent_sends_is_not_kept(path: tuple[str, ...], value: Any, what: str) -> None:
    reading = sample(shapes.HostFacts)
    reading[path[0]] = value
    assert what in untrusted(checked("host.facts", reading))


def test_a_missing_key_is_named() -> None:
    reading = sample(shapes.GpuDevices)
    del reading["gpus"][0]["uuid"]
    assert "gpus[0].uuid: is missing" in untrusted(checked("gpu.devices", reading))


def test_a_word_outside_the_declared_ones_is_refused() -> None:
    reading = sample(shapes.GpuProcesses)
    reading["gpus"][0]["processes"][0]["state"] = "undead"
    assert "processes[0].state: one of alive dead implausible" in untrusted(
        checked("gpu.processes", reading)
    )


def test_control_characters_and_bidi_marks_become_visible() -> None:
    reading = sample(shapes.HostFacts)
    reading["hostname"] = "a\x1b[2J\nb\u202ec\ud800é"
    kept = checked("host.facts", reading)["reading"]
    assert kept["hostname"] == "a\\x1b[2J\\nb\\u202ec\\ud800é"
    json.dumps(kept).encode("utf-8")


def test_an_unknown_outcome_is_untrusted() -> None:
    row = gather.checked("host.facts", Result("splendid", None, None, 0.1))
    assert untrusted(row) == "the agent sent an unknown outcome"


def test_an_ok_without_a_reading_is_untrusted() -> None:
    untrusted(checked("host.facts", None))


# --- answers to questions that were asked --------------------------------------------------


def test_rows_about_processes_that_nobody_asked_about_are_left_out() -> None:
    asked, other = sample(shapes.Identity), sample(shapes.Identity)
    asked["pid"], other["pid"] = 10, 11
    reading = {"processes": [asked, other], "gone": [12, 13], "denied": 0}
    row = checked("processes.identity", reading, {"pids": [10, 12]})
    assert (row["outcome"], row["code"]) == ("partial", "untrusted_output")
    assert row["reason"] == "the agent sent 2 rows that nobody asked for; left out"
    assert [one["pid"] for one in row["reading"]["processes"]] == [10]
    assert row["reading"]["gone"] == [12]


def test_signals_that_nobody_sent_are_not_counted() -> None:
    def result(pid: int, start: int, signal: str = "TERM") -> dict[str, Any]:
        return {**sample(shapes.SignalResult), "pid": pid, "start_time": start, "signal": signal}

    rows = [result(10, 100), result(10, 101), result(11, 100), result(10, 100, "KILL")]
    args = {"signal": "TERM", "targets": [{"pid": 10, "start_time": 100}]}
    row = checked("signal.send", {"results": rows}, args)
    assert row["reading"]["results"] == rows[:1]
    assert row["code"] == "untrusted_output"


def test_unknown_keys_do_not_hide_rows_that_nobody_asked_for() -> None:
    reading = {"processes": [sample(shapes.Identity)], "gone": [], "denied": 0, "extra": 1}
    row = checked("processes.identity", reading, {"pids": [8]})
    assert row["reading"]["processes"] == []
    assert row["reason"] == (
        "the agent sent 1 unknown key and 1 row that nobody asked for; left out"
    )


def test_only_the_gpus_and_processes_waited_for_are_kept() -> None:
    reading = sample(shapes.GpuWait)
    reading["gpus"] = [{**sample(shapes.WaitGpu), "index": n} for n in (0, 1)]
    reading["processes"] = [{**sample(shapes.WaitProcess), "pid": n} for n in (10, 11)]
    start = reading["processes"][0]["start_time"]
    args = {"gpus": [1], "pids": [11], "start_times": [start]}
    row = checked("gpu.wait", reading, args)
    assert [one["index"] for one in row["reading"]["gpus"]] == [1]
    assert [one["pid"] for one in row["reading"]["processes"]] == [11]


# --- a liar --------------------------------------------------------------------------------

_SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([10**24, -(10**24), 1 << 63, -1, 0, 1 << 51]),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=30),
    st.just("x" * 20_000),
    st.just("\x1b]0;owned\x07\u202e\n"),
)
_ANYTHING = st.recursive(
    _SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=8,
)


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) inside *value*."""
    found: list[tuple[Any, Any]] = []
    inside = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in inside:
        found.append((value, key))
        if isinstance(item, dict | list):
            found += _places(item)
    return found


def _bounded(value: Any) -> None:
    """Nothing that was kept is longer, larger or stranger than the door allows."""
    if isinstance(value, str):
        assert value.isprintable()
        assert len(value) <= 10 * door.MAX_TEXT
    elif isinstance(value, dict):
        for key, item in value.items():
            _bounded(key)
            _bounded(item)
    elif isinstance(value, list):
        assert len(value) <= door.MAX_ROWS
        for item in value:
            _bounded(item)
    elif type(value) is int:
        assert -(1 << 63) <= value < 1 << 64


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_lying_host_spoils_its_own_row_only(name: str, data: st.DataObject) -> None:
    shape = shape_at(CALLS[name].shape)
    honest = sample(shape)
    lie: Any = sample(shape)
    if data.draw(st.booleans(), label="replace all"):
        lie = data.draw(_ANYTHING)
    else:
        place, key = data.draw(st.sampled_from(_places(lie)))
        place[key] = data.draw(_ANYTHING)
        if isinstance(place, dict) and data.draw(st.booleans(), label="more keys"):
            place.update(data.draw(st.dictionaries(st.text(max_size=9), _ANYTHING, max_size=3)))
    asked = ASKED.get(name, {})
    row, beside = checked(name, lie, asked), checked(name, honest, asked)
    assert row["outcome"] in ("ok", "partial", "failed")
    assert (row["outcome"] == "ok") == (row["code"] is None)
    _bounded(row["reading"])
    _bounded(row["reason"] or "")
    assert len(row["reason"] or "") < 2000
    assert (beside["outcome"], beside["reading"]) == ("ok", honest)


def test_a_shape_that_no_walker_can_check_is_an_error_of_ours() -> None:
    with pytest.raises(TypeError, match="no reading can hold"):
        door.compile_walker(set[int], "numbers")
    with pytest.raises(TypeError, match="no reading can hold"):
        door.compile_walker(int | str, "either")
