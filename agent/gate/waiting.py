"""Looks until memory is free, or until it is certain that waiting will not free it.

NVML is asked in a child: a driver that hangs leaves its caller in the kernel for ever, and the
gate must answer all the same.
"""

from __future__ import annotations

import marshal
import os
import select
from time import monotonic, sleep

from fleetmem.agent import lifeline
from fleetmem.agent.gate import scope as scopes
from fleetmem.agent.gate import sight
from fleetmem.agent.gate.verdicts import FALLING, FREE, HELD, IDLE_BYTES, UNKNOWN, judge, verdict
from fleetmem.agent.model import Trouble

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Tuple

INTERVAL_SECONDS = 0.2
SILENT_SECONDS = 10.0
"""An NVML that has not answered for so long hangs: starting it takes 3 s at worst."""

EXITS = {FREE: 0, HELD: 5, UNKNOWN: 3}


class Still:
    """How one GPU's used memory moved over the looks."""

    __slots__ = ("fell", "since", "start", "used")

    def __init__(self, used: Optional[int], now: float) -> None:
        self.used = self.start = used
        self.since = now
        self.fell = False

    def note(self, used: Optional[int], now: float) -> None:
        """Take one more look into account."""
        if used is not None and self.used is not None and used < self.used:
            self.since, self.fell = now, True
        self.used = used


def watch(
    scope: str,
    need_bytes: Optional[int],
    timeout_seconds: float,
    on_look: Callable[[str], None],
) -> Dict[str, Any]:
    """The answer: verdict, seconds waited, a row a GPU, next commands.

    *on_look* gets a line whenever the gate goes on waiting. ScopeError where *scope* names a
    GPU that is not there.
    """
    began = monotonic()
    stills: Dict[str, Still] = {}
    asker = _Asker()
    try:
        while True:
            left = timeout_seconds - (monotonic() - began)
            gpus, problem = asker.look(max(1.0, min(SILENT_SECONDS, left)))
            now = monotonic()
            if problem:
                return _answer(UNKNOWN, now - began, [], problem)
            chosen = scopes.choose(scope, gpus)
            if not chosen:
                return _answer(UNKNOWN, now - began, [], "NVML lists no GPU")
            rows = _judged(chosen, need_bytes, stills, now)
            state = verdict([row[1] for row in rows])
            if state == FALLING and now - began >= timeout_seconds:
                late = [(g, HELD if s == FALLING else s, w + "; timeout") for g, s, w in rows]
                return _answer(HELD, now - began, late, "")
            if state != FALLING:
                return _answer(state, now - began, rows, "")
            on_look(_progress(rows, stills, now))
            sleep(INTERVAL_SECONDS)
    finally:
        asker.end()


def _judged(
    gpus: List[sight.Gpu], need_bytes: Optional[int], stills: Dict[str, Still], now: float
) -> List[Tuple[sight.Gpu, str, str]]:
    rows = []
    for gpu in gpus:
        key = gpu.uuid or str(gpu.index)
        still = stills.setdefault(key, Still(gpu.used_bytes, now))
        still.note(gpu.used_bytes, now)
        gpu.fell = still.fell
        rows.append((gpu, *judge(gpu, need_bytes, now - still.since)))
    return rows


def _progress(rows: List[Tuple[sight.Gpu, str, str]], stills: Dict[str, Still], now: float) -> str:
    waiting = [gpu for gpu, state, _ in rows if state == FALLING]
    used = sum(gpu.used_bytes or 0 for gpu in waiting)
    names = ",".join(str(gpu.index) for gpu in waiting)
    return "GPU %s: %.1f GiB still used" % (names, used / (1 << 30))


def _answer(
    state: str, seconds: float, rows: List[Tuple[sight.Gpu, str, str]], problem: str
) -> Dict[str, Any]:
    return {
        "verdict": state,
        "waited_seconds": round(seconds, 3),
        "gpus": [_row(*row) for row in rows],
        "problem": problem or None,
        "next": _next(rows),
    }


