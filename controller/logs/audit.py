"""``audit startup`` over hosts: each engine's log to budgets, findings, outliers."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from fleetmem.controller.answer import envelope as env
from fleetmem.controller.contact import gather
from fleetmem.controller.logs import reading as logs
from fleetmem.controller.logs.audit_join import PROBES, held_then, lacked_memory
from fleetmem.controller.logs.over_hosts import over_hosts, read_sources, record
from fleetmem.controller.logs.sources import Sources

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fleetmem.controller.answer.envelope import Envelope, Finding, HostEntry
    from fleetmem.controller.contact.session import Session
    from fleetmem.controller.hosts.host import Host
    from fleetmem.controller.run.settings import FleetSettings, OnEvent
    from fleetmem.controller.startup.model import Startup

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
    from fleetmem.controller.startup.judge.across_hosts import outliers

    found: dict[str, list[Finding]] = {}
    startups: dict[str, list[Startup]] = {}

    async def work(entry: HostEntry, session: Session, phase: Callable[[str], Any]) -> None:
        sections, findings, parsed = await _host(entry, session, settings, options, phase)
        entry["startup"] = sections
        found[entry["host"]] = findings
        startups[entry["host"]] = parsed

    envelope = await over_hosts("audit", hosts, settings, on_event, work)
    order = envelope["targeted"]
    envelope["findings"] = [one for host in order for one in found.get(host, [])]
    pairs = [(host, one) for host in order for one in startups.get(host, [])]
    envelope["findings"] += cast("list[Finding]", outliers(pairs))
    env.finish(envelope, 0)
    await asyncio.to_thread(record, envelope, settings, on_event)
    return envelope


async def _host(
    entry: HostEntry,
    session: Session,
    settings: FleetSettings,
    options: AuditOptions,
    phase: Callable[[str], Any],
) -> tuple[list[dict[str, Any]], list[Finding], list[Startup]]:
    from fleetmem.controller.startup.judge.diagnose import judge
    from fleetmem.controller.startup.read.patterns import builtin
    from fleetmem.controller.startup.read.split import by_engine

    facts, devices = await asyncio.gather(
        gather.ask(session, "host.facts"), gather.ask(session, "gpu.devices")
    )
    entry["readings"] |= {"host.facts": facts, "gpu.devices": devices}
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
    answers = await asyncio.gather(*(gather.ask(session, name) for name in PROBES))
    rows = dict(zip(PROBES, answers, strict=True))
    pids = gather.pids_to_identify(rows)
    if pids:
        rows["processes.identity"] = await gather.ask(session, "processes.identity", {"pids": pids})
    entry["readings"] |= rows
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


_WORST = ("unknown", "failed", "timed_out", "unreachable", "not_attempted", "partial", "ok")


def merged(answers: Sequence[Envelope]) -> Envelope:
    """One answer from several of the same hosts: the newest run's, with all that was found."""
    whole = answers[-1]
    for other in answers[:-1]:
        theirs = {entry["host"]: entry for entry in other["hosts"]}
        for entry in whole["hosts"]:
            more = theirs[entry["host"]]
            entry["readings"] = {**more["readings"], **entry["readings"]}
            entry["error"] = entry["error"] or more["error"]
            entry["outcome"] = min(entry["outcome"], more["outcome"], key=_WORST.index)
        whole["findings"] = [*other["findings"], *whole["findings"]]
        whole["run"]["started"] = min(whole["run"]["started"], other["run"]["started"])
    whole["summary"] = env.summarise(whole["targeted"], whole["hosts"])
    return whole
