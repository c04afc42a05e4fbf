"""``@probe``, ``@action`` and the catalogue of what an agent can do.

``MODULES`` is the only list: a call's name leads to its module without importing the
others. A test keeps it equal to what the modules declare.

The name, docstring, keyword defaults and return annotation of a function are its whole
contract; the controller derives options, schemas and documentation from them.
"""

from __future__ import annotations

from fleetmem.agent.model import Action, Probe

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, TypeVar, Union

    F = TypeVar("F", bound=Callable[..., Any])

MODULES = {
    "host.facts": "probes.host",
    "host.operations": "probes.host",
    "gpu.devices": "probes.gpu",
    "gpu.processes": "probes.gpu",
    "gpu.wait": "probes.gpu",
    "gpu.holders": "probes.holders",
    "processes.identity": "probes.processes",
    "signal.send": "actions.signal",
    "journal.read": "probes.journal",
    "engine.find": "probes.engine",
    "engine.request": "probes.engine_request",
    "unit.state": "probes.unit",
    "numa.nodes": "probes.numa",
    "pagecache.files": "probes.pagecache",
    "pagecache.drop": "actions.pagecache",
    "processes.memory": "probes.memory",
    "cgroups.memory": "probes.cgroup_memory",
    "shm.segments": "probes.shm",
}

NVML = ("gpu.devices", "gpu.processes", "gpu.wait")
"""Calls for the one child that holds the NVML session."""

SPAN_SECONDS = 10.0
SPANS: Dict[str, float] = {
    "host.facts": 5.0,
    "host.operations": 5.0,
    "gpu.devices": 15.0,
    "gpu.processes": 15.0,
    "gpu.wait": 3600.0,
    "gpu.holders": 20.0,
    "processes.identity": 20.0,
    "signal.send": 20.0,
    "journal.read": 60.0,
    "engine.find": 15.0,
    "engine.request": 90.0,
    "pagecache.files": 90.0,
    "pagecache.drop": 300.0,
    "processes.memory": 45.0,
    "cgroups.memory": 20.0,
    "shm.segments": 45.0,
}
"""Default timeouts that differ from SPAN_SECONDS. Here, so that serve knows them without
loading the modules; a test keeps them equal to what the modules declare."""

CATALOGUE: Dict[str, Union[Probe, Action]] = {}


def probe(name: str, *, timeout_seconds: float = 10.0, nvml: bool = False) -> Callable[[F], F]:
    """Declare a probe. The function takes keyword arguments with defaults only.

    A parameter called ``emit`` is no option: it receives a function that streams a chunk.
    """

    def declare(func: F) -> F:
        CATALOGUE[name] = Probe(name, func, timeout_seconds, nvml)
        return func

    return declare


def action(
    name: str,
    *,
    plan: Callable[..., Any],
    reversible: bool,
    blast_radius: str,
    timeout_seconds: float = 10.0,
) -> Callable[[F], F]:
    """Declare an action: the same shape as a probe, plus what a person must know first."""

    def declare(func: F) -> F:
        CATALOGUE[name] = Action(name, func, timeout_seconds, plan, reversible, blast_radius)
        return func

    return declare


def find(name: str) -> Union[Probe, Action]:
    """The declared probe or action called *name*; KeyError if there is none."""
    if name not in CATALOGUE:
        __import__("fleetmem.agent." + MODULES[name])
    return CATALOGUE[name]
