"""A scope that reaches nothing says so, and names what it is that is missing."""

from __future__ import annotations

from typing import Any

import pytest

from fleetmem.controller.answer.envelope import new_host
from fleetmem.controller.reclaim.classify import classify
from fleetmem.controller.reclaim.law.rules import rules
from fleetmem.controller.reclaim.options import ReclaimOptions
from fleetmem.controller.reclaim.plan import make_plan
from fleetmem.controller.reclaim.section import section
from fleetmem.controller.reclaim.verdict.gpus import planned
from fleetmem.controller.render.reclaim.verdict_text import text_of
from tests.unit.reclaim.reclaim_world import GIB, device, holder, identity, listed, survey


def answer(**options: Any) -> Any:
    seen = survey(identity(50), holders=(holder(50),), lists={0: [listed(50, 9 * GIB)]})
    made = make_plan(seen, classify(seen, rules()), ReclaimOptions(**options), {})
    return section(made, seen, planned(made, seen, "h1"))


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ({"pids": (99999,)}, "Nothing that --pid or --user names holds memory of a GPU here."),
        ({"user": "ops"}, "Nothing that --pid or --user names holds memory of a GPU here."),
        ({"gpu": "7"}, "This host has no GPU 7."),
        ({"gpu": "1"}, None),
    ],
)
def test_what_is_missing_is_named(options: dict[str, Any], advice: str | None) -> None:
    found = answer(**options)
    assert (found["verdict"], found["advice"]) == ("nothing_to_do", advice)
    if advice:
        entry = new_host("h1", "ok")
        entry["reclaim"] = found
        assert text_of([entry]) == advice.removesuffix(".")


def test_another_mig_instance_is_named_as_such() -> None:
    """A GPU of which one instance is in scope: the other's holder is not on another GPU."""
    parts = [
        {"uuid": f"MIG-{gi}", "gi": gi, "ci": 0, "total_bytes": GIB, "used_bytes": GIB}
        for gi in (1, 2)
    ]
    rows = [{**listed(pid, GIB), "gi": pid - 49, "ci": 0} for pid in (50, 51)]
    seen = survey(
        identity(50),
        identity(51),
        holders=(holder(50), holder(51)),
        lists={0: rows},  # type: ignore[dict-item]
    )
    gpus = {**seen.gpus, 0: device(0, 2 * GIB, mig_mode=True, instances=parts)}
    object.__setattr__(seen, "gpus", gpus)
    made = make_plan(seen, classify(seen, rules()), ReclaimOptions(gpu="MIG-1"), {})
    assert [t.member.pid for t in made.targets] == [50]
    assert [(s.member.pid, s.why) for s in made.spared] == [
        (51, "holds another instance of GPU 0, not the one in scope")
    ]
