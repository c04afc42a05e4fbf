"""The library plans, and applies only where it is told to."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fleetmem import Fleet, FleetSettings, ReclaimOptions
from fleetmem.controller.hosts.host import Host


class Asked:
    """A run that asks once and changes nothing."""

    agreed: bool

    def __init__(self, _hosts: Any, _settings: Any, _options: Any, approve: Any, *_: Any) -> None:
        self.approve = approve

    async def run(self) -> Any:
        Asked.agreed = await self.approve([])
        return {}


async def agree(_entries: Any) -> bool:
    return True


@pytest.mark.parametrize("cache", [None, ()])
@pytest.mark.parametrize(
    ("yes", "approve", "agreed"),
    [(False, None, False), (True, None, True), (False, agree, True)],
)
def test_nothing_is_applied_unless_told(
    monkeypatch: pytest.MonkeyPatch, cache: Any, yes: bool, approve: Any, agreed: bool
) -> None:
    monkeypatch.setattr("fleetmem.controller.reclaim.run.ReclaimRun", Asked)
    monkeypatch.setattr("fleetmem.controller.reclaim.cache.run.CacheRun", Asked)
    fleet = Fleet((Host("a", "a"),), FleetSettings())
    asyncio.run(fleet.reclaim(ReclaimOptions(yes=yes, cache=cache), approve))
    assert Asked.agreed is agreed
    if approve is None:
        fleet.sync.reclaim(ReclaimOptions(yes=yes, cache=cache))
        assert Asked.agreed is agreed
