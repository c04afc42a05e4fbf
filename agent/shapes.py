"""The shapes of readings: annotations only.

Never imported on a host (the payload leaves it out). The controller validates every
reading against these, so a field added here is a field the wire knows.
Units end a name. ``None`` means "not known or not supported here", never zero.
"""

from __future__ import annotations

from typing import Literal

from typing_extensions import TypedDict

# --- gpu.devices ---------------------------------------------------------------------------


class MigInstance(TypedDict):
    """One MIG device of a GPU."""

    uuid: str
    gi: int
    ci: int
    total_bytes: int | None
    used_bytes: int | None


class GpuDevice(TypedDict):
    """One GPU as NVML describes it. ``memory_version`` 2 counts ``reserved`` apart from used."""

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


class GpuDevices(TypedDict):
    """Reading of ``gpu.devices``. A GPU that fails keeps its row, with ``errors``."""

    driver_version: str | None
    nvml_version: str | None
    gpus: list[GpuDevice]


# --- gpu.processes -------------------------------------------------------------------------


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


# --- gpu.holders ---------------------------------------------------------------------------


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
    """Reading of ``gpu.holders``. ``denied`` counts processes whose files could not be read."""

    nodes: list[DriverNode]
    holders: list[Holder]
    scanned: int
    denied: int


# --- gpu.wait ------------------------------------------------------------------------------


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


class GpuWait(TypedDict):
    """Reading of ``gpu.wait``; samples are (seconds, used bytes per GPU in order)."""

    met: bool
    seconds: float
    gpus: list[WaitGpu]
    processes: list[WaitProcess]


# --- processes.identity --------------------------------------------------------------------


class Owner(TypedDict):
    """Who is responsible for a process, read from its cgroup (and its init system).

    ``state``: ``live``, ``gone`` or ``None`` where the host cannot say.
    ``kind``: unit user_unit container pod job session none.
    """

    kind: str
    name: str | None
    runtime: str | None
    state: str | None
    stop_command: str | None


class Ancestor(TypedDict):
    """One step towards pid 1."""

    pid: int
    start_time: int
    comm: str


class Identity(TypedDict):
    """One process, with all that is needed to classify it and to find it again.

    The identity proper is (boot id, pid namespace, pid, start_time); ``start_time`` is
    field 22 of /proc/PID/stat, in clock ticks since boot.

    ``alive`` is true while any task is neither Z nor X. ``launcher_alive`` is false when
    the process was reparented to an init or subreaper. ``group_leader_alive`` looks at the
    process group's leader when that is another process, else ``None``.
    ``listening`` is true with a listening socket, other than CUDA's own (every CUDA process
    has one) and those that serve only ranks of a collective library; ``listening_ports`` are
    the TCP ports among them. ``orphaned_pipes`` counts pipe and unix
    socket ends beyond 0-2 whose other end no process outside its family holds, and
    ``live_peers`` lists pids outside the family that do hold such an other end; ``None`` =
    could not be read.
    """

    pid: int
    start_time: int
    alive: bool
    state: str
    tasks: int
    age_seconds: float
    ppid: int
    pgid: int
    sid: int
    uid: int
    user: str | None
    comm: str
    title: str
    exe: str | None
    kernel_thread: bool
    nspids: list[int]
    pid_namespace: int | None
    cgroup: str | None
    owner: Owner
    ancestors: list[Ancestor]
    launcher_alive: bool
    group_leader_alive: bool | None
    listening: bool | None
    listening_ports: list[int]
    orphaned_pipes: int | None
    live_peers: list[int] | None
    resident_bytes: int | None
    pinned_bytes: int | None


class Identities(TypedDict):
    """Reading of ``processes.identity``; ``gone`` are pids that do not exist (any more)."""

    processes: list[Identity]
    gone: list[int]
    denied: int


# --- host.facts, host.operations -----------------------------------------------------------


class HostFacts(TypedDict):
    """Reading of ``host.facts``. ``agent_pids``: the agent and all its ancestors."""

    hostname: str
    boot_id: str
    kernel: str
    machine: str
    python: str
    page_size_bytes: int
    clock_ticks: int
    uptime_seconds: float
    uid: int
    user: str | None
    pid: int
    pid_namespace: int | None
    init_pid_namespace: bool
    agent_pids: list[int]
    systemd: bool
    total_bytes: int | None
    state_dir: str | None
    state_dir_reason: str | None


