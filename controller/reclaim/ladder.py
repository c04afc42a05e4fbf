"""Climb: drain, TERM, KILL, heirs, with a look at the memory after each rung.

The order of the rungs, the drain and the verification are fixed here; options only set
spans and the highest rung. Nothing that changes the host is ever called twice.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fleetmem.controller.contact import door, gather
from fleetmem.controller.reclaim import signalling
from fleetmem.controller.reclaim.classify import classify
from fleetmem.controller.reclaim.join import to_survey
from fleetmem.controller.reclaim.law.respawn import LONGEST_WATCH_SECONDS, Restarter, restarters
from fleetmem.controller.reclaim.law.rules import rules
from fleetmem.controller.reclaim.survey import descends_from, heir_like, may_hold
from fleetmem.controller.reclaim.verdict.climbed import deaf_text
from fleetmem.controller.reclaim.verdict.gpus import judge
from fleetmem.controller.reclaim.verdict.judgement import Climbed, GpuJudgement
from fleetmem.controller.reclaim.verdict.untouched import pending

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fleetmem.controller.answer.envelope import Rung
    from fleetmem.controller.reclaim.climb import Climb
    from fleetmem.controller.reclaim.plan import Plan, Target
    from fleetmem.controller.reclaim.survey import Survey

_HEIR_GRACE_SECONDS = 1.0
_HEIR_SETTLE_SECONDS = 0.5
"""While a planned fork lives, what is left is most likely its parent's: look soon."""
_KILL_WAIT_SECONDS = 10.0
_RESTART_SECONDS = 2.0
_RESTART_AFTER_KILL_SECONDS = 0.8
"""How long after the last signal a live launcher is watched: `sleep 1` is what loops do."""
_STARTED_SECONDS = 1.0
"""After the pause of a unit, until its process can be seen."""
_GLANCE_SECONDS = 0.4


async def climb(run: Climb) -> list[GpuJudgement]:
    """Climb as far as needed and allowed; the verdicts over all GPUs in scope.

    The host's lock is held by the session. SessionLost passes through: what was begun is
    then unknown.
    """
    run.used = {gpu: run.survey.used(gpu) for gpu in run.gpus}
    run.alive = {t.member.key for t in run.plan.targets if _lives(run.survey, t)}
    run.watching = pending(run.plan, run.survey)
    if not run.plan.targets:
        return await _watch(run)
    refused = _drain(run)
    if refused:
        climbed = Climbed(drain_refused=refused)
        return judge(run.plan, run.survey, classify(run.survey, rules()), climbed, run.host)
    allowed = run.options.rungs
    if "term" in allowed:
        await _term(run)
    if "kill" in allowed and not run.back():
        await _kill(run)
    if "heirs" in allowed and not run.back():
        await _heirs(run)
    if run.back():
        await _stay(run)
    return await _verify(run)


async def _watch(run: Climb) -> list[GpuJudgement]:
    """No rung, no signal: look whether memory that nobody has comes back by itself."""
    run.last_signal = time.monotonic()
    return await _verify(run)


# --- rungs ---------------------------------------------------------------------------------


def _drain(run: Climb) -> str | None:
    """The drain rung; why it is refused, or None.

    Leftovers have no server that could be drained. A listener, or a known engine that is
    not a leftover, may be serving: without its counters its state is unknown.
    """
    if run.options.no_drain:
        _row(run, "drain", "not_applicable", 0.0, [], why="--no-drain")
        return None
    serving = [
        t.member
        for t in run.plan.first
        if t.member.kind != "leftover" and (t.member.engine or t.member.process["listening"])
    ]
    if not serving:
        _row(run, "drain", "not_applicable", 0.0, [], why="no live server among the targets")
        return None
    names = ", ".join(f"{m.name} {m.pid}" for m in serving[:3])
    why = f"{names} may be serving, and its request and transfer counters are not known"
    _row(run, "drain", "refused", 0.0, [], why=why)
    return why


