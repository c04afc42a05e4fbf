"""Folding equal results."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetmem.controller.answer.fold import fold_equal, fold_names, fold_numbers
from fleetmem.controller.text.sizes import span

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3)
    ),
    max_leaves=5,
)


def same(one: object, two: object) -> bool:
    """Equality as JSON sees it: true is not 1."""
    import json

    return json.dumps(one, sort_keys=True) == json.dumps(two, sort_keys=True)


@given(st.lists(JSON, max_size=12))
def test_hosts_share_a_group_exactly_if_equal(values: list[object]) -> None:
    """Every host is in one group, with those that have an equal value and no others."""
    rows = [(f"h{number}", value) for number, value in enumerate(values)]
    groups = fold_equal(rows)
    assert sorted(host for group in groups for host in group.hosts) == sorted(h for h, _ in rows)
    for group in groups:
        expected = tuple(host for host, value in rows if same(value, group.value))
        assert tuple(sorted(group.hosts)) == tuple(sorted(expected))


def test_worst_first_majority_last() -> None:
    """The rank of the value decides, then how few hosts have it."""
    rows = [("a", "ok"), ("b", "ok"), ("c", "odd"), ("d", "bad"), ("e", "ok"), ("f", "bad")]
    groups = fold_equal(rows, rank=lambda value: 0 if value == "bad" else 1)
    assert [(group.value, group.hosts) for group in groups] == [
        ("bad", ("d", "f")),
        ("odd", ("c",)),
        ("ok", ("a", "b", "e")),
    ]


def test_the_order_of_keys_is_no_difference() -> None:
    """Two agents may list fields in another order."""
    assert len(fold_equal([("a", {"x": 1, "y": [2]}), ("b", {"y": [2], "x": 1})])) == 1


def test_equal_however_it_was_built() -> None:
    """Shared and separate objects compare alike."""
    text = "".join(["l", "o", "ng"])
    rows = [("a", {"k": text, "l": text}), ("b", {"k": "long", "l": "lo" + "ng"[:]})]
    assert len(fold_equal(rows)) == 1


@given(st.sets(st.integers(0, 60)))
def test_numbers_fold_and_unfold(numbers: set[int]) -> None:
    """The ranges name exactly the numbers."""
    back: set[int] = set()
    for part in fold_numbers(numbers).split(",") if numbers else []:
        first, _, last = part.partition("-")
        back |= set(range(int(first), int(last or first) + 1))
    assert back == numbers


def test_names() -> None:
    """One differing number becomes ranges, several or too many a star."""
    assert fold_names(["w_TP0", "w_TP1", "w_TP3"]) == "w_TP[0-1,3]"
    assert fold_names(["w_TP0"]) == "w_TP0"
    assert fold_names(["r1 of 2", "r2 of 3"]) == "r* of *"
    assert fold_names(["n01", "n02"]) == "n[01,02]"
    assert fold_names(["python3", "ray::x"]) == "python3, ray::x"
    assert fold_names([f"pid {number * 7}" for number in range(1000)]) == "pid *"
    assert fold_names(["9" * 5000, "9" * 5000]) == "9" * 5000


@pytest.mark.parametrize(
    ("whys", "folded"),
    [
        (["9 processes of others", "11 processes of others"], "9-11 processes of others"),
        (
            ["files of 3 of 40 processes", "files of 12 of 75 processes"],
            "files of 3-12 of 40-75 processes",
        ),
        (["2 files and 3 segments"] * 2 + ["7 files and 3 segments"], "2-7 files and 3 segments"),
        (["its launcher 14 is alive", "its launcher 9 is alive"], "its launcher [9,14] is alive"),
        (
            ["process 4: 3 processes talk to it", "process 6: 1 processes talk to it"],
            "process [4,6]: 1-3 processes talk to it",
        ),
    ],
)
def test_counts_in_reasons_are_spans_and_ids_are_not(whys: list[str], folded: str) -> None:
    assert fold_names(whys) == folded


def test_span_of_nothing() -> None:
    """Unknown values have no range."""
    assert span([None, 3, 1]) == (1, 3)
    assert span([None]) is None
