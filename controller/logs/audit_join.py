"""A start that lacked memory, joined with what the host's memory shows now (pure).

One finding says who held the GPU then: a process older than the start, a dead one that the
driver still names, or file pages on the GPU's NUMA node.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fleetmem.controller.answer.step import next_step

if TYPE_CHECKING:
    from fleetmem.controller.answer.envelope import Finding, Reading
    from fleetmem.controller.startup.starts import Invocation

GIB = 1 << 30
LEAST_BYTES = GIB // 4
PROBES = ("gpu.processes", "gpu.holders", "numa.nodes")
MEMORY_ERRORS = frozenset(
    (
        "cuda_oom",
        "free_below_requested",
        "no_cache_blocks",
        "negative_kv",
        "negative_kv_tokens",
        "weights_exceed_fraction",
        "max_model_len_exceeds_kv",
    )
)
ALIVE = " --gpu stops holders even if they are working: read its plan first."


def lacked_memory(newest: Invocation | None, findings: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the newest start failed for want of GPU memory, or got much less than before."""
    if newest is None:
        return False
    if any(error["kind"] in MEMORY_ERRORS for error in newest.errors):
        return True
    return any(one["rule"] == "startup/pool-shrank" for one in findings)


def held_then(
    host: str,
    subject: str,
    span: Mapping[str, Any],
    now_microseconds: int,
    rows: Mapping[str, Reading],
) -> Finding | None:
    """The finding for one start, ``span`` of the journal's; None where nobody is seen.

    Ages are the host's own: no clock of this desk is compared with its.
    """
    began = span["first_us"]
    if began is None:
        return None
    since = (now_microseconds - began) / 1e6
    holders = list(_older(rows, since))
    pages = list(_pages(rows))
    if not holders and not pages:
        return None
    said = [_say(one) for one in holders[:3]]
    if len(holders) > 3:
        said.append(f"{len(holders) - 3} more")
    said += [
        f"{one['bytes'] / GIB:.1f} GiB of file pages lie on GPU memory (NUMA node {one['node']})"
        for one in pages
    ]
    gpus = sorted({one["gpu"] for one in holders})
    held = ",".join(map(str, gpus))
    step = (
        next_step("reclaim", host, gpu=held, dry_run=True) if gpus else next_step("snapshot", host)
    )
    return {
        "rule": "startup/held-then",
        "severity": "critical",
        "hosts": host,
        "subject": subject,
        "evidence": {
            "say": "This start lacked memory held by others: " + "; ".join(said) + ".",
            "holders": holders,
            "pages": pages,
            "began_seconds_ago": round(since, 1),
            "lines": [],
        },
        "advice": "Free that first, then start again; the engine's settings are not at fault."
        + (ALIVE if any(not one["dead"] for one in holders) else ""),
        "next": [str(step)],
    }


def _older(rows: Mapping[str, Reading], since: float) -> Iterator[dict[str, Any]]:
    """Processes with GPU memory that were there before the start, largest first."""
    listed = rows["gpu.processes"]["reading"]
    identity = rows.get("processes.identity")
    identities = identity["reading"] if identity else None
    known = {row["pid"]: row for row in identities["processes"]} if identities else {}
    found: list[dict[str, Any]] = []
    for gpu in listed["gpus"] if listed else ():
        for process in gpu["processes"]:
            used = process["used_bytes"]
            if used is None or used < LEAST_BYTES or process["state"] == "implausible":
                continue
            who = known.get(process["pid"])
            dead = process["state"] == "dead"
            if not dead and (who is None or who["age_seconds"] <= since):
                continue
            found.append(
                {
                    "gpu": gpu["index"],
                    "pid": process["pid"],
                    "bytes": used,
                    "dead": dead,
                    "name": None if who is None else who["title"] or who["comm"],
                    "owner": None if who is None else who["owner"]["name"],
                    "age_seconds": None if who is None else round(who["age_seconds"], 1),
                }
            )
    yield from sorted(found, key=lambda one: -int(one["bytes"]))


def _pages(rows: Mapping[str, Reading]) -> Iterator[dict[str, Any]]:
    nodes = rows["numa.nodes"]["reading"]
    for node in nodes["nodes"] if nodes else ():
        if node["kind"] == "gpu" and node["file_bytes"] >= GIB:
            yield {"node": node["id"], "gpu_uuid": node["gpu_uuid"], "bytes": node["file_bytes"]}


def _say(one: Mapping[str, Any]) -> str:
    size = f"{one['bytes'] / GIB:.1f} GiB of GPU {one['gpu']}"
    if one["dead"]:
        return f"{size} are still charged to process {one['pid']}, which is dead"
    owner = f" ({one['owner']})" if one["owner"] else ""
    return f"{one['name']} {one['pid']}{owner} has {size}, since before the start"
