"""Certificates: positive proof that whoever wanted a process has ended. Pure.

(a) is an heir's and is found in ``heirs``. Here: (b) an engine's worker whose launcher is
dead and whose pipes to it nobody holds; (c) the invocation of its unit is over; (d) the
runtime or scheduler answers that its container, pod or job has ended.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from fleetmem.agent.shapes import OwnerState
    from fleetmem.controller.reclaim.law.known import Known

KILLS_ALL = ("control-group", "mixed")
"""What KillMode ends every process of a unit with; process and none leave some on purpose."""

UNITS = ("unit", "user_unit")


@dataclass(frozen=True)
class Certificate:
    """``code``: heir worker invocation restarted ended. ``text`` is for a person; at the end
    of a path ``tail`` says the same."""

    code: Literal["heir", "worker", "invocation", "restarted", "ended"]
    text: str
    tail: str = ""


def certificate(known: Known, pid: int) -> Certificate | None:
    """The first certificate of *pid* itself, or None."""
    return _worker(known, pid) or _unit(known, pid) or _ended(known, pid)


def _worker(known: Known, pid: int) -> Certificate | None:
    what = known.workers.get(pid)
    if what is None or known.launcher(pid).state != "dead":
        return None
    pipes = known.orphaned_pipes(pid)
    if not pipes:
        return None
    held = "its pipe is" if pipes == 1 else f"{pipes} of its pipes are"
    tail = f"launcher {_dead(known, pid)}, {held} held by nobody else"
    return Certificate("worker", f"{what} worker, {tail}", f"<- {tail}")


def _dead(known: Known, pid: int) -> str:
    """The dead launcher with its number, where the dead leader of the session is known."""
    row = known.tied[pid]
    gone = any(link["kind"] == "session" and link["where"] == "nobody" for link in known.links[pid])
    return f"{row['sid']} dead" if gone and row["sid"] not in (0, pid) else "dead"


def _unit(known: Known, pid: int) -> Certificate | None:
    row = known.tied[pid]
    for owner in known.owners(pid, cgroup_only=True):
        if owner["kind"] not in UNITS or owner["manager"] is None:
            continue
        name = f"{owner['kind'].replace('_', ' ')} {owner['name'] or owner['id']}"
        if owner["state"] == "ended" and _would_have_ended(owner):
            return Certificate("invocation", f"its {name} has ended ({owner['detail'] or 'over'})")
        environment = row["environment"]
        mine = environment["invocation_id"] if environment is not None else None
        if (
            pid in known.workers
            and owner["state"] == "live"
            and mine is not None
            and owner["invocation_id"] not in (None, mine)
            and owner["invocation_started"] is not None
            and row["start_time"] < owner["invocation_started"]
        ):
            return Certificate("restarted", f"its {name} runs another invocation by now")
    return None


def _would_have_ended(owner: OwnerState) -> bool:
    return owner["kill_mode"] in KILLS_ALL and owner["send_sigkill"] is True


def _ended(known: Known, pid: int) -> Certificate | None:
    inside = {id(owner) for owner in known.owners(pid, cgroup_only=True)}
    for owner in known.owners(pid):
        if owner["kind"] in UNITS or owner["state"] != "ended" or owner["manager"] is None:
            continue
        # An environment is inherited by a terminal that outlives the job it was opened in.
        if id(owner) in inside or pid in known.workers:
            name = f"{owner['kind']} {owner['name'] or owner['id']}"
            return Certificate("ended", f"its {name} has ended, says {owner['manager']}")
    return None
