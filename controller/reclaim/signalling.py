"""Send a signal to identities of a plan: each once, with the trail written first."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from fleetmem.controller import errors
from fleetmem.controller.contact import gather
from fleetmem.controller.reclaim.verdict.judgement import Refusal
from fleetmem.controller.text.process_name import display_name

if TYPE_CHECKING:
    from fleetmem.controller.reclaim.climb import Climb
    from fleetmem.controller.reclaim.plan import Target


_NOT_BEGUN = ("stale_plan", "no_state_dir", "no_processes")
"""Codes of a ``signal.send`` that signalled nobody."""


async def send(run: Climb, signal: str, targets: list[Target]) -> list[dict[str, Any]]:
    """Send *signal* to *targets* that were not sent it before; what was sent."""
    records = {
        (r["pid"], r["start_time"]): r
        for r in run.survey.operations["signals"]
        if r["signal"] == signal and r["result"] != "not_sent"
    }
    before = set(records)
    fresh = [t for t in targets if t.member.key not in before and t.member.key in run.alive]
    if signal == "KILL":
        for key in before & {t.member.key for t in targets}:
            if records[key]["done"]:
                run.killed.add(key)
            else:
                run.unclear[key] = (
                    f"operation {records[key]['operation'] or '?'} was about to send it SIGKILL, "
                    "and the kernel does not show whether it did; it is not sent again. If it "
                    f"still runs in a minute, end it on the host as root: kill -KILL {key[0]}"
                )
    if signal == "TERM":
        run.deaf.update(_deaf_since(run, before & {t.member.key for t in targets}))
    if not fresh:
        run.last_signal = run.last_signal or time.monotonic()
        return []
    run.emit({"kind": "phase", "host": run.host, "text": signal.lower()})
    run.announce(
        {
            "action": "signal",
            "signal": signal,
            "targets": [[*t.member.key, _name(run, t)] for t in fresh],
            "scope": run.scope,
            "reason": run.options.reason,
        }
    )
    row = await gather.ask(
        run.session,
        "signal.send",
        {
            "signal": signal,
            "targets": [_as_target(t) for t in fresh],
            "operation": run.plan.id,
            "epoch": run.epoch,
            "boot_id": run.plan.boot_id,
            "desk": run.desk,
            "scope": run.scope,
            "reason": run.options.reason or "",
        },
    )
    run.last_signal = time.monotonic()
    if row["reading"] is None:
        if row.get("code") in _NOT_BEGUN:
            run.answered({"action": "signal_done", "signal": signal, "results": []}, False)
            raise gather.probe_error("signal.send", row)
        raise errors.OutcomeUnknown(f"signal.send: {row['reason'] or row['outcome']}")
    sent = []
    for one in row["reading"]["results"]:
        key = (one["pid"], one["start_time"])
        if one["result"] == "sent":
            sent.append({"pid": one["pid"], "start_time": one["start_time"], "signal": signal})
        if one["result"] in ("sent", "already") and signal == "KILL":
            run.killed.add(key)
        if one["result"] == "gone":
            run.alive.discard(key)
        if one["result"] in ("refused", "failed"):
            run.refused[key] = Refusal(one["code"], one["why"] or one["result"])
        if one["result"] in ("sent", "already") and one["deaf"]:
            run.deaf[key] = one["deaf"]
    done = {"action": "signal_done", "signal": signal, "results": row["reading"]["results"]}
    run.answered(done, bool(sent))
    return sent


def _deaf_since(run: Climb, before: set[tuple[int, int]]) -> dict[tuple[int, int], str]:
    """Of those that an earlier run sent TERM, whom it cannot end: it is not sent again, so the
    host does not say so once more."""
    found = {}
    for row in run.survey.ties["processes"]:
        key = (row["pid"], row["start_time"])
        reason = "stopped" if row["state"] == "T" else row["term"]
        if key in before and reason in ("stopped", "ignored", "init"):
            found[key] = reason
    return found


def _name(run: Climb, target: Target) -> str:
    """What the host called the target when it was last read: a plan may come from a file."""
    process = run.survey.processes.get(target.member.pid)
    if process is None or process["start_time"] != target.member.process["start_time"]:
        return "?"
    return display_name(process)


def _as_target(target: Target) -> dict[str, Any]:
    process = target.member.process
    return {
        "pid": process["pid"],
        "start_time": process["start_time"],
        "uid": process["uid"],
        "cgroup": process["cgroup"] or "",
        "files": bool({"fd", "mapping"} & set(target.member.evidence)),
    }
