"""The cache rung: which files' pages would leave memory, what is spared, what became of it. Pure.

Only pages of files are touched, never a process: clean pages that nobody maps. They come
back from disk when somebody reads them.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from fleetmem.controller.reclaim.plan import LIFETIME
from fleetmem.controller.text.sizes import count

MEMORY_ONLY = ("tmpfs", "devtmpfs", "ramfs", "hugetlbfs")
"""File systems whose pages are the only copy: the kernel does not drop them, nor do we ask."""

_NAMED = 3


@dataclass(frozen=True)
class CacheFile:
    """One file in memory. ``raw`` is its path's bytes as hex where the text is not enough."""

    path: str
    raw: str | None
    device: str
    inode: int
    resident_bytes: int
    by_numa_node: Mapping[str, int] | None
    dirty_bytes: int | None

    @property
    def argument(self) -> str:
        """The path as the agent takes it."""
        return self.path if self.raw is None else f"hex:{self.raw}"


@dataclass(frozen=True)
class CacheSpared:
    """A file that is left in memory, with the reason."""

    file: CacheFile
    why: str
    mapped_by: tuple[int, ...] = ()


@dataclass(frozen=True)
class CachePlan:
    """Everything the cache rung of one host would do."""

    id: str
    created: datetime
    boot_id: str
    epoch: int
    mode: str
    paths: tuple[str, ...]
    targets: tuple[CacheFile, ...]
    spared: tuple[CacheSpared, ...]
    problems: tuple[str, ...]
    nodes: tuple[int, ...] = ()
    """Only pages on these NUMA nodes are meant; empty where paths say what is meant."""
    unlisted: int = 0
    """Files of the paths that are in memory and for which there was no room in this plan."""
    post_check: str | None = None
    """What the host is to ask itself afterwards. It changes nothing, so no hash covers it."""

    @property
    def expires(self) -> datetime:
        """After this moment the plan is refused."""
        return self.created + LIFETIME

    @property
    def bytes(self) -> int:
        """What is in memory of the targets."""
        return sum(file.resident_bytes for file in self.targets)

    @property
    def document(self) -> dict[str, Any]:
        """What the hash covers: which files, on which boot, in which way."""
        return {
            "id": self.id,
            "created": self.created.isoformat(),
            "boot_id": self.boot_id,
            "epoch": self.epoch,
            "mode": self.mode,
            "paths": list(self.paths),
            "nodes": list(self.nodes),
            "files": [[file.argument, file.device, file.inode] for file in self.targets],
        }

    @property
    def hash(self) -> str:
        """SHA-256 of :attr:`document`, hex."""
        text = json.dumps(self.document, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


def make_plan(
    readings: Mapping[str, Any],
    paths: Sequence[str],
    mode: str,
    names: Mapping[int, str],
    now: datetime | None = None,
    post_check: str | None = None,
) -> CachePlan:
    """The plan of one host from plain readings; *names* says who a pid is.

    Without *paths*: files with pages on a NUMA node that is a GPU's memory.
    """
    cache, numa, facts = (
        readings[name] for name in ("pagecache.files", "numa.nodes", "host.facts")
    )
    gpu_nodes = {str(node["id"]) for node in numa["nodes"] if node["kind"] == "gpu"}
    targets: list[CacheFile] = []
    spared: list[CacheSpared] = []
    for one in cache["files"]:
        if not _in_scope(one, paths, gpu_nodes) or one["resident_bytes"] == 0:
            continue
        file = _file(one)
        why = _spare(one, names, bool(paths))
        if why is None:
            targets.append(file)
        else:
            spared.append(CacheSpared(file, why, tuple(one["mapped_by"])))
    problems = [f"{row['path']}: {row['problem']}" for row in cache["problems"]]
    if not cache["complete"]:
        problems.append(f"the search ended early: {cache['stopped']}")
    more = cache["unlisted"]
    if more["files"]:
        problems.append(
            f"{count(more['files'], 'more file')} with {more['resident_bytes']} bytes in memory "
            f"{'is' if more['files'] == 1 else 'are'} not in this plan, the largest are: apply it "
            "and run it again for the rest"
        )
    return CachePlan(
        id=secrets.token_hex(4),
        created=now or datetime.now(UTC),
        boot_id=facts["boot_id"],
        epoch=readings["host.operations"]["epoch"],
        mode=mode,
        paths=tuple(paths),
        targets=tuple(targets),
        spared=tuple(spared),
        problems=tuple(problems),
        nodes=() if paths else tuple(sorted(map(int, gpu_nodes))),
        unlisted=more["files"],
        post_check=post_check,
    )


def _in_scope(one: Any, paths: Sequence[str], gpu_nodes: set[str]) -> bool:
    if paths:
        return "path" in one["sources"]
    return any(size for node, size in (one["by_numa_node"] or {}).items() if node in gpu_nodes)


def _file(one: Any) -> CacheFile:
    return CacheFile(
        path=one["path"],
        raw=one["raw"],
        device=one["device"],
        inode=one["inode"],
        resident_bytes=one["resident_bytes"] or 0,
        by_numa_node=one["by_numa_node"],
        dirty_bytes=one["dirty_bytes"],
    )


def _spare(one: Any, names: Mapping[int, str], named: bool) -> str | None:
    """Why the file is left in memory, or None."""
    pids = one["mapped_by"]
    if one["filesystem"] in MEMORY_ONLY:
        return f"refused: {one['filesystem']} has no other copy of it"
    if one["resident_bytes"] is None:
        return one["problem"] or "what is in memory of it is not known to this user"
    if pids:
        who = ", ".join(names.get(pid, f"process {pid}") for pid in pids[:_NAMED])
        more = f" and {len(pids) - _NAMED} more" if len(pids) > _NAMED else ""
        return f"mapped by {who}{more}"
    if one["mapped_elsewhere"]:
        return "mapped by a process that is not visible here"
    unwritten = (one["dirty_bytes"] or 0) + (one["writeback_bytes"] or 0)
    if unwritten:
        return "not all of it is written to disk yet"
    if one["deleted"]:
        return "deleted, and kept by a process that has it open"
    if one["kind"] == "block" and not named:
        return "a block device: name it to include it"
    return None


# --- what became of it ---------------------------------------------------------------------


@dataclass(frozen=True)
class CacheEnd:
    """How the rung ended: the action's reading, or why there is none (*unknown*: it may have
    run), with the nodes and GPUs before and after."""

    reading: Any
    reason: str | None
    unknown: bool
    seconds: float | None


WOULD_BE = {"auto": "migrated or dropped", "migrate": "migrated", "drop": "dropped"}
"""What a plan does to pages, by ``--cache-mode``."""


def verdict(plan: CachePlan, end: CacheEnd | None) -> tuple[str, str]:
    """The host's verdict and its evidence; *end* None: nothing was changed."""
    if end is None:
        if plan.targets:
            number = len(plan.targets)
            files = f"{number} file{'' if number == 1 else 's'}"
            return "planned", f"{files} would be {WOULD_BE[plan.mode]}"
        why = "; ".join(plan.problems[:2])
        if plan.spared:
            reasons = list(dict.fromkeys(one.why for one in plan.spared))
            return "nothing_to_do", "all files found are spared: " + "; ".join(reasons[:2])
        if not plan.paths:
            none = (
                "no file pages lie on a NUMA node"
                if plan.nodes
                else "no GPU's memory is a NUMA node"
            )
            return "nothing_to_do", why or f"{none}{' of a GPU' if plan.nodes else ''}"
        return "nothing_to_do", why or "no pages of these files are in memory"
    if end.reading is None:
        return ("unknown" if end.unknown else "not_permitted"), end.reason or "no answer"
    rows = end.reading["files"]
    left = [row for row in rows if row["result"] in ("partial", "failed", "spared", "refused")]
    if not left:
        return "reclaimed", "all of them left memory"
    first = left[0]
    why = first["residue"] or first["why"] or first["result"]
    if all(row["result"] in ("spared", "refused") for row in left) and len(left) < len(rows):
        return "reclaimed", f"{len(left)} spared meanwhile: {why}"
    if len(rows) == 1:
        return "host_pages", f"the file stays in part: {why}"
    return "host_pages", f"{len(left)} of {len(rows)} files stay in part: {why}"


def outcome(plan: CachePlan, end: CacheEnd) -> str:
    """The rung's outcome word."""
    if end.reading is None:
        return "failed"
    if not plan.targets:
        return "not_applicable"
    return "ok" if verdict(plan, end)[0] == "reclaimed" else "partial"
