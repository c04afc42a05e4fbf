"""The verdict over a GPU whose targets were signalled. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fleetmem.controller.answer.envelope import Verdict
from fleetmem.controller.reclaim.bound import TOLERANCE_BYTES
from fleetmem.controller.reclaim.verdict.judgement import (
    PINNED_AFTER_SECONDS,
    Climbed,
    GpuJudgement,
    Refusal,
)
from fleetmem.controller.reclaim.verdict.next_commands import cache_commands, dry_run_of, look_again
from fleetmem.controller.reclaim.verdict.seen import (
    DRIFT_BYTES,
    busy,
    drift,
    held_unseen,
    is_explained,
    is_within,
    on_no_list,
    without_files,
)
from fleetmem.controller.reclaim.verdict.untouched import no_reading, whom_ended, working

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fleetmem.controller.reclaim.classify import Classified, Member
    from fleetmem.controller.reclaim.plan import Plan
    from fleetmem.controller.reclaim.survey import Survey


_DRIFT_SECONDS = 5.0


def after_ladder(
    plan: Plan, after: Survey, members: Classified, climbed: Climbed, gpu: int, host: str
) -> GpuJudgement:
    used, bound = after.used(gpu), plan.bounds[gpu]
    if used is None:
        return no_reading(after, gpu)
    alive = [t.member for t in plan.on(gpu) if _lives(after, t.member.key)]
    if not alive and is_within(after, gpu, bound):
        again = _started_again(plan, members, gpu)
        if again:
            return _respawned(again, gpu, used)
        why = "at most baseline and what spared ones keep" + on_no_list(after, gpu, bound)
        return _for_how_long(why, climbed, gpu, used)
    if alive:
        return _still_alive(alive, climbed, gpu, used, host)
    if bound.bound_bytes is None:
        why = "targets are gone; sizes are not known here, so the rest cannot be checked"
        return GpuJudgement(gpu, "cannot_attribute", used, why)
    return _still_used(plan, after, members, climbed, gpu, used, host)


def _for_how_long(why: str, climbed: Climbed, gpu: int, used: int) -> GpuJudgement:
    """All is back: whether it stays so, as far as those who start targets again tell."""
    rows = [one for one in climbed.restarters if gpu in one.gpus and one.state != "off"]
    again = [one for one in rows if one.state == "again"]
    steps = tuple(dict.fromkeys(one.stop_command for one in again or rows if one.stop_command))
    if again:
        return GpuJudgement(gpu, "respawned", used, "; ".join(map(str, again)), steps)
    said = tuple(map(str, rows))
    whole = "; ".join((why, *said))
    return GpuJudgement(gpu, "reclaimed", used, whole, steps, starts_again=said)


def _lives(survey: Survey, key: tuple[int, int]) -> bool:
    process = survey.processes.get(key[0])
    return process is not None and process["start_time"] == key[1] and process["alive"]


def _still_alive(
    alive: list[Member], climbed: Climbed, gpu: int, used: int, host: str
) -> GpuJudgement:
    names = ", ".join(f"{m.name} {m.pid}" for m in alive[:3])
    unclear = [climbed.unclear[m.key] for m in alive if m.key in climbed.unclear]
    if unclear:
        return GpuJudgement(gpu, "unknown", used, f"{names}: {unclear[0]}")
    refused = [climbed.refused[m.key] for m in alive if m.key in climbed.refused]
    killed = [m for m in alive if m.key in climbed.killed]
    if refused:
        return _refused(names, refused[0], gpu, used, host)
    if killed:
        states = {climbed.stuck.get(m.key, "?") for m in killed}
        why = f"{names}: SIGKILL is pending, kernel state {', '.join(sorted(states))}"
        return GpuJudgement(gpu, "unkillable", used, why)
    why = deaf_text(alive, climbed.deaf) or f"{names} still runs"
    step = dry_run_of(host, pid=",".join(str(m.pid) for m in alive), up_to="heirs")
    if climbed.up_to == "heirs":
        return GpuJudgement(
            gpu, "held_by", used, why, (step,), advice="It was not ended; look again."
        )
    why += f"; --up-to {climbed.up_to} allowed nothing harder"
    advice = "The last step allowed did not end it; a harder one would."
    return GpuJudgement(gpu, "held_by", used, why, (step,), advice=advice)


_NO_RECORD = ("remote_disk_full", "no_trail", "no_state_dir")


def _refused(names: str, refusal: Refusal, gpu: int, used: int, host: str) -> GpuJudgement:
    """The host did not send the signal: the target changed, or could not be put on record."""
    if refusal.code == "not_permitted":
        return GpuJudgement(gpu, "not_permitted", used, f"{names}: {refusal.why}")
    step = (look_again(host, gpu),)
    if refusal.code in _NO_RECORD:
        why = f"{names} was not signalled: the host could not record it first ({refusal.why})"
        advice = "Make room below /run on the host, then run it again."
        return GpuJudgement(gpu, "held_by", used, why, step, advice=advice)
    why = f"{names} was not signalled: {refusal.why}"
    advice = "The host refused the signal, because the process is not as planned. Look again."
    return GpuJudgement(gpu, "held_by", used, why, step, advice=advice)


_DEAF = {
    "ignored": "ignores SIGTERM",
    "blocked": "blocks SIGTERM",
    "stopped": "is stopped, so SIGTERM stays pending",
    "init": "is process 1 of a PID namespace without a SIGTERM handler",
}


def deaf_text(members: list[Member], deaf: Mapping[tuple[int, int], str]) -> str | None:
    """Which of *members* SIGTERM cannot end, and why; None for none."""
    reasons: dict[str, list[str]] = {}
    for member in members:
        if member.key in deaf:
            reasons.setdefault(deaf[member.key], []).append(f"{member.name} {member.pid}")
    parts = []
    for code, names in reasons.items():
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        parts.append(f"{', '.join(names[:3])}{more} {_DEAF.get(code, 'does not act on SIGTERM')}")
    return "; ".join(parts) or None


def _still_used(
    plan: Plan,
    after: Survey,
    members: Classified,
    climbed: Climbed,
    gpu: int,
    used: int,
    host: str,
) -> GpuJudgement:
    """All targets are gone and the memory is not back: who has it, or what the kernel does."""
    known = {t.member.key for t in plan.targets} | {s.member.key for s in plan.spared}
    now = [m for m in members.members.values() if gpu in m.held]
    fresh = [m for m in now if m.key not in known]
    forks = {t.member.key for t in plan.targets if t.conditional}
    waiting = [m for m in now if m.key in forks]
    if waiting:
        return _still_alive(waiting, climbed, gpu, used, host)
    heirs = [m for m in now if m.heir_of and m.key not in {t.member.key for t in plan.targets}]
    if heirs:
        names = ", ".join(f"{m.name} {m.pid}" for m in heirs[:3])
        why = f"{names} inherited the files of a dead process and is not in this plan"
        return GpuJudgement(gpu, "held_by", used, why, (look_again(host, gpu),))
    for row in members.ambiguous:
        if row.gpu == gpu:
            pids = ", ".join(map(str, row.candidates))
            steps = tuple(dry_run_of(host, pid=pid) for pid in row.candidates)
            why = f"{pids} could have the files of a dead target and are unrelated"
            return GpuJudgement(gpu, "held_by", used, why, steps)
    again = [m for m in fresh if any(_same_start(m, t.member) for t in plan.targets)]
    if again:
        return _respawned(again, gpu, used)
    if fresh:
        names = ", ".join(f"{m.name} {m.pid}" for m in fresh[:3])
        why = f"{names} came after the plan{working(whom_ended(fresh, len(fresh)))}"
        return GpuJudgement(gpu, "held_by", used, why, (look_again(host, gpu),))
    grown = _grown(plan, now, gpu)
    if grown:
        names = ", ".join(f"{m.name} {m.pid}" for m in grown[:3])
        why = f"the memory moved to {names}: it imported it over CUDA IPC"
        step = dry_run_of(host, pid=grown[0].pid)
        return GpuJudgement(gpu, "held_by", used, why, (step,))
    named = without_files(after, gpu)
    if named:
        return GpuJudgement(gpu, "held_by", used, f"the memory moved: {named}")
    return _held_by_nobody(plan, after, climbed, gpu, used, host)


def _held_by_nobody(
    plan: Plan, after: Survey, climbed: Climbed, gpu: int, used: int, host: str
) -> GpuJudgement:
    """Targets are gone and no process has what is still used: on its way back, drift, or stuck."""
    above = used - (plan.bounds[gpu].bound_bytes or used)
    drifts = above <= DRIFT_BYTES and not after.dead(gpu) and not held_unseen(after, gpu)
    if drifts and gpu not in climbed.falling and climbed.waited_seconds >= _DRIFT_SECONDS:
        why = drift(above + TOLERANCE_BYTES)
        return GpuJudgement(gpu, "cannot_attribute", used, why, advice=_DRIFT_ADVICE)
    if gpu in climbed.falling or climbed.waited_seconds < max(
        PINNED_AFTER_SECONDS, 4 * plan.expect_seconds
    ):
        why = f"no process has it; {climbed.waited_seconds:.0f} s after the last signal"
        return GpuJudgement(gpu, "releasing", used, why, (look_again(host, gpu),))
    if after.gpus[gpu]["numa_node"] is not None:
        node = after.gpus[gpu]["numa_node"]
        why = f"host pages lie in NUMA node {node}"
        return GpuJudgement(gpu, "host_pages", used, why, cache_commands(host))
    why = f"it is not back after {climbed.waited_seconds:.0f} s"
    remark = on_no_list(after, gpu, plan.bounds[gpu])
    if remark and is_explained(after, gpu, plan.bounds[gpu]):
        verdict: Verdict = "held_by"
        why += remark
    else:
        verdict, why = "kernel_pinned", f"no process has it, and {why}{busy(after, gpu)}"
    return GpuJudgement(gpu, verdict, used, why)


def _started_again(plan: Plan, members: Classified, gpu: int) -> list[Member]:
    """What a target's launcher has started since, though it has no memory yet."""
    known = {t.member.key for t in plan.targets} | {s.member.key for s in plan.spared}
    started = {
        (t.member.process["ppid"], t.member.process["exe"])
        for t in plan.on(gpu)
        if t.member.process["ppid"] > 1
    }
    return [
        m
        for m in members.members.values()
        if m.key not in known
        and (gpu in m.held or gpu in m.open_gpus)
        and m.process["exe"] is not None
        and (m.process["ppid"], m.process["exe"]) in started
    ]


