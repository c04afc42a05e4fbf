"""The envelope's sums and the exit codes made of it."""

from __future__ import annotations

import re

import pytest

from fleetmem.controller.answer.envelope import (
    HOST_OUTCOMES,
    VERDICTS,
    EnvelopeError,
    Verdict,
    error_envelope,
    new_envelope,
    new_host,
    new_run,
    summarise,
    worst,
)
from fleetmem.controller.answer.exit_codes import VERDICT_CODES, exit_code
from tests.unit.reclaim.reclaim_samples import eight_gpus, envelope, idle, unreachable


def test_every_target_has_exactly_one_row() -> None:
    """A host too few, too many or twice is a defect that is never shown as an answer."""
    one, two = new_host("a", "ok"), new_host("b", "timed_out")
    summary = summarise(["a", "b"], [one, two])
    assert summary["targeted"] == 2
    assert sum(summary[word] for word in HOST_OUTCOMES) == 2  # type: ignore[literal-required]
    for targeted, rows in (
        (["a", "b"], [one]),
        (["a"], [one, two]),
        (["a"], [one, one]),
        (["a", "a"], [one, one]),
    ):
        with pytest.raises(EnvelopeError):
            summarise(targeted, rows)
    with pytest.raises(EnvelopeError):
        summarise(["a"], [{"host": "a", "outcome": "fine"}])


def test_a_run_has_an_id_and_a_time_of_its_own() -> None:
    """Ids differ; times are RFC 3339 in UTC."""
    runs = [new_run("reclaim") for _ in range(50)]
    assert len({run["id"] for run in runs}) == 50
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", runs[0]["started"])


def test_error_envelope() -> None:
    """An error of usage has the same shape, without hosts."""
    answer = error_envelope(
        new_run("reclaim"), 2, {"code": "usage_error", "message": "m", "hint": None}
    )
    assert (answer["hosts"], answer["run"]["exit_code"]) == ([], 2)
    assert answer["error"]["code"] == "usage_error"
    assert answer["summary"]["targeted"] == 0


def test_the_worst_verdict() -> None:
    """The order is the one in which people must know it."""
    assert worst(["reclaimed", "held_by", "nothing_to_do"]) == "held_by"
    assert worst([]) == "nothing_to_do"
    assert set(VERDICT_CODES) == set(VERDICTS)


@pytest.mark.parametrize(
    ("verdict", "code"),
    [
        ("reclaimed", 0),
        ("nothing_to_do", 0),
        ("planned", 0),
        ("held_by", 5),
        ("releasing", 5),
        ("drain_refused", 7),
        ("not_permitted", 7),
        ("unknown", 8),
    ],
)
def test_the_code_of_a_verdict(verdict: Verdict, code: int) -> None:
    """One host, one verdict, one code."""
    entry = eight_gpus()
    entry["reclaim"]["verdict"] = verdict
    assert exit_code(envelope(entry)) == code


def test_codes_over_many_hosts() -> None:
    """The first that applies of the documented order."""
    good, lost = eight_gpus("a"), unreachable("b")
    assert exit_code(envelope(good, lost)) == 3
    assert exit_code(envelope(lost)) == 4
    bad = eight_gpus("c")
    bad["reclaim"]["verdict"] = "unkillable"
    assert exit_code(envelope(good, lost, bad)) == 5
    locked = new_host("d", "failed", {"code": "locked", "message": "m", "hint": None})
    assert exit_code(envelope(good, lost, locked)) == 7
    assert exit_code(envelope(good, new_host("e", "unknown"), bad)) == 8
    assert exit_code(envelope(good, bad), interrupted=130) == 130


def test_a_plan_alone_is_six_where_that_was_asked_for() -> None:
    """Hosts with nothing to do do not make it a plan."""
    planned = eight_gpus("a")
    planned["reclaim"]["verdict"] = "planned"
    assert exit_code(envelope(planned, idle("b")), plan_only=True) == 6
    assert exit_code(envelope(planned)) == 0
    assert exit_code(envelope(idle("b")), plan_only=True) == 0


def test_findings_fail_a_run_from_a_severity_on() -> None:
    """``--fail-on`` is a threshold."""
    run = new_envelope(new_run("audit"), ["a"], [new_host("a", "ok")])
    run["findings"] = [
        {
            "rule": "p/r",
            "severity": "warn",
            "hosts": "a",
            "subject": "s",
            "evidence": {},
            "advice": None,
            "next": [],
        }
    ]
    assert [exit_code(run, fail_on=word) for word in (None, "info", "warn", "critical")] == [
        0,
        5,
        5,
        0,
    ]


def test_the_documentation_has_every_code_and_verdict() -> None:
    """``docs/exit-codes.md`` says what the code does."""
    from pathlib import Path

    from fleetmem.controller import errors

    text = (Path(__file__).resolve().parents[3] / "docs" / "exit-codes.md").read_text("utf-8")
    codes = {value for name, value in vars(errors).items() if name.startswith("EXIT_")}
    assert codes == {int(number) for number in re.findall(r"^\| (\d+) \|", text, re.M)}
    for verdict, code in VERDICT_CODES.items():
        row = next(line for line in text.splitlines() if line.startswith("| `") and verdict in line)
        assert f" {code}" in row.rpartition("| ")[2] or f"| {code} " in row
