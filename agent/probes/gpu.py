"""``gpu.devices`` and ``gpu.processes``: what NVML says, with nothing taken on trust."""

from __future__ import annotations

from fleetmem.agent.declare import probe
from fleetmem.agent.kernel import sysroot, tasks
from fleetmem.agent.model import PARTIAL, Trouble
from fleetmem.agent.probes.gpu_wait import gpu_wait
from fleetmem.agent.services import nvml

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Tuple

    from fleetmem.agent.shapes import (
        GpuDevice,
        GpuDevices,
        GpuProcess,
        GpuProcesses,
        GpuProcessList,
        MigInstance,
    )

__all__ = ["gpu_devices", "gpu_processes", "gpu_wait"]

MAX_INSTANCE = 63
"""A GPU has at most a handful of instances; a larger id is no id."""

ABSENT = (nvml.NOT_SUPPORTED, nvml.FUNCTION_NOT_FOUND)


@probe("gpu.devices")
def gpu_devices() -> GpuDevices:
    """Each GPU as NVML describes it: memory, minor number, NUMA node, MIG, persistence.

    A GPU that fails keeps its row with ``errors``; partial where memory is not known, but for
    a GPU that has none of its own (integrated: NVML says "not supported").
    """
    total = nvml.count()
    held = nvml.session()
    system = nvml.Errors()
    reading: GpuDevices = {
        "driver_version": held.ask(system, "driver_version", "nvmlSystemGetDriverVersion"),
        "nvml_version": held.ask(system, "nvml_version", "nvmlSystemGetNVMLVersion"),
        "gpus": [_device(held, index) for index in range(total)],
    }
    bad = [
        gpu
        for gpu in reading["gpus"]
        if gpu["total_bytes"] is None and gpu["error_codes"].get("memory") != nvml.NOT_SUPPORTED
    ]
    if bad:
        raise Trouble(
            PARTIAL,
            "; ".join("GPU %d: %s" % (gpu["index"], _first_fault(gpu["errors"])) for gpu in bad),
            reading,
        )
    return reading


def _first_fault(errors: List[str]) -> str:
    for line in errors:
        if line.startswith(("handle:", "memory:")):
            return line
    return errors[0] if errors else "memory is not known"


def _device(held: nvml.Session, index: int) -> GpuDevice:
    errors = nvml.Errors()
    row: GpuDevice = {
        "index": index,
        "uuid": "",
        "name": None,
        "minor": None,
        "bus_id": None,
        "numa_node": None,
        "memory_version": None,
        "total_bytes": None,
        "reserved_bytes": None,
        "used_bytes": None,
        "free_bytes": None,
        "mig_mode": None,
        "persistence": None,
        "utilization_percent": None,
        "recovery_action": None,
        "instances": [],
        "errors": errors,
        "error_codes": errors.codes,
    }
    handle = held.ask(errors, "handle", "nvmlDeviceGetHandleByIndex", index)
    if handle is None:
        return row
    row["uuid"] = held.ask(errors, "uuid", "nvmlDeviceGetUUID", handle) or ""
    row["name"] = held.ask(errors, "name", "nvmlDeviceGetName", handle)
    row["minor"] = held.ask(errors, "minor", "nvmlDeviceGetMinorNumber", handle)
    pci = held.ask(errors, "bus_id", "nvmlDeviceGetPciInfo", handle)
    if pci is not None:
        bus = pci.busId
        row["bus_id"] = bus.decode("ascii", "replace") if isinstance(bus, bytes) else str(bus)
    node = held.ask(errors, "numa_node", "nvmlDeviceGetNumaNodeId", handle)
    if node is not None and 0 <= node < 1 << 20:
        row["numa_node"] = node
    memory = held.memory(errors, handle)
    if memory is not None:
        row["memory_version"] = memory[0]
        row["total_bytes"] = memory[1]
        row["reserved_bytes"] = memory[2]
        row["used_bytes"] = memory[3]
        row["free_bytes"] = memory[4]
    mode = held.ask(errors, "mig_mode", "nvmlDeviceGetMigMode", handle)
    if mode is not None:
        row["mig_mode"] = mode[0] == 1
    persistence = held.ask(errors, "persistence", "nvmlDeviceGetPersistenceMode", handle)
    if persistence is not None:
        row["persistence"] = persistence == 1
    rates = held.ask(errors, "utilization", "nvmlDeviceGetUtilizationRates", handle)
    if rates is not None:
        row["utilization_percent"] = int(rates.gpu)
    row["recovery_action"] = _recovery(held, errors, handle)
    if row["mig_mode"]:
        row["instances"] = [
            _instance(held, errors, number, inner)
            for number, inner in _instances(held, errors, handle)
        ]
    return row


