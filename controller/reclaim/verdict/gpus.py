"""The verdicts over all GPUs in scope, before and after a ladder. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fleetmem.controller.reclaim.verdict.climbed import after_ladder
from fleetmem.controller.reclaim.verdict.judgement import Climbed, GpuJudgement
from fleetmem.controller.reclaim.verdict.untouched import untouched

if TYPE_CHECKING:
    from fleetmem.controller.reclaim.classify import Classified
    from fleetmem.controller.reclaim.plan import Plan
    from fleetmem.controller.reclaim.survey import Survey


def planned(plan: Plan, survey: Survey, host: str) -> list[GpuJudgement]:
    """Verdicts of a dry run: what is ``planned``, and what would stay as it is."""
    rows = []
    for gpu in plan.scope:
        used = survey.used(gpu)
        targets = plan.on(gpu)
        if targets:
            names = ", ".join(f"{t.member.name} {t.member.pid}" for t in targets[:3])
            rows.append(GpuJudgement(gpu, "planned", used, f"would stop {names}"))
        else:
            rows.append(untouched(plan, survey, gpu, host))
    return rows


def judge(
    plan: Plan, after: Survey, members: Classified, climbed: Climbed, host: str
) -> list[GpuJudgement]:
    """Verdicts after the ladder, from one more look at the host."""
    rows = []
    for gpu in plan.scope:
        if climbed.unknown:
            rows.append(GpuJudgement(gpu, "unknown", after.used(gpu), climbed.unknown))
        elif not plan.on(gpu):
            rows.append(untouched(plan, after, gpu, host, climbed.waited_seconds))
        elif climbed.drain_refused:
            rows.append(GpuJudgement(gpu, "drain_refused", after.used(gpu), climbed.drain_refused))
        else:
            rows.append(after_ladder(plan, after, members, climbed, gpu, host))
    return rows
