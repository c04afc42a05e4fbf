"""The one life of a run: begun, over its hosts, judged, recorded, ended with one exit status.

    life = begin("logs", hosts, settings, on_event)
    envelope = await lived(life, lambda: look(life, [part]))

Every command that contacts hosts lives it. The exit status is worked out here only: what the
answer says, what the history keeps and what the process ends with are one number. Whatever
interrupts a run, what is finished is kept, recorded and answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from fleetmem.controller import errors
from fleetmem.controller.answer import envelope as env
from fleetmem.controller.answer.exit_codes import exit_code
from fleetmem.controller.answer.step import complete_entry, complete_next
from fleetmem.controller.contact import link
from fleetmem.controller.run.fanout import HostEnd, run_hosts
from fleetmem.controller.run.resources import Budget

if TYPE_CHECKING:
    from fleetmem.controller.answer.envelope import Envelope, Finding, HostEntry
    from fleetmem.controller.contact.session import Session
    from fleetmem.controller.errors.base import HostOutcome
    from fleetmem.controller.hosts.host import Host
    from fleetmem.controller.record.history import History
    from fleetmem.controller.run.fanout import Phase, Work
    from fleetmem.controller.run.settings import FleetSettings, OnEvent

UNRECORDED = ("logs",)
"""Sections that are answered but not recorded: log lines would fill the disk."""

_WORST: tuple[HostOutcome, ...] = (
    "unknown",
    "failed",
    "timed_out",
    "unreachable",
    "not_attempted",
    "partial",
    "ok",
)


class Life:
    """One run of *command*: a row for each host, a record, one exit status."""

    def __init__(
        self, command: str, hosts: Sequence[Host], settings: FleetSettings, on_event: OnEvent
    ) -> None:
        self.hosts = hosts
        self.settings = settings
        self.on_event = on_event
        self.run = env.new_run(command)
        self.entries = {host.name: env.new_host(host.name, "not_attempted") for host in hosts}
        self.history: History | None = None
        self.linker = link.Linker(settings, on_event)
        self.interrupted: int | None = None
        self._budget = Budget(settings.memory_bytes)
        self._begun = time.monotonic()

    @property
    def id(self) -> str:
        """The id by which the run is recorded."""
        return self.run["id"]

    def warn(self, text: str) -> None:
        """Say *text* beside the answer."""
        self.on_event({"kind": "warning", "text": text})

    # --- over the hosts --------------------------------------------------------------------

    async def over(
        self,
        work: Work,
        hosts: Sequence[Host] | None = None,
        *,
        deadline_seconds: float | None = None,
        **options: Any,
    ) -> None:
        """One fan-out of *work* (options: :func:`run_hosts`); each host's row is kept as it ends.

        A run may go over its hosts several times.
        """
        spent = time.monotonic() - self._begun
        whole = self.settings.run_timeout_seconds
        await run_hosts(
            self.hosts if hosts is None else hosts,
            work,
            deadline_seconds=deadline_seconds or self.settings.host_timeout_seconds,
            run_deadline_seconds=None if whole is None else max(0.0, whole - spent),
            on_end=self._ended,
            budget=self._budget,
            on_phase=self._phase,
            on_warning=self.warn,
            **{"fanout": self.settings.fanout, **options},
        )

    @contextlib.asynccontextmanager
    async def contact(self, host: Host, phase: Phase) -> AsyncIterator[Session]:
        """A running agent on *host* for as long as the block lasts."""
        held = await self.linker.open(host, phase)
        try:
            yield held.session
        finally:
            await held.close()

    def record(self, host: str) -> None:
        """Keep the row of *host* as it is now."""
        if self.history:
            entry = self.entries[host]
            complete_entry(entry, self.settings.reach)
            kept = {name: value for name, value in entry.items() if name not in UNRECORDED}
            self.history.record_host(self.id, cast("HostEntry", kept))

    def _phase(self, host: str, text: str) -> None:
        self.on_event({"kind": "phase", "host": host, "text": text})

    def _ended(self, end: HostEnd) -> None:
        entry = self.entries[end.host]
        entry["outcome"] = end.outcome
        if end.outcome != "not_attempted":
            entry["seconds"] = round((entry["seconds"] or 0.0) + end.seconds, 3)
        if end.error is not None:
            entry["error"] = end.error.to_json()
        self.on_event({"kind": "host_done", "host": end.host, "outcome": end.outcome})
        self.record(end.host)

    # --- its end ---------------------------------------------------------------------------

    def finish(self, findings: Sequence[Finding] = (), plan_only: bool = False) -> Envelope:
        """Close the run with its exit status; the answer."""
        envelope = env.new_envelope(self.run, list(self.entries), list(self.entries.values()))
        envelope["findings"] = list(findings)
        complete_next(envelope, self.settings.reach)
        status = exit_code(
            envelope,
            plan_only=plan_only,
            fail_on=self.settings.fail_on,
            interrupted=self.interrupted,
        )
        env.finish(envelope, status)
        self._close(envelope)
        return envelope

    def fail(self, error: errors.FleetError) -> None:
        """Close a run that ended in an error of its own; the error then names the run."""
        envelope = env.new_envelope(self.run, [], [])
        envelope["error"] = error.to_json()
        self._close(env.finish(envelope, error.exit_code))
        error.run = self.run

    def _close(self, envelope: Envelope) -> None:
        for text in self.linker.said():
            self.warn(text)
        if self.history:
            self.history.finish(envelope)
            self.history.close()


def begin(
    command: str,
    hosts: Sequence[Host],
    settings: FleetSettings,
    on_event: OnEvent,
    *,
    must_record: bool = False,
) -> Life:
    """Begin a run and record that it has begun.

    Without a history a run that only reads goes on with a warning; HistoryUnavailable where it
    *must_record*, before any host is contacted.
    """
    from fleetmem.controller.record.history import open_history, open_or_warn

    life = Life(command, hosts, settings, on_event)
    opened = open_history if must_record else open_or_warn
    life.history = opened(life.warn, settings.history_dir)
    if life.history:
        life.history.begin(life.run, list(life.entries))
    on_event({"kind": "run", "run": life.id})
    return life


async def lived(
    life: Life,
    body: Callable[[], Awaitable[None]],
    judge: Callable[[], Sequence[Finding]] = list,
    plan_only: Callable[[], bool] = lambda: False,
) -> Envelope:
    """Run *body* to its end, judge what there is, close *life*; the answer.

    Cancelling the task ends *body*: what it finished is judged and answered. Any error of
    *body* or *judge* closes the run with that error's exit status and is raised.
    """
    try:
        try:
            await body()
        except asyncio.CancelledError:
            life.interrupted = life.settings.interrupt_status()
        findings = judge()
    except errors.FleetError as error:
        life.fail(error)
        raise
    except Exception as error:
        internal = errors.InternalError(f"{type(error).__name__}: {error}")
        life.fail(internal)
        raise internal from error
    return life.finish(findings, plan_only())


# --- readings --------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunPart:
    """One reading of a command. ``read`` fills a host's row over its session and says how
    whole that is (ok, partial; a FleetError for less); ``judge`` gives the findings over all
    hosts, from whatever was read."""

    read: Callable[[HostEntry, Session, Phase], Awaitable[HostOutcome]]
    judge: Callable[[], Sequence[Finding]] = list


async def looked(
    life: Life, parts: Sequence[RunPart], *, deadline_seconds: float | None = None, **options: Any
) -> Envelope:
    """A run that only reads: one contact a host serves all *parts*, one after the other.

    A part that fails leaves the others their readings; the host ends as its worst part. Each
    part may take a host's whole time.
    """
    seconds = deadline_seconds or life.settings.host_timeout_seconds * len(parts)

    async def work(host: Host, phase: Phase) -> HostEnd:
        entry = life.entries[host.name]
        async with life.contact(host, phase) as session:
            phase("reading")
            ends = [await _read(part, entry, session, phase) for part in parts]
        return min(ends, key=lambda end: _WORST.index(end.outcome))

    return await lived(
        life,
        lambda: life.over(work, deadline_seconds=seconds, **options),
        lambda: [finding for part in parts for finding in part.judge()],
    )


async def _read(part: RunPart, entry: HostEntry, session: Session, phase: Phase) -> HostEnd:
    try:
        return HostEnd(entry["host"], await part.read(entry, session, phase))
    except errors.FleetError as error:
        return HostEnd(entry["host"], error.outcome, error)