def _recovery(held: nvml.Session, errors: nvml.Errors, handle: Any) -> Optional[str]:
    values = held.ask(
        errors, "recovery_action", "nvmlDeviceGetFieldValues", handle, [nvml.RECOVERY_ACTION]
    )
    if values is None:
        return None
    if values[0].nvmlReturn != 0:
        error = held.error(values[0].nvmlReturn)
        errors.note("recovery_action", error)
        return None
    number = int(values[0].value.uiVal)
    return nvml.RECOVERY_NAMES.get(number, "unknown_%d" % number)


def _instances(held: nvml.Session, errors: nvml.Errors, handle: Any) -> List[Tuple[int, Any]]:
    """(number, handle) of each MIG device of a GPU. Handles die with their instance."""
    most = held.ask(errors, "instances", "nvmlDeviceGetMaxMigDeviceCount", handle)
    found = []
    for number in range(min(most or 0, MAX_INSTANCE)):
        try:
            inner = held.lib.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)
        except held.error as trouble:
            if trouble.value != nvml.NOT_FOUND:
                errors.note("instance %d" % number, trouble)
            continue
        found.append((number, inner))
    return found


def _instance(held: nvml.Session, errors: nvml.Errors, number: int, handle: Any) -> MigInstance:
    field = "instance %d" % number
    memory = held.memory(errors, handle)
    gi = held.ask(errors, field, "nvmlDeviceGetGpuInstanceId", handle)
    ci = held.ask(errors, field, "nvmlDeviceGetComputeInstanceId", handle)
    return {
        "uuid": held.ask(errors, field, "nvmlDeviceGetUUID", handle) or "",
        "gi": -1 if gi is None else gi,
        "ci": -1 if ci is None else ci,
        "total_bytes": memory[1] if memory else None,
        "used_bytes": memory[3] if memory else None,
    }


@probe("gpu.processes")
def gpu_processes() -> GpuProcesses:
    """NVML's compute, graphics and MPS lists, merged by process, for each GPU.

    Pids are checked against this host before anything may rest on them; a list in a layout
    that the binding does not expect is marked implausible as a whole. Partial where a list
    could not be read.
    """
    total = nvml.count()
    held = nvml.session()
    here, pid_max = _this_host()
    rows = [_processes(held, index, here, pid_max) for index in range(total)]
    reading: GpuProcesses = {"gpus": rows}
    bad = [row for row in rows if not row["complete"]]
    if bad:
        raise Trouble(
            PARTIAL,
            "; ".join(
                "GPU %d: %s" % (row["index"], row["errors"][-1] if row["errors"] else "incomplete")
                for row in bad
            ),
            reading,
        )
    return reading


def _this_host() -> Tuple[Callable[[int], bool], int]:
    """Whether a pid exists here, and the largest that could."""
    try:
        limit = int(sysroot.read("/proc/sys/kernel/pid_max"))
    except (OSError, ValueError):
        limit = 1 << 22
    shown = set(sysroot.pids())  # a thread's number has its place in /proc too
    return lambda pid: pid in shown or tasks.hidden(pid), limit


