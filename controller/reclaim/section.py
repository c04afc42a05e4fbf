"""The ``reclaim`` section of the envelope, from a plan and its verdicts. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from fleetmem.controller.reclaim.bound import managed_bytes
from fleetmem.controller.reclaim.verdict.judgement import ADVICE, GpuJudgement, worst

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fleetmem.controller.answer.envelope import Reclaim, Rung, Spared, Target
    from fleetmem.controller.reclaim.classify import Member
    from fleetmem.controller.reclaim.plan import Plan
    from fleetmem.controller.reclaim.survey import Survey


def section(
    plan: Plan, survey: Survey, rows: Sequence[GpuJudgement], rungs: Sequence[Rung] = ()
) -> Reclaim:
    """*rows* are the verdicts over the GPUs in scope; *survey* is the one the plan rests on."""
    verdict = worst(list(rows))
    own = next((row.advice for row in rows if row.verdict == verdict and row.advice), None)
    return {
        "plan": {
            "id": plan.id,
            "created": _moment(plan.created),
            "expires": _moment(plan.expires),
            "hash": plan.hash,
            "boot_id": plan.boot_id,
        },
        "verdict": verdict,
        "gpus": [
            {
                "index": row.index,
                "uuid": survey.gpus[row.index]["uuid"],
                "verdict": row.verdict,
                "before_bytes": plan.bounds[row.index].before_bytes,
                "after_bytes": row.after_bytes,
                "baseline_bytes": plan.bounds[row.index].baseline.used_bytes,
                "baseline_source": plan.bounds[row.index].baseline.source,
                "managed_bytes": _managed_bytes(plan, survey, row.index),
                "why": row.why,
                "starts_again": list(row.starts_again),
                "why_short": row.why_short,
            }
            for row in rows
        ],
        "numa_nodes": [],
        "targets": [_target(t) for t in plan.targets],
        "spared": [_spared(s) for s in plan.spared],
        "rungs": list(rungs),
        "advice": own or ADVICE.get(verdict) or _nothing_in_scope(plan, survey),
        "next": list(dict.fromkeys(step for row in rows for step in row.next)),
        "expect_seconds": plan.expect_seconds if plan.targets else None,
    }


def _nothing_in_scope(plan: Plan, survey: Survey) -> str | None:
    """Why no GPU of the host is in scope, or None where one is."""
    if plan.scope:
        return None
    if not survey.gpus:
        return "This host has no GPU."
    if plan.absent:
        return f"This host has no GPU {', '.join(plan.absent)}."
    return "Nothing that --pid or --user names holds memory of a GPU here."


def _moment(value: datetime) -> str:
    return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _target(target: Any) -> Target:
    member = target.member
    process = member.process
    owner = process["owner"]
    return {
        "pid": process["pid"],
        "start_time": process["start_time"],
        "name": member.name,
        "user": process["user"],
        "unit": owner["name"] if owner["kind"] in ("unit", "user_unit") else None,
        "container": owner["name"] if owner["kind"] in ("container", "pod") else None,
        "class": member.kind or "unclear",
        "gpus": sorted(member.held) or list(member.open_gpus),
        "held_bytes": member.held_bytes if member.held else None,
        "conditional": target.conditional,
        "evidence": list(member.evidence) + (["heir"] if target.conditional else []),
        "why": member.why,
        "owner": member.owner,
        "age_seconds": process["age_seconds"],
        "consequences": list(member.consequences),
    }


def _spared(spared: Any) -> Spared:
    member = spared.member
    process = member.process
    return {
        "pid": process["pid"],
        "start_time": process["start_time"],
        "name": member.name,
        "class": member.kind,
        "gpus": sorted(member.held) or member.listed_gpus or list(member.open_gpus),
        "held_bytes": _bytes_of(member),
        "why": spared.why,
        "user": process["user"],
    }


def _bytes_of(member: Member) -> int | None:
    """Bytes it holds; None where NVML names it and nothing proves that they are its own."""
    if member.held:
        return member.held_bytes
    return None if member.listed_gpus else 0


def _managed_bytes(plan: Plan, survey: Survey, gpu: int) -> int:
    pids = [target.member.pid for target in plan.on(gpu)]
    return managed_bytes(survey, gpu, pids, plan.bounds[gpu].baseline)
