"""The user's own titles of workers, and what a title may look like."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fleetmem.controller.errors import UsageError
from fleetmem.controller.reclaim.law.rules import engine, rules
from fleetmem.controller.text.titles import form, matches
from tests.unit.reclaim.reclaim_world import identity

MINE = """
workers:
  - {engine: mine, titles: ["mine::rank{ranks}"], tests: [mine::rank_0], others: [mine::ranking]}
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the user's list stands; the rules are read anew before and after."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    path = tmp_path / "fleetmem" / "workers.yaml"
    path.parent.mkdir()
    rules.cache_clear()
    yield path
    rules.cache_clear()


def test_a_user_adds_titles(file: Path) -> None:
    file.write_text(MINE)
    assert engine(identity(1, title="mine::rank_3"), rules()) == "mine"
    assert engine(identity(1, title="mine::ranking"), rules()) is None
    assert engine(identity(1, title="VLLM::Worker_TP0"), rules()) == "vLLM"


def test_a_mistake_in_the_users_list_stops_before_anything_is_judged(file: Path) -> None:
    file.write_text(MINE.replace("mine::rank{ranks}", "*"))
    with pytest.raises(UsageError, match=r"workers\.yaml:3:"):
        rules()


@pytest.mark.parametrize("written", ["*", "ab*", "{path}*", "a{ranks}", "VLLM*::x", "{prefix}"])
def test_a_title_that_could_be_anybodys_is_refused(written: str) -> None:
    with pytest.raises(ValueError, match="four signs"):
        form(written)


@pytest.mark.parametrize(
    ("written", "title", "comm", "fits"),
    [
        ("VLLM::EngineCore{ranks}", "VLLM::EngineCore_DP0", "VLLM::EngineCor", True),
        ("VLLM::EngineCore{ranks}", "", "VLLM::EngineCor", True),
        ("VLLM::EngineCore{ranks}", "python3 x.py", "VLLM::EngineCor", False),
        ("{prefix}Worker{rank}", "a::b::Worker_TP0_PP1", "a::b::Worker_TP", True),
        ("{prefix}Worker{rank}", "a::Worker_0", "a::Worker_0", False),
        ("{prefix}Worker{rank}", "::Worker_TP0", "", False),
        ("{path}ollama runner*", "/opt/x/ollama runner --port 1", "ollama", True),
        ("{path}ollama runner*", "/opt/x/ollama serve", "ollama", False),
    ],
)
def test_titles(written: str, title: str, comm: str, fits: bool) -> None:
    assert matches(form(written), title, comm) is fits


def test_a_hostile_title_costs_no_more_than_its_length() -> None:
    """No expression that could backtrack meets a host's text."""
    title = "a::" * 20000 + "Worker" + "_TP" * 20000
    assert not matches(form("{prefix}Worker{rank}"), title, "a")
