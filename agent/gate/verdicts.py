"""What one look at a GPU means for whoever wants its memory. Pure.

Only two things end the waiting early: enough memory is free, or it is certain that waiting
alone will not free enough. What could not be seen is never taken for free.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Optional, Tuple

    from fleetmem.agent.gate.sight import Gpu, GpuUser

FREE, FALLING, HELD, UNKNOWN = "free", "falling", "held", "unknown"

IDLE_BYTES = 64 << 20
"""What an idle GPU may use: the same allowance as after a reclaim."""

PATIENCE_SECONDS = 10.0
"""Memory that nobody alive holds and that has not fallen for so long will not fall by itself: a
driver takes up to 9.7 s to give 48 GiB of pinned memory back, and GPU memory with it at the end."""


def judge(gpu: Gpu, need_bytes: Optional[int], still_seconds: float) -> Tuple[str, str]:
    """(state, why) of one GPU.

    *need_bytes*: free memory wanted, ``None``: all but an idle GPU's. *still_seconds*: since
    its used memory last fell, or since the first look.
    """
    if gpu.used_bytes is None or gpu.free_bytes is None or gpu.total_bytes is None:
        return UNKNOWN, gpu.problem or "its memory cannot be read"
    if _enough(gpu, need_bytes, 0):
        return FREE, ""
    if need_bytes is not None and need_bytes > gpu.total_bytes:
        return HELD, "the GPU has less memory than that"
    staying = [holder for holder in gpu.holders if holder.state == "live"]
    if staying and _never_enough(gpu, need_bytes, staying):
        return HELD, "it is held by a live process"
    if gpu.file_bytes and _enough(gpu, need_bytes, gpu.file_bytes):
        return HELD, "file pages fill its memory"
    if any(holder.state == "ending" for holder in gpu.holders):
        return FALLING, "its holder is ending"
    if still_seconds < PATIENCE_SECONDS:
        return FALLING, "memory is falling" if gpu.fell else "waiting to see whether memory falls"
    return HELD, _stays(gpu, staying)


def _enough(gpu: Gpu, need_bytes: Optional[int], more_bytes: int) -> bool:
    """Whether enough would be free with *more_bytes* given back."""
    if need_bytes is None:
        return gpu.used_bytes is not None and gpu.used_bytes - more_bytes <= IDLE_BYTES
    return gpu.free_bytes is not None and gpu.free_bytes + more_bytes >= need_bytes


def _never_enough(gpu: Gpu, need_bytes: Optional[int], staying: List[GpuUser]) -> bool:
    """Whether too little is left beside those who stay, whatever else is given back."""
    sizes = [holder.bytes for holder in staying]
    known = sum(size for size in sizes if size is not None)
    if need_bytes is None:
        return known > IDLE_BYTES or None in sizes
    if None in sizes:
        return True
    kept = known + gpu.file_bytes
    return gpu.total_bytes is not None and gpu.total_bytes - kept < need_bytes


def _stays(gpu: Gpu, staying: List[GpuUser]) -> str:
    """Why used memory that does not fall is held, by what was seen of its holders."""
    if staying:
        return "it is held by a live process"
    states = {holder.state for holder in gpu.holders}
    if "outside" in states:
        return "it is held by a process outside this container"
    if "dead" in states:
        return "its holder is dead and memory does not fall"
    return "no holder is visible, and memory does not fall"


def verdict(states: List[str]) -> str:
    """What the states of all GPUs come to: free, held, unknown, or falling (go on waiting)."""
    for state in (HELD, UNKNOWN, FALLING):
        if state in states:
            return state
    return FREE if states else UNKNOWN
