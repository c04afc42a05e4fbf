"""The ``reclaim`` section of a host whose page cache is reclaimed. Pure."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from fleetmem.controller.answer.step import next_step
from fleetmem.controller.reclaim.cache.plan import CacheEnd, CachePlan, verdict

if TYPE_CHECKING:
    from fleetmem.controller.answer.envelope import GpuVerdict, Reclaim, Rung, Verdict

_ADVICE = {
    "host_pages": "What stays is mapped, locked or pinned, possibly by a process in another "
    "container.",
    "unknown": "The change was started and its outcome was not seen. Look again first.",
    "not_permitted": "Connect as root, or set sudo: true for the host.",
}


def cache_section(
    plan: CachePlan,
    before: Mapping[str, Any],
    end: CacheEnd | None,
    after: Mapping[str, Any] | None,
    host: str,
    rungs: Sequence[Rung] = (),
    checked: Mapping[str, Any] | None = None,
) -> Reclaim:
    """*before* and *after* are plain readings; *end* None while nothing was changed. *checked*
    is what the post-check's probe answered."""
    word, why = verdict(plan, end)
    numa = _nodes(plan, before, end, after)
    return {
        "plan": {
            "id": plan.id,
            "created": _moment(plan.created),
            "expires": _moment(plan.expires),
            "hash": plan.hash,
            "boot_id": plan.boot_id,
        },
        "verdict": cast("Verdict", word),
        "gpus": _gpus(before, after, numa, word, why),
        "numa_nodes": numa,
        "targets": [],
        "spared": [],
        "rungs": list(rungs),
        "advice": _ADVICE.get(word),
        "next": _next(plan, word, host),
        "expect_seconds": None,
        "cache": {
            "mode": plan.mode,
            "paths": list(plan.paths),
            "why": why,
            "files": _files(plan, end),
            "spared": [
                {
                    "path": one.file.path,
                    "resident_bytes": one.file.resident_bytes,
                    "by_numa_node": dict(one.file.by_numa_node or {}) or None,
                    "mapped_by": list(one.mapped_by),
                    "why": one.why,
                }
                for one in plan.spared
            ],
            "problems": list(plan.problems),
            "freed_bytes": end.reading["freed_bytes"] if end and end.reading else None,
            "moved_bytes": end.reading["moved_bytes"] if end and end.reading else None,
            "post_check": None if checked is None else _post_check(plan, checked),
        },
    }


def _post_check(plan: CachePlan, row: Mapping[str, Any]) -> dict[str, Any]:
    """The request after the rung; ``answered``: with a status that means success."""
    found = row["reading"] or {}
    status = found.get("status")
    problem = found.get("problem") if found else row["reason"] or row["outcome"]
    return {
        "url": plan.post_check,
        "method": found.get("method"),
        "answered": status is not None and 200 <= status < 300,
        "status": status,
        "problem": problem,
        "seconds": found.get("seconds"),
        "processes": len(found["processes"]) if found else None,
        "read_bytes": found.get("read_bytes"),
        "disks_read_bytes": found.get("disks_read_bytes"),
    }


def _moment(value: Any) -> str:
    return str(value.isoformat(timespec="milliseconds").replace("+00:00", "Z"))


def _files(plan: CachePlan, end: CacheEnd | None) -> list[dict[str, Any]]:
    """Targets in the plan's order, with what became of each."""
    done: dict[Any, Any] = {}
    if end is not None and end.reading is not None:
        done = {(row["device"], row["inode"]): row for row in end.reading["files"]}
        done.update({row["path"]: row for row in end.reading["files"]})
    rows = []
    for file in plan.targets:
        row = done.get((file.device, file.inode)) or done.get(file.path)
        rows.append(
            {
                "path": file.path,
                "before_bytes": file.resident_bytes,
                "by_numa_node": dict(file.by_numa_node or {}) or None,
                "result": row["result"] if row else ("planned" if end is None else "unknown"),
                "why": (row["residue"] or row["why"]) if row else None,
                "after_bytes": row["after_bytes"] if row else None,
                "after_by_numa_node": row["after"] if row else None,
            }
        )
    return rows


