"""What one look at a host says of one GPU: whose its memory is, as far as was seen. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fleetmem.controller.reclaim.bound import TOLERANCE_BYTES, beside_lists, may_be_unlisted
from fleetmem.controller.reclaim.survey import HEIR_CTL_BYTES
from fleetmem.controller.text.sizes import gib, mib

if TYPE_CHECKING:
    from fleetmem.controller.reclaim.bound import Bound
    from fleetmem.controller.reclaim.survey import Survey


DRIFT_BYTES = 256 << 20
"""What a driver may come to use in time beside any process: not a leak, and not worth a reset."""


def drift(above: int) -> str:
    return (
        f"{mib(above)} MiB above its baseline and held by nobody: drift of the driver, not a leak"
    )


def held_unseen(survey: Survey, gpu: int) -> bool:
    """Whether somebody may hold memory of *gpu* that cannot be seen from here."""
    utilization = survey.gpus[gpu]["utilization_percent"]
    return (
        bool(utilization)
        or not survey.facts["init_pid_namespace"]
        or not survey.complete[gpu]
        or any(could_hold(survey, pid, gpu) for pid in survey.holders)
    )


def busy(survey: Survey, gpu: int) -> str:
    """How busy a GPU is whose memory nobody is seen to hold: somebody may well be at work."""
    utilization = survey.gpus[gpu]["utilization_percent"]
    if utilization is None:
        return "; its utilization is not known"
    if utilization == 0:
        return "; the GPU is idle (0 % busy)"
    return f"; the GPU is {utilization} % busy, so somebody works on it"


def could_hold(survey: Survey, pid: int, gpu: int) -> bool:
    """Whether *pid* may have memory of *gpu* that no list names.

    Every CUDA process opens every GPU's node, so one that a list names is explained; a
    process that maps little of nvidiactl has no CUDA context.
    """
    return (
        gpu in survey.open_gpus(pid)
        and pid not in survey.listed_pids()
        and survey.holders[pid]["ctl_map_bytes"] > HEIR_CTL_BYTES
    )


def without_files(survey: Survey, gpu: int) -> str | None:
    """Live processes that NVML names on *gpu* and that show no file of the driver."""
    pids = sorted(set(survey.held(gpu)) - set(survey.dead(gpu)) - set(survey.holders))
    if not pids:
        return None
    return f"NVML names process {', '.join(map(str, pids))}, which shows no file of the driver"


def is_within(survey: Survey, gpu: int, bound: Bound) -> bool:
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


def is_explained(survey: Survey, gpu: int, bound: Bound) -> bool:
    """Whether live processes on *gpu* account for what it uses now, whatever the plan saw: others
    go on working meanwhile."""
    listed, unlisted = survey.held(gpu), survey.unlisted(gpu)
    if unlisted is None or not listed or survey.dead(gpu) or not set(listed) <= set(survey.holders):
        return False
    spare = may_be_unlisted(survey, survey.named_bytes(gpu) or 0, listed)
    return unlisted <= bound.baseline.used_bytes + spare + TOLERANCE_BYTES


def on_no_list(survey: Survey, gpu: int, bound: Bound) -> str:
    """A remark where more is used than the lists say, and who may have it as managed memory."""
    unlisted = beside_lists(survey, gpu, bound.baseline)
    mapped = {pid: survey.managed_map_bytes([pid]) for pid in sorted(survey.held(gpu))}
    large = [(pid, size) for pid, size in mapped.items() if size > TOLERANCE_BYTES]
    if unlisted <= TOLERANCE_BYTES or not large:
        return ""
    who = ", ".join(f"process {pid} has mapped {gib(size)} GiB" for pid, size in large[:3])
    return f"; {gib(unlisted)} GiB are on no list and may be managed memory, of which {who}"
