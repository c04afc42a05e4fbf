"""The shapes of readings: annotations only.

Never imported on a host (the payload leaves it out). The controller validates every
reading against these, so a field added here is a field the wire knows.
Units end a name. ``None`` means "not known or not supported here", never zero.
"""

from __future__ import annotations

from fleetmem.agent.shapes.cgroup_memory import CgroupMemory, CgroupsMemory
from fleetmem.agent.shapes.engine import (
    EngineLogs,
    EngineRequest,
    LogSource,
    RequestDisk,
    RequestProcess,
    Unplaced,
)
from fleetmem.agent.shapes.gpu import (
    GpuDevice,
    GpuDevices,
    GpuProcess,
    GpuProcesses,
    GpuProcessList,
    GpuWait,
    MigInstance,
    WaitGpu,
    WaitProcess,
    WaitSample,
)
from fleetmem.agent.shapes.holders import DriverNode, GpuFiles, GpuHolders, Holder
from fleetmem.agent.shapes.host import HostFacts, HostOperations, Locked, SignalRecord
from fleetmem.agent.shapes.journal import JournalInvocation, JournalRead
from fleetmem.agent.shapes.memory import (
    DriverMaps,
    ProcessesMemory,
    ProcessMemory,
    ProcessNuma,
    ProcessTotals,
    ProportionalSize,
    SharedObject,
)
from fleetmem.agent.shapes.numa import (
    DriverMemory,
    GpuNuma,
    HugePages,
    MemorySettings,
    MemorySummary,
    NumaNode,
    NumaNodes,
)
from fleetmem.agent.shapes.pagecache import (
    CacheCoverage,
    CachedFile,
    DroppedFile,
    NodeCoverage,
    NodeDelta,
    PageCacheDrop,
    PageCacheFiles,
    PathProblem,
    SmallFiles,
)
from fleetmem.agent.shapes.processes import Ancestor, Identities, Identity, Owner
from fleetmem.agent.shapes.shm import ShmSegment, ShmSegments
from fleetmem.agent.shapes.signal import SignalResult, SignalResults
from fleetmem.agent.shapes.ties import (
    Link,
    Listener,
    OwnerRef,
    OwnerState,
    Tied,
    TiedEnvironment,
    Ties,
    Unseen,
)
from fleetmem.agent.shapes.unit import UnitState

__all__ = [
    "Ancestor",
    "CacheCoverage",
    "CachedFile",
    "CgroupMemory",
    "CgroupsMemory",
    "DriverMaps",
    "DriverMemory",
    "DriverNode",
    "DroppedFile",
    "EngineLogs",
    "EngineRequest",
    "GpuDevice",
    "GpuDevices",
    "GpuFiles",
    "GpuHolders",
    "GpuNuma",
    "GpuProcess",
    "GpuProcessList",
    "GpuProcesses",
    "GpuWait",
    "Holder",
    "HostFacts",
    "HostOperations",
    "HugePages",
    "Identities",
    "Identity",
    "JournalInvocation",
    "JournalRead",
    "Link",
    "Listener",
    "Locked",
    "LogSource",
    "MemorySettings",
    "MemorySummary",
    "MigInstance",
    "NodeCoverage",
    "NodeDelta",
    "NumaNode",
    "NumaNodes",
    "Owner",
    "OwnerRef",
    "OwnerState",
    "PageCacheDrop",
    "PageCacheFiles",
    "PathProblem",
    "ProcessMemory",
    "ProcessNuma",
    "ProcessTotals",
    "ProcessesMemory",
    "ProportionalSize",
    "RequestDisk",
    "RequestProcess",
    "SharedObject",
    "ShmSegment",
    "ShmSegments",
    "SignalRecord",
    "SignalResult",
    "SignalResults",
    "SmallFiles",
    "Tied",
    "TiedEnvironment",
    "Ties",
    "UnitState",
    "Unplaced",
    "Unseen",
    "WaitGpu",
    "WaitProcess",
    "WaitSample",
]