def _processes(
    held: nvml.Session, index: int, here: Callable[[int], bool], pid_max: int
) -> GpuProcessList:
    errors = nvml.Errors()
    row: GpuProcessList = {
        "index": index,
        "uuid": "",
        "complete": False,
        "processes": [],
        "errors": errors,
    }
    handle = held.ask(errors, "handle", "nvmlDeviceGetHandleByIndex", index)
    if handle is None:
        return row
    row["uuid"] = held.ask(errors, "uuid", "nvmlDeviceGetUUID", handle) or ""
    found: List[Tuple[str, int, Optional[int], Optional[int], Optional[int]]] = []
    complete = _lists(held, handle, errors, found, None)
    quiet = nvml.Errors()
    mode = held.ask(quiet, "mig_mode", "nvmlDeviceGetMigMode", handle)
    if mode is not None and mode[0] == 1:
        # The parent's lists need privilege; the instances' own say the same.
        inner_complete = True
        for number, inner in _instances(held, errors, handle):
            gi = held.ask(errors, "instance %d" % number, "nvmlDeviceGetGpuInstanceId", inner)
            ci = held.ask(errors, "instance %d" % number, "nvmlDeviceGetComputeInstanceId", inner)
            known = _lists(held, inner, errors, found, (gi, ci))
            inner_complete = inner_complete and known
        complete = inner_complete
    memory = held.memory(quiet, handle)
    row["processes"], wrong = judge(found, memory[1] if memory else None, here, pid_max)
    if wrong:
        errors.append("processes: " + wrong)
    row["complete"] = complete and not wrong
    return row


def _lists(
    held: nvml.Session,
    handle: Any,
    errors: nvml.Errors,
    found: List[Tuple[str, int, Optional[int], Optional[int], Optional[int]]],
    instance: Optional[Tuple[Optional[int], Optional[int]]],
) -> bool:
    """Append the records of all lists of one handle; False where a list is not known."""
    complete = True
    for kind, name in nvml.PROCESS_LISTS:
        try:
            records = nvml.list_processes(held, name, handle)
        except held.error as trouble:
            if trouble.value not in ABSENT or kind == "compute":
                complete = False
            errors.note(kind, trouble)
            continue
        for record in records:
            gi: Optional[int] = record.gpuInstanceId
            ci: Optional[int] = record.computeInstanceId
            if gi == nvml.ALL_ONES_32:
                gi = instance[0] if instance else None
            if ci == nvml.ALL_ONES_32:
                ci = instance[1] if instance else None
            used = record.usedGpuMemory
            found.append((kind, record.pid, None if used == nvml.ALL_ONES_64 else used, gi, ci))
    return complete


def judge(
    found: List[Tuple[str, int, Optional[int], Optional[int], Optional[int]]],
    total_bytes: Optional[int],
    here: Callable[[int], bool],
    pid_max: int,
) -> Tuple[List[GpuProcess], Optional[str]]:
    """Records as processes, and why none of them may be trusted (``None`` if they may).

    One number that no process can have, or an instance id that no GPU has, shows a record
    layout other than the binding's (as with drivers of the 535 era): the next record's
    numbers may look right and be wrong. More memory than the GPU has spoils its own row.
    """
    wrong: Optional[str] = None
    merged: Dict[Tuple[int, Optional[int], Optional[int]], GpuProcess] = {}
    for kind, pid, used, gi, ci in found:
        why: Optional[str] = None
        if not 0 < pid <= pid_max:
            why = "pid %d cannot exist here (pid_max %d)" % (pid, pid_max)
        elif (gi is not None and gi > MAX_INSTANCE) or (ci is not None and ci > MAX_INSTANCE):
            why = "no instance has the ids %s and %s" % (gi, ci)
        if why and not wrong:
            wrong = "implausible list, ignored: " + why
        if not why and used is not None and total_bytes is not None and used > total_bytes:
            why = "%d bytes are more than the GPU has" % used
        row = merged.get((pid, gi, ci))
        if row is None:
            merged[(pid, gi, ci)] = {
                "pid": pid,
                "lists": [kind],
                "used_bytes": used,
                "gi": gi,
                "ci": ci,
                "state": "implausible" if why else "alive" if here(pid) else "dead",
                "why": why,
            }
            continue
        if kind not in row["lists"]:
            row["lists"].append(kind)
        if used is not None:
            row["used_bytes"] = max(used, row["used_bytes"] or 0)
        if why and row["state"] != "implausible":
            row["state"], row["why"] = "implausible", why
    rows = sorted(merged.values(), key=lambda row: (row["pid"], row["gi"] or 0, row["ci"] or 0))
    if wrong:
        for row in rows:
            if row["state"] != "implausible":
                row["state"], row["why"] = "implausible", "in an implausible list"
    return rows, wrong
