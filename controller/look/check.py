"""``hosts --check``: connect, start the agent, read what it can do; nothing is changed."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from fleetmem.controller.answer import envelope as env
from fleetmem.controller.answer.exit_codes import exit_code
from fleetmem.controller.contact import gather, link
from fleetmem.controller.errors import EXIT_SIGINT
from fleetmem.controller.record.history import open_or_warn
from fleetmem.controller.run.fanout import HostEnd, run_hosts

if TYPE_CHECKING:
    from fleetmem.controller.answer.envelope import Envelope, Reading
    from fleetmem.controller.hosts.host import Host
    from fleetmem.controller.run.settings import FleetSettings, OnEvent

PROBES = ("host.facts", "host.operations", "gpu.devices")


async def check(hosts: tuple[Host, ...], settings: FleetSettings, on_event: OnEvent) -> Envelope:
    """One row a host with the readings of :data:`PROBES`; recorded, for ``@run:ID:OUTCOME``."""
    run = env.new_run("hosts")
    entries = {host.name: env.new_host(host.name, "not_attempted") for host in hosts}
    linker = link.Linker(settings, on_event)

    def warn(text: str) -> None:
        on_event({"kind": "warning", "text": text})

    history = open_or_warn(warn, settings.history_dir)
    if history:
        history.begin(run, list(entries))

    async def work(host: Host, phase: Any) -> HostEnd:
        begin = time.monotonic()
        held = await linker.open(host, phase)
        try:
            phase("reading")
            found = await asyncio.gather(*(gather.ask(held.session, name) for name in PROBES))
            rows: dict[str, Reading] = dict(zip(PROBES, found, strict=True))
            entries[host.name]["readings"] = rows
            entries[host.name]["seconds"] = round(time.monotonic() - begin, 3)
            return HostEnd(host.name, "partial" if gather.partial_reasons(rows) else "ok")
        finally:
            await held.close()

    def ended(end: HostEnd) -> None:
        entry = entries[end.host]
        entry["outcome"] = end.outcome
        if end.error is not None:
            entry["error"] = end.error.to_json()
        on_event({"kind": "host_done", "host": end.host, "outcome": end.outcome})
        if history:
            history.record_host(run["id"], entry)

    interrupted = None
    try:
        await run_hosts(
            hosts,
            work,
            fanout=settings.fanout,
            deadline_seconds=settings.host_timeout_seconds,
            on_end=ended,
            on_phase=lambda host, text: on_event({"kind": "phase", "host": host, "text": text}),
            on_warning=warn,
        )
    except asyncio.CancelledError:
        interrupted = EXIT_SIGINT  # what is finished is kept; the rest was not attempted
    envelope = env.new_envelope(run, list(entries), list(entries.values()))
    env.finish(envelope, exit_code(envelope, interrupted=interrupted))
    if history:
        history.finish(envelope)
        history.close()
    return envelope
