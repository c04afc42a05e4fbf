"""What became of each GPU in scope: a verdict, its evidence and the next step. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from fleetmem.controller.answer.envelope import VERDICTS, Verdict
from fleetmem.controller.answer.step import Step, next_step
from fleetmem.controller.reclaim.bound import TOLERANCE_BYTES, beside_lists, may_be_unlisted
from fleetmem.controller.reclaim.survey import HEIR_CTL_BYTES
from fleetmem.controller.text.sizes import count, gib, mib

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fleetmem.controller.reclaim.bound import Bound
    from fleetmem.controller.reclaim.classify import Classified, Member
    from fleetmem.controller.reclaim.law.respawn import Restarter
    from fleetmem.controller.reclaim.plan import Plan
    from fleetmem.controller.reclaim.survey import Survey

PINNED_AFTER_SECONDS = 60.0
"""Public cases show memory without any process for over 30 s that then came back."""

FILES_WORTH_BYTES = 1 << 30
"""File pages on a GPU's NUMA node that are worth a word."""

_GPU_LOST = frozenset((15, 16))
"""NVML's numbers for a lost GPU and one that must be reset."""
DRIFT_BYTES = 256 << 20
"""What a driver may come to use in time beside any process: not a leak, and not worth a reset."""

_DRIFT_SECONDS = 5.0


@dataclass(frozen=True)
class Refusal:
    """Why a host did not signal a target: a code of ``signal.send``, and the text."""

    code: str | None
    why: str


@dataclass(frozen=True)
class Climbed:
    """What the ladder did and last saw. ``stuck``: killed identities that still run, with
    the kernel's state. ``waited_seconds`` since the last signal; ``killed`` identities.
    ``unclear``: identities for which an earlier run noted a KILL and not whether it was sent.
    ``deaf``: identities that TERM cannot end as they are, with the agent's word for why.
    ``up_to``: the last rung that was allowed. ``restarters``: who would start targets again.
    """

    killed: frozenset[tuple[int, int]] = frozenset()
    stuck: Mapping[tuple[int, int], str] = field(default_factory=dict)
    waited_seconds: float = 0.0
    falling: frozenset[int] = frozenset()
    refused: Mapping[tuple[int, int], Refusal] = field(default_factory=dict)
    unclear: Mapping[tuple[int, int], str] = field(default_factory=dict)
    deaf: Mapping[tuple[int, int], str] = field(default_factory=dict)
    up_to: str = "heirs"
    restarters: tuple[Restarter, ...] = ()
    drain_refused: str | None = None
    unknown: str | None = None


@dataclass(frozen=True)
class GpuJudgement:
    """The verdict over one GPU. ``next`` are commands, whole; ``why_short`` says ``why`` where
    many stand together; ``advice`` where this case needs another sentence than its verdict's;
    ``starts_again``: who would start a reclaimed target again."""

    index: int
    verdict: Verdict
    after_bytes: int | None
    why: str
    next: tuple[str, ...] = ()
    why_short: str | None = None
    starts_again: tuple[str, ...] = ()
    advice: str | None = None


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
            rows.append(_climbed(plan, after, members, climbed, gpu, host))
    return rows


def worst(rows: list[GpuJudgement]) -> Verdict:
    """The worst verdict; ``nothing_to_do`` where there is no GPU in scope."""
    return min((row.verdict for row in rows), key=VERDICTS.index, default="nothing_to_do")


# --- GPUs the plan does not touch ----------------------------------------------------------


def untouched(
    plan: Plan, survey: Survey, gpu: int, host: str, watched_seconds: float = 0.0
) -> GpuJudgement:
    """The verdict over a GPU without targets: who keeps it, or what is not explained.

    Memory of a dead process that nobody has is ``releasing`` until it was watched for long.
    """
    used, bound = survey.used(gpu), plan.bounds[gpu]
    if used is None:
        return _no_reading(survey, gpu)
    for row in plan.ambiguous:
        if row.gpu == gpu:
            pids = ", ".join(map(str, row.candidates))
            dead = ", ".join(map(str, row.dead))
            why = f"NVML names dead {dead}; {pids} could have its files"
            why += ", and may be wanted" if row.one_family else " and are unrelated"
            step = tuple(_dry(host, pid=pid) for pid in row.candidates)
            return GpuJudgement(gpu, "held_by", used, why, step)
    keepers = [s for s in plan.spared if gpu in s.member.held]
    kept = ", ".join(f"{s.member.name} {s.member.pid}" for s in keepers[:3])
    explained = _within(survey, gpu, bound) or _explained(survey, gpu, bound)
    if keepers and explained:
        verdict: Verdict = "nothing_to_do"
        why = f"held by {kept}: " + "; ".join(dict.fromkeys(s.why for s in keepers[:3]))
        reached, short = [s for s in keepers if s.reach], None
        if reached:
            ended = _ended([s.member for s in reached], len(keepers))
            if ended in ("it", "them"):
                short = f"{why}, --gpu ends {ended}"
            why += _working(ended)
        elsewhere = _on_no_list(survey, gpu, bound)
        why += elsewhere
        steps = [_reaching(host, s.reach) for s in reached]
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
    if _within(survey, gpu, bound):
        return _at_baseline(survey, gpu, used, host)
    if explained:
        came = ", ".join(map(str, sorted(survey.held(gpu))))
        return GpuJudgement(gpu, "nothing_to_do", used, f"process {came} came after the plan")
    found = _unexplained(survey, gpu, bound, host, watched_seconds)
    perhaps = [s.member for s in plan.spared if gpu in s.member.may_hold]
    return _exported(found, perhaps, host) if found.verdict == "cannot_attribute" else found


