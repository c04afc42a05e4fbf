"""Filters, context and budgets of ``journal.read``; lines are taken newest first."""

from __future__ import annotations

from typing import Any

import pytest

from fleetmem.agent.logs.keep import LONGEST, MANAGER, Keep
from fleetmem.agent.model import Trouble


class Taken:
    """Feeds messages (newest first) and collects what is emitted."""

    def __init__(self, **options: Any) -> None:
        defaults: dict[str, Any] = {
            "grep": None, "words": None, "before": 0, "after": 0,
            "limit_lines": 100, "limit_bytes": 1 << 20,
        }  # fmt: skip
        self.rows: list[list[Any]] = []
        self.keep = Keep(
            **{**defaults, **options}, emit=lambda data: self.rows.extend(data["rows"])
        )

    def take(self, *messages: bytes, kind: int = 0) -> bool:
        """All *messages*; whether more is wanted."""
        more = all(self.keep.take(1, 0, b"7", {}, kind, message) for message in messages)
        self.keep.flush()
        return more

    @property
    def messages(self) -> list[tuple[str, int]]:
        return [(row[7], row[6]) for row in self.rows]


def test_case_is_journalctls_rule() -> None:
    lower = Taken(grep=r"error\S+")
    lower.take(b"ERROR: x", b"an error:y", b"nothing")
    assert [text for text, _ in lower.messages] == ["ERROR: x", "an error:y"]
    upper = Taken(grep="Error")
    upper.take(b"error", b"Error", b"ERROR")
    assert [text for text, _ in upper.messages] == ["Error"]


def test_context_is_in_the_logs_own_order() -> None:
    """Reading runs backwards: what follows a line in time comes before it."""
    taken = Taken(grep="hit", before=1, after=2)
    taken.take(b"5", b"4", b"3", b"hit", b"1", b"0")
    assert taken.messages == [("4", 0), ("3", 0), ("hit", 1), ("1", 0)]


def test_words_find_lines_whatever_their_digits_and_the_managers_lines_stay() -> None:
    taken = Taken(words=("KV size: 1 GB", "loaded"))
    assert taken.take(b"KV size: 22 GB", b"step 1", b"step 2", b"loaded 3")
    taken.take(b"Started x.service.", kind=MANAGER)
    assert [text for text, _ in taken.messages] == [
        "KV size: 22 GB", "loaded 3", "Started x.service.",
    ]  # fmt: skip


def test_budgets_keep_the_newest_and_say_which_ended_it() -> None:
    lines = Taken(limit_lines=2)
    assert not lines.take(b"new", b"older", b"oldest")
    assert (lines.keep.full, len(lines.rows)) == ("lines", 2)
    size = Taken(limit_bytes=5)
    assert not size.take(b"new", b"older")
    assert (size.keep.full, size.messages) == ("bytes", [("new", 1)])


def test_bytes_come_back_exactly_and_very_long_messages_are_cut() -> None:
    raw = b"caf\xe9 \xff\x00 \xed\xa0\x80 ok \xf0\x9f\x98\x80"
    taken = Taken(limit_bytes=3 * LONGEST)
    taken.take(raw, b"y" * (LONGEST + 1))
    assert taken.rows[0][7].encode("utf-8", "surrogateescape") == raw
    assert len(taken.rows[1][7]) == LONGEST
    assert taken.keep.cut == 1


def test_a_pattern_that_is_none_is_one_line() -> None:
    with pytest.raises(Trouble, match="does not take the pattern"):
        Taken(grep="(")
