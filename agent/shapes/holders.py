"""Shapes of ``gpu.holders``."""

from __future__ import annotations

from typing_extensions import TypedDict


class DriverNode(TypedDict):
    """One device node of the driver. ``kind``: gpu ctl uvm uvm-tools caps modeset other."""

    path: str
    kind: str
    minor: int | None
    major_number: int
    minor_number: int


class GpuFiles(TypedDict):
    """What one process has of one GPU's node, named by the node's minor."""

    minor: int
    fds: int
    map_bytes: int


class Holder(TypedDict):
    """A process with files of the driver open or mapped, in any of its tasks.

    ``via_task`` is true where only a task other than the leader shows the files
    (the leader has exited).
    """

    pid: int
    start_time: int
    gpus: list[GpuFiles]
    ctl_fds: int
    ctl_map_bytes: int
    uvm_fds: int
    uvm_map_bytes: int
    other_fds: int
    via_task: bool


class GpuHolders(TypedDict):
    """Reading of ``gpu.holders``. ``denied`` counts processes whose files could not be read
    to the end."""

    nodes: list[DriverNode]
    holders: list[Holder]
    scanned: int
    denied: int
