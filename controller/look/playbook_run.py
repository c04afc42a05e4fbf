"""``audit PLAYBOOK…`` and ``run PLAYBOOK``: read what playbooks need, judge, change nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fleetmem.controller.look.snapshot import MemoryRun
from fleetmem.controller.rules.playbook import call_arguments, load

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
) -> Envelope:
    """The findings of the playbooks *names* (or paths of playbook files) over *hosts*.

    Each probe is called once on each host, however many playbooks need it. UsageError,
    PlaybookInvalid before any host is contacted.
    """
    playbooks = [load(name) for name in dict.fromkeys(names)]
    run = MemoryRun(
        hosts=hosts,
        settings=settings,
        on_event=on_event,
        command=command,
        calls=call_arguments(playbooks),
        playbooks=playbooks,
        sections=False,
    )
    return await run.run()
