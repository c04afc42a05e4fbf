"""Which NUMA node is a GPU's memory: by the driver's files, else by NVML."""

from __future__ import annotations

import os
import select
import time

from fleetmem.agent.kernel import sysroot
from fleetmem.agent.model import Trouble

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Optional

    from fleetmem.agent.shapes import DriverMemory, GpuNuma, NumaNode

DRIVER = "/proc/driver/nvidia"
KEPT = ("Coherent", "NUMA", "Memory", "Persistence", "MapRegisters", "RmMsg")
NVML_SECONDS = 4.0


def fields(text: str) -> Dict[str, str]:
    """``Name: value`` lines."""
    found = {}
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon:
            found[name.strip()] = value.strip().strip('"')
    return found


def driver() -> Optional[DriverMemory]:
    """Memory parameters of the loaded NVIDIA driver, ``None`` where there is none."""
    try:
        params = fields(sysroot.text(DRIVER + "/params"))
    except OSError:
        return None
    return {
        "coherent_mode": params.get("CoherentGPUMemoryMode") or None,
        "parameters": {k: v for k, v in params.items() if any(word in k for word in KEPT)},
    }


def by_driver() -> List[GpuNuma]:
    """A row for each GPU that has a numa_status file (the driver's NUMA mode is on)."""
    try:
        buses = sorted(sysroot.names(DRIVER + "/gpus"))
    except OSError:
        return []
    rows: List[GpuNuma] = []
    for bus in buses:
        place = "%s/gpus/%s" % (DRIVER, bus)
        row: GpuNuma = {
            "bus_id": bus,
            "uuid": None,
            "numa_node": None,
            "status": None,
            "problem": None,
        }
        try:
            row["uuid"] = fields(sysroot.text(place + "/information")).get("GPU UUID")
        except OSError:
            pass
        try:
            status = fields(sysroot.text(place + "/numa_status"))
        except FileNotFoundError:
            continue
        except OSError as error:  # EIO while MIG is on
            row["problem"] = error.strerror
            rows.append(row)
            continue
        node = status.get("Node", "")
        row["numa_node"] = int(node) if node.isdigit() else None
        row["status"] = status.get("Status")
        rows.append(row)
    return rows


def assign(nodes: List[NumaNode], gpus: List[GpuNuma], problems: List[str]) -> None:
    """Set ``kind`` and the GPU of each node."""
    known = {row["numa_node"]: row for row in gpus if row["numa_node"] is not None}
    for node in nodes:
        gpu = known.get(node["id"])
        if gpu is not None:
            node["kind"] = "gpu"
            node["gpu_uuid"], node["gpu_bus_id"] = gpu["uuid"], gpu["bus_id"]
            node["gpu_evidence"] = "numa_status"
        elif node["cpus"]:
            node["kind"] = "cpu"
    left = {node["id"]: node for node in nodes if node["kind"] == "memory"}
    if not left:
        return
    for row in _by_nvml(problems):
        number, uuid, bus = row.split(" ")
        node_ = left.get(int(number))
        if node_ is not None:
            node_["kind"] = "gpu"
            node_["gpu_uuid"], node_["gpu_bus_id"] = uuid or None, bus or None
            node_["gpu_evidence"] = "nvml"


def _by_nvml(problems: List[str]) -> List[str]:
    """``node uuid bus`` of each GPU with a node, asked in a child: NVML may hang for ever."""
    from fleetmem.agent import lifeline

    stuck = lifeline.stuck_nvml()
    if stuck:
        problems.append(stuck)
        return []
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        try:
            lifeline.name_process("fleetmem-nvml")
            os.write(writer, "\n".join(_ask()).encode("utf-8", "replace"))
        except Trouble as trouble:
            os.write(writer, ("!" + trouble.reason).encode("utf-8", "replace"))
        finally:
            os._exit(0)
    os.close(writer)
    data = b""
    deadline = time.monotonic() + NVML_SECONDS
    try:
        while True:
            poll = select.poll()
            poll.register(reader, select.POLLIN)
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                problems.append("NVML gave no answer in %g s" % NVML_SECONDS)
                break
            part = os.read(reader, 65536)
            if not part:
                break
            data += part
    finally:
        os.close(reader)
        _end(child)
    text = data.decode("utf-8", "replace")
    if text[:1] == "!":
        if not text[1:].startswith("nvml_missing"):
            problems.append(text[1:])
        return []
    return text.splitlines()


def _end(child: int) -> None:
    """Collect the child; one that the kernel cannot end is left to the guard."""
    for _ in range(200):
        if os.waitpid(child, os.WNOHANG)[0]:
            return
        os.kill(child, 9)
        time.sleep(0.002)


def _ask() -> List[str]:
    from fleetmem.agent.services import nvml

    count = nvml.count()
    held = nvml.session()
    rows = []
    for index in range(count):
        errors = nvml.Errors()
        handle = held.ask(errors, "handle", "nvmlDeviceGetHandleByIndex", index)
        if handle is None:
            continue
        node = held.ask(errors, "node", "nvmlDeviceGetNumaNodeId", handle)
        if node is not None and 0 <= node < 1 << 20:
            uuid = held.ask(errors, "uuid", "nvmlDeviceGetUUID", handle) or ""
            pci = held.ask(errors, "bus", "nvmlDeviceGetPciInfo", handle)
            bus = pci.busId if pci is not None else ""
            bus = bus.decode("ascii", "replace") if isinstance(bus, bytes) else str(bus)
            rows.append("%d %s %s" % (node, uuid.replace(" ", ""), bus.replace(" ", "")))
    return rows
