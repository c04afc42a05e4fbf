"""What a person asks of ``reclaim``, as one value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

UpTo = Literal["drain", "owner", "term", "kill", "heirs"]
UP_TO: tuple[UpTo, ...] = ("drain", "owner", "term", "kill", "heirs")
"""The rungs in the order they are climbed."""

CacheMode = Literal["auto", "migrate", "drop"]
POST_CHECK_SECONDS = 60.0
CACHE_MODES: tuple[CacheMode, ...] = ("auto", "migrate", "drop")


@dataclass(frozen=True, slots=True)
class ReclaimOptions:
    """Scope, ladder and caution of one reclaim; the defaults touch leftovers only.

    ``gpu`` is the text of ``--gpu`` (see :mod:`fleetmem.controller.hosts.gpu_scope`).
    ``release_timeout_seconds`` ``None``: as long as predicted. ``max_fail`` is a count
    (``"3"``) or a share of the targeted hosts (``"10%"``). ``canary`` hosts go first, alone;
    0 means no canary. ``override_protected`` names the protected pids that may be touched.
    ``cache`` asks for file pages instead of processes: paths, or none for what lies on
    NUMA nodes of GPUs; ``cache_mode`` auto migrates where a CPU node has room, else drops.
    ``post_check`` is a loopback URL that each host asks itself after that, once.
    """

    gpu: str | None = None
    pids: tuple[int, ...] = ()
    user: str | None = None
    dry_run: bool = False
    yes: bool = False
    up_to: UpTo = "heirs"
    no_drain: bool = False
    grace_period_seconds: float = 10.0
    release_timeout_seconds: float | None = None
    max_fail: str | None = None
    canary: int = 0
    reason: str | None = None
    override_protected: tuple[int, ...] = ()
    detailed_exitcode: bool = False
    cache: tuple[str, ...] | None = None
    cache_mode: CacheMode = "auto"
    post_check: str | None = None
    post_check_seconds: float = POST_CHECK_SECONDS

    @property
    def scoped(self) -> bool:
        """Whether a scope option widens the reach beyond leftovers."""
        return bool(self.gpu or self.pids or self.user)

    @property
    def rungs(self) -> tuple[UpTo, ...]:
        """The rungs this reclaim may climb, gentlest first."""
        allowed = UP_TO[: UP_TO.index(self.up_to) + 1]
        return tuple(rung for rung in allowed if not (rung == "drain" and self.no_drain))
