"""``audit startup`` over hosts: each engine's log to budgets, findings, outliers."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from fleetmem.controller.contact import gather
from fleetmem.controller.logs import reading as logs
from fleetmem.controller.logs.audit_join import PROBES, held_then, lacked_memory
from fleetmem.controller.logs.over_hosts import ask_once, part, read_sources
from fleetmem.controller.logs.sources import Sources
from fleetmem.controller.run.life import begin, looked

if TYPE_CHECKING:
    from fleetmem.controller.answer.envelope import Envelope, Finding, HostEntry
    from fleetmem.controller.contact.session import Session
    from fleetmem.controller.hosts.host import Host
    from fleetmem.controller.run.fanout import Phase
    from fleetmem.controller.run.life import Life, RunPart
    from fleetmem.controller.run.settings import FleetSettings, OnEvent
    from fleetmem.controller.startup.starts import Startup

BESIDE = 3
"""The newest start and those before it that the screen shows beside it."""
LIMIT_LINES = 200_000
HEAD_ENTRIES = 50_000
"""A start is over by then, whatever the engine has logged since."""


@dataclass(frozen=True, slots=True)
class AuditOptions:
    """What is asked of ``audit startup``; ``lines`` and ``unmatched`` add to the envelope."""

    sources: Sources = field(default_factory=Sources)
    engine: str | None = None
    lines: bool = False
    unmatched: bool = False


async def audit_startup(
    hosts: tuple[Host, ...], settings: FleetSettings, options: AuditOptions, on_event: OnEvent
) -> Envelope:
    """One row a host with its ``startup`` section; the findings over all of them."""
    life = begin("audit", hosts, settings, on_event)
    return await looked(life, [startup_part(life, options)])


def startup_part(life: Life, options: AuditOptions) -> RunPart:
    """The reading of engines' logs, as one part of *life*."""
    found: dict[str, list[Finding]] = {}
    startups: dict[str, list[Startup]] = {}

    async def work(entry: HostEntry, session: Session, phase: Phase) -> None:
        sections, findings, parsed = await _host(entry, session, life.settings, options, phase)
        entry["startup"] = sections
        found[entry["host"]] = findings
        startups[entry["host"]] = parsed

    def judge() -> list[Finding]:
        from fleetmem.controller.startup.judge.across_hosts import outliers

        pairs = [(host, one) for host in life.entries for one in startups.get(host, [])]
        own = [one for host in life.entries for one in found.get(host, [])]
        return own + cast("list[Finding]", outliers(pairs))

    return part(work, judge)


async def _host(
    entry: HostEntry,
    session: Session,
    settings: FleetSettings,
    options: AuditOptions,
    phase: Phase,
) -> tuple[list[dict[str, Any]], list[Finding], list[Startup]]:
    from fleetmem.controller.startup.judge.diagnose import judge
    from fleetmem.controller.startup.read.patterns import builtin
    from fleetmem.controller.startup.read.split import by_engine

    facts, devices = await asyncio.gather(
        ask_once(entry, session, "host.facts"), ask_once(entry, session, "gpu.devices")
    )
    invocation = options.sources.invocation
    phase("reading the log")
    read = await read_sources(
        entry,
        session,
        options.sources,
        settings,
        words=list(builtin().only(options.engine).seeds),
        count=BESIDE if invocation is None else 1,
        kernel=1,
        head=HEAD_ENTRIES,
        limit_lines=LIMIT_LINES,
    )
    phase("parsing")
    sections: list[dict[str, Any]] = []
    findings: list[Finding] = []
    parsed: list[Startup] = []
    for log in _one_each(read):
        whole = await asyncio.to_thread(logs.to_startup, log, options.engine)
        parts = by_engine(whole) if whole.invocations else []
        for startup in parts:
            section = startup.to_json(options.lines, options.unmatched)
            _real_ages(section, log)
            sections.append(section)
            parsed.append(startup)
            judged = judge(
                startup,
                entry["host"],
                free_now_bytes=_free_now(devices["reading"]),
                host_memory_bytes=(facts["reading"] or {}).get("total_bytes"),
                subject=startup.engine if len(parts) > 1 else None,
            )
            joined = await _joined(entry, session, startup, log, judged)
            findings += [*joined, *cast("list[Finding]", judged)]
    return sections, findings, parsed


async def _joined(
    entry: HostEntry,
    session: Session,
    startup: Startup,
    log: logs.Log,
    judged: list[dict[str, Any]],
) -> list[Finding]:
    """Who held the memory that the newest start lacked; asked only where it lacked some."""
    span = next((one for one in log.invocations if one["age"] == 0), None)
    if span is None or not lacked_memory(startup.newest, judged):
        return []
    answers = await asyncio.gather(*(ask_once(entry, session, name) for name in PROBES))
    rows = dict(zip(PROBES, answers, strict=True))
    pids = gather.pids_to_identify(rows)
    if pids:
        rows["processes.identity"] = await gather.ask(session, "processes.identity", {"pids": pids})
    entry["readings"] |= {name: row for name, row in rows.items() if name not in entry["readings"]}
    now = (log.reading["reading"] or {}).get("now_us")
    found = held_then(entry["host"], startup.unit or log.name, span, now, rows) if now else None
    return [] if found is None else [found]


def _one_each(read: list[logs.Log]) -> list[logs.Log]:
    """A log for each unit that a pattern named."""
    found: list[logs.Log] = []
    for log in read:
        units = (log.reading["reading"] or {}).get("units") or []
        found += [logs.of_unit(log, unit) for unit in units] if len(units) > 1 else [log]
    return found


def _real_ages(section: dict[str, Any], log: logs.Log) -> None:
    """The ages that systemd's invocations have, where older ones were asked for."""
    ages = {one["id"]: one["age"] for one in log.invocations}
    for inv in section["invocations"]:
        age = ages.get(inv["invocation_id"])
        if age is not None:
            inv["age"], inv["current"] = age, age == 0


def _free_now(devices: Any) -> int | None:
    """What is free on the fullest GPU."""
    known = [gpu["free_bytes"] for gpu in devices["gpus"]] if devices else []
    free = [value for value in known if value is not None]
    return min(free) if free else None
