"""``audit PLAYBOOK…`` and ``run PLAYBOOK``: read what playbooks need, judge, change nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fleetmem.controller.logs.audit import AuditOptions, startup_part
from fleetmem.controller.look.snapshot import MemoryLook
from fleetmem.controller.rules.playbook import LOGS, call_arguments, load
from fleetmem.controller.run.life import begin, looked

if TYPE_CHECKING:
    from fleetmem.controller.answer.envelope import Envelope
    from fleetmem.controller.hosts.host import Host
    from fleetmem.controller.run.settings import FleetSettings, OnEvent


async def audit(
    hosts: tuple[Host, ...],
    settings: FleetSettings,
    names: Sequence[str],
    on_event: OnEvent,
    command: str = "audit",
    logs: AuditOptions | None = None,
) -> Envelope:
    """The findings of the playbooks *names* (or paths of playbook files) over *hosts*.

    One run and one contact a host serve them all, and each probe is called once, however many
    playbooks need it. The playbook ``startup`` reads engines' logs, as *logs* says. UsageError,
    PlaybookInvalid before any host is contacted.
    """
    chosen = list(dict.fromkeys(names))
    playbooks = [load(name) for name in chosen if name != LOGS]
    life = begin(command, hosts, settings, on_event)
    parts = []
    if playbooks:
        calls = call_arguments(playbooks)
        parts.append(MemoryLook(life, calls, playbooks, sections=False).part)
    if LOGS in chosen:
        parts.append(startup_part(life, logs or AuditOptions()))
    return await looked(life, parts)
