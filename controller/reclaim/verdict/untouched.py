"""The verdict over a GPU that the plan does not touch. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fleetmem.controller.answer.envelope import Verdict
from fleetmem.controller.reclaim.verdict.judgement import PINNED_AFTER_SECONDS, GpuJudgement
from fleetmem.controller.reclaim.verdict.next_commands import (
    cache_commands,
    dry_run_of,
    look_again,
    reaching,
)
from fleetmem.controller.reclaim.verdict.seen import (
    DRIFT_BYTES,
    busy,
    could_hold,
    drift,
    held_unseen,
    is_explained,
    is_within,
    on_no_list,
    without_files,
)
from fleetmem.controller.text.sizes import count, gib

if TYPE_CHECKING:
    from fleetmem.controller.reclaim.bound import Bound
    from fleetmem.controller.reclaim.classify import Member
    from fleetmem.controller.reclaim.plan import Plan
    from fleetmem.controller.reclaim.survey import Survey


FILES_WORTH_BYTES = 1 << 30
"""File pages on a GPU's NUMA node that are worth a word."""


_GPU_LOST = frozenset((15, 16))
"""NVML's numbers for a lost GPU and one that must be reset."""


def untouched(
    plan: Plan, survey: Survey, gpu: int, host: str, watched_seconds: float = 0.0
) -> GpuJudgement:
    """The verdict over a GPU without targets: who keeps it, or what is not explained.

    Memory of a dead process that nobody has is ``releasing`` until it was watched for long.
    """
    used, bound = survey.used(gpu), plan.bounds[gpu]
    if used is None:
        return no_reading(survey, gpu)
    for row in plan.ambiguous:
        if row.gpu == gpu:
            pids = ", ".join(map(str, row.candidates))
            dead = ", ".join(map(str, row.dead))
            why = f"NVML names dead {dead}; {pids} could have its files"
            why += ", and may be wanted" if row.one_family else " and are unrelated"
            step = tuple(dry_run_of(host, pid=pid) for pid in row.candidates)
            return GpuJudgement(gpu, "held_by", used, why, step)
    keepers = [s for s in plan.spared if gpu in s.member.held]
    kept = ", ".join(f"{s.member.name} {s.member.pid}" for s in keepers[:3])
    explained = is_within(survey, gpu, bound) or is_explained(survey, gpu, bound)
    if keepers and explained:
        verdict: Verdict = "nothing_to_do"
        why = f"held by {kept}: " + "; ".join(dict.fromkeys(s.why for s in keepers[:3]))
        reached, short = [s for s in keepers if s.reach], None
        if reached:
            ended = whom_ended([s.member for s in reached], len(keepers))
            if ended in ("it", "them"):
                short = f"{why}, --gpu ends {ended}"
            why += working(ended)
        elsewhere = on_no_list(survey, gpu, bound)
        why += elsewhere
        steps = [reaching(host, s.reach) for s in reached]
        steps += [
            s.member.process["owner"]["stop_command"] or ""
            for s in keepers
            if s.member.kind in ("protected", "foreign", "in_use")
            and s.member.process["owner"]["state"] == "live"
        ]
        return GpuJudgement(
            gpu,
            verdict,
            used,
            why,
            tuple(dict.fromkeys(step for step in steps if step)),
            why_short=None if short is None else short + elsewhere,
        )
    if is_within(survey, gpu, bound):
        return _at_baseline(survey, gpu, used, host)
    if explained:
        came = ", ".join(map(str, sorted(survey.held(gpu))))
        return GpuJudgement(gpu, "nothing_to_do", used, f"process {came} came after the plan")
    found = _unexplained(survey, gpu, bound, host, watched_seconds)
    perhaps = [s.member for s in plan.spared if gpu in s.member.may_hold]
    return _exported(found, perhaps, host) if found.verdict == "cannot_attribute" else found


def working(ended: str) -> str:
    state = "they are" if ended == "them" or ", " in ended else "it is"
    return f"; --gpu would stop {ended} even if {state} working"


def whom_ended(ended: list[Member], of: int) -> str:
    """Whom ``--gpu`` would end of *of* holders: it, them, or names."""
    who = ", ".join(f"{m.name} {m.pid}" for m in ended[:3])
    if len(ended) == of:
        who = "it" if of == 1 else "them"
    return who


