"""The readings that say where a host's memory is, in as few round trips as they need."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from fleetmem.controller.answer.envelope import absent
from fleetmem.controller.contact import gather

if TYPE_CHECKING:
    from fleetmem.controller.answer.envelope import Reading
    from fleetmem.controller.contact.session import Session

NODES = (
    "host.facts",
    "gpu.devices",
    "gpu.processes",
    "numa.nodes",
    "processes.memory",
    "shm.segments",
    "cgroups.memory",
)
"""What the table of places needs: one round trip, some tenths of a second."""

_QUICK = ("host.facts", "host.operations", "numa.nodes")

FILES = "pagecache.files"
IDENTITY = "processes.identity"
_IDENTIFIED = 64
_LARGE_BYTES = 256 << 20

Rows = dict[str, "Reading"]


async def memory_readings(
    session: Session,
    calls: Mapping[str, Mapping[str, Any]],
    on_nodes: Callable[[Rows], None] = lambda rows: None,
    large_bytes: int = _LARGE_BYTES,
) -> Rows:
    """Call what *calls* names (probe → arguments), and who the large processes are: those that
    hold GPU memory, or *large_bytes* of the host's.

    *on_nodes* is called once everything but the files is there.
    """
    first = [name for name in calls if name not in (FILES, IDENTITY)]
    scan = asyncio.ensure_future(_files(session, calls))
    try:
        found = await asyncio.gather(*(_ask(session, name, calls[name]) for name in first))
        rows: Rows = dict(zip(first, found, strict=True))
        pids = large_pids(rows, large_bytes)
        if pids and ("processes.memory" in rows or "gpu.processes" in rows):
            rows[IDENTITY] = await gather.ask(session, IDENTITY, {"pids": pids})
        on_nodes(rows)
        files = await scan
        if files is not None:
            rows[FILES] = files
        return rows
    finally:
        scan.cancel()


async def _ask(session: Session, name: str, arguments: Mapping[str, Any]) -> Reading:
    """One call; the quick ones share a process on the host, which saves it CPU."""
    share = "places" if name in _QUICK else None
    return await gather.ask(session, name, dict(arguments), share=share)


async def _files(session: Session, calls: Mapping[str, Mapping[str, Any]]) -> Reading | None:
    if FILES not in calls:
        return None
    return await gather.ask(session, FILES, dict(calls[FILES]))


def large_pids(rows: Mapping[str, Reading], large_bytes: int = _LARGE_BYTES) -> list[int]:
    """Processes with GPU memory, and the largest others: those whose owner is worth asking for."""
    pids: dict[int, None] = {}
    listed = plain(rows).get("gpu.processes")
    for gpu in listed["gpus"] if listed else ():
        pids.update((p["pid"], None) for p in gpu["processes"] if p["state"] == "alive")
    memory = plain(rows).get("processes.memory")
    for process in memory["processes"] if memory else ():
        if process["resident_bytes"] >= large_bytes and len(pids) < _IDENTIFIED:
            pids[process["pid"]] = None
    return sorted(pids)


def plain(rows: Mapping[str, Reading]) -> dict[str, Any]:
    """Readings by name, without their outcomes."""
    return {name: row["reading"] for name, row in rows.items()}


def partial(rows: Mapping[str, Reading]) -> list[str]:
    """Why a host is only partly read. One that has nothing to read is not."""
    return gather.partial_reasons(
        {name: row for name, row in rows.items() if not absent(name, row)}
    )
