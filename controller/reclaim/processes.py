"""Reclaim from processes: what a host's plan is made of, and one climb of the ladder."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from fleetmem.controller import errors
from fleetmem.controller.answer.fold import fold_numbers
from fleetmem.controller.contact import gather
from fleetmem.controller.hosts import gpu_scope
from fleetmem.controller.reclaim import baseline
from fleetmem.controller.reclaim.agreed import judged_again
from fleetmem.controller.reclaim.classify import classify
from fleetmem.controller.reclaim.climb import Climb
from fleetmem.controller.reclaim.join import to_survey
from fleetmem.controller.reclaim.ladder import climb
from fleetmem.controller.reclaim.law.rules import rules
from fleetmem.controller.reclaim.plan import make_plan, refuse_expired
from fleetmem.controller.reclaim.section import section
from fleetmem.controller.reclaim.verdict.gpus import planned
from fleetmem.controller.reclaim.verdict.judgement import PINNED_AFTER_SECONDS, GpuJudgement
from fleetmem.controller.reclaim.verdict.untouched import pending
from fleetmem.controller.run.fanout import HostEnd

if TYPE_CHECKING:
    from fleetmem.controller.contact.session import Session
    from fleetmem.controller.reclaim.options import ReclaimOptions
    from fleetmem.controller.reclaim.plan import Plan
    from fleetmem.controller.reclaim.run import Seat, Turn
    from fleetmem.controller.reclaim.survey import Survey
    from fleetmem.controller.run.fanout import Phase
    from fleetmem.controller.run.life import Life

_LADDER_SLACK_SECONDS = 60.0
FRESH_SECONDS = 3.0
"""Older readings are taken again before anything is signalled."""


@dataclass
class Processes:
    """Reclaims from processes. With *stored* plans those are applied instead of new ones."""

    life: Life
    options: ReclaimOptions
    stored: Mapping[str, Plan] | None = None
    surveys: dict[str, Survey] = field(default_factory=dict)
    climbs: dict[str, Climb] = field(default_factory=dict)
    read_at: dict[str, float] = field(default_factory=dict)

    async def plan(self, seat: Seat, session: Session, phase: Phase) -> HostEnd:
        """Read all that a judgement needs, and plan."""
        seat.entry["readings"] = dict(await gather.readings(session))
        with gather.judging(seat.host.name):
            self._judge(seat)
        return self._end(seat)

    def _judge(self, seat: Seat) -> None:
        """From the seat's readings to its plan, and what the answer shows of it."""
        name, history = seat.host.name, self.life.history
        survey = self.surveys[name] = to_survey(seat.entry["readings"])
        members = classify(survey, rules())
        recorded = baseline.recorded(history, name, survey)
        if history:
            baseline.record(history, name, survey, members)
        if self.stored is None:
            seat.plan = make_plan(survey, members, self.options.on_host(name), recorded)
        else:
            _refuse_stale(self.stored[name], survey)
            seat.plan = judged_again(self.stored[name], survey, members, recorded)
        self.read_at[name] = time.monotonic()
        self._show_plan(seat)

    def _show_plan(self, seat: Seat) -> None:
        survey = self.surveys[seat.host.name]
        rows = planned(seat.plan, survey, seat.host.name)
        if seat.plan.absent and not seat.plan.scope:
            rows = []
        seat.entry["reclaim"] = section(seat.plan, survey, rows)

    def is_watched(self, seat: Seat) -> bool:
        """No targets, but memory that nobody has any more: it may be on its way back."""
        return not seat.has_targets and bool(pending(seat.plan, self.surveys[seat.host.name]))

    def check(self, seats: Sequence[Seat]) -> None:
        """A part of ``--gpu`` that no host has is a mistake of the person who typed it."""
        if self.options.gpu is None or self.stored is not None:
            return
        seen = [seat.plan.absent for seat in seats if seat.plan is not None]
        terms = [term.text for term in gpu_scope.parse(self.options.gpu)]
        missing = [text for text in terms if seen and all(text in absent for absent in seen)]
        if missing:
            there = {gpu for survey in self.surveys.values() for gpu in survey.gpus}
            raise errors.UsageError(
                f"--gpu: no host has {', '.join(missing)}",
                f"there is GPU {fold_numbers(there)}" if there else "there is no GPU at all",
            )

    def seconds(self, seats: Sequence[Seat]) -> float:
        """As long as the slowest ladder may take."""
        longest = max((seat.plan.expect_seconds for seat in seats), default=0.0)
        release = self.options.release_timeout_seconds
        ladder = self.options.grace_period_seconds + (
            release if release is not None else max(PINNED_AFTER_SECONDS, 4 * longest)
        )
        return 3 * ladder + _LADDER_SLACK_SECONDS

    async def apply(self, seat: Seat, turn: Turn) -> HostEnd:
        """Climb as far as needed and allowed, and verify."""
        name = seat.host.name
        if seat.has_targets and time.monotonic() - self.read_at[name] > FRESH_SECONDS:
            turn.phase("reading again")
            await self._judge_again(seat, turn.session)
        plan, survey = seat.plan, self.surveys[name]
        run = self.climbs[name] = Climb(
            host=name,
            session=turn.session,
            plan=plan,
            options=self.options,
            survey=survey,
            epoch=turn.epoch,
            desk=turn.desk,
            scope=plan.options.scope_text,
            announce=turn.announce,
            answered=turn.answered,
            emit=self.life.on_event,
        )
        with gather.judging(name):
            rows = await climb(run)
        seat.entry["reclaim"] = section(plan, survey, rows, run.rungs)
        seat.entry["readings"] = run.readings or seat.entry["readings"]
        return self._end(seat)

    async def _judge_again(self, seat: Seat, session: Session) -> None:
        """While somebody thought about the plan, somebody else may have come to want it."""
        name = seat.host.name
        seat.entry["readings"] = dict(await gather.readings(session))
        with gather.judging(name):
            survey = self.surveys[name] = to_survey(seat.entry["readings"])
            recorded = baseline.recorded(self.life.history, name, survey)
            seat.plan = judged_again(seat.plan, survey, classify(survey, rules()), recorded)

    def left_open(self, seat: Seat, why: str) -> None:
        """A climb that did not come to its end: whatever it signalled, the rest is unknown."""
        plan = seat.plan
        rows = [
            GpuJudgement(gpu, "unknown" if plan.on(gpu) else "nothing_to_do", None, why)
            for gpu in plan.scope
        ]
        run = self.climbs[seat.host.name]
        seat.entry["reclaim"] = section(plan, self.surveys[seat.host.name], rows, run.rungs)

    @staticmethod
    def _end(seat: Seat) -> HostEnd:
        """ok, or partial where a reading was; both are a host that was read to its end."""
        whole = not gather.partial_reasons(seat.entry["readings"])
        return HostEnd(seat.host.name, "ok" if whole else "partial")


def _refuse_stale(plan: Plan, survey: Survey) -> None:
    """StalePlan where the host is no longer the one that the plan was made for."""
    refuse_expired(plan.created, datetime.now(UTC))
    if plan.boot_id != survey.facts["boot_id"]:
        raise errors.StalePlan("the host was rebooted since the plan was made")
    if plan.epoch != survey.operations["epoch"]:
        raise errors.StalePlan("another run changed this host since the plan was made")
    if not set(plan.scope) <= set(survey.gpus):
        raise errors.StalePlan("the host has other GPUs than when the plan was made")
