"""Which shape of ``agent/shapes/`` the reading of each probe and action has."""

from __future__ import annotations

SHAPES = {
    "host.facts": "HostFacts",
    "host.operations": "HostOperations",
    "gpu.devices": "GpuDevices",
    "gpu.processes": "GpuProcesses",
    "gpu.holders": "GpuHolders",
    "gpu.wait": "GpuWait",
    "processes.identity": "Identities",
    "signal.send": "SignalResults",
    "journal.read": "JournalRead",
    "engine.find": "EngineLogs",
    "engine.request": "EngineRequest",
    "unit.state": "UnitState",
    "numa.nodes": "NumaNodes",
    "pagecache.files": "PageCacheFiles",
    "processes.memory": "ProcessesMemory",
    "cgroups.memory": "CgroupsMemory",
    "shm.segments": "ShmSegments",
    "pagecache.drop": "PageCacheDrop",
}
