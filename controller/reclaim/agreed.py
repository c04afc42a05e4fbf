"""A plan that somebody agreed to, judged again from fresh readings. Pure.

A plan names what was agreed. What may be ended is decided anew, under the same scope: who
would be no target now is spared, whatever the plan says, and nobody is added.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fleetmem.controller.reclaim.bound import make_bound
from fleetmem.controller.reclaim.plan import Plan, Spared, expected_seconds, make_plan

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fleetmem.controller.reclaim.classify import Classified
    from fleetmem.controller.reclaim.survey import Survey

ADDED = "not in the plan that was agreed to"


def judged_again(
    agreed: Plan, survey: Survey, classified: Classified, baselines: Mapping[str, int]
) -> Plan:
    """*agreed* with those of its targets that are still targets, by identity."""
    now = make_plan(survey, classified, agreed.options, baselines, agreed.created)
    named = {target.member.key for target in agreed.targets}
    targets = tuple(target for target in now.targets if target.member.key in named)
    added = tuple(
        Spared(target.member, f"{target.member.why}; {ADDED}")
        for target in now.targets
        if target.member.key not in named
    )
    spared = (*now.spared, *added)
    scope = tuple(gpu for gpu in agreed.scope if gpu in survey.gpus)
    return replace(
        now,
        id=agreed.id,
        boot_id=agreed.boot_id,
        epoch=agreed.epoch,
        scope=scope,
        targets=targets,
        spared=spared,
        bounds={
            gpu: make_bound(survey, gpu, targets, spared, baselines.get(survey.gpus[gpu]["uuid"]))
            for gpu in scope
        },
        expect_seconds=expected_seconds([target.member for target in targets]),
        agreed=agreed.agreed or agreed,
    )
