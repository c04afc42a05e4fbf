"""Histories of a host: nobody's process is ended by the default, and leftovers are found.

``FLEETMEM_STORIES=100000`` tells that many; ``make test`` tells fewer.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.unit.reclaim.stories.count import Count, many, one
from tests.unit.reclaim.stories.mutants import ANCHORS, MUTANTS, without_anchor

if TYPE_CHECKING:
    from tests.unit.reclaim.stories.mutants import Mutant

STORIES = int(os.environ.get("FLEETMEM_STORIES", "2500"))
SHARE = 0.9
UNREACHED = ("worker in a terminal", "worker in a live job script")
"""Left over, and beside somebody who is logged in or a main process that lives: an anchor."""
ENOUGH_BYTES = 30 << 30


def test_no_wanted_process_is_a_default_target_and_leftovers_are_found(
    capsys: pytest.CaptureFixture[str],
) -> None:
    count = many(range(STORIES))
    with capsys.disabled():
        print(f"\n{count}")
    assert count.wrong == []
    assert not lacking(count)
    assert count.share > SHARE


def lacking(count: Count) -> list[str]:
    """Kinds of leftovers of which less than the share is found."""
    return [
        kind
        for kind, size in count.left.items()
        if kind not in UNREACHED and size > ENOUGH_BYTES and count.found[kind] < SHARE * size
    ]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_loosened_rule_is_noticed(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    assert noticed()


@pytest.mark.parametrize("code", ANCHORS)
def test_a_missing_anchor_is_noticed(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    without_anchor(code)(monkeypatch)
    count = Count()
    assert any(one(seed, count) or count.wrong for seed in range(8000))


def noticed() -> bool:
    """Whether some history ends badly: a wanted process ended, or a kind not found any more."""
    count = Count()
    for seed in range(6000):
        one(seed, count)
        if count.wrong or (seed % 500 == 499 and seed > 1000 and lacking(count)):
            return True
    return False
