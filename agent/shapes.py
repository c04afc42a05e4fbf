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