class SignalRecord(TypedDict):
    """One signal that some run intended for an identity; ``done`` false = outcome unknown."""

    operation: str
    pid: int
    start_time: int
    signal: str
    done: bool
    result: str | None


class HostOperations(TypedDict):
    """Reading of ``host.operations``: the host's ledger."""

    epoch: int
    locked_by: str | None
    signals: list[SignalRecord]


# --- signal.send ---------------------------------------------------------------------------


class SignalResult(TypedDict):
    """What became of one (identity, signal) pair.

    ``result``: sent, gone (no such identity any more), refused (``why``), already
    (this pair was signalled before), failed (``why``).
    """

    pid: int
    start_time: int
    signal: str
    result: Literal["sent", "gone", "refused", "already", "failed"]
    why: str | None


class SignalResults(TypedDict):
    """Reading of ``signal.send``."""

    results: list[SignalResult]


# --- issue 4: numa.nodes -------------------------------------------------------------------


class HugePages(TypedDict):
    """One pool of huge pages of a NUMA node; ``hugetlb_bytes`` sums ``total_bytes`` of all."""

    page_bytes: int
    total_bytes: int
    free_bytes: int


class NumaNode(TypedDict):
    """One NUMA node with memory.

    The parts are disjoint and add up to ``total_bytes``: free file anon shmem slab hugetlb
    kernel device unaccounted. ``file_bytes`` has neither shmem nor swap cache in it;
    ``kernel_bytes`` is stacks, page tables, ``percpu_bytes`` (free pages on per-CPU lists) and
    ``vmalloc_bytes``, in which the stacks are (``None`` where it may not be read: only root
    may). ``device_bytes`` is what the kernel itself counts for drivers (``None`` where it
    counts nothing); ``unaccounted_bytes`` is the remainder and may be a few MiB below zero,
    since the counters are not of one moment. All other figures are views of these parts.

    ``kind``: cpu, gpu (a GPU's memory, by the driver or NVML: ``gpu_evidence``) or memory.
    """

    id: int
    kind: Literal["cpu", "gpu", "memory"]
    gpu_uuid: str | None
    gpu_bus_id: str | None
    gpu_evidence: Literal["numa_status", "nvml"] | None
    cpus: str
    movable_only: bool | None
    distances: list[int]
    total_bytes: int
    free_bytes: int
    file_bytes: int
    anon_bytes: int
    shmem_bytes: int
    slab_bytes: int
    hugetlb_bytes: int
    kernel_bytes: int
    device_bytes: int | None
    unaccounted_bytes: int
    kernel_stack_bytes: int
    vmalloc_bytes: int | None
    page_tables_bytes: int
    percpu_bytes: int | None
    low_watermark_bytes: int | None
    slab_reclaimable_bytes: int
    mapped_bytes: int
    dirty_bytes: int
    writeback_bytes: int
    unevictable_bytes: int
    mlocked_bytes: int
    swap_cached_bytes: int
    zspages_bytes: int | None
    huge_pages: list[HugePages]


class MemorySummary(TypedDict):
    """/proc/meminfo: the machine as a whole (views, not parts)."""

    total_bytes: int
    free_bytes: int
    available_bytes: int | None
    buffers_bytes: int
    cached_bytes: int
    shmem_bytes: int
    swap_total_bytes: int
    swap_free_bytes: int
    swap_cached_bytes: int
    mlocked_bytes: int
    dirty_bytes: int
    writeback_bytes: int
    percpu_allocator_bytes: int | None
    vmalloc_used_bytes: int | None


class MemorySettings(TypedDict):
    """Settings that decide where memory lands; ``None`` where the host has none of the kind.

    ``kernel_command_line``: its words about memory only.
    """

    numa_balancing: int | None
    zone_reclaim_mode: int | None
    swappiness: int | None
    overcommit_memory: int | None
    demotion: bool | None
    transparent_hugepage: str | None
    init_on_alloc: bool | None
    kernel_command_line: str | None


class DriverMemory(TypedDict):
    """What the NVIDIA driver's files say. ``coherent_mode``: numa, driver (CDMM) or ``None``."""

    coherent_mode: str | None
    parameters: dict[str, str]


class GpuNuma(TypedDict):
    """One GPU's NUMA node by /proc/driver/nvidia/gpus/BUS/numa_status."""

    bus_id: str
    uuid: str | None
    numa_node: int | None
    status: str | None
    problem: str | None


