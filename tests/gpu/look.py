"""The script's own eyes: used memory every 10 ms, and what /proc shows of a process."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass, field
from typing import Any

INTERVAL_SECONDS = 0.01
MEMORY_V2 = 0x02000028


@dataclass
class Poller:
    """Used bytes of every GPU over time, as NVML says it: (epoch seconds, bytes per GPU).

    A sample is kept where something changed. ``gap_seconds`` is the longest pause between
    two looks since :meth:`mark`: the driver answers late while it tears down.
    """

    handles: list[Any]
    samples: list[tuple[float, tuple[int, ...]]] = field(default_factory=list)
    gap_seconds: float = 0.0
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Look in a thread until :meth:`stop`."""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(5)

    def mark(self) -> None:
        """Forget what was seen."""
        self.samples = self.samples[-1:]
        self.gap_seconds = 0.0

    def _run(self) -> None:
        before = time.time()
        while not self._stop.wait(INTERVAL_SECONDS):
            used = self.used()
            now = time.time()
            self.gap_seconds = max(self.gap_seconds, now - before)
            before = now
            if not self.samples or self.samples[-1][1] != used:
                self.samples.append((now, used))

    def used(self) -> tuple[int, ...]:
        """Used bytes now."""
        import pynvml

        return tuple(
            int(pynvml.nvmlDeviceGetMemoryInfo(handle, MEMORY_V2).used) for handle in self.handles
        )

    def back_at(self, since: float, bounds: dict[int, int]) -> float | None:
        """When, from *since* on, all GPUs in *bounds* were within them and stayed so."""
        back: float | None = None
        state = [row for row in self.samples if row[0] <= since][-1:]
        for moment, used in state + [row for row in self.samples if row[0] > since]:
            within = all(used[gpu] <= bound for gpu, bound in bounds.items())
            if not within:
                back = None
            elif back is None:
                back = max(moment, since)
        return back

    def wait_back(self, bounds: dict[int, int], seconds: float) -> bool:
        """Wait until the GPUs are within *bounds*; False where they are not in time."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.samples and all(self.samples[-1][1][g] <= b for g, b in bounds.items()):
                return True
            time.sleep(0.02)
        return False


def open_nvml() -> tuple[list[Any], dict[str, Any]]:
    """Handles of all GPUs, and what they are; RuntimeError where there are none."""
    import pynvml

    try:
        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        facts = {
            "driver": pynvml.nvmlSystemGetDriverVersion(),
            "gpus": [pynvml.nvmlDeviceGetName(handle) for handle in handles],
            "total_bytes": [
                int(pynvml.nvmlDeviceGetMemoryInfo(handle, MEMORY_V2).total) for handle in handles
            ],
            "persistence": [pynvml.nvmlDeviceGetPersistenceMode(handle) for handle in handles],
        }
    except pynvml.NVMLError as error:
        raise RuntimeError(f"no GPU here: {error}") from None
    if not handles:
        raise RuntimeError("no GPU here")
    return handles, facts


def listed(handle: Any) -> dict[int, int | None]:
    """Pids on the compute list of a GPU, with their bytes."""
    import pynvml

    rows = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
    return {row.pid: row.usedGpuMemory for row in rows}


def start_time(pid: int) -> int | None:
    """Field 22 of /proc/PID/stat; None where there is no such process."""
    fields = _stat(pid)
    return int(fields[19]) if fields else None


def state(pid: int) -> str | None:
    """State of the main thread; None where there is no such process."""
    fields = _stat(pid)
    return fields[0] if fields else None


def lives(pid: int) -> bool:
    """Whether a task of *pid* still runs."""
    if state(pid) is None:
        return False
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return False
    return any((_stat(f"{pid}/task/{tid}") or ["X"])[0] not in "ZXx" for tid in tasks)


def _stat(where: int | str) -> list[str] | None:
    try:
        with open(f"/proc/{where}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return None


def driver_files(pid: int) -> dict[str, Any]:
    """Open files and mappings under /dev/nvidia* of *pid*, by node.

    ``fds``: count; ``fdinfo``: distinct texts with their counts, position and inode left
    out; ``maps``: count, bytes, and (bytes, offset, permissions) of each. Read over the
    task that still has them, where the main thread has ended.
    """
    found: dict[str, dict[str, Any]] = {}
    for task in _tasks(pid):
        if _read_files(f"/proc/{pid}/task/{task}", found):
            break
    return {name: found[name] for name in sorted(found)}


def _tasks(pid: int) -> list[str]:
    try:
        return sorted(os.listdir(f"/proc/{pid}/task"), key=int)
    except OSError:
        return []


def _node(found: dict[str, dict[str, Any]], path: str) -> dict[str, Any]:
    return found.setdefault(
        path.removeprefix("/dev/"),
        {"fds": 0, "fdinfo": {}, "maps": 0, "map_bytes": 0, "mapped": []},
    )


def _read_files(base: str, found: dict[str, dict[str, Any]]) -> bool:
    try:
        numbers = os.listdir(f"{base}/fd")
    except OSError:
        numbers = []
    for number in numbers:
        try:
            link = os.readlink(f"{base}/fd/{number}")
            if not link.startswith("/dev/nvidia"):
                continue
            with open(f"{base}/fdinfo/{number}", encoding="ascii", errors="replace") as file:
                text = "; ".join(" ".join(line.split()) for line in file)
        except OSError:
            continue
        row = _node(found, link)
        row["fds"] += 1
        row["fdinfo"][text] = row["fdinfo"].get(text, 0) + 1
    try:
        with open(f"{base}/maps", encoding="utf-8", errors="replace") as file:
            lines = [line.split(None, 5) for line in file if "/dev/nvidia" in line]
    except OSError:
        lines = []
    for span, mode, offset, _, _, path in lines:
        low, _, high = span.partition("-")
        size = int(high, 16) - int(low, 16)
        row = _node(found, path.strip())
        row["maps"] += 1
        row["map_bytes"] += size
        row["mapped"].append([size, offset, mode])
    return bool(numbers or lines)
