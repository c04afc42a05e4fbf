"""The library plans, and applies only where it is told to."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from fleetmem import Fleet, FleetSettings, ReclaimOptions
from fleetmem.controller.hosts.host import Host


async def agree(_entries: Any) -> bool:
    return True


@pytest.mark.parametrize("cache", [None, ()])
@pytest.mark.parametrize(
    ("yes", "approve", "agreed"),
    [(False, None, False), (True, None, True), (False, agree, True)],
)
def test_nothing_is_applied_unless_told(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    cache: Any,
    yes: bool,
    approve: Any,
    agreed: bool,
) -> None:
    answers: list[bool] = []

    async def ask(_life: Any, _kind: Any, _options: Any, approve: Any) -> Any:
        answers.append(await approve([]))
        return {}

    monkeypatch.setattr("fleetmem.controller.reclaim.run.reclaim", ask)
    fleet = Fleet((Host("a", "a"),), FleetSettings(history_dir=tmp_path / "state"))
    asyncio.run(fleet.reclaim(ReclaimOptions(yes=yes, cache=cache), approve))
    fleet.sync.reclaim(ReclaimOptions(yes=yes, cache=cache), approve)
    assert answers == [agreed, agreed]