class NumaNodes(TypedDict):
    """Reading of ``numa.nodes``. ``synthetic``: the kernel knows no NUMA nodes, this is node 0."""

    page_size_bytes: int
    synthetic: bool
    nodes: list[NumaNode]
    memory: MemorySummary
    settings: MemorySettings
    driver: DriverMemory | None
    gpus: list[GpuNuma]
    problems: list[str]


# --- issue 4: pagecache.files --------------------------------------------------------------


class CachedFile(TypedDict):
    """One file (or block device) and its pages in memory.

    ``raw``: the path's bytes as hex where it is no UTF-8, else ``None``; ``hex:…`` is a path
    for ``pagecache.files`` and ``pagecache.drop``. ``None`` figures are not known: this user
    may not ask (``problem`` says so), or the kernel cannot tell. ``resident_bytes`` counts
    whole pages, so it may pass ``size_bytes`` by less than a page. ``by_numa_node`` adds up
    to ``resident_bytes``. ``mapped_elsewhere``: the kernel counts more mappings of its pages
    than this scan's own (also by processes that cannot be seen here).
    ``sources``: mapping open path model block walk.
    """

    path: str
    raw: str | None
    device: str
    inode: int
    filesystem: str | None
    kind: Literal["file", "block"]
    size_bytes: int
    resident_bytes: int | None
    by_numa_node: dict[str, int] | None
    dirty_bytes: int | None
    writeback_bytes: int | None
    mapped_by: list[int]
    open_by: list[int]
    mapped_elsewhere: bool | None
    deleted: bool
    sources: list[str]
    problem: str | None


class NodeCoverage(TypedDict):
    """How much of one NUMA node's file pages the files explain; ``percent`` 0-100."""

    file_bytes: int
    found_bytes: int
    percent: float | None


class CacheCoverage(TypedDict):
    """Found over what the kernel counts as file pages (without shmem and swap cache)."""

    file_bytes: int
    found_bytes: int
    percent: float | None
    by_numa_node: dict[str, NodeCoverage]


class SmallFiles(TypedDict):
    """Files with rows of their own left out: below ``least_bytes``, or past ``largest`` rows."""

    files: int
    resident_bytes: int


class PathProblem(TypedDict):
    """A path that gave no row, and why."""

    path: str
    problem: str


class PageCacheFiles(TypedDict):
    """Reading of ``pagecache.files``, largest residency first.

    ``small`` counts those without a row; ``unlisted`` are the files of *paths* among them: there
    were more than ``largest`` with pages in memory. ``looked`` files were measured, ``unknown``
    of them may not be known to this user.
    ``complete`` is false where a limit ended the search: ``stopped`` says which.
    """

    page_size_bytes: int
    files: list[CachedFile]
    small: SmallFiles
    unlisted: SmallFiles
    looked: int
    unknown: int
    coverage: CacheCoverage
    complete: bool
    stopped: str | None
    problems: list[PathProblem]


# --- issue 4: pagecache.drop ---------------------------------------------------------------


class DroppedFile(TypedDict):
    """What became of one file.

    ``result``: dropped or migrated (all of it), partial (``residue`` says what stays and
    why), spared and refused (``why``), absent (no pages were there), failed (``why``).
    ``before`` and ``after``: bytes by NUMA node, ``None`` where the kernel cannot tell.
    """

    path: str
    raw: str | None
    device: str | None
    inode: int | None
    size_bytes: int | None
    result: Literal[
        "dropped", "migrated", "partial", "spared", "refused", "absent", "failed", "planned"
    ]
    why: str | None
    mapped_by: list[int]
    before_bytes: int | None
    after_bytes: int | None
    before: dict[str, int] | None
    after: dict[str, int] | None
    dirty_bytes: int | None
    residue: str | None
    rounds: int
    seconds: float


class NodeDelta(TypedDict):
    """One NUMA node before and after; gains are after minus before and may be negative."""

    id: int
    kind: Literal["cpu", "gpu", "memory"]
    total_bytes: int
    file_before_bytes: int
    file_after_bytes: int
    free_before_bytes: int
    free_after_bytes: int
    percpu_before_bytes: int | None
    percpu_after_bytes: int | None
    files_freed_bytes: int