async def _term(run: Climb) -> None:
    """TERM once, to the topmost targets; then the grace period, for those that TERM can end."""
    begin, before = time.monotonic(), dict(run.used)
    sent = await signalling.send(run, "TERM", topmost(run.plan.first))
    waiting = _may_end(run)
    await _wait(run, run.options.grace_period_seconds if waiting else 0.0, waiting)
    await _settle(run, "term")
    why = deaf_text([t.member for t in run.plan.first], run.deaf)
    tail = "; not waited for" if why and not waiting else ""
    _row(run, "term", _outcome(run), time.monotonic() - begin, sent, before, (why or "") + tail)


def _may_end(run: Climb) -> list[tuple[int, int]]:
    """Targets that TERM, or the end of one above them, can end."""
    hear = [t for t in topmost(run.plan.first) if t.member.key not in run.deaf]
    return [
        t.member.key
        for t in run.plan.first
        if t in hear or any(descends_from(t.member.process, above.member.process) for above in hear)
    ]


async def _kill(run: Climb) -> None:
    """KILL exact identities that are still there."""
    begin, before = time.monotonic(), dict(run.used)
    left = [t for t in run.plan.first if t.member.key in run.alive - set(run.refused)]
    if not left:
        _row(run, "kill", "not_applicable", 0.0, [], why="no target is left that runs")
        return
    sent = await signalling.send(run, "KILL", left)
    limit = max(_KILL_WAIT_SECONDS, 4 * run.plan.expect_seconds)
    await _wait(run, min(run.release_seconds, limit), [t.member.key for t in run.plan.first])
    await _settle(run, "kill")
    _row(run, "kill", _outcome(run), time.monotonic() - begin, sent, before)


async def _heirs(run: Climb) -> None:
    """Signal the forks that the plan named and that now hold what their parent left."""
    waiting = [t for t in run.plan.targets if t.conditional and t.member.key in run.alive]
    if not waiting:
        return
    begin, before = time.monotonic(), dict(run.used)
    survey = await look(run)
    heirs = [t for t in waiting if _inherited(survey, run.plan, t)]
    if not heirs:
        why = "the forks have nothing of the memory that is left"
        _row(run, "heirs", "not_applicable", time.monotonic() - begin, [], before, why=why)
        return
    keys = [t.member.key for t in heirs]
    sent = await signalling.send(run, "TERM", topmost(tuple(heirs)))
    await _wait(run, min(_HEIR_GRACE_SECONDS, run.options.grace_period_seconds), keys)
    left = [t for t in heirs if t.member.key in run.alive]
    if left:
        sent += await signalling.send(run, "KILL", left)
        await _wait(run, _KILL_WAIT_SECONDS, keys)
    await _settle(run, "heirs")
    _row(run, "heirs", _outcome(run), time.monotonic() - begin, sent, before)


def _inherited(survey: Survey, plan: Plan, target: Target) -> bool:
    """Whether a planned fork is an heir now: NVML names a dead target where it has files."""
    pid = target.member.pid
    process = survey.processes.get(pid)
    if process is None or process["start_time"] != target.member.process["start_time"]:
        return False
    planned = {t.member.pid for t in plan.targets}
    return heir_like(survey, pid) and any(
        planned & set(survey.dead(gpu)) for gpu in survey.gpus if may_hold(survey, pid, gpu)
    )


def topmost(targets: tuple[Target, ...]) -> list[Target]:
    """Targets without a target above them: they end the others themselves, if they can."""
    return [
        t
        for t in targets
        if not any(
            o is not t and descends_from(t.member.process, o.member.process) for o in targets
        )
    ]


