"""A run that reads logs of many hosts: connect, find the log, read it, record the run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

from fleetmem.controller.answer import envelope as env
from fleetmem.controller.contact import gather, link
from fleetmem.controller.errors import LogUnreadable
from fleetmem.controller.logs import reading as logs
from fleetmem.controller.run.fanout import HostEnd, run_hosts
from fleetmem.controller.text.process_name import display_name

if TYPE_CHECKING:
    from fleetmem.agent.shapes import EngineLogs
    from fleetmem.controller.answer.envelope import Envelope, HostEntry, Reading
    from fleetmem.controller.contact.session import Session
    from fleetmem.controller.hosts.host import Host
    from fleetmem.controller.logs.sources import Sources
    from fleetmem.controller.run.settings import FleetSettings, OnEvent

Work = Callable[["HostEntry", "Session", Callable[[str], Any]], Awaitable[None]]

SHARPENING = ("gpu.", "numa.", "processes.")
"""Readings that only sharpen an answer: a host without them is not partly read."""

ABSENT = ("failed", "denied", "unsupported")
"""How ``journal.read`` ends where it gave no line of the log."""

ENDING_SHARE = 0.8
"""Of a host's deadline that reading may take: connecting and the answer need the rest."""


def read_seconds(settings: FleetSettings) -> float:
    """How long one log may be read."""
    return max(5.0, settings.host_timeout_seconds * ENDING_SHARE - 2.0)


async def over_hosts(
    command: str,
    hosts: tuple[Host, ...],
    settings: FleetSettings,
    on_event: OnEvent,
    work: Work,
) -> Envelope:
    """*work* fills each host's entry; one row a host, whatever happens. Not recorded yet."""
    entries = {host.name: env.new_host(host.name, "not_attempted") for host in hosts}
    linker = link.Linker(settings, on_event)

    async def one(host: Host, phase: Any) -> HostEnd:
        begin = time.monotonic()
        held = await linker.open(host, phase)
        entry = entries[host.name]
        try:
            phase("reading")
            await work(entry, held.session, phase)
            entry["seconds"] = round(time.monotonic() - begin, 3)
            error = nothing_read(entry["readings"])
            if error is not None:
                return HostEnd(host.name, "failed", error)
            partial = any(
                reading["outcome"] != "ok"
                for name, reading in entry["readings"].items()
                if not name.startswith(SHARPENING)
            )
            return HostEnd(host.name, "partial" if partial else "ok")
        finally:
            await held.close()

    def ended(end: HostEnd) -> None:
        entry = entries[end.host]
        entry["outcome"] = end.outcome
        if end.error is not None:
            entry["error"] = end.error.to_json()
        on_event({"kind": "host_done", "host": end.host, "outcome": end.outcome})

    run = env.new_run(command)
    try:
        await run_hosts(
            hosts,
            one,
            fanout=settings.fanout,
            deadline_seconds=settings.host_timeout_seconds,
            on_end=ended,
            on_phase=lambda host, text: on_event({"kind": "phase", "host": host, "text": text}),
            on_warning=lambda text: on_event({"kind": "warning", "text": text}),
        )
    except asyncio.CancelledError:
        pass  # what is finished is kept; the rest was not attempted
    return env.new_envelope(run, list(entries), list(entries.values()))


def nothing_read(readings: Mapping[str, Reading]) -> LogUnreadable | None:
    """Why a host has none of the logs that were asked for; None where it has one of them.

    A log that was read in part, or not to its end in time, is one that it has.
    """
    asked = [one for name, one in readings.items() if name.split(":")[0] == "journal.read"]
    if not asked or any(one["outcome"] not in ABSENT for one in asked):
        return None
    reasons = dict.fromkeys(one["reason"] or "no reason given" for one in asked)
    return LogUnreadable("; ".join(reasons))


async def read_sources(
    entry: HostEntry,
    session: Session,
    sources: Sources,
    settings: FleetSettings,
    **options: Any,
) -> list[logs.Log]:
    """The host's logs that *sources* name, else those of the processes that hold its GPUs."""
    calls = sources.calls()
    if not sources.named and sources.directory is None:
        found = await gather.ask(session, "engine.find")
        entry["readings"]["engine.find"] = found
        if found["reading"] is None:
            return []
        calls = [sources.of(one) for one in found["reading"]["sources"]]
        if not calls:
            found["outcome"], found["reason"] = "partial", nothing_found(found["reading"])
            return []
    seconds = read_seconds(settings) / max(1, len(calls))
    read: list[logs.Log] = []
    for call in calls:
        log = await logs.read_log(session, call, timeout_seconds=seconds, **options)
        name = "journal.read" if not read else f"journal.read:{log.name}"
        entry["readings"][name] = log.reading
        read.append(log)
    return read


def nothing_found(reading: EngineLogs) -> str:
    """Why the processes that hold GPUs have no log, and how one is named."""
    if reading["unplaced"]:
        first = reading["unplaced"][0]
        return (
            f"{display_name(first)} {first['pid']} holds a GPU, but {first['why']}; "
            "name its log with --unit, --file or --container"
        )
    return "no process holds a GPU; name the log with --unit, --file or --container"


def record(envelope: Envelope, settings: FleetSettings, on_event: OnEvent) -> None:
    """Keep a finished run in the history, without log lines: those would fill the disk.

    A history that fails never fails the run.
    """
    from fleetmem.controller.record.history import open_or_warn

    history = open_or_warn(
        lambda text: on_event({"kind": "warning", "text": text}), settings.history_dir
    )
    if history is None:
        return
    try:
        history.begin(envelope["run"], envelope["targeted"])
        for entry in envelope["hosts"]:
            kept = {name: value for name, value in entry.items() if name != "logs"}
            history.record_host(envelope["run"]["id"], cast("HostEntry", kept))
        history.finish(envelope)
    finally:
        history.close()
