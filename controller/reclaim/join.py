"""The readings of one host joined to a survey. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fleetmem.controller.contact.gather import SURVEY, probe_error
from fleetmem.controller.reclaim.survey import Survey

if TYPE_CHECKING:
    from fleetmem.controller.answer.envelope import Reading


def to_survey(rows: Mapping[str, Reading]) -> Survey:
    """Join *rows*; FleetError names the first reading that a judgement cannot do without."""
    for name in (*SURVEY, "processes.identity"):
        if rows[name]["reading"] is None:
            raise probe_error(name, rows[name])
    devices, processes = rows["gpu.devices"]["reading"], rows["gpu.processes"]["reading"]
    holders, identities = rows["gpu.holders"]["reading"], rows["processes.identity"]["reading"]
    listed = {row["index"]: row for row in processes["gpus"]}
    return Survey(
        facts=rows["host.facts"]["reading"],
        operations=rows["host.operations"]["reading"],
        gpus={gpu["index"]: gpu for gpu in devices["gpus"]},
        listed={
            gpu["index"]: tuple(listed[gpu["index"]]["processes"]) if gpu["index"] in listed else ()
            for gpu in devices["gpus"]
        },
        complete={
            gpu["index"]: gpu["index"] in listed and listed[gpu["index"]]["complete"]
            for gpu in devices["gpus"]
        },
        holders={row["pid"]: row for row in holders["holders"]},
        holders_denied=holders["denied"],
        processes={row["pid"]: row for row in identities["processes"]},
        driver=devices["driver_version"],
        numa_file_bytes=_file_bytes(rows),
    )


def _file_bytes(rows: Mapping[str, Reading]) -> dict[int, int]:
    """File pages of each NUMA node that is no CPU's; nothing where nobody had to ask."""
    row = rows.get("numa.nodes")
    numa = row["reading"] if row else None
    return (
        {node["id"]: node["file_bytes"] for node in numa["nodes"] if not node["cpus"]}
        if numa
        else {}
    )
