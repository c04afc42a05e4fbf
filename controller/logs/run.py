"""``logs`` over hosts: lines of one log each, newest first, filtered there."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fleetmem.controller.logs.blocks import blocks
from fleetmem.controller.logs.over_hosts import part, read_sources
from fleetmem.controller.logs.sources import Sources
from fleetmem.controller.rules.kernel_words import kernel_words
from fleetmem.controller.run.life import begin, looked

if TYPE_CHECKING:
    from fleetmem.controller.answer.envelope import Envelope, HostEntry
    from fleetmem.controller.contact.session import Session
    from fleetmem.controller.hosts.host import Host
    from fleetmem.controller.logs.reading import Log, LogLine
    from fleetmem.controller.run.fanout import Phase
    from fleetmem.controller.run.settings import FleetSettings, OnEvent

AROUND = (120, 60)
"""Lines before and after a match that are read to find the event it belongs to."""
MOST = 100_000
KINDS = ("unit", "manager", "kernel")


@dataclass(frozen=True, slots=True)
class LogOptions:
    """What is asked of ``logs``. ``limit`` lines a log at most; ``grep`` is a Python expression
    and, without upper case, means any case; ``kernel`` adds the kernel's lines of that span,
    ``kernel_only`` reads nothing else. Without ``before`` and ``after`` the whole event around a
    match is read."""

    sources: Sources = field(default_factory=Sources)
    grep: str | None = None
    before: int = 0
    after: int = 0
    limit: int = 1000
    kernel: bool = True
    kernel_only: bool = False


async def logs(
    hosts: tuple[Host, ...], settings: FleetSettings, options: LogOptions, on_event: OnEvent
) -> Envelope:
    """One row a host with its ``logs`` section, the newest line first."""

    async def work(entry: HostEntry, session: Session, phase: Phase) -> None:
        phase("reading the log")
        whole = options.grep is not None and not (options.before or options.after)
        read = await read_sources(
            entry,
            session,
            options.sources,
            settings,
            kernel_only=options.kernel_only,
            grep=options.grep,
            before=AROUND[0] if whole else options.before,
            after=AROUND[1] if whole else options.after,
            limit_lines=min(options.limit * 40, MOST) if whole else options.limit,
            kernel=int(options.kernel),
            kernel_words=kernel_words(),
            count=1,
        )
        entry["logs"] = [_events(section(log), options.limit) if whole else section(log)
                         for log in read]  # fmt: skip

    return await looked(begin("logs", hosts, settings, on_event), [part(work)])


def _events(found: dict[str, Any], limit: int) -> dict[str, Any]:
    """*found* without the lines that belong to no event with a match, *limit* matches at most."""
    kept: list[dict[str, Any]] = []
    hits = 0
    for block in blocks(found["lines"]):
        if not block.hit:
            continue
        if hits >= limit:
            found["truncated"] = "lines"
            break
        hits += sum(bool(row["hit"]) for row in block.rows)
        kept += reversed(block.rows)  # type: ignore[arg-type]
    return {**found, "lines": kept}


def section(log: Log) -> dict[str, Any]:
    """One log as the envelope holds it; lines of the kernel stand where their time says."""
    reading = log.reading["reading"] or {}
    lines = log.lines
    if any(KINDS[line.kind] == "kernel" for line in lines):
        lines = sorted(lines, key=lambda line: line.microseconds or 0, reverse=True)
    return {
        "name": log.name,
        "units": reading.get("units") or [],
        "files": reading.get("files") or [],
        "invocations": log.invocations,
        "truncated": reading.get("truncated"),
        "scanned": reading.get("scanned"),
        "lines": [_line(line, log.invocations) for line in lines],
    }


def _line(line: LogLine, invocations: list[dict[str, Any]]) -> dict[str, Any]:
    number = line.invocation
    one = invocations[number] if number is not None and number < len(invocations) else None
    row: dict[str, Any] = {
        "time": None if line.microseconds is None else rfc3339(line.microseconds),
        "invocation": one["id"] if one else None,
        "age": one["age"] if one else None,
        "pid": line.pid,
        "name": line.name,
        "priority": line.priority,
        "from": KINDS[line.kind],
        "hit": line.hit,
        "message": line.text,
    }
    raw = line.raw
    if row["message"].encode() != raw:
        row["message_base64"] = base64.b64encode(raw).decode("ascii")
    return row


def rfc3339(microseconds: int) -> str | None:
    """RFC 3339 in UTC, to the microsecond."""
    from fleetmem.controller.logs.reading import clock

    whole = clock(microseconds)
    return None if whole is None else f"{whole[:-1]}.{microseconds % 1_000_000:06d}Z"
