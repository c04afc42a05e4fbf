"""What one GPU's used memory must fall to, and what the lists of NVML leave out. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fleetmem.controller.reclaim.classify import Member
    from fleetmem.controller.reclaim.survey import Survey

TOLERANCE_BYTES = 64 << 20
"""An idle handle costs a few MiB that no list names (3 MiB measured on an H200)."""


@dataclass(frozen=True)
class Baseline:
    """Used bytes of an idle GPU, and whether a run recorded them or they are assumed."""

    used_bytes: int
    source: Literal["recorded", "assumed"]


@dataclass(frozen=True)
class Bound:
    """What one GPU's used memory must fall to; None where it cannot be known.

    ``kept_bytes`` is what spared processes hold there.
    """

    index: int
    before_bytes: int | None
    baseline: Baseline
    kept_bytes: int | None
    bound_bytes: int | None

    @property
    def charged_bytes(self) -> int | None:
        """The bound without what it allows for memory on no list."""
        if self.bound_bytes is None or self.kept_bytes is None:
            return self.bound_bytes
        return self.baseline.used_bytes + self.kept_bytes + TOLERANCE_BYTES


def make_bound(
    survey: Survey,
    gpu: int,
    targets: Sequence[Member],
    spared: Sequence[Member],
    recorded: int | None,
) -> Bound:
    """The bound of *gpu*; *recorded* is what it used when a run saw it idle, if one did."""
    used = survey.used(gpu)
    baseline = (
        Baseline(recorded, "recorded")
        if recorded is not None
        else Baseline(_assumed(survey, gpu), "assumed")
    )
    kept: int | None = 0
    for one in spared:
        if gpu in one.held and not one.heir_of:
            size = one.held[gpu]
            kept = None if kept is None or size is None else kept + size
    bound = None
    if kept is not None:
        keepers = [one.pid for one in spared if gpu in one.held]
        overhead = _overhead(survey, gpu, baseline.used_bytes, kept, keepers)
        bound = baseline.used_bytes + kept + overhead + TOLERANCE_BYTES
    if bound is None and used is not None:
        freed = [one.held[gpu] for one in targets if gpu in one.held]
        known = [size for size in freed if size is not None]
        if len(known) == len(freed):
            bound = max(0, used - sum(known)) + TOLERANCE_BYTES
    return Bound(gpu, used, baseline, kept, bound)


def _overhead(survey: Survey, gpu: int, idle: int, kept: int, keepers: Iterable[int]) -> int:
    """What is used for the holders and charged to nobody: up to 1 % of *kept* by the driver, and
    managed memory, up to what *keepers* have mapped of it.

    An H200 (driver 580) used 105 MiB more than its lists said for a process with 48 GiB pinned,
    and its lists had nothing of managed memory that the GPU had touched.
    """
    unlisted = survey.unlisted(gpu)
    if unlisted is None:
        return 0
    return max(0, min(unlisted - idle, may_be_unlisted(survey, kept, keepers)))


def may_be_unlisted(survey: Survey, kept: int, keepers: Iterable[int]) -> int:
    """The most that *keepers*, whom the lists charge *kept* bytes, can use and be charged not."""
    return kept // 100 + survey.managed_map_bytes(keepers)


def beside_lists(survey: Survey, gpu: int, baseline: Baseline) -> int:
    """What is used on *gpu* beside what the lists name and an idle GPU uses, below zero where
    that is more. An assumed baseline may be such memory itself, and is no part of v2's used."""
    guessed = baseline.source == "assumed" and survey.gpus[gpu]["memory_version"] == 2
    return (survey.unlisted(gpu) or 0) - (0 if guessed else baseline.used_bytes)


def managed_bytes(survey: Survey, gpu: int, targets: Iterable[int], baseline: Baseline) -> int:
    """Managed memory that *targets* (pids) may have on *gpu* beside what the lists name, at most;
    0 where it is too little to be told."""
    size = min(survey.managed_map_bytes(targets), beside_lists(survey, gpu, baseline))
    return size if size > TOLERANCE_BYTES else 0


def _assumed(survey: Survey, gpu: int) -> int:
    """What an idle GPU uses, where no run recorded it.

    With NVML's v2 numbers the reserve is counted apart, so idle is near zero; with v1 it
    is part of used. What no list explains now counts up to the size of the reserve.
    """
    unlisted = survey.unlisted(gpu)
    if unlisted is None:
        return 0
    return max(0, min(unlisted, survey.gpus[gpu]["reserved_bytes"] or 0))