class PageCacheDrop(TypedDict):
    """Reading of ``pagecache.drop``.

    ``freed_bytes`` left memory, ``moved_bytes`` went to ``target_node``, ``spared_bytes``
    stay because the call spares mapped or dirty files; all by residency of the files.
    ``files_freed_bytes`` of a node is what these files no longer have on it.
    """

    mode: Literal["auto", "migrate", "drop"]
    target_node: int | None
    files: list[DroppedFile]
    nodes: list[NodeDelta]
    freed_bytes: int
    moved_bytes: int
    spared_bytes: int
    problems: list[PathProblem]
    seconds: float


# --- issue 4: processes.memory -------------------------------------------------------------


class ProportionalSize(TypedDict):
    """smaps_rollup: pages divided by the number of processes that map them.

    ``pss_unnamed_shmem_bytes``: that part of the shared memory which has no name: mapped
    shared and anonymous (also pinned by the driver), or deleted from /dev/shm.
    """

    pss_bytes: int
    pss_anon_bytes: int | None
    pss_file_bytes: int | None
    pss_shmem_bytes: int | None
    pss_unnamed_shmem_bytes: int
    private_bytes: int
    swap_pss_bytes: int | None
    locked_bytes: int | None


class SharedObject(TypedDict):
    """One shared memory object that a process maps; ``map_bytes`` is address space.

    ``kind``: posix (a file on tmpfs), sysv, memfd, zero (anonymous shared memory, and where
    the driver keeps pinned host memory), hugetlb.
    """

    kind: Literal["posix", "sysv", "memfd", "zero", "hugetlb"]
    name: str
    device: str
    inode: int
    map_bytes: int


class ProcessNuma(TypedDict):
    """numa_maps of one process: bytes by NUMA node and backing, and address space by policy."""

    by_numa_node: dict[str, dict[str, int]]
    policies: dict[str, int]


class DriverMaps(TypedDict):
    """Mappings of the driver's files: address space, and the host's pages in it by share.

    ``uvm``: managed (unified) memory; what of it is not in the host's memory is on a GPU or
    was never touched. ``pss_bytes``: pages of the driver's own, without those of uvm.
    """

    map_bytes: int
    pss_bytes: int
    uvm_map_bytes: int
    uvm_pss_bytes: int
    pinned_resident_bytes: int


class ProcessMemory(TypedDict):
    """One process by /proc/PID/status, and more for the largest ones.

    ``proportional`` and ``numa`` are ``None`` where they were not asked or not allowed.
    """

    pid: int
    start_time: int
    comm: str
    title: str
    uid: int
    user: str | None
    cgroup: str | None
    virtual_bytes: int
    resident_bytes: int
    anon_bytes: int | None
    file_bytes: int | None
    shmem_bytes: int | None
    swap_bytes: int
    locked_bytes: int
    pinned_bytes: int
    hugetlb_bytes: int
    page_tables_bytes: int
    allowed_numa_nodes: str | None
    proportional: ProportionalSize | None
    shared: list[SharedObject]
    driver: DriverMaps | None
    numa: ProcessNuma | None


class ProcessTotals(TypedDict):
    """Sums over all processes, also those without a row."""

    processes: int
    resident_bytes: int
    anon_bytes: int
    swap_bytes: int
    locked_bytes: int
    hugetlb_bytes: int


class ProcessesMemory(TypedDict):
    """Reading of ``processes.memory``, largest first. ``denied``: rows without what root sees."""

    processes: list[ProcessMemory]
    totals: ProcessTotals
    denied: int
    complete: bool


# --- issue 4: cgroups.memory ---------------------------------------------------------------


class CgroupMemory(TypedDict):
    """One control group with its descendants' memory in it; limits ``None``: no limit or field."""

    path: str
    current_bytes: int
    max_bytes: int | None
    high_bytes: int | None
    swap_bytes: int | None
    anon_bytes: int | None
    file_bytes: int | None
    shmem_bytes: int | None
    kernel_bytes: int | None
    slab_bytes: int | None
    dirty_bytes: int | None
    writeback_bytes: int | None
    by_numa_node: dict[str, dict[str, int]] | None
    events: dict[str, int]
    processes: int | None


class CgroupsMemory(TypedDict):
    """Reading of ``cgroups.memory``; ``version`` 2 or 1 (the hierarchy with the controller)."""

    version: int
    cgroups: list[CgroupMemory]
    seen: int
    complete: bool


