"""``@probe``, ``@action`` and the catalogue of what an agent can do.

``CALLS`` is the only list: a call's name leads to its module, the shape of its reading and
its limits without importing any probe. A test keeps it equal to what the modules declare.

The name, docstring, keyword defaults and return annotation of a function are its whole
contract; the controller derives options, schemas and documentation from them.
"""

from __future__ import annotations

from fleetmem.agent.model import Action, Probe

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Optional, TypeVar, Union

    F = TypeVar("F", bound=Callable[..., Any])


class Row:
    """What both ends know about a call without loading it.

    ``module`` is where the function lives, below ``fleetmem.agent``; ``shape`` names its reading
    below ``agent/shapes``, ``chunk`` the shape of what it streams; ``span_seconds`` is how long one
    call may take unless it says otherwise; ``nvml`` sends it to the one child process that holds
    the NVML session. What lives in ``actions`` changes the host.
    """

    __slots__ = ("action", "chunk", "module", "nvml", "shape", "span_seconds")

    def __init__(
        self,
        module: str,
        shape: str,
        span_seconds: float = 10.0,
        nvml: bool = False,
        chunk: Optional[str] = None,
    ) -> None:
        self.module = module
        self.shape = shape
        self.span_seconds = span_seconds
        self.nvml = nvml
        self.chunk = chunk
        self.action = module.startswith("actions.")


CALLS = {
    "host.facts": Row("probes.host", "host.HostFacts", 5.0),
    "host.operations": Row("probes.host", "host.HostOperations", 5.0),
    "gpu.devices": Row("probes.gpu", "gpu.GpuDevices", 15.0, nvml=True),
    "gpu.processes": Row("probes.gpu", "gpu.GpuProcesses", 15.0, nvml=True),
    "gpu.wait": Row("probes.gpu", "gpu.GpuWait", 3600.0, nvml=True, chunk="gpu.WaitSample"),
    "gpu.holders": Row("probes.holders", "holders.GpuHolders", 20.0),
    "processes.identity": Row("probes.processes", "processes.Identities", 20.0),
    "processes.ties": Row("probes.ties", "ties.Ties", 30.0),
    "signal.send": Row("actions.signal", "signal.SignalResults", 20.0),
    "journal.read": Row("probes.journal", "journal.JournalRead", 60.0),
    "engine.find": Row("probes.engine", "engine.EngineLogs", 15.0),
    "engine.request": Row("probes.engine_request", "engine.EngineRequest", 90.0),
    "unit.state": Row("probes.unit", "unit.UnitState"),
    "numa.nodes": Row("probes.numa", "numa.NumaNodes"),
    "pagecache.files": Row("probes.pagecache", "pagecache.PageCacheFiles", 90.0),
    "pagecache.drop": Row("actions.pagecache", "pagecache.PageCacheDrop", 300.0),
    "processes.memory": Row("probes.memory", "memory.ProcessesMemory", 45.0),
    "cgroups.memory": Row("probes.cgroup_memory", "cgroup_memory.CgroupsMemory", 20.0),
    "shm.segments": Row("probes.shm", "shm.ShmSegments", 45.0),
}
"""Every call, one row each: the only list. A call that has no row cannot be declared."""

CATALOGUE: Dict[str, Union[Probe, Action]] = {}


def probe(name: str) -> Callable[[F], F]:
    """Declare a probe that has a row. The function takes keyword arguments with defaults only.

    A parameter called ``emit`` is not an option: it receives a function that streams a chunk.
    """

    row = CALLS[name]

    def declare(func: F) -> F:
        CATALOGUE[name] = Probe(name, func, row.span_seconds, row.nvml)
        return func

    return declare


def action(
    name: str,
    *,
    plan: Callable[..., Any],
    reversible: bool,
    blast_radius: str,
) -> Callable[[F], F]:
    """Declare an action: the same shape as a probe, plus what a person must know first."""
    row = CALLS[name]

    def declare(func: F) -> F:
        CATALOGUE[name] = Action(name, func, row.span_seconds, plan, reversible, blast_radius)
        return func

    return declare


def shape_at(place: str) -> Any:
    """The shape at *place* below ``fleetmem.agent.shapes``; not on a host, which has none."""
    module, _, name = place.partition(".")
    path = "fleetmem.agent.shapes." + module
    return getattr(__import__(path, fromlist=[name]), name)


def find(name: str) -> Union[Probe, Action]:
    """The declared probe or action called *name*; KeyError if there is none."""
    if name not in CATALOGUE:
        __import__("fleetmem.agent." + CALLS[name].module)
    return CATALOGUE[name]
