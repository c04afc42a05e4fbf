"""``gpu.wait``: looks until identities are gone and GPUs have given their memory back."""

from __future__ import annotations

from time import monotonic, process_time, sleep

from fleetmem.agent.declare import probe
from fleetmem.agent.kernel import sysroot, tasks
from fleetmem.agent.model import FAILED, Trouble
from fleetmem.agent.services import nvml

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, List, Optional

    from fleetmem.agent.shapes import GpuWait, WaitGpu, WaitProcess

EMIT_SECONDS = 0.25
PATIENT_SECONDS = 2.0
PATIENT_INTERVAL_SECONDS = 0.1
FALLING_SECONDS = 2.0
SHARE = 10
LONGEST_SECONDS = 0.5
"""A look takes one tenth of a CPU at most, but a second look is never far away."""

KILL_BIT = 1 << 8
URGENCY = "DRTtSIPKW"
"""Of several tasks the one that keeps a process from ending is shown."""


class _Gpu:
    """One GPU under watch."""

    __slots__ = ("below", "fell_at", "handle", "index", "met_at", "start", "used")

    def __init__(self, index: int, below: Optional[int]) -> None:
        self.index = index
        self.below = below
        self.handle: Any = None
        self.start: Optional[int] = None
        self.used: Optional[int] = None
        self.fell_at: Optional[float] = None
        self.met_at: Optional[float] = None

    def look(self, held: nvml.Session, began: float, first: bool) -> None:
        errors = nvml.Errors()
        if self.handle is None:
            self.handle = held.ask(errors, "handle", "nvmlDeviceGetHandleByIndex", self.index)
        memory = None if self.handle is None else held.memory(errors, self.handle)
        now = monotonic() - began  # the driver lets callers wait while it tears down
        before = self.used
        self.used = None if memory is None else memory[3]
        if memory is None:
            self.handle = None  # it may have died with a reset
        if first:
            self.start = self.used
        if before is not None and self.used is not None and self.used < before:
            self.fell_at = now
        if not self.met:
            self.met_at = None
        elif self.met_at is None:
            self.met_at = now

    @property
    def met(self) -> bool:
        if self.below is None:
            return True
        return self.used is not None and self.used <= self.below


@probe("gpu.wait")
def gpu_wait(
    *,
    gpus: Optional[List[int]] = None,
    below_bytes: Optional[List[Optional[int]]] = None,
    pids: Optional[List[int]] = None,
    start_times: Optional[List[int]] = None,
    timeout_seconds: float = 10.0,
    interval_seconds: float = 0.02,
    emit: Optional[Callable[[Any], None]] = None,
) -> GpuWait:
    """Wait until all identities are gone and every GPU uses at most its bound.

    *below_bytes* goes with *gpus* and *start_times* with *pids*, in the same order; a bound
    of null is not waited for. Ends when all is met or *timeout_seconds* have passed; not
    met is no error. A GPU that NVML cannot read is not met. Streams a sample every 0.25 s:
    ``seconds``, ``used_bytes`` per GPU, ``alive`` identities.
    """
    pids, start_times = pids or [], start_times or []
    indexes = gpus or []
    bounds: List[Optional[int]] = (
        [None] * len(indexes) if below_bytes is None else list(below_bytes)
    )
    if len(indexes) != len(bounds) or len(pids) != len(start_times):
        raise Trouble(FAILED, "gpu.wait: lists that go together differ in length")
    watched = [_Gpu(index, below) for index, below in zip(indexes, bounds)]  # noqa: B905
    waiting = list(zip(pids, start_times))  # noqa: B905 - Python 3.8 has no strict
    held = nvml.session() if watched else None
    began = monotonic()
    emitted = -EMIT_SECONDS
    first = True
    while True:
        spent = process_time()
        for gpu in watched:
            if held is not None:
                gpu.look(held, began, first)
        first = False
        waiting = [(pid, start) for pid, start in waiting if not gone(pid, start)]
        now = monotonic() - began
        met = not waiting and all(gpu.met for gpu in watched)
        ended = met or now >= timeout_seconds
        if emit is not None and (ended or now - emitted >= EMIT_SECONDS):
            emitted = now
            emit(
                {
                    "seconds": round(now, 3),
                    "used_bytes": [gpu.used for gpu in watched],
                    "alive": len(waiting),
                }
            )
        if ended:
            break
        cost = process_time() - spent
        pause = interval_seconds if now < PATIENT_SECONDS else PATIENT_INTERVAL_SECONDS
        pause = max(pause, min(SHARE * cost, LONGEST_SECONDS))
        sleep(max(0.001, min(pause, timeout_seconds - now)))
    seconds = monotonic() - began
    left = set(waiting)
    return {
        "met": met,
        "seconds": seconds,
        "gpus": [_row(held, gpu, seconds) for gpu in watched],
        "processes": [
            describe(pid, start)
            if (pid, start) in left
            else {
                "pid": pid,
                "start_time": start,
                "state": "gone",
                "kill_pending": False,
                "wchan": None,
            }
            for pid, start in zip(pids, start_times)  # noqa: B905
        ],
    }


def _row(held: Optional[nvml.Session], gpu: _Gpu, seconds: float) -> WaitGpu:
    listed: List[int] = []
    if held is not None and gpu.handle is not None:
        for _, name in nvml.PROCESS_LISTS:
            try:
                records = nvml.list_processes(held, name, gpu.handle)
            except held.error:
                continue
            listed.extend(record.pid for record in records)
    return {
        "index": gpu.index,
        "used_bytes": gpu.used,
        "start_bytes": gpu.start,
        "met": gpu.met,
        "falling": gpu.fell_at is not None and seconds - gpu.fell_at <= FALLING_SECONDS,
        "pids": sorted(set(listed)),
        "met_after_seconds": gpu.met_at,
    }


def gone(pid: int, start_time: int) -> bool:
    """True where the identity has no task left that runs, or its number is another's."""
    found = tasks.stat(pid)
    if found is None:
        return not tasks.hidden(pid)
    return found.start_time != start_time or tasks.live_task(found) is None


def describe(pid: int, start_time: int) -> WaitProcess:
    """What keeps an identity from ending, as the kernel tells it."""
    row: WaitProcess = {
        "pid": pid,
        "start_time": start_time,
        "state": "gone",
        "kill_pending": False,
        "wchan": None,
    }
    if gone(pid, start_time):
        return row
    live = [(tid, state) for tid, state in tasks.task_states(pid) if state not in tasks.ENDED]
    if not live:
        return row
    live.sort(key=lambda task: (URGENCY + task[1]).index(task[1]))
    tid, row["state"] = live[0]
    row["wchan"] = _wchan(pid, tid)
    row["kill_pending"] = any(_kill_pending(pid, other) for other, _ in live)
    return row


def _wchan(pid: int, tid: int) -> Optional[str]:
    try:
        text = sysroot.text("/proc/%d/task/%d/wchan" % (pid, tid)).strip()
    except OSError:
        return None
    return text if text not in ("", "0") else None


def _kill_pending(pid: int, tid: int) -> bool:
    try:
        status = sysroot.text("/proc/%d/task/%d/status" % (pid, tid))
    except OSError:
        return False
    for line in status.splitlines():
        if line.startswith(("SigPnd:", "ShdPnd:")) and int(line[7:], 16) & KILL_BIT:
            return True
    return False