async def _stay(run: Climb) -> None:
    """All is back. Whoever starts targets again may do so now: watch for as long as that takes."""
    gone = {
        t.member.key: frozenset(t.member.held)
        for t in run.plan.first
        if t.member.key not in run.refused
    }
    launchers = _launchers(run)
    owners = restarters(run.survey.ties, gone)
    span = min(_RESTART_AFTER_KILL_SECONDS if run.killed else _RESTART_SECONDS, run.release_seconds)
    pauses = [one.pause_seconds for one in owners if one.pause_seconds is not None]
    span = max((span, *(p + _STARTED_SECONDS for p in pauses if p <= LONGEST_WATCH_SECONDS)))
    until = run.last_signal + span
    if launchers or owners:
        run.emit({"kind": "phase", "host": run.host, "text": "watching launchers"})
    while (launchers or owners) and run.back() and time.monotonic() < until:
        glance = min(max(0.05, until - time.monotonic()), _GLANCE_SECONDS)
        if not launchers:
            await asyncio.sleep(glance)
        await _wait(run, glance if launchers else 0.0, list(launchers))
        launchers = {key: one for key, one in launchers.items() if run.stuck.pop(key, None)}
    run.restarters = [*launchers.values(), *[await _asked(run, one) for one in owners]]


def _launchers(run: Climb) -> dict[tuple[int, int], Restarter]:
    """Live launchers of targets that are no targets themselves."""
    found: dict[tuple[int, int], Restarter] = {}
    targets = {t.member.key for t in run.plan.targets}
    for target in run.plan.first:
        process = target.member.process
        if not process["launcher_alive"] or target.member.key in run.refused:
            continue
        for above in process["ancestors"][:1]:
            key = (above["pid"], above["start_time"])
            if above["pid"] > 1 and key not in targets:
                name = f"{above['comm']} {above['pid']}"
                held = frozenset(target.member.held)
                held |= found[key].gpus if key in found else frozenset()
                found[key] = Restarter("launcher", name, held)
    return found


async def _asked(run: Climb, one: Restarter) -> Restarter:
    """*one* with what systemd says of it now; who is not asked, or does not answer, still may."""
    if one.kind != "unit":
        return one
    row = await gather.ask(run.session, "unit.state", {"unit": one.name})
    state = row["reading"]
    if state is None:
        return one
    if state["active"] in ("active", "reloading") or state["sub"].startswith("start"):
        return replace(one, state="again")
    return one if state["active"] == "activating" else replace(one, state="off")


# --- looking -------------------------------------------------------------------------------


async def look(run: Climb) -> Survey:
    """One more survey; its readings are kept as the run's last."""
    rows = await gather.readings(run.session)
    survey = to_survey(rows)
    run.readings = dict(rows)
    return survey


async def _settle(run: Climb, rung: str) -> None:
    """Give memory its predicted time to come back once the processes are gone."""
    if any(t.member.key in run.alive - set(run.refused) for t in run.plan.first):
        return
    if run.held_gpus():
        forks = any(t.conditional and t.member.key in run.alive for t in run.plan.targets)
        seconds = _HEIR_SETTLE_SECONDS if forks else run.settle_seconds
        run.emit({"kind": "phase", "host": run.host, "text": f"{rung}: memory"})
        await _wait(run, min(seconds, run.settle_seconds), [], memory=True)


