"""Fan-out: a sliding window over hosts, deadlines that bind, one end for every host.

Failure cap: ``max_fail`` counts hosts that ended failed, unreachable, timed_out or unknown,
against **all targeted hosts**; partial is no failure. Once the cap is reached no new host
starts, running ones finish, the rest are not_attempted.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fleetmem.controller.errors import (
    FleetError,
    InternalError,
    Interrupted,
    NotAttempted,
    TimedOut,
    UsageError,
)
from fleetmem.controller.run.resources import Budget
from fleetmem.controller.text.cap import Cap, cap

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from fleetmem.controller.errors.base import HostOutcome
    from fleetmem.controller.hosts.host import Host

    Phase = Callable[[str], None]
    Work = Callable[[Host, Phase], Awaitable[Any]]

OUTCOMES = ("ok", "partial", "failed", "unreachable", "timed_out", "not_attempted", "unknown")
FAILURES = frozenset({"failed", "unreachable", "timed_out", "unknown"})
FANOUT = 64
GRACE_SECONDS = 2.0


@dataclass(frozen=True)
class HostEnd:
    """How one host ended: an outcome of ``OUTCOMES``, with a result, an error, or both.

    ``seconds`` is the time since the host's start, ``phase`` the last thing it was at.
    """

    host: str
    outcome: HostOutcome
    error: FleetError | None = None
    seconds: float = 0.0
    result: Any = None
    phase: str = ""


async def run_hosts(
    hosts: Sequence[Host],
    work: Work,
    *,
    fanout: int = FANOUT,
    deadline_seconds: float | None = None,
    run_deadline_seconds: float | None = None,
    max_fail: Cap | int | str | None = None,
    max_fail_of: int | None = None,
    failed_before: int = 0,
    failed: Callable[[HostEnd], bool] | None = None,
    settle: Callable[[HostEnd], HostEnd] | None = None,
    on_end: Callable[[HostEnd], None] | None = None,
    on_phase: Callable[[str, str], None] | None = None,
    on_warning: Callable[[str], None] | None = None,
    budget: Budget | None = None,
) -> dict[str, HostEnd]:
    """Run ``work(host, phase)`` for every host and return how each ended, in their order.

    *work* returns a :class:`HostEnd`, or any other value, which counts as ok; a FleetError
    ends the host with that error's outcome. ``phase(text)`` says what it is at, and goes on
    to ``on_phase(name, text)``. *settle* may replace an end by a truer one, however the work
    was cut off. *on_end* then hears of every host once, as it ends; of those that never
    started when the run ends.

    *deadline_seconds* binds one host from its start, *run_deadline_seconds* the whole run.
    Work that is over its time is cancelled, given a grace of 2 s to say how far it came (a
    returned result is kept, ``unknown`` stays unknown) and then abandoned and named.

    *max_fail* is a count or a share of *max_fail_of* hosts (default: of *hosts*), of which
    *failed_before* have failed already; *failed* says which ends count (default: those in
    ``FAILURES``). Where the controller's own *budget* is used up, no new host starts.

    Cancelling the caller ends the run like a deadline and keeps what is finished: every host
    ends and is told, within the grace and however often it is cancelled, and then
    CancelledError is raised. UsageError for a bad *max_fail* or *fanout*.
    """
    if fanout < 1:
        raise UsageError("--fanout: at least 1")
    budget = budget or Budget()
    width, warning = budget.fitting_fanout(min(fanout, max(1, len(hosts))))
    if warning and on_warning is not None:
        on_warning(warning)
    limit = cap(max_fail)
    targeted = len(hosts) if max_fail_of is None else max_fail_of
    run = _Run(
        hosts,
        work,
        deadline_seconds=deadline_seconds,
        run_deadline_seconds=run_deadline_seconds,
        cap=limit.of(targeted) if limit else None,
        targeted=targeted,
        failures=failed_before,
        failed=failed or _failed,
        settle=settle or _as_it_is,
        on_end=on_end or _silent,
        on_phase=on_phase or _silent,
        budget=budget,
    )
    workers = [asyncio.ensure_future(run.worker()) for _ in range(width)]
    interrupted: asyncio.CancelledError | None = None
    while not all(worker.done() for worker in workers):
        try:
            _, left = await asyncio.wait(workers, return_when=asyncio.FIRST_EXCEPTION)
        except asyncio.CancelledError as error:
            interrupted = error
            run.stop("the run was interrupted before its turn")
            continue
        if left:  # a worker raised: a mistake of ours, no host's
            run.stop("the run ended before its turn")
            await asyncio.wait(workers)
    for worker in workers:
        worker.result()
    ends = run.finish()
    if interrupted is not None:
        raise interrupted
    return ends


def _as_it_is(end: HostEnd) -> HostEnd:
    return end


def _silent(*_: object) -> None:
    pass


def _failed(end: HostEnd) -> bool:
    return end.outcome in FAILURES


class _Run:
    """The state of one fan-out."""

    def __init__(
        self,
        hosts: Sequence[Host],
        work: Work,
        *,
        deadline_seconds: float | None,
        run_deadline_seconds: float | None,
        cap: int | None,
        targeted: int,
        failures: int,
        failed: Callable[[HostEnd], bool],
        settle: Callable[[HostEnd], HostEnd],
        on_end: Callable[[HostEnd], None],
        on_phase: Callable[[str, str], None],
        budget: Budget,
    ) -> None:
        loop = asyncio.get_running_loop()
        self._now = loop.time
        self._hosts = hosts
        self._waiting = deque(hosts)
        self._work = work
        self._deadline_seconds = deadline_seconds
        self._run_deadline = (
            None if run_deadline_seconds is None else self._now() + run_deadline_seconds
        )
        self._cap = cap
        self._targeted = targeted
        self._failed = failed
        self._settle = settle
        self._budget = budget
        self._on_end = on_end
        self._on_phase = on_phase
        self._ends: dict[str, HostEnd] = {}
        self._failures = failures
        self._why_not = "the run ended before its turn"
        self._stop: asyncio.Future[None] = loop.create_future()

    def stop(self, why: str) -> None:
        """Start no host any more and cut off those that run."""
        self._why_not = why
        if not self._stop.done():
            self._stop.set_result(None)

    async def worker(self) -> None:
        """Take hosts one by one until none may start any more."""
        while self._waiting and self._may_start():
            end = await self._one(self._waiting.popleft())
            self._ended(end)

    def finish(self) -> dict[str, HostEnd]:
        """How every host ended, those that never started included."""
        for host in self._hosts:
            if host.name not in self._ends:
                reason = NotAttempted(f"{host.name}: {self._why_not}")
                self._ended(HostEnd(host.name, "not_attempted", reason))
        return {host.name: self._ends[host.name] for host in self._hosts}

    def _ended(self, end: HostEnd) -> None:
        end = self._settle(end)
        self._ends[end.host] = end
        self._on_end(end)
        if end.outcome != "not_attempted" and self._failed(end):
            self._failures += 1

    def _may_start(self) -> bool:
        if self._stop.done():
            return False
        if self._cap is not None and self._failures >= self._cap:
            self._why_not = (
                f"--max-fail was reached: {self._failures} of {self._targeted} hosts failed"
            )
            return False
        if self._run_deadline is not None and self._now() >= self._run_deadline:
            self._why_not = "the run's deadline came before its turn"
            return False
        if self._budget.used_up():
            self._why_not = self._budget.why
            return False
        return True

    async def _one(self, host: Host) -> HostEnd:
        """One host from start to end."""
        started = self._now()
        phases = ["", started]

        def phase(text: str) -> None:
            phases[:] = [text, self._now()]
            self._on_phase(host.name, text)

        task = asyncio.ensure_future(_guarded(self._work, host, phase))
        either: set[asyncio.Future[Any]] = {task, self._stop}
        await asyncio.wait(either, timeout=self._span(started), return_when=asyncio.FIRST_COMPLETED)
        end = task.result() if task.done() else await self._cut_off(host, task, phases)
        return replace(end, host=host.name, seconds=self._now() - started, phase=str(phases[0]))

    def _span(self, started: float) -> float | None:
        """Seconds that the host has left."""
        spans = [] if self._deadline_seconds is None else [self._deadline_seconds]
        if self._run_deadline is not None:
            spans.append(self._run_deadline - started)
        return max(0.0, min(spans)) if spans else None

    async def _cut_off(self, host: Host, task: asyncio.Task[HostEnd], phases: list[Any]) -> HostEnd:
        """Cancel, wait a little, abandon; the work's own word is kept where it gives one."""
        interrupted = self._stop.done()
        where = f", at {phases[0]} for {self._now() - phases[1]:.0f} s" if phases[0] else ""
        task.cancel()
        await asyncio.wait({task}, timeout=GRACE_SECONDS)
        said: HostEnd | None = None
        if not task.done():
            task.add_done_callback(_swallow)
            where += ", abandoned because it does not stop"
        elif not task.cancelled():
            said = task.result()
        if said is not None and (said.outcome == "unknown" or (interrupted and not said.error)):
            return said
        result = said.result if said is not None else None
        if interrupted:
            error: FleetError = Interrupted(f"{host.name}: interrupted{where}")
            return HostEnd(host.name, "failed", error, result=result)
        late = "did not finish before the run's deadline"
        if self._run_deadline is None or self._now() < self._run_deadline:
            late = f"did not finish within {self._deadline_seconds:g} s"
        return HostEnd(
            host.name, "timed_out", TimedOut(f"{host.name}: {late}{where}"), result=result
        )


async def _guarded(work: Work, host: Host, phase: Phase) -> HostEnd:
    """The work's end; every exception is one, too."""
    try:
        result = await work(host, phase)
    except FleetError as error:
        return HostEnd(host.name, error.outcome, error)
    except Exception as error:  # noqa: BLE001
        trouble = InternalError(f"{host.name}: {type(error).__name__}: {error}")
        trouble.__cause__ = error
        return HostEnd(host.name, "failed", trouble)
    return result if isinstance(result, HostEnd) else HostEnd(host.name, "ok", result=result)


def _swallow(task: asyncio.Task[HostEnd]) -> None:
    """Fetch the end of abandoned work, so that nothing is logged about it."""
    if not task.cancelled():
        task.exception()
