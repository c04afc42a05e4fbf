"""``hosts --check``: connect, start the agent, read what it can do; nothing is changed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from fleetmem.controller.contact import gather
from fleetmem.controller.run.life import RunPart, begin, looked

if TYPE_CHECKING:
    from fleetmem.controller.answer.envelope import Envelope, HostEntry
    from fleetmem.controller.contact.session import Session
    from fleetmem.controller.errors.base import HostOutcome
    from fleetmem.controller.hosts.host import Host
    from fleetmem.controller.run.fanout import Phase
    from fleetmem.controller.run.settings import FleetSettings, OnEvent

PROBES = ("host.facts", "host.operations", "gpu.devices")


async def check(hosts: tuple[Host, ...], settings: FleetSettings, on_event: OnEvent) -> Envelope:
    """One row a host with the readings of :data:`PROBES`; recorded, for ``@run:ID:OUTCOME``."""
    return await looked(begin("hosts", hosts, settings, on_event), [RunPart(_read)])


async def _read(entry: HostEntry, session: Session, phase: Phase) -> HostOutcome:
    found = await asyncio.gather(*(gather.ask(session, name) for name in PROBES))
    rows = dict(zip(PROBES, found, strict=True))
    entry["readings"] |= rows
    return "partial" if gather.partial_reasons(rows) else "ok"
