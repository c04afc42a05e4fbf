"""The readings of one host joined to a survey. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fleetmem.controller.contact.gather import SURVEY, probe_error
from fleetmem.controller.reclaim.survey import Survey

if TYPE_CHECKING:
    from fleetmem.agent.shapes import Ancestor, HostFacts, Identity, OwnerState, Tied, Ties
    from fleetmem.controller.answer.envelope import Reading

_ANCESTORS = 64


def to_survey(rows: Mapping[str, Reading]) -> Survey:
    """Join *rows*; FleetError names the first reading that a judgement cannot do without."""
    for name in (*SURVEY, "processes.identity"):
        if rows[name]["reading"] is None:
            raise probe_error(name, rows[name])
    devices, processes = rows["gpu.devices"]["reading"], rows["gpu.processes"]["reading"]
    holders = rows["gpu.holders"]["reading"]
    listed = {row["index"]: row for row in processes["gpus"]}
    ties = _ties(rows)
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
        processes=_people(rows, ties),
        ties=ties,
        driver=devices["driver_version"],
        numa_file_bytes=_file_bytes(rows),
    )


def _ties(rows: Mapping[str, Reading]) -> Ties:
    """Ties as read; where they could not be, none are known, and nothing is concluded."""
    row = rows.get("processes.ties")
    found: Ties | None = row["reading"] if row is not None else None
    return found or {
        "boot_id": rows["host.facts"]["reading"]["boot_id"],
        "initial_pid_namespace": None,
        "complete": False,
        "bound": None,
        "processes": [],
        "links": [],
        "listeners": [],
        "owners": [],
        "unseen": [],
        "gone": [],
    }


def _people(rows: Mapping[str, Reading], ties: Ties) -> dict[int, Identity]:
    """Identities by pid, and as much of one as ties tell of whoever a family has beside them."""
    facts = rows["host.facts"]["reading"]
    people = {row["pid"]: row for row in rows["processes.identity"]["reading"]["processes"]}
    tied = {row["pid"]: row for row in ties["processes"]}
    for pid, row in tied.items():
        if pid not in people and row["alive"]:
            people[pid] = _identity(row, tied, ties["owners"], facts)
    return people


def _identity(
    row: Tied, tied: Mapping[int, Tied], owners: Sequence[OwnerState], facts: HostFacts
) -> Identity:
    """The identity of a tied process; what only ``processes.identity`` reads is unknown."""
    above: list[Ancestor] = []
    parent = tied.get(row["ppid"])
    while parent is not None and len(above) < _ANCESTORS:
        above.append(
            {
                "pid": parent["pid"],
                "start_time": parent["start_time"],
                "comm": parent["comm"],
            }
        )
        parent = tied.get(parent["ppid"])
    owner = next(
        (
            owners[ref["owner"]]
            for ref in row["owners"]
            if ref["source"] == "cgroup" and 0 <= ref["owner"] < len(owners)
        ),
        None,
    )
    return {
        "pid": row["pid"],
        "start_time": row["start_time"],
        "alive": row["alive"],
        "state": row["state"],
        "tasks": 1,
        "age_seconds": facts["uptime_seconds"] - row["start_time"] / (facts["clock_ticks"] or 100),
        "ppid": row["ppid"],
        "pgid": row["pgid"],
        "sid": row["sid"],
        "uid": row["uid"],
        "user": row["user"],
        "comm": row["comm"],
        "title": row["title"],
        "exe": row["exe"],
        "kernel_thread": row["kernel_thread"],
        "nspids": [row["pid"], *row["pids_inside"]],
        "pid_namespace": row["pid_namespace"],
        "cgroup": row["cgroup"],
        "owner": {
            "kind": owner["kind"] if owner else "none",
            "name": owner["name"] if owner else None,
            "runtime": owner["runtime"] if owner else None,
            "state": owner["state"] if owner and owner["state"] == "live" else None,
            "stop_command": owner["stop_command"] if owner else None,
        },
        "ancestors": above,
        "launcher_alive": False,
        "group_leader_alive": None,
        "listening": None,
        "listening_ports": [],
        "orphaned_pipes": None,
        "live_peers": None,
        "resident_bytes": None,
        "pinned_bytes": None,
    }


def _file_bytes(rows: Mapping[str, Reading]) -> dict[int, int]:
    """File pages of each NUMA node that is no CPU's; nothing where nobody had to ask."""
    row = rows.get("numa.nodes")
    numa = row["reading"] if row else None
    return (
        {node["id"]: node["file_bytes"] for node in numa["nodes"] if not node["cpus"]}
        if numa
        else {}
    )
