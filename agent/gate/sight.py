"""One look at GPUs: what NVML and /proc say, as values."""

from __future__ import annotations

import os

from fleetmem.agent.kernel import cgroups, sysroot, tasks
from fleetmem.agent.model import Trouble

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Set, Tuple

EXITING = 0x4
CONTEXT_BYTES = 1 << 20
KILL_BIT = 1 << 8


class GpuUser:
    """A process that holds memory. ``state``: live, ending, dead, outside (not seen from here).

    ``bytes`` ``None``: not known. ``stop``: the command of its owner's that ends it for good.
    """

    __slots__ = ("bytes", "name", "pid", "state", "stop", "why")

    def __init__(
        self,
        pid: int,
        state: str,
        bytes_: Optional[int],
        name: str = "?",
        why: str = "",
        stop: Optional[str] = None,
    ) -> None:
        self.pid, self.state, self.bytes, self.name = pid, state, bytes_, name
        self.why, self.stop = why, stop

    def row(self) -> Dict[str, Any]:
        """As the answer has it."""
        return {"pid": self.pid, "name": self.name, "bytes": self.bytes, "why": self.why}


class Gpu:
    """One GPU (or MIG instance) at one moment; sizes in bytes, ``None`` where not known.

    ``file_bytes``: file pages on its NUMA node, which NVML counts as used. ``problem``: why
    its memory is not known. ``fell``: whether it was seen to fall before.
    """

    __slots__ = (
        "bus_id",
        "fell",
        "file_bytes",
        "free_bytes",
        "holders",
        "index",
        "problem",
        "total_bytes",
        "used_bytes",
        "uuid",
    )

    def __init__(self, index: int, uuid: str, bus_id: Optional[str] = None) -> None:
        self.index, self.uuid, self.bus_id = index, uuid, bus_id
        self.total_bytes: Optional[int] = None
        self.used_bytes: Optional[int] = None
        self.free_bytes: Optional[int] = None
        self.file_bytes = 0
        self.holders: List[GpuUser] = []
        self.problem = ""
        self.fell = False


def look() -> List[Gpu]:
    """All GPUs and their MIG instances. Trouble where NVML cannot be used at all."""
    from fleetmem.agent.probes import gpu as probes

    devices = _reading(probes.gpu_devices)["gpus"]
    lists = {row["index"]: row for row in _reading(probes.gpu_processes)["gpus"]}
    files = _file_bytes()
    comparable = tasks.initial_pid_namespace() is True
    found: List[Gpu] = []
    for device in devices:
        gpu = _gpu(device, files)
        listed = lists.get(device["index"])
        processes = listed["processes"] if listed else []
        gpu.holders = _holders(processes, comparable)
        found.append(gpu)
        for inner in device["instances"]:
            part = _part(gpu.index, inner)
            own = [row for row in processes if (row["gi"], row["ci"]) == (inner["gi"], inner["ci"])]
            part.holders = _holders(own, comparable)
            found.append(part)
    if not comparable:
        _visible(found, devices)
    return found


def _reading(probe: Any) -> Dict[str, Any]:
    """A probe's reading, partial ones too; what is missing shows in its rows."""
    try:
        reading: Dict[str, Any] = probe()
    except Trouble as trouble:
        if trouble.reading is None:
            raise
        reading = trouble.reading
    return reading


def _gpu(device: Dict[str, Any], files: Dict[int, int]) -> Gpu:
    gpu = Gpu(device["index"], device["uuid"], device["bus_id"])
    gpu.total_bytes, gpu.used_bytes = device["total_bytes"], device["used_bytes"]
    gpu.free_bytes = device["free_bytes"]
    node = device["numa_node"]
    gpu.file_bytes = files.get(node, 0) if node is not None else 0
    if gpu.used_bytes is None:
        faults = [line for line in device["errors"] if line.startswith(("handle:", "memory:"))]
        gpu.problem = faults[0] if faults else "NVML does not tell its memory"
    return gpu


def _part(index: int, inner: Dict[str, Any]) -> Gpu:
    part = Gpu(index, inner["uuid"])
    part.total_bytes, part.used_bytes = inner["total_bytes"], inner["used_bytes"]
    if part.total_bytes is not None and part.used_bytes is not None:
        part.free_bytes = part.total_bytes - part.used_bytes
    return part


def _file_bytes() -> Dict[int, int]:
    """File pages by NUMA node, nodes with CPUs left out."""
    from fleetmem.agent.probes import numa

    try:
        return {node: size for node, (size, own) in numa.file_bytes().items() if not own}
    except OSError:
        return {}


