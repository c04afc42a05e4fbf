# mypy: ignore-errors
"""Runs inside a host: prints as JSON what NVML says there. Arguments: names of sections.

Every answer is a value or {"error": code}. Needs pynvml on the path.
"""

import json
import sys

import pynvml as nvml


def ask(function, *args, **options):
    """The answer, or its error code."""
    try:
        return function(*args, **options)
    except nvml.NVMLError as error:
        return {"error": error.value}


def processes(device, kind):
    """[[pid, bytes, gi, ci]] of one list."""
    found = ask(getattr(nvml, f"nvmlDeviceGet{kind}RunningProcesses"), device)
    if isinstance(found, dict):
        return found
    rows = [[p.pid, p.usedGpuMemory, p.gpuInstanceId, p.computeInstanceId] for p in found]
    return rows if "inorder" in sys.argv else sorted(rows)


def memory(device):
    """total, reserved, used, free by version 2, and used by version 1."""
    two = ask(nvml.nvmlDeviceGetMemoryInfo, device, version=nvml.nvmlMemory_v2)
    if isinstance(two, dict):
        return two
    return {
        "total": two.total,
        "reserved": two.reserved,
        "used": two.used,
        "free": two.free,
        "used_v1": nvml.nvmlDeviceGetMemoryInfo(device).used,
    }


def gpu(index):
    """One GPU."""
    device = ask(nvml.nvmlDeviceGetHandleByIndex, index)
    if isinstance(device, dict):
        return device
    rates = ask(nvml.nvmlDeviceGetUtilizationRates, device)
    fields = ask(nvml.nvmlDeviceGetFieldValues, device, [230, 1])
    row = {
        "name": ask(nvml.nvmlDeviceGetName, device),
        "uuid": ask(nvml.nvmlDeviceGetUUID, device),
        "minor": ask(nvml.nvmlDeviceGetMinorNumber, device),
        "numa": ask(nvml.nvmlDeviceGetNumaNodeId, device),
        "persistence": ask(nvml.nvmlDeviceGetPersistenceMode, device),
        "bus": getattr(ask(nvml.nvmlDeviceGetPciInfo, device), "busId", None),
        "memory": memory(device),
        "compute": processes(device, "Compute"),
        "graphics": processes(device, "Graphics"),
        "mps": processes(device, "MPSCompute"),
        "utilization": getattr(rates, "gpu", rates),
        "recovery": [fields[0].nvmlReturn, fields[0].value.uiVal, fields[1].nvmlReturn],
        "mig": ask(nvml.nvmlDeviceGetMigMode, device),
        "instances": [],
    }
    by_uuid = ask(nvml.nvmlDeviceGetHandleByUUID, row["uuid"])
    row["same_by_uuid"] = not isinstance(by_uuid, dict) and memory(by_uuid) == row["memory"]
    for number in range(nvml.nvmlDeviceGetMaxMigDeviceCount(device)):
        part = ask(nvml.nvmlDeviceGetMigDeviceHandleByIndex, device, number)
        if not isinstance(part, dict):
            row["instances"].append(
                {
                    "uuid": nvml.nvmlDeviceGetUUID(part),
                    "gi": nvml.nvmlDeviceGetGpuInstanceId(part),
                    "ci": nvml.nvmlDeviceGetComputeInstanceId(part),
                    "memory": memory(part),
                    "compute": processes(part, "Compute"),
                }
            )
    return row


def main():
    """Prints {"init": null or error, "driver": …, "gpus": […]}."""
    started = ask(nvml.nvmlInit)
    if started is not None:
        print(json.dumps({"init": started}))
        return
    count = ask(nvml.nvmlDeviceGetCount)
    gpus = [gpu(index) for index in range(count)] if isinstance(count, int) else count
    driver = ask(nvml.nvmlSystemGetDriverVersion)
    version = ask(nvml.nvmlSystemGetNVMLVersion)
    nvml.nvmlShutdown()
    after = ask(nvml.nvmlDeviceGetCount)
    found = {"init": None, "driver": driver, "nvml": version, "gpus": gpus, "after": after}
    print(json.dumps(found))


main()
