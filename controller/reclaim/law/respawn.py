"""Who would start a target again, and after which pause. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from fleetmem.controller.reclaim.law.known import OWNED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fleetmem.agent.shapes import OwnerState, Ties

LONGEST_WATCH_SECONDS = 15.0
"""A longer pause is named and not waited for."""

_NEVER = (None, "no")


@dataclass(frozen=True)
class Restarter:
    """One who starts targets on *gpus* again. ``state``: ``may`` (it would), ``again`` (it did),
    ``off`` (it says that it will not)."""

    kind: str
    name: str
    gpus: frozenset[int]
    pause_seconds: float | None = None
    stop_command: str | None = None
    state: Literal["may", "again", "off"] = "may"

    def __str__(self) -> str:
        who = f"{self.kind.replace('_', ' ')} {self.name}"
        if self.state == "again":
            return f"{who} runs again"
        if self.kind == "launcher":
            return f"{who} lives and may start it again"
        if self.kind == "pod":
            return f"{who}: kubelet starts it again after its back-off (10 s to 5 min)"
        pause = "" if self.pause_seconds is None else f" after {self.pause_seconds:g} s"
        return f"{who} starts it again{pause}"


def restarters(
    ties: Ties, targets: Mapping[tuple[int, int], frozenset[int]]
) -> tuple[Restarter, ...]:
    """Owners that start a target again when it ends; *targets*: their GPUs by identity."""
    gpus: dict[int, frozenset[int]] = {}
    for row in ties["processes"]:
        held = targets.get((row["pid"], row["start_time"]))
        for ref in row["owners"] if held is not None else ():
            owner = ties["owners"][ref["owner"]]
            if ref["source"] == "cgroup" and _restarts(owner, row["pid"]):
                gpus[ref["owner"]] = gpus.get(ref["owner"], frozenset()) | (held or frozenset())
    return tuple(
        Restarter(
            kind=owner["kind"],
            name=owner["name"] or owner["id"],
            gpus=held,
            pause_seconds=owner["restart_seconds"],
            stop_command=owner["stop_command"],
        )
        for owner, held in ((ties["owners"][place], held) for place, held in sorted(gpus.items()))
    )


def _restarts(owner: OwnerState, pid: int) -> bool:
    if owner["state"] != "live" or owner["kind"] not in OWNED:
        return False
    if owner["kind"] == "pod":
        return True
    return owner["restart"] not in _NEVER and owner["main_pid"] in (None, pid)
