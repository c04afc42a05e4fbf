"""The tree of errors: drawn as it is, codes stable and unique, one exit code over many hosts."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetmem.controller import errors
from fleetmem.controller.answer.exit_codes import exit_code_over


def classes() -> list[type[errors.FleetError]]:
    return [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.FleetError)
    ]


def test_every_class_has_a_code_of_its_own_a_meaning_and_an_exit_code() -> None:
    codes = [kind.code for kind in classes()]
    assert len(codes) == len(set(codes))
    for kind in classes():
        assert re.fullmatch(r"[a-z_]+", kind.code)
        assert kind.__doc__
        assert kind.exit_code in (1, 2, 3, 4, 5, 7, 8, 129, 130, 143)
        assert kind("m").to_json() == {
            "code": kind.code,
            "message": "m",
            "hint": kind.remedy or None,
        }


def test_the_drawing_names_every_class_with_its_code() -> None:
    drawn = dict(re.findall(r"── (\w+)\s+(\w+)", errors.__doc__ or ""))
    assert drawn == {
        kind.__name__: kind.code for kind in classes() if kind is not errors.FleetError
    }


def test_the_drawing_has_the_right_parents() -> None:
    parents = ["FleetError"]
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"    ([│ ]*)[├└]── (\w+)", line)
        if match:
            depth = len(match[1]) // 4 + 1
            assert getattr(errors, match[2]).__mro__[1].__name__ == parents[depth - 1], match[2]
            parents[depth:] = [match[2]]


def test_the_words_of_the_contract_are_there() -> None:
    promised = {
        "hostkey_unknown",
        "hostkey_changed",
        "auth_failed",
        "sudo_password_required",
        "sudo_tty_required",
        "python_missing",
        "python_too_old",
        "python_incomplete",
        "connect_timeout",
        "connect_refused",
        "dns_failed",
        "gateway_unreachable",
        "session_lost",
        "remote_disk_full",
        "ssh_protocol",
        "locked",
        "stale_plan",
    }
    assert promised <= {kind.code for kind in classes()}


def test_rows_are_the_documentation() -> None:
    rows = errors.rows()
    assert len(rows) == len(classes()) - 1
    for code, exit_code, meaning, remedy in rows:
        assert code
        assert exit_code
        assert "\n" not in meaning + remedy
        assert meaning.endswith(".")


def test_an_own_hint_wins_over_the_remedy() -> None:
    assert errors.AuthFailed("m", "h").hint == "h"
    assert errors.AuthFailed("m").hint == errors.AuthFailed.remedy


@pytest.mark.parametrize(
    ("outcomes", "codes", "status"),
    [
        ([], [], 0),
        (["ok", "partial"], [], 0),
        (["ok", "failed"], [], 3),
        (["ok", "unreachable"], [], 3),
        (["ok", "unreachable"], [4], 3),
        (["unreachable", "unreachable"], [], 4),
        (["unreachable", "not_attempted"], [], 4),
        (["not_attempted"], [], 3),
        (["unreachable", "timed_out"], [], 3),
        (["unreachable", "unknown"], [], 8),
        (["ok", "unknown"], [5], 8),
        (["ok", "failed"], [5], 5),
        (["ok", "failed"], [7], 7),
        (["unreachable"], [5, 7], 4),
        (["ok"], [6], 6),
        (["ok", "failed"], [6], 3),
        (["ok"], [2, 8], 2),
        (["unknown"], [1], 1),
        (["unknown"], [130, 1], 130),
        (["ok"], [143, 5], 143),
        ([], [4], 4),
        (["ok"], [0], 0),
    ],
)
def test_the_first_that_applies(outcomes: list[str], codes: list[int], status: int) -> None:
    assert exit_code_over(outcomes, codes) == status


OUTCOMES = ("ok", "partial", "failed", "unreachable", "timed_out", "not_attempted", "unknown")
CODES = (0, 1, 2, 3, 4, 5, 6, 7, 8, 129, 130, 143)


@given(st.lists(st.sampled_from(OUTCOMES)), st.lists(st.sampled_from(CODES)))
def test_order_and_repetition_do_not_matter(outcomes: list[str], codes: list[int]) -> None:
    status = exit_code_over(outcomes, codes)
    assert status == exit_code_over(reversed(outcomes * 2), reversed(codes * 2))
    assert status in CODES


def test_worse_never_gets_better() -> None:
    order = (130, 143, 1, 2, 8, 5, 7, 3, 6, 0)
    for worse, better in itertools.combinations(order, 2):
        assert exit_code_over(["ok"], [better, worse]) == worse
