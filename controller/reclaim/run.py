"""One reclaim over many hosts: plan everywhere, ask once, lock, climb, verify."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from fleetmem.controller import errors
from fleetmem.controller.answer import envelope as env
from fleetmem.controller.answer.exit_codes import exit_code
from fleetmem.controller.answer.fold import fold_numbers
from fleetmem.controller.contact import gather, link
from fleetmem.controller.errors.words import HostOutcome
from fleetmem.controller.hosts import gpu_scope
from fleetmem.controller.reclaim import baseline
from fleetmem.controller.reclaim.classify import Classified, classify
from fleetmem.controller.reclaim.climb import Climb
from fleetmem.controller.reclaim.join import to_survey
from fleetmem.controller.reclaim.ladder import climb
from fleetmem.controller.reclaim.options import for_hosts
from fleetmem.controller.reclaim.plan import make_plan, refuse_expired
from fleetmem.controller.reclaim.rules import rules
from fleetmem.controller.reclaim.section import section
from fleetmem.controller.reclaim.verdict import (
    PINNED_AFTER_SECONDS,
    GpuJudgement,
    pending,
    planned,
)
from fleetmem.controller.run.fanout import FAILURES, HostEnd, failure_cap, run_hosts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fleetmem.controller.answer.envelope import Envelope, HostEntry
    from fleetmem.controller.hosts.host import Host
    from fleetmem.controller.reclaim.options import ReclaimOptions
    from fleetmem.controller.reclaim.plan import Plan
    from fleetmem.controller.reclaim.survey import Survey
    from fleetmem.controller.record.history import History
    from fleetmem.controller.run.settings import Approve, FleetSettings, OnEvent

_LADDER_SLACK_SECONDS = 60.0


@dataclass
class Seat:
    """What is known of one host in this run."""

    host: Host
    entry: HostEntry
    link: link.Link | None = None
    survey: Survey | None = None
    plan: Plan | None = None
    climbing: Climb | None = None
    seconds: float = 0.0
    readings: dict[str, Any] = field(default_factory=dict)

    @property
    def has_targets(self) -> bool:
        return self.plan is not None and bool(self.plan.targets)

    @property
    def is_watched(self) -> bool:
        """No targets, but memory that nobody has any more: it may be on its way back."""
        if self.plan is None or self.survey is None or self.plan.targets:
            return False
        return bool(pending(self.plan, self.survey))


class ReclaimRun:
    """The run itself; :meth:`run` may be awaited once."""

    def __init__(
        self,
        hosts: tuple[Host, ...],
        settings: FleetSettings,
        options: ReclaimOptions,
        approve: Approve,
        on_event: OnEvent,
        stored: Mapping[str, Plan] | None = None,
    ) -> None:
        self.stored = stored
        self.hosts = hosts
        self.settings = settings
        self.options = for_hosts(options, hosts)
        self.approve = approve
        self.on_event = on_event
        self.run_info = env.new_run("reclaim")
        self.seats = {
            host.name: Seat(host, env.new_host(host.name, "not_attempted")) for host in hosts
        }
        self.history: History | None = None
        self.desk = link.desk()
        self.linker = link.Linker(settings, on_event)
        self.failures_left: int | None = None
        self.declined = False
        self.interrupted = False

    async def run(self) -> Envelope:
        """The envelope; HistoryUnavailable before anything is changed, UsageError for scope."""
        self.history = self._open_history()
        self.on_event({"kind": "run", "run": self.run_info["id"]})
        names = list(self.seats)
        if self.history:
            self.history.begin(self.run_info, names)
        try:
            try:
                await self._plan_all()
                self._check_scope()
                if await self._may_apply():
                    await self._apply_all()
            except asyncio.CancelledError:
                self.interrupted = True  # every host has said how far it came
            except errors.FleetError as error:
                self._failed(error)
                raise
        finally:
            await self._close()
        return self._envelope(names)

    # --- phase one: look and plan ----------------------------------------------------------

    async def _plan_all(self) -> None:
        settings = self.settings
        await run_hosts(
            self.hosts,
            self._plan_host,
            fanout=settings.fanout,
            deadline_seconds=settings.host_timeout_seconds,
            max_fail=self.options.max_fail,
            on_end=self._planned,
            on_phase=self._phase,
            on_warning=self._warn,
        )

    async def _plan_host(self, host: Host, phase: Any) -> HostEnd:
        seat = self.seats[host.name]
        begin = time.monotonic()
        seat.link = await self.linker.open(host, phase)
        phase("reading")
        seat.readings = dict(await gather.readings(seat.link.session))
        seat.entry["readings"] = seat.readings
        with gather.judging(host.name):
            self._judge(seat)
        seat.seconds = time.monotonic() - begin
        kept = sum(other.link is not None for other in self.seats.values())
        needed = seat.has_targets or seat.is_watched
        if self.options.dry_run or not needed or kept > self.settings.fanout:
            await self._unlink(seat)  # applying opens it again
        return self._outcome(seat)

    def _judge(self, seat: Seat) -> None:
        """From the seat's readings to its plan, and what the answer shows of it."""
        survey = to_survey(seat.readings)
        members = classify(survey, rules())
        recorded = baseline.recorded(self.history, seat.host.name, survey)
        if self.history:
            baseline.record(self.history, seat.host.name, survey, members)
        seat.survey = survey
        if self.stored is None:
            options = self.options.on_host(seat.host.name)
            seat.plan = make_plan(survey, members, options, recorded)
        else:
            seat.plan = self.stored[seat.host.name]
            _refuse_stale(seat.plan, survey)
        self._show_plan(seat, members)

    def _show_plan(self, seat: Seat, members: Classified) -> None:
        assert seat.plan is not None
        assert seat.survey is not None
        rows = planned(seat.plan, seat.survey, seat.host.name)
        if seat.plan.absent and not seat.plan.scope:
            rows = []
        seat.entry["reclaim"] = section(seat.plan, seat.survey, rows)

    def _planned(self, end: HostEnd) -> None:
        seat = self.seats[end.host]
        self._ended(end)
        if end.error is not None:
            seat.plan = None  # stale, late or senseless: nothing of it may be applied
        plan = seat.entry["reclaim"]["plan"] if "reclaim" in seat.entry else None
        if plan is not None and seat.plan is not None and seat.has_targets and self.history:
            name = seat.host.name
            self.history.save_plan(self.run_info["id"], name, plan, seat.plan.document)
        if seat.plan is not None and seat.has_targets:
            self.on_event({"kind": "plan", "host": end.host, "plan": seat.plan})

    def _check_scope(self) -> None:
        """A part of ``--gpu`` that no host has is a mistake of the person who typed it."""
        if self.options.gpu is None or self.stored is not None:
            return
        seen = [seat.plan.absent for seat in self.seats.values() if seat.plan is not None]
        terms = [term.text for term in gpu_scope.parse(self.options.gpu)]
        missing = [text for text in terms if seen and all(text in absent for absent in seen)]
        if missing:
            there = {gpu for seat in self.seats.values() if seat.survey for gpu in seat.survey.gpus}
            raise errors.UsageError(
                f"--gpu: no host has {', '.join(missing)}",
                f"there is GPU {fold_numbers(there)}" if there else "there is no GPU at all",
            )

    # --- phase two: ask, lock, climb -------------------------------------------------------

    async def _may_apply(self) -> bool:
        seats = self.seats.values()
        if self.options.dry_run or not any(s.has_targets or s.is_watched for s in seats):
            return False
        failed = sum(seat.entry["outcome"] in FAILURES for seat in self.seats.values())
        cap = failure_cap(self.options.max_fail, len(self.seats))
        if cap is not None and failed >= cap:
            return False
        self.failures_left = None if cap is None else cap - failed
        if not any(seat.has_targets for seat in seats):
            return True  # nothing will be changed: there is nothing to ask
        self.declined = not await self.approve([seat.entry for seat in seats])
        return not self.declined

    async def _apply_all(self) -> None:
        seats = self.seats.values()
        hosts = [seat.host for seat in seats if seat.has_targets or seat.is_watched]
        first = hosts[: self.options.canary]
        if first:
            await self._apply(first)
            if any(not self._recovered(host.name) for host in first):
                return
        await self._apply(hosts[len(first) :])

    async def _apply(self, hosts: Sequence[Host]) -> None:
        plans = [self.seats[host.name].plan for host in hosts]
        longest = max((plan.expect_seconds for plan in plans if plan), default=0.0)
        release = self.options.release_timeout_seconds
        ladder = self.options.grace_period_seconds + (
            release if release is not None else max(PINNED_AFTER_SECONDS, 4 * longest)
        )
        settings = self.settings
        await run_hosts(
            hosts,
            self._apply_host,
            fanout=settings.fanout,
            deadline_seconds=settings.host_timeout_seconds + 3 * ladder + _LADDER_SLACK_SECONDS,
            max_fail=self.failures_left,
            failed=lambda end: end.outcome in FAILURES or not self._recovered(end.host),
            on_end=self._ended,
            on_phase=self._phase,
        )

    def _recovered(self, name: str) -> bool:
        section_ = self.seats[name].entry.get("reclaim")
        return section_ is not None and section_["verdict"] in ("reclaimed", "nothing_to_do")

    async def _apply_host(self, host: Host, phase: Any) -> HostEnd:
        seat = self.seats[host.name]
        begin = time.monotonic()
        plan, survey, history = seat.plan, seat.survey, self.history
        assert plan is not None
        assert survey is not None
        assert history is not None
        if seat.link is None or seat.link.session.lost:
            seat.link = await self.linker.open(host, phase)
        session = seat.link.session
        refuse_expired(plan.created, datetime.now(UTC))
        epoch = plan.epoch
        if plan.targets:
            phase("lock")
            epoch = await self._lock(seat)
        run = Climb(
            host=host.name,
            session=session,
            plan=plan,
            options=self.options,
            survey=survey,
            epoch=epoch,
            desk=self.desk,
            trail=lambda event: history.trail(plan.id, host.name, event),
            emit=self.on_event,
        )
        seat.climbing = run
        try:
            with gather.judging(host.name):
                rows = await climb(run)
        except errors.Refused:
            raise  # nothing was signalled after the refusal, and nothing is left open
        except errors.FleetError as error:
            if not plan.targets:
                raise  # it was only watched
            return self._left_open(seat, error.message)
        except asyncio.CancelledError:
            if not plan.targets:
                raise
            return self._left_open(seat, "interrupted, or over its deadline")
        seat.entry["reclaim"] = section(plan, survey, rows, run.rungs)
        seat.entry["readings"] = run.readings or seat.readings
        if plan.targets:
            phase("unlock")
            with contextlib.suppress(errors.FleetError):
                await session.unlock()
        seat.seconds += time.monotonic() - begin
        await self._unlink(seat)
        return self._outcome(seat)

    @staticmethod
    def _outcome(seat: Seat) -> HostEnd:
        """ok, or partial where a reading was; both are a host that was read to its end."""
        rows = seat.entry["readings"]
        outcome: HostOutcome = "partial" if gather.partial_reasons(rows) else "ok"
        return HostEnd(seat.host.name, outcome)

    async def _lock(self, seat: Seat) -> int:
        """Take the host's lock; the epoch must be the plan's plus this one."""
        assert seat.link is not None
        assert seat.plan is not None
        epoch = await gather.lock(seat.link.session, f"{seat.plan.id} {self.desk}")
        if epoch != seat.plan.epoch + 1:
            raise errors.StalePlan("another run changed this host since the plan was made")
        return epoch

    def _left_open(self, seat: Seat, why: str) -> HostEnd:
        """A climb that did not come to its end: whatever it signalled, the rest is unknown."""
        run, plan, survey = seat.climbing, seat.plan, seat.survey
        assert run is not None
        assert plan is not None
        assert survey is not None
        rows = [
            GpuJudgement(gpu, "unknown" if plan.on(gpu) else "nothing_to_do", None, why)
            for gpu in plan.scope
        ]
        seat.entry["reclaim"] = section(plan, survey, rows, run.rungs)
        error = errors.OutcomeUnknown(f"the ladder was not seen to its end: {why}")
        return HostEnd(seat.host.name, "unknown", error)

    # --- keeping records -------------------------------------------------------------------

    def _open_history(self) -> History | None:
        from fleetmem.controller.record.history import open_history, open_or_warn

        folder = self.settings.history_dir
        if self.options.dry_run:
            return open_or_warn(self._warn, folder)
        return open_history(self._warn, folder)

    def _warn(self, text: str) -> None:
        self.on_event({"kind": "warning", "text": text})

    def _phase(self, host: str, text: str) -> None:
        self.on_event({"kind": "phase", "host": host, "text": text})

    def _ended(self, end: HostEnd) -> None:
        seat = self.seats[end.host]
        seat.entry["outcome"] = end.outcome
        seat.entry["seconds"] = round(seat.seconds or end.seconds, 3)
        if end.error is not None:
            seat.entry["error"] = end.error.to_json()
        self.on_event({"kind": "host_done", "host": end.host, "outcome": end.outcome})
        if self.history:
            self.history.record_host(self.run_info["id"], seat.entry)

    async def _unlink(self, seat: Seat) -> None:
        closing, seat.link = seat.link, None
        if closing is not None:
            await closing.close()

    async def _close(self) -> None:
        await asyncio.gather(*(self._unlink(seat) for seat in self.seats.values()))

    def _envelope(self, names: list[str]) -> Envelope:
        entries = [self.seats[name].entry for name in names]
        envelope = env.new_envelope(self.run_info, names, entries)
        code = exit_code(
            envelope,
            plan_only=self.declined or (self.options.dry_run and self.options.detailed_exitcode),
            interrupted=errors.EXIT_SIGINT if self.interrupted else None,
        )
        env.finish(envelope, code)
        if self.history:
            self.history.finish(envelope)
            self.history.close()
        return envelope

    def _failed(self, error: errors.FleetError) -> None:
        """Record a run that ends in an error of its own."""
        if self.history:
            envelope = env.new_envelope(self.run_info, [], [])
            envelope["error"] = error.to_json()
            self.history.finish(env.finish(envelope, error.exit_code))
            self.history.close()


def _refuse_stale(plan: Plan, survey: Survey) -> None:
    """StalePlan where the host is no longer the one that the plan was made for."""
    refuse_expired(plan.created, datetime.now(UTC))
    if plan.boot_id != survey.facts["boot_id"]:
        raise errors.StalePlan("the host was rebooted since the plan was made")
    if plan.epoch != survey.operations["epoch"]:
        raise errors.StalePlan("another run changed this host since the plan was made")
    if not set(plan.scope) <= set(survey.gpus):
        raise errors.StalePlan("the host has other GPUs than when the plan was made")
