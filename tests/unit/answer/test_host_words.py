"""What a host says about itself never becomes more than its own row's trouble."""

from __future__ import annotations

import pytest

from fleetmem.agent import wire
from fleetmem.controller import errors
from fleetmem.controller.contact import gather
from fleetmem.controller.contact.session import as_result


def row(code: str | None, reason: str) -> gather.Reading:
    return {"outcome": "failed", "code": code, "reason": reason, "reading": None, "seconds": 0.0}


@pytest.mark.parametrize("code", ["nvml_hung", "remote_disk_full", "locked", "no_state_dir"])
def test_codes_of_trouble_on_a_host_become_its_error(code: str) -> None:
    error = gather.probe_error("some.probe", row(code, "what happened"))
    assert (error.code, error.message) == (code, "what happened")


@pytest.mark.parametrize(
    "code", ["interrupted", "terminated", "internal", "usage_error", "nonsense"]
)
def test_no_host_ends_a_run_by_a_word(code: str) -> None:
    error = gather.probe_error("some.probe", row(code, "by me"))
    assert error.code == "probe_failed"
    assert error.exit_code == errors.EXIT_SOME_FAILED
    assert error.message == "some.probe: by me"


def test_reasons_are_one_short_line_and_spans_are_spans() -> None:
    message = {"outcome": "failed", "reason": "a\n\tb " * 100000, "seconds": 10**400}
    result = as_result(message)
    assert result.reason is not None
    assert len(result.reason) <= 400
    assert "\n" not in result.reason
    assert result.seconds == 0.0
    assert as_result({**message, "seconds": -3}).seconds == 0.0


@pytest.mark.parametrize("text", ["1e999", "-1e999", "[1e400]", "NaN", "Infinity"])
def test_numbers_without_end_are_no_json(text: str) -> None:
    with pytest.raises(ValueError, match="number"):
        wire.loads(text)
    assert wire.loads("[1.5, 1e3, -2]") == [1.5, 1000.0, -2]


@pytest.mark.parametrize(
    "error", [ZeroDivisionError("x"), KeyError(3), OverflowError("big"), ValueError("y" * 9999)]
)
def test_absurd_readings_are_that_hosts_error(error: Exception) -> None:
    with pytest.raises(errors.ProbeFailed) as caught, gather.judging("gh200-01"):
        raise error
    assert caught.value.message.startswith("gh200-01: its readings contradict each other")
    assert len(caught.value.message) < 400
    assert caught.value.__cause__ is error


def test_errors_of_the_tree_and_interrupts_pass() -> None:
    with pytest.raises(errors.StalePlan), gather.judging("gh200-01"):
        raise errors.StalePlan("old")
    with pytest.raises(KeyboardInterrupt), gather.judging("gh200-01"):
        raise KeyboardInterrupt
