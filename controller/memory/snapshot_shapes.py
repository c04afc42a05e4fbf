"""The ``snapshot`` section of the envelope. Sizes are bytes; ``None`` is "not known", never 0."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict

Backing = Literal[
    "file", "anon", "shmem", "hugetlb", "slab", "kernel", "device", "free", "unaccounted"
]
BACKINGS: tuple[Backing, ...] = (
    "file",
    "anon",
    "shmem",
    "hugetlb",
    "slab",
    "kernel",
    "device",
    "free",
    "unaccounted",
)
Lifetime = Literal["process", "cache", "persistent", "boot"]

NOBODY = "nobody"
"""The owner of file pages that no process maps."""


class SnapshotNode(TypedDict):
    """One NUMA node. The parts are disjoint and add up to ``total_bytes``."""

    id: int
    kind: Literal["cpu", "gpu", "memory"]
    gpu_uuid: str | None
    total_bytes: int | None
    free_bytes: int | None
    file_bytes: int | None
    anon_bytes: int | None
    shmem_bytes: int | None
    slab_bytes: int | None
    hugetlb_bytes: int | None
    kernel_bytes: int | None
    device_bytes: int | None
    unaccounted_bytes: int | None


class Gpu(TypedDict):
    """One GPU. ``same_as`` is ``numa:N`` where its memory is that NUMA node: a view of it,
    never another pile. ``processes_bytes`` is what NVML's lists add up to, ``managed_bytes``
    what else is managed memory of processes, at most."""

    index: int
    uuid: str
    name: str | None
    same_as: str | None
    total_bytes: int | None
    reserved_bytes: int | None
    used_bytes: int | None
    free_bytes: int | None
    processes_bytes: int | None
    managed_bytes: int | None
    unaccounted_bytes: int | None


class Process(TypedDict):
    """One process. ``anon_bytes`` and ``shmem_bytes`` are its proportional share where
    ``shared`` is false, its resident size (others may share it) where true.

    ``gpus`` maps a GPU's uuid to what NVML says it holds there, ``managed_by_gpu`` to managed
    (unified) memory that it could have there, at most. ``managed_bytes``: pages of managed
    memory in the host's nodes now, ``managed_map_bytes`` its address space, ``driver_bytes``:
    pages that the driver keeps in the host's nodes for it; each ``None`` where its mappings were
    not read. ``file_bytes`` has none of them in it.
    """

    pid: int
    start_time: int | None
    name: str
    user: str | None
    owner: str | None
    anon_bytes: int | None
    file_bytes: int | None
    shmem_bytes: int | None
    swap_bytes: int | None
    pinned_bytes: int | None
    driver_bytes: int | None
    managed_bytes: int | None
    managed_map_bytes: int | None
    shared: bool
    anon_by_numa_node: dict[str, int] | None
    driver_by_numa_node: dict[str, int] | None
    managed_by_numa_node: dict[str, int] | None
    gpus: dict[str, int | None]
    managed_by_gpu: dict[str, int]


class SnapshotFile(TypedDict):
    """One file's pages in memory. ``mapped_by`` lists pids, ``[]`` is nobody, ``None`` unknown."""

    path: str
    size_bytes: int | None
    resident_bytes: int | None
    by_numa_node: dict[str, int] | None
    dirty_bytes: int | None
    mapped_by: list[int] | None


class Segment(TypedDict):
    """One object of shared memory, with what keeps it alive."""

    kind: str
    name: str
    resident_bytes: int | None
    by_numa_node: dict[str, int] | None
    mapped_by: list[int] | None
    persistent: bool


class SnapshotRow(TypedDict):
    """One row of the table; rows are disjoint. ``location``: ``numa:N gpu:UUID swap``."""

    backing: Backing
    owner: str | None
    location: str
    lifetime: Lifetime | None
    bytes: int | None
    evidence: list[str]


class PageCache(TypedDict):
    """Files in memory, and how much of the file pages they explain."""

    files: list[SnapshotFile]
    coverage: dict[str, Any]


class PhaseMark(TypedDict):
    """The log line that a snapshot of a followed start rests on. Times are the host's clock.

    ``time`` is the line's, ``taken`` that of the last reading, ``delay_seconds`` between them.
    ``text`` is ``None`` where only the moment of the start is known; ``pattern`` is the mark's
    row in ``playbooks/engines``. ``note`` says what stands between line and snapshot.
    """

    unit: str
    invocation: str
    time: str
    text: str | None
    rank: str | None
    pattern: str | None
    taken: str
    delay_seconds: float
    note: str | None


class Snapshot(TypedDict):
    """Memory of one host at one moment; ``mark`` where a log's line named the moment."""

    phase: str | None
    boot_id: str | None
    page_size_bytes: int | None
    numa_nodes: list[SnapshotNode]
    gpus: list[Gpu]
    processes: list[Process]
    page_cache: PageCache
    table: list[SnapshotRow]
    mark: NotRequired[PhaseMark]


class SnapshotChange(TypedDict):
    """One row of a comparison. ``place`` names the location without a uuid."""

    backing: Backing
    owner: str | None
    location: str
    place: str
    lifetime: Lifetime | None
    before_bytes: int | None
    after_bytes: int | None
    change_bytes: int | None


class Diff(TypedDict):
    """What changed on one host. ``same_boot`` false: it was started again in between."""

    same_boot: bool | None
    before_phase: str | None
    after_phase: str | None
    rows: list[SnapshotChange]


class PhaseTaken(TypedDict):
    """One phase of a followed start: which run recorded it, and on which line it rests."""

    phase: str
    run: str
    mark: PhaseMark


class PhaseMissed(TypedDict):
    """A phase of which there is no snapshot, with the reason."""

    phase: str
    why: str


class FailedStart(TypedDict):
    """An earlier start of the unit that failed; ``text`` is its failing line where known."""

    invocation: str
    time: str | None
    text: str | None


class Follow(TypedDict):
    """How a unit's start was followed on one host.

    ``status``: waiting (no start was seen), starting, ready, failed. ``restarts`` of the unit
    were seen meanwhile; ``phases`` are of the newest start. ``changes`` compares each phase
    with the one before it.
    """

    unit: str
    status: Literal["waiting", "starting", "ready", "failed"]
    invocation: str | None
    restarts: int
    phases: list[PhaseTaken]
    missed: list[PhaseMissed]
    failed: list[FailedStart]
    changes: list[Diff]
    next: list[str]
