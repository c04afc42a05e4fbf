"""A plan that was agreed to is judged again: whoever is no target now is spared."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any

import pytest

from fleetmem.controller.errors import PlanInvalid
from fleetmem.controller.reclaim.agreed import ADDED, judged_again
from fleetmem.controller.reclaim.classify import classify
from fleetmem.controller.reclaim.law.rules import rules
from fleetmem.controller.reclaim.options import ReclaimOptions
from fleetmem.controller.reclaim.plan import Plan, make_plan
from fleetmem.controller.reclaim.plan_file import restore
from fleetmem.controller.reclaim.survey import Survey
from tests.unit.reclaim.reclaim_world import GIB, holder, identity, listed, owner, survey

WORKER = {"title": "VLLM::Worker_TP0", "orphaned_pipes": 2}


def host(**more: Any) -> Survey:
    """A worker 50 that is left over, and DCGM 60; *more* is about the worker."""
    return survey(
        identity(50, **{**WORKER, **more}),
        identity(60, comm="nv-hostengine", title="nv-hostengine"),
        holders=(holder(50), holder(60)),
        lists={0: [listed(50, 9 * GIB), listed(60, GIB)]},
    )


def made(seen: Survey, **options: Any) -> Plan:
    return make_plan(seen, classify(seen, rules()), ReclaimOptions(**options), {})


def again(agreed: Plan, seen: Survey) -> Plan:
    return judged_again(agreed, seen, classify(seen, rules()), {})


def pids(plan: Plan) -> list[int]:
    return [target.member.pid for target in plan.targets]


def stored(plan: Plan, change: Any) -> Plan:
    """The plan from its document, which somebody has edited and hashed again."""
    document = json.loads(json.dumps(plan.document))
    change(document)
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return restore(document, hashlib.sha256(text.encode()).hexdigest(), "h1")


def test_what_is_still_so_is_still_a_target() -> None:
    agreed = made(host())
    now = again(agreed, host())
    assert pids(now) == pids(agreed) == [50]
    assert (now.id, now.hash, now.document) == (agreed.id, agreed.hash, agreed.document)


def test_an_edited_number_never_ends_a_protected_process() -> None:
    def edit(document: dict[str, Any]) -> None:
        process = document["targets"][0]["member"]["process"]
        process["pid"], process["start_time"] = 60, 600

    edited = stored(made(host()), edit)
    assert pids(edited) == [60]
    now = again(edited, host())
    assert pids(now) == []
    assert {s.member.pid: s.why for s in now.spared} == {
        50: f"vLLM worker, launcher dead, 2 of its pipes are held by nobody else; {ADDED}",
        60: "DCGM and exporters",
    }


@pytest.mark.parametrize(
    "more",
    [
        {"live_peers": [77]},  # a client came
        {"listening": True, "listening_ports": [8000]},
        {"orphaned_pipes": None, "live_peers": None},  # it cannot be read any more
        {"start_time": 501},  # another process has the number
    ],
)
def test_whoever_is_wanted_by_now_is_spared(more: dict[str, Any]) -> None:
    assert pids(again(made(host()), host(**more))) == []


def test_the_scope_is_the_plans_own() -> None:
    live = {"orphaned_pipes": 0, "owner": owner("unit", "vllm.service", "live")}
    agreed = made(host(**live), units=("vllm",))
    assert pids(agreed) == [50]
    assert pids(again(stored(agreed, lambda _document: None), host(**live))) == [50]
    assert pids(again(replace(agreed, chosen=made(host()).chosen), host(**live))) == []


def test_a_scope_that_is_none_is_refused() -> None:
    for name, value in (("pids", ["50"]), ("gpu", 0), ("units", "vllm"), ("chosen", 1)):
        with pytest.raises(PlanInvalid):
            stored(made(host()), lambda d, n=name, v=value: d["chosen"].update({n: v}))