def _exported(row: GpuJudgement, perhaps: list[Member], host: str) -> GpuJudgement:
    """The same, with those who may keep memory that was exported to them."""
    if not perhaps:
        return row
    who = ", ".join(f"{member.name} {member.pid}" for member in perhaps[:3])
    why = f"{row.why}; {who} has nvidiactl open and may keep memory that was exported to it"
    steps = tuple(reaching(host, f"--pid {member.pid}") for member in perhaps[:3])
    return replace(row, why=why, next=(*row.next, *steps), advice=_PERHAPS)


def _at_baseline(survey: Survey, gpu: int, used: int, host: str) -> GpuJudgement:
    """Nothing is held; file pages that lie in this GPU's memory are named all the same."""
    node = survey.gpus[gpu]["numa_node"]
    files = 0 if node is None else survey.numa_file_bytes.get(node, 0)
    if files < FILES_WORTH_BYTES:
        return GpuJudgement(gpu, "nothing_to_do", used, "at its baseline")
    why = f"at its baseline, but for {gib(files)} GiB of file pages on NUMA node {node}"
    return GpuJudgement(gpu, "nothing_to_do", used, why, cache_commands(host))


def pending(plan: Plan, survey: Survey) -> list[int]:
    """GPUs without targets whose memory may be on its way back: worth watching."""
    rows = [untouched(plan, survey, gpu, "") for gpu in plan.scope if not plan.on(gpu)]
    return [row.index for row in rows if row.verdict == "releasing"]


def _unexplained(
    survey: Survey, gpu: int, bound: Bound, host: str, watched_seconds: float
) -> GpuJudgement:
    """Used memory that no visible process accounts for."""
    used, dead = survey.used(gpu), survey.dead(gpu)
    device = survey.gpus[gpu]
    if survey.holders_denied and survey.facts["uid"] != 0:
        many = count(survey.holders_denied, "process", "processes")
        why = f"{many} of others cannot be read by this user"
        return GpuJudgement(gpu, "not_permitted", used, why)
    if device["numa_node"] is not None:
        why = f"this GPU's memory is NUMA node {device['numa_node']}: host pages lie in it"
        return GpuJudgement(gpu, "host_pages", used, why, cache_commands(host))
    if dead and not any(could_hold(survey, pid, gpu) for pid in survey.holders):
        why = f"NVML names dead {', '.join(map(str, sorted(dead)))}, and no process has its files"
        if watched_seconds < PINNED_AFTER_SECONDS:
            return GpuJudgement(gpu, "releasing", used, why, (look_again(host, gpu),))
        why += f", and it is not back after {watched_seconds:.0f} s"
        return GpuJudgement(gpu, "kernel_pinned", used, why)
    named = without_files(survey, gpu)
    if named:
        return GpuJudgement(gpu, "cannot_attribute", used, named + busy(survey, gpu))
    if used is not None and bound.kept_bytes is not None and not dead:
        above = used - bound.baseline.used_bytes - bound.kept_bytes
        if above <= DRIFT_BYTES and not held_unseen(survey, gpu):
            return GpuJudgement(gpu, "nothing_to_do", used, drift(above))
    why = f"no visible process accounts for it{busy(survey, gpu)}"
    if not survey.numbers_count:
        why = f"held outside this container{busy(survey, gpu)}"
        return GpuJudgement(gpu, "cannot_attribute", used, why, advice=_OUTSIDE)
    return GpuJudgement(gpu, "cannot_attribute", used, why)


def no_reading(survey: Survey, gpu: int) -> GpuJudgement:
    errors = "; ".join(survey.gpus[gpu]["errors"]) or "NVML gave no figure"
    lost = not _GPU_LOST.isdisjoint((survey.gpus[gpu].get("error_codes") or {}).values())
    action = survey.gpus[gpu]["recovery_action"]
    verdict: Verdict = "driver_wedged" if lost else "cannot_attribute"
    tail = f"; the driver asks for: {action}" if action not in (None, "none") else ""
    return GpuJudgement(gpu, verdict, None, errors + tail)


_PERHAPS = "No list shows exported memory: whether that process keeps it, its end shows."


_OUTSIDE = "It is held outside this container: its provider must act."