def _nodes(
    plan: CachePlan,
    before: Mapping[str, Any],
    end: CacheEnd | None,
    after: Mapping[str, Any] | None,
) -> list[dict[str, Any]]:
    """Each NUMA node before and after: what is free, the file pages, and the per-CPU lists in
    which just-freed pages wait before the kernel counts them as free."""
    then = {node["id"]: node for node in before["numa.nodes"]["nodes"]}
    numa = (after or {}).get("numa.nodes")
    now = {node["id"]: node for node in numa["nodes"]} if numa and end is not None else {}
    deltas = {}
    if end is not None and end.reading is not None:
        deltas = {row["id"]: row for row in end.reading["nodes"]}
    rows = []
    for number, node in then.items():
        later, delta = now.get(number), deltas.get(number)
        rows.append(
            {
                "id": number,
                "kind": node["kind"],
                "gpu_uuid": node["gpu_uuid"],
                "planned_bytes": sum(
                    (file.by_numa_node or {}).get(str(number), 0) for file in plan.targets
                ),
                "before_free_bytes": _delta(delta, "free_before_bytes", node["free_bytes"]),
                "after_free_bytes": _delta(
                    delta, "free_after_bytes", later["free_bytes"] if later else None
                ),
                "before_file_bytes": _delta(delta, "file_before_bytes", node["file_bytes"]),
                "after_file_bytes": _delta(
                    delta, "file_after_bytes", later["file_bytes"] if later else None
                ),
                "before_percpu_bytes": _delta(delta, "percpu_before_bytes", node["percpu_bytes"]),
                "after_percpu_bytes": _delta(
                    delta, "percpu_after_bytes", later["percpu_bytes"] if later else None
                ),
                "freed_bytes": delta["files_freed_bytes"] if delta else None,
            }
        )
    return rows


def _delta(delta: Any, name: str, otherwise: int | None) -> int | None:
    """The action's own figure, taken right before or after it; else the probe's."""
    return delta[name] if delta else otherwise


def _gpus(
    before: Mapping[str, Any],
    after: Mapping[str, Any] | None,
    nodes: Sequence[Mapping[str, Any]],
    word: str,
    why: str,
) -> list[GpuVerdict]:
    """GPUs whose memory is a NUMA node with pages in the plan: the capacity check."""
    then, now = before.get("gpu.devices"), (after or {}).get("gpu.devices")
    later = {gpu["uuid"]: gpu for gpu in now["gpus"]} if now else {}
    touched = {node["gpu_uuid"] for node in nodes if node["planned_bytes"] and node["gpu_uuid"]}
    ids = {node["id"] for node in nodes if node["planned_bytes"]}
    rows: list[GpuVerdict] = []
    for gpu in then["gpus"] if then else ():
        if gpu["uuid"] not in touched and gpu["numa_node"] not in ids:
            continue
        seen = later.get(gpu["uuid"])
        rows.append(
            {
                "index": gpu["index"],
                "uuid": gpu["uuid"],
                "verdict": cast("Verdict", word),
                "before_bytes": gpu["used_bytes"],
                "after_bytes": seen["used_bytes"] if seen else None,
                "baseline_bytes": None,
                "baseline_source": None,
                "why": why,
                "before_free_bytes": gpu["free_bytes"],
                "after_free_bytes": seen["free_bytes"] if seen else None,
            }
        )
    return rows


def _next(plan: CachePlan, word: str, host: str) -> list[str]:
    again = word == "reclaimed" and plan.unlisted > 0
    if word == "planned" or again:
        mode = plan.mode if plan.mode != "auto" else None
        return [
            str(
                next_step(
                    "reclaim",
                    host,
                    cache=plan.paths,
                    cache_mode=mode,
                    post_check=plan.post_check,
                    yes=True,
                )
            )
        ]
    if word == "reclaimed":
        return [str(next_step("snapshot", host, phase="after-action"))]
    if word == "nothing_to_do" and plan.spared and plan.spared[0].mapped_by:
        folder = os.path.dirname(plan.spared[0].file.path)
        return [str(next_step("snapshot", host, files=folder))]
    return []
