"""Logs of many hosts as a part of a run: find a host's logs, read them, say how it went."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fleetmem.controller.contact import gather
from fleetmem.controller.errors import LogUnreadable
from fleetmem.controller.logs import reading as logs
from fleetmem.controller.run.life import RunPart
from fleetmem.controller.text.process_name import display_name

if TYPE_CHECKING:
    from fleetmem.agent.shapes import EngineLogs
    from fleetmem.controller.answer.envelope import Finding, HostEntry, Reading
    from fleetmem.controller.contact.session import Session
    from fleetmem.controller.errors.base import HostOutcome
    from fleetmem.controller.logs.sources import Sources
    from fleetmem.controller.run.fanout import Phase
    from fleetmem.controller.run.settings import FleetSettings

Work = Callable[["HostEntry", "Session", "Phase"], Awaitable[None]]

SHARPENING = ("gpu.", "numa.", "processes.")
"""Readings that only sharpen an answer: a host without them is not partly read."""

ABSENT = ("failed", "denied", "unsupported")
"""How ``journal.read`` ends where it gave no line of the log."""

ENDING_SHARE = 0.8
"""Of a host's deadline that reading may take: connecting and the answer need the rest."""


def read_seconds(settings: FleetSettings) -> float:
    """How long one log may be read."""
    return max(5.0, settings.host_timeout_seconds * ENDING_SHARE - 2.0)


def part(work: Work, judge: Callable[[], Sequence[Finding]] = list) -> RunPart:
    """*work* reads the logs of one host into its row; that host has failed where none was there.

    Readings that other parts of the same run took say nothing about the logs.
    """

    async def read(entry: HostEntry, session: Session, phase: Phase) -> HostOutcome:
        before = set(entry["readings"])
        await work(entry, session, phase)
        mine = {name: row for name, row in entry["readings"].items() if name not in before}
        error = nothing_read(mine)
        if error is not None:
            raise error
        whole = all(
            row["outcome"] == "ok" for name, row in mine.items() if not name.startswith(SHARPENING)
        )
        return "ok" if whole else "partial"

    return RunPart(read, judge)


async def ask_once(entry: HostEntry, session: Session, name: str) -> Reading:
    """The reading of *name*: asked for, unless another part of the run has it already."""
    if name not in entry["readings"]:
        entry["readings"][name] = await gather.ask(session, name)
    return entry["readings"][name]


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
    kernel_only: bool = False,
    **options: Any,
) -> list[logs.Log]:
    """The host's logs that *sources* name, else those of the processes that hold its GPUs."""
    calls = sources.calls()
    if kernel_only:
        calls = [sources.of_kernel()]
    elif not sources.named and sources.directory is None:
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
            "pass --unit, --file or --container"
        )
    return "no process uses a GPU; name the log with --unit, --file or --container"
