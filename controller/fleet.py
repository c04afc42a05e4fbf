"""The public API: a set of hosts, and what can be asked of them.

    fleet = Fleet.load(hosts="gh200-[01-16]")
    envelope = fleet.sync.reclaim(ReclaimOptions(dry_run=True))

Everything is async; ``fleet.sync`` has the same methods for code that is not. The command
line uses nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fleetmem.controller.run.settings import Approve, Event, FleetSettings, OnEvent

if TYPE_CHECKING:
    from pathlib import Path

    from fleetmem.controller.answer.envelope import Envelope, HostEntry
    from fleetmem.controller.hosts.host import Host
    from fleetmem.controller.logs.audit import AuditOptions
    from fleetmem.controller.logs.run import LogOptions
    from fleetmem.controller.look.follow.run import FollowOptions
    from fleetmem.controller.look.snapshot import SnapshotOptions
    from fleetmem.controller.reclaim.options import ReclaimOptions
    from fleetmem.controller.reclaim.plan import Plan

__all__ = ["Fleet", "FleetSettings", "SyncFleet", "approve_all"]


def _silent(_event: Event) -> None:
    """Nobody watches."""


def _locate(host: Host) -> tuple[str, int]:
    """Where SSH would go for *host*, ``~/.ssh/config`` included."""
    from fleetmem.controller.contact.transport import ConnectSettings
    from fleetmem.controller.contact.transport.ssh.route import find_route

    route = find_route(host, ConnectSettings(), {})
    return route.host, route.port


async def approve_all(_entries: Sequence[HostEntry]) -> bool:
    """Agree to every plan: for callers that ask nobody."""
    return True


async def approve_none(_entries: Sequence[HostEntry]) -> bool:
    """Agree to no plan: it is made and nothing is changed."""
    return False


class Fleet:
    """Hosts that a selector named, in its order."""

    def __init__(
        self, hosts: tuple[Host, ...], settings: FleetSettings, warnings: tuple[str, ...] = ()
    ) -> None:
        self.hosts = hosts
        self.settings = settings
        self.warnings = warnings

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
        from fleetmem.controller.hosts.inventory import load
        from fleetmem.controller.hosts.selector import resolve

        settings = settings or FleetSettings()
        found = load(None if inventory is None else str(inventory))
        named = resolve(hosts, found, exclude or "", settings.run_lookup, _locate)
        return cls(named, settings, found.warnings)

    @property
    def sync(self) -> SyncFleet:
        """The same methods for code without an event loop."""
        return SyncFleet(self)

    async def check(self, on_event: OnEvent = _silent) -> Envelope:
        """Connect to every host and read what a reclaim would need; changes nothing."""
        from fleetmem.controller.look.check import check

        self._warn(on_event)
        return await check(self.hosts, self.settings, on_event)

    async def audit_startup(self, options: AuditOptions, on_event: OnEvent = _silent) -> Envelope:
        """Engines' start-ups: budgets, findings, outliers; changes nothing on a host."""
        from fleetmem.controller.logs.audit import audit_startup

        self._warn(on_event)
        return await audit_startup(self.hosts, self.settings, options, on_event)

    async def logs(self, options: LogOptions, on_event: OnEvent = _silent) -> Envelope:
        """Log lines, newest first, filtered on the hosts; changes nothing."""
        from fleetmem.controller.logs.run import logs

        self._warn(on_event)
        return await logs(self.hosts, self.settings, options, on_event)

    async def reclaim(
        self,
        options: ReclaimOptions,
        approve: Approve | None = None,
        on_event: OnEvent = _silent,
        stored: Mapping[str, Plan] | None = None,
    ) -> Envelope:
        """Plan on all hosts, ask *approve* once, apply, verify.

        Without *approve* the plans are made and nothing is changed, unless ``options.yes`` says
        that they may be applied unseen.
        With *stored* plans (see :mod:`fleetmem.controller.reclaim.plan_file`) those are applied
        instead of new ones, each refused where it is stale. A dry run never asks and changes
        nothing. Cancelling the task keeps what is finished: the envelope then says which hosts
        were not attempted and which are unknown.

        HistoryUnavailable, before any host is contacted, where the run could not be recorded.
        """
        from fleetmem.controller.reclaim.cache.run import Cache
        from fleetmem.controller.reclaim.options import for_hosts
        from fleetmem.controller.reclaim.processes import Processes
        from fleetmem.controller.reclaim.run import Kind, reclaim
        from fleetmem.controller.run.life import begin

        if approve is None:
            approve = approve_all if options.yes else approve_none
        self._warn(on_event)
        options = for_hosts(options, self.hosts)
        changes = not options.dry_run
        life = begin("reclaim", self.hosts, self.settings, on_event, must_record=changes)
        kind: Kind = Processes(life, options, stored)
        if options.cache is not None:
            kind = Cache(life, options)
        return await reclaim(life, kind, options, approve)

    async def snapshot(self, options: SnapshotOptions, on_event: OnEvent = _silent) -> Envelope:
        """Where every byte of host and GPU memory is now, by backing, owner and location."""
        from fleetmem.controller.look.snapshot import snapshot

        self._warn(on_event)
        return await snapshot(self.hosts, self.settings, options, on_event)

    async def follow_start(self, options: FollowOptions, on_event: OnEvent = _silent) -> Envelope:
        """A snapshot at each mark of an engine's start: before-load, after-load, after-init."""
        from fleetmem.controller.look.follow.run import follow_start

        self._warn(on_event)
        return await follow_start(self.hosts, self.settings, options, on_event)

    async def run_playbooks(
        self,
        playbooks: Sequence[str],
        on_event: OnEvent = _silent,
        command: str = "audit",
        logs: AuditOptions | None = None,
    ) -> Envelope:
        """What *playbooks* (names or files) find over readings, in one run and with one contact
        a host; changes nothing. Among them ``startup`` reads engines' logs, as *logs* says."""
        from fleetmem.controller.look.playbook_run import audit

        self._warn(on_event)
        return await audit(self.hosts, self.settings, playbooks, on_event, command, logs)

    def _warn(self, on_event: OnEvent) -> None:
        """Pass on what reading the inventory had to say."""
        for text in self.warnings:
            on_event({"kind": "warning", "text": text})