def _row(gpu: sight.Gpu, state: str, why: str) -> Dict[str, Any]:
    holders = [holder.row() for holder in gpu.holders] if state != FREE else []
    return {
        "index": gpu.index,
        "uuid": gpu.uuid,
        "verdict": state,
        "why": why or None,
        "free_bytes": gpu.free_bytes,
        "file_bytes": gpu.file_bytes,
        "holders": holders,
    }


def _next(rows: List[Tuple[sight.Gpu, str, str]]) -> List[str]:
    """Commands that free what is held: owners first, each once."""
    held = [gpu for gpu, state, _ in rows if state == HELD]
    found = [h.stop for gpu in held for h in gpu.holders if h.stop and h.state == "live"]
    if any(h.stop is None or h.state != "live" for gpu in held for h in gpu.holders):
        indexes = sorted({gpu.index for gpu in held})
        found.append(
            "fleetmem reclaim -H localhost --gpu %s --dry-run" % ",".join(map(str, indexes))
        )
    if any(gpu.file_bytes > IDLE_BYTES for gpu in held):
        found.append("fleetmem audit hbm-page-cache -H localhost")
    return list(dict.fromkeys(found))


class _Asker:
    """The child that looks, once for each byte it is sent."""

    __slots__ = ("child", "orders", "replies")

    def __init__(self) -> None:
        orders, self.orders = os.pipe()
        self.replies, replies = os.pipe()
        parent = os.getpid()
        self.child = os.fork()
        if self.child == 0:
            try:
                os.close(self.orders)
                os.close(self.replies)
                lifeline.die_with_parent(parent, 9)
                _serve(orders, replies)
            finally:
                os._exit(1)
        os.close(orders)
        os.close(replies)

    def look(self, seconds: float) -> Tuple[List[sight.Gpu], str]:
        """(GPUs, "") or ([], why nothing can be told)."""
        os.write(self.orders, b".")
        data = b""
        end = monotonic() + seconds
        while True:
            left = end - monotonic()
            if left <= 0 or not select.select([self.replies], [], [], left)[0]:
                return [], "NVML gave no answer in %.0f s (process %d)" % (seconds, self.child)
            piece = os.read(self.replies, 65536)
            if not piece:
                return [], "the process that asks NVML died"
            data += piece
            if len(data) >= 4 and len(data) >= 4 + int.from_bytes(data[:4], "big"):
                break
        problem, rows = marshal.loads(data[4:])
        return [_gpu(row) for row in rows], problem

    def end(self) -> None:
        """End the child; one that is stuck in the driver is left to itself."""
        os.close(self.orders)
        os.close(self.replies)
        os.kill(self.child, 9)
        for _ in range(20):
            if os.waitpid(self.child, os.WNOHANG)[0]:
                return
            sleep(0.005)


_FIELDS = ("total_bytes", "used_bytes", "free_bytes", "file_bytes", "problem")
_HOLDER = ("pid", "state", "bytes", "name", "why", "stop")


def _serve(orders: int, replies: int) -> None:
    while os.read(orders, 1):
        problem, rows = "", []
        try:
            for gpu in sight.look():
                holders = [[getattr(one, name) for name in _HOLDER] for one in gpu.holders]
                figures = [getattr(gpu, name) for name in _FIELDS]
                rows.append((gpu.index, gpu.uuid, gpu.bus_id, figures, holders))
        except Trouble as trouble:
            problem = trouble.reason
        data = marshal.dumps((problem, rows))
        os.write(replies, len(data).to_bytes(4, "big"))
        while data:
            data = data[os.write(replies, data) :]


def _gpu(row: Any) -> sight.Gpu:
    index, uuid, bus_id, figures, holders = row
    gpu = sight.Gpu(index, uuid, bus_id)
    for name, value in zip(_FIELDS, figures):  # noqa: B905 - Python 3.8 has no strict
        setattr(gpu, name, value)
    for pid, state, size, name, why, stop in holders:
        gpu.holders.append(sight.GpuUser(pid, state, size, name, why, stop))
    return gpu
