"""One reclaim over many hosts: plan everywhere, ask once, lock, change, verify.

What is reclaimed, processes or file pages, is a :class:`Kind`. All that keeps hosts safe is
here, once: a host whose plan is stale, late or not recorded is never asked about, locked or
changed; the failure cap and the canary; and a change that was announced and whose end was not
seen leaves its host ``unknown``, however it was cut off.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

from fleetmem.controller import errors
from fleetmem.controller.contact import gather, link
from fleetmem.controller.reclaim.plan import refuse_expired
from fleetmem.controller.run.fanout import FAILURES, HostEnd
from fleetmem.controller.run.life import lived
from fleetmem.controller.text.cap import cap

if TYPE_CHECKING:
    from fleetmem.controller.answer.envelope import Envelope, HostEntry
    from fleetmem.controller.contact.session import Session
    from fleetmem.controller.hosts.host import Host
    from fleetmem.controller.reclaim.options import ReclaimOptions
    from fleetmem.controller.run.fanout import Phase
    from fleetmem.controller.run.life import Life
    from fleetmem.controller.run.settings import Approve

RECOVERED = ("reclaimed", "nothing_to_do")


@dataclass
class Seat:
    """What is known of one host in this run. ``announced``: a change stands in the trail and its
    answer has not come; ``changed``: the host has answered that something was done."""

    host: Host
    entry: HostEntry
    link: link.HostLink | None = None
    plan: Any = None
    announced: bool = False
    changed: bool = False
    end: HostEnd | None = None

    @property
    def has_targets(self) -> bool:
        """Whether its plan would change something."""
        return self.plan is not None and bool(self.plan.targets)


@dataclass(frozen=True)
class Turn:
    """A host's turn to be changed. Call ``announce`` before each change, ``answered`` with what
    came of it, and ``release`` when nothing more will be changed."""

    session: Session
    epoch: int
    desk: str
    phase: Phase
    announce: Callable[[dict[str, Any]], None]
    answered: Callable[[dict[str, Any], bool], None]
    release: Callable[[], Awaitable[None]]


class Kind(Protocol):
    """What is reclaimed on a host, and how."""

    async def plan(self, seat: Seat, session: Session, phase: Phase) -> HostEnd:
        """Read the host, fill ``seat.plan`` and the row's ``reclaim`` section."""

    def is_watched(self, seat: Seat) -> bool:
        """Whether a host without targets is worth a second look."""

    def check(self, seats: Sequence[Seat]) -> None:
        """UsageError where the plans show that what was asked for is on no host."""

    def seconds(self, seats: Sequence[Seat]) -> float:
        """How long changing one of these hosts may take."""

    async def apply(self, seat: Seat, turn: Turn) -> HostEnd:
        """Change the host as planned and verify; the row's section says what came of it."""

    def left_open(self, seat: Seat, why: str) -> None:
        """Say in the row's section that a change was started and its outcome was not seen."""


async def reclaim(life: Life, kind: Kind, options: ReclaimOptions, approve: Approve) -> Envelope:
    """Plan on all hosts, ask *approve* once, change what was planned."""
    return await _Reclaim(life, kind, options, approve).run()