def _working(ended: str) -> str:
    state = "they are" if ended == "them" or ", " in ended else "it is"
    return f"; --gpu would stop {ended} even if {state} working"


def _ended(ended: list[Member], of: int) -> str:
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
    steps = tuple(_reaching(host, f"--pid {member.pid}") for member in perhaps[:3])
    return replace(row, why=why, next=(*row.next, *steps), advice=_PERHAPS)


def _at_baseline(survey: Survey, gpu: int, used: int, host: str) -> GpuJudgement:
    """Nothing is held; file pages that lie in this GPU's memory are named all the same."""
    node = survey.gpus[gpu]["numa_node"]
    files = 0 if node is None else survey.numa_file_bytes.get(node, 0)
    if files < FILES_WORTH_BYTES:
        return GpuJudgement(gpu, "nothing_to_do", used, "at its baseline")
    why = f"at its baseline, but for {gib(files)} GiB of file pages on NUMA node {node}"
    return GpuJudgement(gpu, "nothing_to_do", used, why, _cache(host))


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
        return GpuJudgement(gpu, "host_pages", used, why, _cache(host))
    if dead and not any(_could_hold(survey, pid, gpu) for pid in survey.holders):
        why = f"NVML names dead {', '.join(map(str, sorted(dead)))}, and no process has its files"
        if watched_seconds < PINNED_AFTER_SECONDS:
            return GpuJudgement(gpu, "releasing", used, why, (_again(host, gpu),))
        why += f", and it is not back after {watched_seconds:.0f} s"
        return GpuJudgement(gpu, "kernel_pinned", used, why)
    named = _without_files(survey, gpu)
    if named:
        return GpuJudgement(gpu, "cannot_attribute", used, named + _busy(survey, gpu))
    if used is not None and bound.kept_bytes is not None and not dead:
        above = used - bound.baseline.used_bytes - bound.kept_bytes
        if above <= DRIFT_BYTES and not _held_unseen(survey, gpu):
            return GpuJudgement(gpu, "nothing_to_do", used, _drift(above))
    why = f"no visible process accounts for it{_busy(survey, gpu)}"
    if not survey.numbers_count:
        why = f"held outside this container{_busy(survey, gpu)}"
        return GpuJudgement(gpu, "cannot_attribute", used, why, advice=_OUTSIDE)
    return GpuJudgement(gpu, "cannot_attribute", used, why)


def _drift(above: int) -> str:
    return (
        f"{mib(above)} MiB above its baseline and held by nobody: drift of the driver, not a leak"
    )


def _held_unseen(survey: Survey, gpu: int) -> bool:
    """Whether somebody may hold memory of *gpu* that cannot be seen from here."""
    utilization = survey.gpus[gpu]["utilization_percent"]
    return (
        bool(utilization)
        or not survey.facts["init_pid_namespace"]
        or not survey.complete[gpu]
        or any(_could_hold(survey, pid, gpu) for pid in survey.holders)
    )


def _busy(survey: Survey, gpu: int) -> str:
    """How busy a GPU is whose memory nobody is seen to hold: somebody may well be at work."""
    utilization = survey.gpus[gpu]["utilization_percent"]
    if utilization is None:
        return "; its utilization is not known"
    if utilization == 0:
        return "; the GPU is idle (0 % busy)"
    return f"; the GPU is {utilization} % busy, so somebody works on it"


