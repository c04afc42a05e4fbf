"""What is said of one GPU: its verdict, evidence and advice, and what a ladder left. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fleetmem.controller.answer.envelope import VERDICTS, Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fleetmem.controller.reclaim.law.respawn import Restarter


PINNED_AFTER_SECONDS = 60.0
"""Public cases show memory without any process for over 30 s that then came back."""


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


def worst(rows: list[GpuJudgement]) -> Verdict:
    """The worst verdict; ``nothing_to_do`` where there is no GPU in scope."""
    return min((row.verdict for row in rows), key=VERDICTS.index, default="nothing_to_do")


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
