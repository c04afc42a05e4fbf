"""The page of public issues names tests that exist, for all 25 of them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "fleet-issues.md").read_text("utf-8")


def test_every_issue_has_a_row_and_every_row_a_test_or_a_later() -> None:
    rows = re.findall(r"^\| (\d+) \|.*\| (.*) \|$", PAGE, re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, 26))
    for number, held in rows:
        assert "`tests/" in held or "later" in held, number


def test_every_test_named_is_there() -> None:
    named = re.findall(r"`(tests/[a-z_/]+\.py)(?:::([a-z0-9_]+))?`", PAGE)
    assert len(named) > 30
    for path, name in named:
        text = (ROOT / path).read_text("utf-8")
        assert not name or f"def {name}(" in text, (path, name)
