"""One host's climb: what it is about, and what was last seen on the way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fleetmem.controller.reclaim.verdict.judgement import PINNED_AFTER_SECONDS, Refusal

if TYPE_CHECKING:
    from fleetmem.controller.answer.envelope import Rung
    from fleetmem.controller.contact.session import Session
    from fleetmem.controller.reclaim.law.respawn import Restarter
    from fleetmem.controller.reclaim.options import ReclaimOptions
    from fleetmem.controller.reclaim.plan import Plan
    from fleetmem.controller.reclaim.survey import Survey

Emit = Callable[[dict[str, Any]], None]


@dataclass
class Climb:
    """One host's climb. ``alive`` and ``used`` are what was last seen. Each signal is announced
    before it is sent, and answered with what came of it and whether that changed anything.
    ``deaf``: targets that TERM cannot end, and why. ``scope``: what was asked for, in words."""

    host: str
    session: Session
    plan: Plan
    options: ReclaimOptions
    survey: Survey
    epoch: int
    desk: str
    scope: str
    announce: Callable[[dict[str, Any]], None]
    answered: Callable[[dict[str, Any], bool], None]
    emit: Emit
    rungs: list[Rung] = field(default_factory=list)
    used: dict[int, int | None] = field(default_factory=dict)
    alive: set[tuple[int, int]] = field(default_factory=set)
    killed: set[tuple[int, int]] = field(default_factory=set)
    stuck: dict[tuple[int, int], str] = field(default_factory=dict)
    refused: dict[tuple[int, int], Refusal] = field(default_factory=dict)
    unclear: dict[tuple[int, int], str] = field(default_factory=dict)
    deaf: dict[tuple[int, int], str] = field(default_factory=dict)
    restarters: list[Restarter] = field(default_factory=list)
    watching: list[int] = field(default_factory=list)
    falling: set[int] = field(default_factory=set)
    last_signal: float = 0.0
    readings: dict[str, Any] = field(default_factory=dict)

    @property
    def gpus(self) -> list[int]:
        """GPUs whose memory must come back."""
        return [gpu for gpu in self.plan.scope if self.plan.on(gpu)]

    @property
    def release_seconds(self) -> float:
        """How long memory may take to come back after the last signal."""
        if self.options.release_timeout_seconds is not None:
            return self.options.release_timeout_seconds
        return max(PINNED_AFTER_SECONDS, 4 * self.plan.expect_seconds)

    @property
    def settle_seconds(self) -> float:
        """How long to wait before looking for who else has the memory."""
        return min(self.release_seconds, 1.0 + 2 * self.plan.expect_seconds)

    def back(self) -> bool:
        """Whether all targets are gone and every GPU is within its bound.

        A target that was refused is not waited for: it will not be signalled.
        """
        return not (self.alive - set(self.refused)) and not self.held_gpus()

    def held_gpus(self) -> list[int]:
        """GPUs with targets that are still above their bound."""
        return [gpu for gpu in self.gpus if not self.within(gpu)]

    def within(self, gpu: int) -> bool:
        used, bound = self.used.get(gpu), self.plan.bounds[gpu].bound_bytes
        return used is not None and bound is not None and used <= bound