async def _wait(
    run: Climb,
    seconds: float,
    keys: list[tuple[int, int]],
    memory: bool = False,
    also: Sequence[int] = (),
) -> None:
    """Ask the host to wait for identities to end, or for memory to fall within its bounds.

    *also*: GPUs without targets that are watched, too.
    """
    gpus = sorted({*run.gpus, *also})
    bounds = [run.plan.bounds[gpu].bound_bytes if memory else None for gpu in gpus]
    start = [run.used.get(gpu) for gpu in gpus]
    waiting = [key for key in keys if key not in run.refused]

    def on_chunk(data: Any) -> None:
        try:
            sample = door.enter_chunk("gpu.wait", data)
        except door.Misfit:
            return  # progress only; the reading itself is checked
        if len(sample["used_bytes"]) != len(gpus):
            return
        run.emit(
            {
                "kind": "wait",
                "host": run.host,
                "used_bytes": sample["used_bytes"],
                "start_bytes": start,
                "seconds": sample["seconds"],
                "expect_seconds": run.plan.expect_seconds,
            }
        )

    row = await gather.ask(
        run.session,
        "gpu.wait",
        {
            "gpus": gpus,
            "below_bytes": bounds,
            "pids": [key[0] for key in waiting],
            "start_times": [key[1] for key in waiting],
            "timeout_seconds": seconds,
        },
        timeout_seconds=seconds + 5.0,
        on_chunk=on_chunk,
    )
    reading = row["reading"]
    if reading is None:
        raise gather.probe_error("gpu.wait", row)
    for gpu in reading["gpus"]:
        index = gpu["index"]
        node = run.survey.gpus[index]["numa_node"] if index in run.survey.gpus else None
        used = gpu["used_bytes"]
        files = run.survey.numa_file_bytes.get(node, 0) if node is not None else 0
        run.used[index] = None if used is None else max(0, used - files)
        run.falling.discard(index)
        if gpu["falling"]:
            run.falling.add(index)
    for process in reading["processes"]:
        key = (process["pid"], process["start_time"])
        if process["state"] == "gone":
            run.alive.discard(key)
            run.stuck.pop(key, None)
        else:
            where = f" in {process['wchan']}" if process["wchan"] else ""
            run.stuck[key] = process["state"] + where


async def _verify(run: Climb) -> list[GpuJudgement]:
    """Look again; while memory is on its way and nobody has it, wait as long as allowed."""
    run.emit({"kind": "phase", "host": run.host, "text": "looking again"})
    while True:
        survey = await look(run)
        run.used = {gpu: survey.used(gpu) for gpu in run.gpus}
        since = time.monotonic() - run.last_signal if run.last_signal else 0.0
        climbed = Climbed(
            killed=frozenset(run.killed),
            stuck=run.stuck,
            waited_seconds=since,
            falling=frozenset(run.falling),
            refused=run.refused,
            unclear=run.unclear,
            deaf=run.deaf,
            up_to=run.options.up_to,
            restarters=tuple(run.restarters),
        )
        rows = judge(run.plan, survey, classify(survey, rules()), climbed, run.host)
        left = run.release_seconds - since
        if left <= 0 or not any(row.verdict == "releasing" for row in rows):
            return rows
        run.emit({"kind": "phase", "host": run.host, "text": "releasing"})
        await asyncio.sleep(0.2)
        await _wait(run, min(left, 5.0), [], memory=True, also=run.watching)


def _lives(survey: Survey, target: Target) -> bool:
    process = survey.processes.get(target.member.pid)
    return process is not None and process["alive"]


def _outcome(run: Climb) -> str:
    return "ok" if run.back() else "partial"


def _row(
    run: Climb,
    rung: Any,
    outcome: Any,
    seconds: float,
    signalled: list[Any],
    before: dict[int, int | None] | None = None,
    why: str | None = None,
) -> None:
    """Note a rung that ended, and tell whoever watches."""
    freed = None
    if before is not None:
        pairs = [(before.get(gpu), run.used.get(gpu)) for gpu in run.gpus]
        known = [old - new for old, new in pairs if old is not None and new is not None]
        freed = max(0, sum(known)) if known else None
    keys = {t.member.key for t in run.plan.targets}
    row: Rung = {
        "rung": rung,
        "outcome": outcome,
        "seconds": round(seconds, 3),
        "signalled": signalled,
        "freed_bytes": freed,
        "why": why or None,
        "gone": len(keys - run.alive),
        "targets": len(keys),
        "held_gpus": len(run.held_gpus()),
        "gpus": len(run.gpus),
    }
    run.rungs.append(row)
    run.emit({"kind": "rung", "host": run.host, "rung": row})