def _could_hold(survey: Survey, pid: int, gpu: int) -> bool:
    """Whether *pid* may have memory of *gpu* that no list names.

    Every CUDA process opens every GPU's node, so one that a list names is explained; a
    process that maps little of nvidiactl has no CUDA context.
    """
    return (
        gpu in survey.open_gpus(pid)
        and pid not in survey.listed_pids()
        and survey.holders[pid]["ctl_map_bytes"] > HEIR_CTL_BYTES
    )


def _without_files(survey: Survey, gpu: int) -> str | None:
    """Live processes that NVML names on *gpu* and that show no file of the driver."""
    pids = sorted(set(survey.held(gpu)) - set(survey.dead(gpu)) - set(survey.holders))
    if not pids:
        return None
    return f"NVML names process {', '.join(map(str, pids))}, which shows no file of the driver"


def _no_reading(survey: Survey, gpu: int) -> GpuJudgement:
    errors = "; ".join(survey.gpus[gpu]["errors"]) or "NVML gave no figure"
    lost = not _GPU_LOST.isdisjoint((survey.gpus[gpu].get("error_codes") or {}).values())
    action = survey.gpus[gpu]["recovery_action"]
    verdict: Verdict = "driver_wedged" if lost else "cannot_attribute"
    tail = f"; the driver asks for: {action}" if action not in (None, "none") else ""
    return GpuJudgement(gpu, verdict, None, errors + tail)


def _within(survey: Survey, gpu: int, bound: Bound) -> bool:
    """Whether *gpu* uses at most its bound, and nothing of it is a dead process's.

    Spared processes may have given memory back meanwhile, and a bound may allow for memory on no
    list: what a list names of others goes under neither.
    """
    used, named, charged = survey.used(gpu), survey.named_bytes(gpu), bound.charged_bytes
    if used is None or bound.bound_bytes is None or used > bound.bound_bytes:
        return False
    if sum(size or 0 for size in survey.dead(gpu).values()) > TOLERANCE_BYTES:
        return False
    if charged is None or used <= charged:
        return True
    return named is not None and named <= (bound.kept_bytes or 0) + TOLERANCE_BYTES


def _explained(survey: Survey, gpu: int, bound: Bound) -> bool:
    """Whether live processes on *gpu* account for what it uses now, whatever the plan saw: others
    go on working meanwhile."""
    listed, unlisted = survey.held(gpu), survey.unlisted(gpu)
    if unlisted is None or not listed or survey.dead(gpu) or not set(listed) <= set(survey.holders):
        return False
    spare = may_be_unlisted(survey, survey.named_bytes(gpu) or 0, listed)
    return unlisted <= bound.baseline.used_bytes + spare + TOLERANCE_BYTES


def _on_no_list(survey: Survey, gpu: int, bound: Bound) -> str:
    """A remark where more is used than the lists say, and who may have it as managed memory."""
    unlisted = beside_lists(survey, gpu, bound.baseline)
    mapped = {pid: survey.managed_map_bytes([pid]) for pid in sorted(survey.held(gpu))}
    large = [(pid, size) for pid, size in mapped.items() if size > TOLERANCE_BYTES]
    if unlisted <= TOLERANCE_BYTES or not large:
        return ""
    who = ", ".join(f"process {pid} has mapped {gib(size)} GiB" for pid, size in large[:3])
    return f"; {gib(unlisted)} GiB are on no list and may be managed memory, of which {who}"


# --- GPUs the ladder was climbed for -------------------------------------------------------


def _climbed(
    plan: Plan, after: Survey, members: Classified, climbed: Climbed, gpu: int, host: str
) -> GpuJudgement:
    used, bound = after.used(gpu), plan.bounds[gpu]
    if used is None:
        return _no_reading(after, gpu)
    alive = [t.member for t in plan.on(gpu) if _lives(after, t.member.key)]
    if not alive and _within(after, gpu, bound):
        again = _started_again(plan, members, gpu)
        if again:
            return _respawned(again, gpu, used)
        why = "at most baseline and what spared ones keep" + _on_no_list(after, gpu, bound)
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
    step = _dry(host, pid=",".join(str(m.pid) for m in alive), up_to="heirs")
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
    step = (_again(host, gpu),)
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
        return GpuJudgement(gpu, "held_by", used, why, (_again(host, gpu),))
    for row in members.ambiguous:
        if row.gpu == gpu:
            pids = ", ".join(map(str, row.candidates))
            steps = tuple(_dry(host, pid=pid) for pid in row.candidates)
            why = f"{pids} could have the files of a dead target and are unrelated"
            return GpuJudgement(gpu, "held_by", used, why, steps)
    again = [m for m in fresh if any(_same_start(m, t.member) for t in plan.targets)]
    if again:
        return _respawned(again, gpu, used)
    if fresh:
        names = ", ".join(f"{m.name} {m.pid}" for m in fresh[:3])
        why = f"{names} came after the plan{_working(_ended(fresh, len(fresh)))}"
        return GpuJudgement(gpu, "held_by", used, why, (_again(host, gpu),))
    grown = _grown(plan, now, gpu)
    if grown:
        names = ", ".join(f"{m.name} {m.pid}" for m in grown[:3])
        why = f"the memory moved to {names}: it imported it over CUDA IPC"
        step = _dry(host, pid=grown[0].pid)
        return GpuJudgement(gpu, "held_by", used, why, (step,))
    named = _without_files(after, gpu)
    if named:
        return GpuJudgement(gpu, "held_by", used, f"the memory moved: {named}")
    return _held_by_nobody(plan, after, climbed, gpu, used, host)