class _Reclaim:
    """The state of one reclaim."""

    def __init__(self, life: Life, kind: Kind, options: ReclaimOptions, approve: Approve) -> None:
        self.life = life
        self.kind = kind
        self.options = options
        self.approve = approve
        self.desk = link.desk()
        self.declined = False
        self.seats = {host.name: Seat(host, life.entries[host.name]) for host in life.hosts}

    async def run(self) -> Envelope:
        """Live the run."""
        options = self.options
        return await lived(
            self.life,
            self._body,
            plan_only=lambda: self.declined or (options.dry_run and options.detailed_exitcode),
        )

    async def _body(self) -> None:
        try:
            await self.life.over(
                self._plan_host, max_fail=self.options.max_fail, settle=self._planned
            )
            seats = list(self.seats.values())
            self.kind.check(seats)
            if await self._may_apply():
                await self._apply_all()
        finally:
            await asyncio.gather(*(self._unlink(seat) for seat in self.seats.values()))

    # --- plan ------------------------------------------------------------------------------

    async def _plan_host(self, host: Host, phase: Phase) -> HostEnd:
        seat = self.seats[host.name]
        seat.link = await self.life.linker.open(host, phase)
        phase("reading")
        end = await self.kind.plan(seat, seat.link.session, phase)
        if seat.has_targets:
            self._keep_plan(seat)
        kept = sum(other.link is not None for other in self.seats.values())
        if self.options.dry_run or not self._needed(seat) or kept > self.life.settings.fanout:
            await self._unlink(seat)  # applying opens it again
        return end

    def _keep_plan(self, seat: Seat) -> None:
        """Record the plan; HistoryUnavailable is then this host's error."""
        plan = seat.entry["reclaim"]["plan"]
        assert plan is not None
        if self.life.history:
            name = seat.host.name
            self.life.history.save_plan(self.life.id, name, plan, seat.plan.document)
        self.life.on_event({"kind": "plan", "host": seat.host.name, "plan": seat.plan})

    def _planned(self, end: HostEnd) -> HostEnd:
        if end.error is not None:
            self.seats[end.host].plan = None  # stale, late, senseless, or not recorded
        return end

    def _needed(self, seat: Seat) -> bool:
        return seat.has_targets or (seat.plan is not None and self.kind.is_watched(seat))

    # --- ask -------------------------------------------------------------------------------

    async def _may_apply(self) -> bool:
        seats = self.seats.values()
        if self.options.dry_run or not any(self._needed(seat) for seat in seats):
            return False
        limit = cap(self.options.max_fail)
        most = limit.of(len(self.seats)) if limit else None
        if most is not None and self._failed() >= most:
            return False
        if not any(seat.has_targets for seat in seats):
            return True  # nothing will be changed: there is nothing to ask
        self.declined = not await self.approve([seat.entry for seat in seats])
        return not self.declined

    def _failed(self) -> int:
        return sum(seat.entry["outcome"] in FAILURES for seat in self.seats.values())

    # --- change ----------------------------------------------------------------------------

    async def _apply_all(self) -> None:
        chosen = [seat for seat in self.seats.values() if self._needed(seat)]
        first, rest = chosen[: self.options.canary], chosen[self.options.canary :]
        if first:
            await self._apply(first)
            if not all(map(self._recovered, first)):
                return
        await self._apply(rest)

    async def _apply(self, seats: Sequence[Seat]) -> None:
        if not seats:
            return
        settings = self.life.settings
        await self.life.over(
            self._apply_host,
            [seat.host for seat in seats],
            deadline_seconds=settings.host_timeout_seconds + self.kind.seconds(seats),
            max_fail=self.options.max_fail,
            max_fail_of=len(self.seats),
            failed_before=self._failed(),
            failed=lambda end: end.outcome in FAILURES or not self._recovered(self.seats[end.host]),
            settle=self._settled,
        )

    @staticmethod
    def _recovered(seat: Seat) -> bool:
        section = seat.entry.get("reclaim")
        return section is not None and section["verdict"] in RECOVERED

    async def _apply_host(self, host: Host, phase: Phase) -> HostEnd:
        seat = self.seats[host.name]
        refuse_expired(seat.plan.created, datetime.now(UTC))
        if seat.link is None or seat.link.session.lost:
            await self._unlink(seat)
            seat.link = await self.life.linker.open(host, phase)
        session = seat.link.session
        epoch = seat.plan.epoch
        locked = seat.has_targets
        if locked:
            phase("lock")
            epoch = await self._lock(seat.plan, session)

        async def release() -> None:
            nonlocal locked
            if locked:
                locked = False
                phase("unlock")
                with contextlib.suppress(errors.FleetError):
                    await session.unlock()

        def announce(event: dict[str, Any]) -> None:
            self._trail(seat, event)
            seat.announced = True

        def answered(event: dict[str, Any], changed: bool) -> None:
            seat.announced, seat.changed = False, seat.changed or changed
            self._trail(seat, event)

        turn = Turn(session, epoch, self.desk, phase, announce, answered, release)
        seat.end = await self.kind.apply(seat, turn)
        await release()
        await self._unlink(seat)
        return seat.end

    def _settled(self, end: HostEnd) -> HostEnd:
        """The truest end of a host whose turn it was, however that was cut off."""
        seat = self.seats[end.host]
        if seat.end is not None:  # its end was seen, whatever came after
            return replace(seat.end, seconds=end.seconds, phase=end.phase)
        refused = isinstance(end.error, errors.Refused)  # nothing was done after that
        if end.error is None or not (seat.changed or (seat.announced and not refused)):
            return end
        self.kind.left_open(seat, end.error.message)
        error = errors.OutcomeUnknown(
            f"a change was started, its outcome was not seen: {end.error.message}"
        )
        return replace(end, outcome="unknown", error=error)

    async def _lock(self, plan: Any, session: Session) -> int:
        """Take the host's lock; the epoch must be the plan's plus this one."""
        epoch = await gather.lock(session, f"{plan.id} {self.desk}")
        if epoch != plan.epoch + 1:
            raise errors.StalePlan("another run changed this host since the plan was made")
        return epoch

    def _trail(self, seat: Seat, event: Mapping[str, Any]) -> None:
        history = self.life.history
        assert history is not None, "nothing is changed without a history"
        history.trail(seat.plan.id, seat.host.name, {**event, "run": self.life.id})

    async def _unlink(self, seat: Seat) -> None:
        closing, seat.link = seat.link, None
        if closing is not None:
            await closing.close()