def _holders(listed: List[Dict[str, Any]], comparable: bool) -> List[GpuUser]:
    merged: Dict[int, GpuUser] = {}
    for row in listed:
        if row["state"] == "implausible":
            continue
        pid, used = row["pid"], row["used_bytes"]
        if pid in merged:
            known = merged[pid].bytes
            merged[pid].bytes = None if known is None or used is None else known + used
        elif not comparable:
            why = "a process outside this container: the number is its host's"
            merged[pid] = GpuUser(pid, "outside", used, why=why)
        else:
            merged[pid] = identify(pid, used)
    return [merged[pid] for pid in sorted(merged)]


def identify(pid: int, used: Optional[int]) -> GpuUser:
    """Who *pid* is, and whether it lives or is on its way out."""
    stat = tasks.stat(pid)
    if stat is None and tasks.hidden(pid):
        return GpuUser(pid, "live", used, why="another user's process, hidden from this one")
    live = tasks.live_task(stat) if stat is not None else None
    if stat is None or live is None:
        return GpuUser(pid, "dead", used, why="dead; its memory is still charged to it")
    name = tasks.title("/proc/%d/" % pid).partition(" ")[0].rpartition("/")[2] or stat.comm
    if _ending(pid):
        return GpuUser(pid, "ending", used, name, "it was killed and is ending")
    place, stop = _owner(pid)
    return GpuUser(pid, "live", used, name, "live" + (", " + place if place else ""), stop)


def _ending(pid: int) -> bool:
    """Whether a SIGKILL waits for it, or it is inside exit()."""
    try:
        flags = int(sysroot.read("/proc/%d/stat" % pid).rpartition(b")")[2].split()[6])
        lines = sysroot.read("/proc/%d/status" % pid).split(b"\n")
    except (OSError, IndexError, ValueError):
        return False
    fields = dict(line.split(b":\t", 1) for line in lines if b":\t" in line)
    waiting = int(fields.get(b"SigPnd", b"0"), 16) | int(fields.get(b"ShdPnd", b"0"), 16)
    return bool(flags & EXITING or waiting & KILL_BIT)


NEVER_STOPPED = (
    *("ssh", "sshd", "cron", "crond", "atd", "docker", "containerd", "podman", "crio", "kubelet"),
    *("slurmd", "slurmstepd", "systemd", "user", "getty", "supervisor", "supervisord", "dbus"),
    *("init", "lxc", "machine", "nspawn", "k3s", "rke2"),
)
"""First words of units that no command here may stop: whole logins, runtimes, schedulers."""


def _owner(pid: int) -> Tuple[str, Optional[str]]:
    """(who it belongs to in a few words, the command that stops that) by its control group."""
    try:
        place = cgroups.read(sysroot.text("/proc/%d/cgroup" % pid))
        own = cgroups.read(sysroot.text("/proc/self/cgroup"))
    except OSError:
        return "", None
    name = place.name or place.key
    if not name:
        return "", None
    text = "%s %s" % (place.kind.replace("_", " "), name)
    word = name.partition(".")[0].partition("@")[0].partition("-")[0]
    if word in NEVER_STOPPED or place.path == own.path:
        return text, None
    if place.kind == "unit":
        return text, "systemctl stop " + name
    if place.kind == "user_unit":
        return text, "systemctl --user stop " + name
    return text, None


def _visible(gpus: List[Gpu], devices: List[Dict[str, Any]]) -> None:
    """Add the processes of this namespace that map a GPU's node as a context does."""
    from fleetmem.agent.probes import holders

    try:
        rows = holders.scan()["holders"]
    except (OSError, Trouble):
        return
    minors = {device["minor"]: device["index"] for device in devices}
    mine = os.getpid()
    for row in rows:
        if row["pid"] == mine or row["ctl_map_bytes"] <= CONTEXT_BYTES:
            continue
        on = _contexts(row, minors)
        for gpu in gpus:
            if gpu.index in on:
                gpu.holders.append(identify(row["pid"], None))


def _contexts(row: Any, minors: Dict[int, int]) -> Set[int]:
    """GPUs whose node the process maps as a context does, else those it has open."""
    mapped = {f["minor"] for f in row["gpus"] if f["map_bytes"] > CONTEXT_BYTES}
    used = mapped or {f["minor"] for f in row["gpus"]}
    return {minors[minor] for minor in used if minor in minors}