class SyncFleet:
    """:class:`Fleet` for code without an event loop; not inside a running one."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def check(self, on_event: OnEvent = _silent) -> Envelope:
        """See :meth:`Fleet.check`."""
        return asyncio.run(self._fleet.check(on_event))

    def audit_startup(self, options: AuditOptions, on_event: OnEvent = _silent) -> Envelope:
        """See :meth:`Fleet.audit_startup`."""
        return asyncio.run(self._fleet.audit_startup(options, on_event))

    def logs(self, options: LogOptions, on_event: OnEvent = _silent) -> Envelope:
        """See :meth:`Fleet.logs`."""
        return asyncio.run(self._fleet.logs(options, on_event))

    def reclaim(
        self,
        options: ReclaimOptions,
        approve: Approve | None = None,
        on_event: OnEvent = _silent,
        stored: Mapping[str, Plan] | None = None,
    ) -> Envelope:
        """See :meth:`Fleet.reclaim`."""
        return asyncio.run(self._fleet.reclaim(options, approve, on_event, stored))

    def snapshot(self, options: SnapshotOptions, on_event: OnEvent = _silent) -> Envelope:
        """See :meth:`Fleet.snapshot`."""
        return asyncio.run(self._fleet.snapshot(options, on_event))

    def follow_start(self, options: FollowOptions, on_event: OnEvent = _silent) -> Envelope:
        """See :meth:`Fleet.follow_start`."""
        return asyncio.run(self._fleet.follow_start(options, on_event))

    def run_playbooks(
        self,
        playbooks: Sequence[str],
        on_event: OnEvent = _silent,
        command: str = "audit",
        logs: AuditOptions | None = None,
    ) -> Envelope:
        """See :meth:`Fleet.run_playbooks`."""
        return asyncio.run(self._fleet.run_playbooks(playbooks, on_event, command, logs))
