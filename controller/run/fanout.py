"""Fan-out: a sliding window over hosts, deadlines that bind, one end for every host.

Failure cap: ``max_fail`` counts hosts that ended failed, unreachable, timed_out or unknown,
against **all targeted hosts**; partial is no failure. Once the cap is reached no new host
starts, running ones finish, the rest are not_attempted.
"""

from __future__ import annotations

import asyncio
import math
import os
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

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from fleetmem.controller.errors.words import HostOutcome
    from fleetmem.controller.hosts.host import Host

    Phase = Callable[[str], None]
    Work = Callable[[Host, Phase], Awaitable[Any]]
    OnPhase = Callable[[str, str], None]
    OnEnd = Callable[["HostEnd"], None]

OUTCOMES = ("ok", "partial", "failed", "unreachable", "timed_out", "not_attempted", "unknown")
FAILURES = frozenset({"failed", "unreachable", "timed_out", "unknown"})
FANOUT = 64
GRACE_SECONDS = 2.0
DESCRIPTORS_PER_HOST = 4
RESERVED_DESCRIPTORS = 32


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


def failure_cap(max_fail: int | str | None, targeted: int) -> int | None:
    """How many failures stop new hosts: ``3``, ``"10%"`` of *targeted*, None for no cap.

    At least one, so ``0`` stops at the first failure. UsageError for anything else.
    """
    if max_fail is None:
        return None
    text = str(max_fail).strip()
    number = text.removesuffix("%").strip()
    try:
        value = float(number) if text.endswith("%") else int(number)
    except ValueError:
        value = -1
    if not 0 <= value < math.inf or (text.endswith("%") and value > 100):
        raise UsageError(f'--max-fail: "{text[:40]}" is no count (3) and no share (10%)')
    if text.endswith("%"):
        return max(1, math.ceil(targeted * value / 100))
    return max(1, int(value))


def fitting_fanout(fanout: int) -> tuple[int, str]:
    """*fanout*, lowered to what the descriptor limit allows, and a warning where it was.

    The soft limit is raised to the hard one first.
    """
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = fanout * DESCRIPTORS_PER_HOST + RESERVED_DESCRIPTORS + _open_descriptors()
    if soft != resource.RLIM_INFINITY and soft < wanted:
        higher = wanted if hard == resource.RLIM_INFINITY else min(hard, max(wanted, soft))
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (higher, hard))
        except (OSError, ValueError):
            pass
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return fanout, ""
    room = soft - RESERVED_DESCRIPTORS - _open_descriptors()
    fitting = max(1, min(fanout, room // DESCRIPTORS_PER_HOST))
    if fitting == fanout:
        return fanout, ""
    return fitting, (
        f"fanout lowered from {fanout} to {fitting}: only {soft} files may be open (ulimit -n)"
    )


def _open_descriptors() -> int:
    for place in ("/proc/self/fd", "/dev/fd"):
        try:
            return len(os.listdir(place))
        except OSError:
            continue
    return 16


async def run_hosts(
    hosts: Sequence[Host],
    work: Work,
    *,
    fanout: int = FANOUT,
    deadline_seconds: float | None = None,
    run_deadline_seconds: float | None = None,
    max_fail: int | str | None = None,
    max_fail_of: int | None = None,
    failed: Callable[[HostEnd], bool] | None = None,
    on_end: OnEnd | None = None,
    on_phase: OnPhase | None = None,
    on_warning: Callable[[str], None] | None = None,
    cancel: asyncio.Event | None = None,
) -> dict[str, HostEnd]:
    """Run ``work(host, phase)`` for every host and return how each ended, in their order.

    *work* returns a :class:`HostEnd`, or any other value, which counts as ok; a FleetError
    ends the host with that error's outcome. ``phase(text)`` says what it is at, and goes on
    to ``on_phase(name, text)``. *on_end* hears of every host once, as it ends; of those that
    never started when the run ends.

    *deadline_seconds* binds one host from its start, *run_deadline_seconds* the whole run.
    Work that is over its time is cancelled, given a grace of 2 s to say how far it came (a
    returned result is kept, ``unknown`` stays unknown) and then abandoned and named.

    *max_fail* is a count or a share of *max_fail_of* hosts (default: of *hosts*); *failed*
    says which ends count (default: those in ``FAILURES``).

    Setting *cancel* (SIGINT) ends the run like a deadline and keeps what is finished.
    Cancelling the caller does the same, tells *on_end*, and then raises CancelledError.
    UsageError for a bad *max_fail* or *fanout*.
    """
    if fanout < 1:
        raise UsageError("--fanout: at least 1")
    width, warning = fitting_fanout(min(fanout, max(1, len(hosts))))
    if warning and on_warning is not None:
        on_warning(warning)
    targeted = len(hosts) if max_fail_of is None else max_fail_of
    run = _Run(
        hosts,
        work,
        deadline_seconds=deadline_seconds,
        run_deadline_seconds=run_deadline_seconds,
        cap=failure_cap(max_fail, targeted),
        targeted=targeted,
        failed=failed or _failed,
        on_end=on_end or _silent,
        on_phase=on_phase or _silent,
    )
    watcher = asyncio.ensure_future(run.watch(cancel)) if cancel is not None else None
    workers = [asyncio.ensure_future(run.worker()) for _ in range(width)]
    try:
        await asyncio.gather(*workers)
    except asyncio.CancelledError:
        run.stop("the run was interrupted before its turn")
        await asyncio.gather(*workers, return_exceptions=True)
        run.finish()
        raise
    finally:
        if watcher is not None:
            watcher.cancel()
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    return run.finish()


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
        failed: Callable[[HostEnd], bool],
        on_end: OnEnd,
        on_phase: OnPhase,
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
        self._on_end = on_end
        self._on_phase = on_phase
        self._ends: dict[str, HostEnd] = {}
        self._failures = 0
        self._why_not = "the run ended before its turn"
        self._stop: asyncio.Future[None] = loop.create_future()

    async def watch(self, cancel: asyncio.Event) -> None:
        """End the run when *cancel* is set."""
        await cancel.wait()
        self.stop("the run was interrupted before its turn")

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
        return True

    async def _one(self, host: Host) -> HostEnd:
        """One host from start to end; a cancelled worker ends its host first."""
        started = self._now()
        phases = ["", started]

        def phase(text: str) -> None:
            phases[:] = [text, self._now()]
            self._on_phase(host.name, text)

        task = asyncio.ensure_future(_guarded(self._work, host, phase))
        either: set[asyncio.Future[Any]] = {task, self._stop}
        try:
            await asyncio.wait(
                either, timeout=self._span(started), return_when=asyncio.FIRST_COMPLETED
            )
        except asyncio.CancelledError:
            self.stop("the run was interrupted before its turn")
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
