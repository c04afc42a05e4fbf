"""Shapes of ``gpu.devices``, ``gpu.processes``, ``gpu.wait``."""

from __future__ import annotations

from typing import Literal

from typing_extensions import NotRequired, TypedDict


class MigInstance(TypedDict):
    """One MIG device of a GPU."""

    uuid: str
    gi: int
    ci: int
    total_bytes: int | None
    used_bytes: int | None


class GpuDevice(TypedDict):
    """One GPU as NVML describes it. ``memory_version`` 2 counts ``reserved`` apart from used.
    ``errors`` are lines for people, ``error_codes`` NVML's error numbers by field: ``memory`` 3
    (not supported) is a GPU without memory of its own.
    """

    index: int
    uuid: str
    name: str | None
    minor: int | None
    bus_id: str | None
    numa_node: int | None
    memory_version: int | None
    total_bytes: int | None
    reserved_bytes: int | None
    used_bytes: int | None
    free_bytes: int | None
    mig_mode: bool | None
    persistence: bool | None
    utilization_percent: int | None
    recovery_action: str | None
    instances: list[MigInstance]
    errors: list[str]
    error_codes: NotRequired[dict[str, int]]


class GpuDevices(TypedDict):
    """Reading of ``gpu.devices``. A GPU that fails keeps its row, with ``errors``."""

    driver_version: str | None
    nvml_version: str | None
    gpus: list[GpuDevice]


class GpuProcess(TypedDict):
    """One (GPU, pid) of NVML's lists, merged over the compute, graphics and MPS lists.

    ``state``: ``alive`` (a process of that number exists here), ``dead`` (a number this pid
    namespace could have but has not), ``implausible`` (never signal; ``why`` says the reason).
    """

    pid: int
    lists: list[str]
    used_bytes: int | None
    gi: int | None
    ci: int | None
    state: Literal["alive", "dead", "implausible"]
    why: str | None


class GpuProcessList(TypedDict):
    """All processes of one GPU. ``complete`` is false where a list could not be read."""

    index: int
    uuid: str
    complete: bool
    processes: list[GpuProcess]
    errors: list[str]


class GpuProcesses(TypedDict):
    """Reading of ``gpu.processes``."""

    gpus: list[GpuProcessList]


class WaitGpu(TypedDict):
    """One GPU at the end of a wait. ``falling`` is true if it fell within the last 2 s."""

    index: int
    used_bytes: int | None
    start_bytes: int | None
    met: bool
    falling: bool
    pids: list[int]
    met_after_seconds: float | None


class WaitProcess(TypedDict):
    """One awaited identity; ``state`` is ``gone`` or the kernel's letter over all tasks.

    ``kill_pending`` is true where SIGKILL is pending and the process still runs.
    """

    pid: int
    start_time: int
    state: str
    kill_pending: bool
    wchan: str | None


class WaitSample(TypedDict):
    """What ``gpu.wait`` streams: used bytes of the GPUs in order, and who is still there."""

    seconds: float
    used_bytes: list[int | None]
    alive: int


class GpuWait(TypedDict):
    """Reading of ``gpu.wait``; samples are (seconds, used bytes per GPU in order)."""

    met: bool
    seconds: float
    gpus: list[WaitGpu]
    processes: list[WaitProcess]