def _held_by_nobody(
    plan: Plan, after: Survey, climbed: Climbed, gpu: int, used: int, host: str
) -> GpuJudgement:
    """Targets are gone and no process has what is still used: on its way back, drift, or stuck."""
    above = used - (plan.bounds[gpu].bound_bytes or used)
    drifts = above <= DRIFT_BYTES and not after.dead(gpu) and not _held_unseen(after, gpu)
    if drifts and gpu not in climbed.falling and climbed.waited_seconds >= _DRIFT_SECONDS:
        why = _drift(above + TOLERANCE_BYTES)
        return GpuJudgement(gpu, "cannot_attribute", used, why, advice=_DRIFT_ADVICE)
    if gpu in climbed.falling or climbed.waited_seconds < max(
        PINNED_AFTER_SECONDS, 4 * plan.expect_seconds
    ):
        why = f"no process has it; {climbed.waited_seconds:.0f} s after the last signal"
        return GpuJudgement(gpu, "releasing", used, why, (_again(host, gpu),))
    if after.gpus[gpu]["numa_node"] is not None:
        node = after.gpus[gpu]["numa_node"]
        why = f"host pages lie in NUMA node {node}"
        return GpuJudgement(gpu, "host_pages", used, why, _cache(host))
    why = f"it is not back after {climbed.waited_seconds:.0f} s"
    remark = _on_no_list(after, gpu, plan.bounds[gpu])
    if remark and _explained(after, gpu, plan.bounds[gpu]):
        verdict: Verdict = "held_by"
        why += remark
    else:
        verdict, why = "kernel_pinned", f"no process has it, and {why}{_busy(after, gpu)}"
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


def _cache(host: str) -> tuple[str, ...]:
    return (str(next_step("snapshot", host)), _dry(host, cache=True))


def _again(host: str, gpu: int) -> str:
    return _dry(host, gpu=gpu)


def _dry(host: str, **scope: object) -> str:
    return str(next_step("reclaim", host, **scope, dry_run=True))


def _reaching(host: str, option: str) -> str:
    """A dry run with the scope option that would include a spared process."""
    return str(Step(("reclaim",), host, (tuple(option.split(" ", 1)), ("--dry-run",))))


_DRIFT_ADVICE = "So little needs no reset. The next run that sees the GPU idle records it."

_PERHAPS = "No list shows exported memory: whether that process keeps it, its end shows."
_OUTSIDE = "It is held outside this container: its provider must act."

ADVICE: dict[Verdict, str] = {
    "unknown": "A change was started and its outcome was not seen. Look again first.",
    "driver_wedged": "The driver no longer responds for this GPU. Drain the host; whether to reset "
    "the GPU or reboot is for a person to decide.",
    "unkillable": "SIGKILL is pending and the kernel does not end the process. Unblock the file "
    "system or device it waits for; otherwise only a reboot helps.",
    "kernel_pinned": "No process holds it: look for RDMA peers (nvidia-peermem, gdrdrv), "
    "nvidia-fs, or plan a GPU reset.",
    "respawned": "A supervisor restarts it. Stop the supervisor, not the process.",
    "held_by": "A process outside the plan holds it (see evidence).",
    "host_pages": "Linux pages lie in this GPU's memory; ending processes does not free them.",
    "cannot_attribute": "Look from the host's own pid namespace, as root.",
    "not_permitted": "Connect as root, or set sudo: true for the host.",
    "protected": "The holder is on the protect list; --override-protected names one process.",
    "drain_refused": "Stop the traffic first, or use --no-drain.",
    "releasing": "The memory is still on its way back. Look again.",
}
"""One sentence for a person, by verdict."""
