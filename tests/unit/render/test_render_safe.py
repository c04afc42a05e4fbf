"""Remote text on a terminal: nothing in it may act."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetmem.controller.render.kit.line import cells, clip, left, right, wrap
from fleetmem.controller.text.safe import safe

ANYTHING = st.text(alphabet=st.characters(exclude_categories=()), max_size=80)


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("python3 -m vllm", "python3 -m vllm"),
        ("Größe – 模型", "Größe – 模型"),
        ("\x1b]0;owned\x07", "\\x1b]0;owned\\x07"),
        ("\x1b[2J\x9b31m", "\\x1b[2J\\x9b31m"),
        ("a\nb\r\tc\x00\x7f", "a\\nb\\r\\tc\\x00\\x7f"),
        ("safe\u202etxt.exe", "safe\\u202etxt.exe"),
        ("zero\u200bwidth\ufeff", "zero\\u200bwidth\\ufeff"),
        ("filler\u3164", "filler\\u3164"),
        ("lone \ud800", "lone \\ud800"),
        ("tag \U000e0041", "tag \\U000e0041"),
        ("[bold red]markup[/]", "[bold red]markup[/]"),
        (41377, "41377"),
    ],
)
def test_what_is_shown(raw: object, shown: str) -> None:
    """Each kind of trick has a visible form; ordinary text stays as it is."""
    assert safe(raw) == shown


@given(ANYTHING)
def test_nothing_acts(raw: str) -> None:
    """Whatever comes in: no control, format, surrogate or separator character comes out."""
    bad = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
    assert not {unicodedata.category(char) for char in safe(raw)} & bad
    safe(raw).encode("utf-8")


@given(ANYTHING, st.integers(2, 30))
def test_limit(raw: str, limit: int) -> None:
    """A limit holds although escapes are longer than what they stand for."""
    assert len(safe(raw, limit)) <= limit


@given(ANYTHING.map(safe), st.integers(1, 40))
def test_columns_are_exact(text: str, width: int) -> None:
    """Cells are as wide as asked for, and only text that does not fit is marked."""
    assert cells(left(text, width)) == width
    assert cells(right(text, width)) == width
    assert (clip(text, width) == text) == (cells(text) <= width)


@given(ANYTHING.map(safe), st.integers(2, 40))
def test_wrapping_loses_nothing(text: str, width: int) -> None:
    """Pieces fit and together have every character but blanks at the breaks."""
    pieces = wrap(text, width)
    assert all(cells(piece) <= width for piece in pieces)
    assert "".join(pieces).replace(" ", "") == text.replace(" ", "")


def test_wide_and_combining_characters() -> None:
    """Wide characters take two cells, combining ones none."""
    assert cells("模型") == 4
    assert cells("e\u0301") == 1
    assert clip("模型模型", 5) == "模型…"