def _respawned(again: list[Member], gpu: int, used: int) -> GpuJudgement:
    names = ", ".join(f"{m.name} {m.pid} (parent {_parent(m)})" for m in again[:3])
    stops = dict.fromkeys(m.process["owner"]["stop_command"] for m in again)
    steps = tuple(stop for stop in stops if stop)
    return GpuJudgement(gpu, "respawned", used, f"new since the plan: {names}", steps)


def _same_start(new: Member, old: Member) -> bool:
    """Whether whoever started *old* started *new* too: parent, owner, or the same command."""
    a, b = new.process, old.process
    if a["ppid"] > 1 and a["ppid"] == b["ppid"]:
        return True
    if a["owner"]["kind"] not in ("none", "session") and a["owner"]["name"] == b["owner"]["name"]:
        return True
    return a["uid"] == b["uid"] and a["exe"] == b["exe"] and a["title"] == b["title"]


def _parent(member: Member) -> str:
    above = member.process["ancestors"]
    return f"{above[0]['comm']} {above[0]['pid']}" if above else str(member.process["ppid"])


def _grown(plan: Plan, now: list[Member], gpu: int) -> list[Member]:
    before = {s.member.key: s.member.held.get(gpu) for s in plan.spared}
    grown = []
    for member in now:
        old, new = before.get(member.key), member.held.get(gpu)
        if member.key in before and new is not None and new > (old or 0) + TOLERANCE_BYTES:
            grown.append(member)
    return grown


_DRIFT_ADVICE = "So little needs no reset. The next run that sees the GPU idle records it."
