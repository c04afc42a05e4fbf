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
    """*agreed* with those of its targets that are still targets, by identity.

    While all of them are, its bounds stay what they were: whoever came meanwhile is outside it.
    """
    now = make_plan(survey, classified, agreed.options, baselines, agreed.created)
    named = {target.member.key for target in agreed.targets}
    targets = tuple(target for target in now.targets if target.member.key in named)
    again = replace(agreed, targets=targets, agreed=agreed.agreed or agreed)
    if len(targets) == len(named):
        return again
    added = tuple(
        Spared(target.member, f"{target.member.why}; {ADDED}")
        for target in now.targets
        if target.member.key not in named
    )
    spared = (*now.spared, *added)
    ending, staying = [t.member for t in targets], [s.member for s in spared]
    return replace(
        again,
        spared=spared,
        bounds={
            gpu: make_bound(survey, gpu, ending, staying, baselines.get(survey.gpus[gpu]["uuid"]))
            for gpu in agreed.scope
            if gpu in survey.gpus
        },
        ambiguous=tuple(row for row in now.ambiguous if row.gpu in agreed.scope),
        expect_seconds=expected_seconds([target.member for target in targets]),
    )