# --- issue 4: shm.segments -----------------------------------------------------------------


class ShmSegment(TypedDict):
    """One shared memory object.

    ``kind``: posix (a file on tmpfs), sysv, memfd (no name, known by who has it open).
    ``owner_state``: live (somebody maps it, has it open or made it and lives), dead (nobody
    does, as far as can be seen), ``None`` where not all processes could be looked at.
    ``namespace``: inode of the mount (posix) or ipc (sysv) namespace it was found in.
    """

    kind: Literal["posix", "sysv", "memfd"]
    path: str | None
    raw: str | None
    key: int | None
    shmid: int | None
    device: str | None
    inode: int
    size_bytes: int
    resident_bytes: int | None
    swap_bytes: int | None
    uid: int
    user: str | None
    creator_pid: int | None
    attached: int | None
    mapped_by: list[int]
    open_by: list[int]
    owner_state: Literal["live", "dead"] | None
    namespace: int | None
    modified_seconds_ago: float | None


class ShmSegments(TypedDict):
    """Reading of ``shm.segments``, largest first; ``denied`` processes were not looked at."""

    segments: list[ShmSegment]
    denied: int
    complete: bool
    problems: list[PathProblem]


# --- journal.read --------------------------------------------------------------------------


class JournalInvocation(TypedDict):
    """One of systemd's service invocations; ``age`` 0 is the unit's newest.

    Times are microseconds since 1970 of the oldest and newest entry that was read.
    """

    id: str
    unit: str
    age: int
    first_us: int | None
    last_us: int | None
    entries: int


class JournalRead(TypedDict):
    """Reading of ``journal.read``; the lines themselves came as chunks.

    ``scanned`` entries or lines were looked at, ``rows`` sent; ``cut`` messages were longer
    than 2 MiB. ``truncated`` says which budget ended it: lines, bytes or time; middle: what
    stands between beginning and end was passed over. ``damaged`` journal files were left
    out. ``now_us`` is the host's own clock.
    """

    kind: Literal["unit", "file", "container", "journal"]
    name: str | None
    user: str | None
    units: list[str]
    files: list[str]
    invocations: list[JournalInvocation]
    scanned: int
    rows: int
    bytes: int
    cut: int
    kernel_rows: int
    truncated: Literal["lines", "bytes", "time", "middle"] | None
    damaged: list[str]
    now_us: int


# --- unit.state ----------------------------------------------------------------------------


class UnitState(TypedDict):
    """Reading of ``unit.state``: systemd's own words. ``restarts`` and ``result`` are ``None``
    where this systemd does not tell them."""

    name: str
    load: str
    active: str
    sub: str
    result: str | None
    restarts: int | None


# --- engine.find ---------------------------------------------------------------------------


class LogSource(TypedDict):
    """Where the log of processes that hold a GPU goes: what ``journal.read`` may be given."""

    kind: Literal["unit", "user_unit", "container", "file"]
    name: str
    user: str | None
    runtime: str | None
    pids: list[int]


class Unplaced(TypedDict):
    """A process that holds a GPU and whose log was not found."""

    pid: int
    comm: str
    title: str
    why: str


class EngineLogs(TypedDict):
    """Reading of ``engine.find``."""

    sources: list[LogSource]
    unplaced: list[Unplaced]
    denied: int


# --- engine.request ------------------------------------------------------------------------


class RequestProcess(TypedDict):
    """One process of an engine; ``read_bytes`` came from storage for it during the request."""

    pid: int
    comm: str
    listens: bool
    read_bytes: int | None


class RequestDisk(TypedDict):
    """One disk that was read from. ``stacked`` ones lie on others, which count the same bytes."""

    name: str
    read_bytes: int
    stacked: bool


class EngineRequest(TypedDict):
    """Reading of ``engine.request``. ``status`` is ``None`` where no answer came: ``problem``.

    ``seconds`` from the connection to the end of the answer (or of the wait). ``read_bytes`` is
    what all ``processes`` read together, ``disks_read_bytes`` what anybody read from disks that
    are not stacked.
    """

    url: str
    method: Literal["GET", "POST"]
    model: str | None
    status: int | None
    problem: str | None
    seconds: float
    body_bytes: int
    listening: list[int]
    read_bytes: int | None
    processes: list[RequestProcess]
    disks_read_bytes: int | None
    disks: list[RequestDisk] | None
    denied: int
