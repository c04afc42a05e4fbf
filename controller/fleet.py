"""The public API: a set of hosts, and what can be asked of them.

    fleet = Fleet.load(hosts="gh200-[01-16]")
    envelope = fleet.sync.reclaim(ReclaimOptions(dry_run=True))

Everything is async; ``fleet.sync`` has the same methods for code that is not. The command
line uses nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from fleetmem.controller.envelope import Envelope, HostEntry
    from fleetmem.controller.inventory import Host
    from fleetmem.controller.reclaim.options import ReclaimOptions

Event = dict[str, Any]
OnEvent = Callable[[Event], None]
Approve = Callable[[Sequence["HostEntry"]], Awaitable[bool]]


def _silent(_event: Event) -> None:
    """Nobody watches."""


async def approve_all(_entries: Sequence[HostEntry]) -> bool:
    """Agree to every plan: for callers that ask nobody."""
    return True


@dataclass(frozen=True)
class FleetSettings:
    """What holds for every run of a fleet.

    ``host_timeout_seconds`` bounds connecting to a host and reading it; changing it is
    bounded by the ladder's own spans on top. ``run_lookup`` gives the hosts of an earlier
    run for ``@run:ID:OUTCOME``.
    """

    fanout: int = 64
    host_timeout_seconds: float = 60.0
    accept_new_host_key: bool = False
    run_lookup: Callable[[str, str], Iterable[str]] | None = None
    sudo_password: str | None = None
    agent_cache: bool = True
    history_dir: Path | None = None


class Fleet:
    """Hosts that a selector named, in its order."""

    def __init__(self, hosts: tuple[Host, ...], settings: FleetSettings) -> None:
        self.hosts = hosts
        self.settings = settings

    @classmethod
    def load(
        cls,
        inventory: str | Path | None = None,
        hosts: str = "@all",
        exclude: str = "",
        settings: FleetSettings | None = None,
    ) -> Fleet:
        """Read the inventory and resolve *hosts* less *exclude*.

        InventoryInvalid, NoHostsMatch, RangeTooLarge, UsageError.
        """
        from fleetmem.controller.inventory import load
        from fleetmem.controller.selector import resolve

        settings = settings or FleetSettings()
        found = load(None if inventory is None else str(inventory))
        return cls(resolve(hosts, found, exclude or "", settings.run_lookup), settings)

    @property
    def sync(self) -> SyncFleet:
        """The same methods for code without an event loop."""
        return SyncFleet(self)

    async def check(self, on_event: OnEvent = _silent) -> Envelope:
        """Connect to every host and read what a reclaim would need; changes nothing."""
        from fleetmem.controller.check import check

        return await check(self, on_event)

    async def reclaim(
        self,
        options: ReclaimOptions,
        approve: Approve = approve_all,
        on_event: OnEvent = _silent,
    ) -> Envelope:
        """Plan on all hosts, ask *approve* once, apply, verify.

        A dry run never asks and changes nothing. Cancelling the task keeps what is finished:
        the envelope then says which hosts were not attempted and which are unknown.
        """
        from fleetmem.controller.reclaim.run import ReclaimRun

        return await ReclaimRun(self, options, approve, on_event).run()


class SyncFleet:
    """:class:`Fleet` for code without an event loop; not inside a running one."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def check(self, on_event: OnEvent = _silent) -> Envelope:
        """See :meth:`Fleet.check`."""
        return asyncio.run(self._fleet.check(on_event))

    def reclaim(
        self,
        options: ReclaimOptions,
        approve: Approve = approve_all,
        on_event: OnEvent = _silent,
    ) -> Envelope:
        """See :meth:`Fleet.reclaim`."""
        return asyncio.run(self._fleet.reclaim(options, approve, on_event))
