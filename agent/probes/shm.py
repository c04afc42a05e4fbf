"""``shm.segments``: shared memory that outlives processes, and who still uses it."""

from __future__ import annotations

import os
import time

from fleetmem.agent import isolate as apart
from fleetmem.agent.declare import probe
from fleetmem.agent.kernel import maps as mappings
from fleetmem.agent.kernel import sysroot, tasks
from fleetmem.agent.kernel.tasks import namespace, user_name
from fleetmem.agent.model import PARTIAL, Trouble
from fleetmem.agent.page_cache import paths as cache_paths
from fleetmem.agent.page_cache import shm_scan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Tuple

    from fleetmem.agent.shapes import PathProblem, ShmSegment, ShmSegments

ITEM_SECONDS = 8.0
MOST_NAMESPACES = 256


@probe("shm.segments")
def shm_segments(*, largest: int = 500, least_bytes: int = 1, seconds: float = 20.0) -> ShmSegments:
    """Files on tmpfs, System V segments and memfds: size, pages in memory, users, dead owners.

    /dev/shm and System V segments of other namespaces are included where root looks.
    """
    deadline = time.monotonic() + seconds
    uses, denied, _ = mappings.in_use()
    places = _places()
    problems: List[PathProblem] = []
    rows: Dict[Tuple[int, ...], ShmSegment] = {}
    stopped: Optional[str] = None
    answers = apart.run(places, shm_scan.work, _key, ITEM_SECONDS, deadline, set())
    for at, value, problem in answers:
        if problem == apart.STOPPED:
            stopped = problem
        elif problem is not None:
            problems.append({"path": sysroot.clean(os.fsdecode(places[at][1])), "problem": problem})
        for found in value or ():
            _add(rows, found, places[at][2])
    for key, use in uses.items():
        if use.path.startswith(b"/memfd:"):
            found = shm_scan.memfd(use.place, use.path, key)
            if found is not None:
                _add(rows, found, None)
    by_device = {("%d:%d" % key[:2], key[2]): use for key, use in uses.items()}
    segments = {key[2]: use for key, use in uses.items() if use.path.startswith(b"/SYSV")}
    for row in rows.values():
        if row["kind"] == "sysv":
            _users(row, segments.get(row["inode"]), denied)
        else:
            _users(row, by_device.get((row["device"] or "", row["inode"])), denied)
    worth = [
        row for row in rows.values() if (row["resident_bytes"] or row["size_bytes"]) >= least_bytes
    ]
    worth.sort(key=lambda row: -(row["resident_bytes"] or 0))
    reading: ShmSegments = {
        "segments": worth[:largest],
        "denied": denied,
        "complete": stopped is None and len(worth) <= largest,
        "problems": problems,
    }
    why = []
    if denied:
        from fleetmem.agent.words import count, reader

        why.append("%s could not be inspected %s" % (count(denied, "process"), reader()))
    if stopped:
        why.append(stopped)
    if why:
        raise Trouble(PARTIAL, "; ".join(why), reading)
    return reading


def _key(item: Any) -> str:
    return "shm"


def _places() -> List[Tuple[str, bytes, Optional[int]]]:
    """(what, where, namespace) to look at: tmpfs mounts here, /dev/shm and ipc elsewhere."""
    mnt, ipc = namespace("self", "mnt"), namespace("self", "ipc")
    found: List[Tuple[str, bytes, Optional[int]]] = [("sysv", b"/proc/self/ns/ipc", ipc)]
    seen = set()
    for mount in cache_paths.mounts().rows:
        if mount.kind == "tmpfs" and mount.device not in seen:
            seen.add(mount.device)
            found.append(("tmpfs", mount.point, mnt))
    if os.geteuid() != 0:
        return found
    known = {mnt, ipc}
    for pid in sysroot.pids():
        if len(known) > MOST_NAMESPACES:
            break
        other = namespace(str(pid), "mnt")
        if other is not None and other not in known:
            known.add(other)
            found.append(("tmpfs", b"/proc/%d/root/dev/shm" % pid, other))
        other = namespace(str(pid), "ipc")
        if other is not None and other not in known:
            known.add(other)
            found.append(("sysv", b"/proc/%d/ns/ipc" % pid, other))
    return found


def _add(rows: Dict[Tuple[int, ...], ShmSegment], found: Any, where: Optional[int]) -> None:
    kind, path, key, device, inode, size, resident, swap, uid, cpid, attached, changed = found
    text, raw = (None, None) if path is None else cache_paths.show(path)
    mark: Tuple[int, ...] = (device[0], device[1], inode) if device else (where or 0, -1, inode)
    rows.setdefault(
        mark,
        {
            "kind": kind,
            "path": text,
            "raw": raw,
            "key": key,
            "shmid": inode if kind == "sysv" else None,
            "device": "%d:%d" % tuple(device) if device else None,
            "inode": inode,
            "size_bytes": size,
            "resident_bytes": resident,
            "swap_bytes": swap,
            "uid": uid,
            "user": user_name(uid),
            "creator_pid": cpid,
            "attached": attached,
            "mapped_by": [],
            "open_by": [],
            "owner_state": None,
            "namespace": where,
            "modified_seconds_ago": None if changed is None else max(0.0, time.time() - changed),
        },
    )


def _users(row: ShmSegment, use: Optional[mappings.Use], denied: int) -> None:
    """Who maps it or has it open, and whether anybody it belongs to still lives."""
    if use is not None:
        mapped = use.mapped_by
        if row["kind"] == "sysv":  # segments of two namespaces may have one number
            mapped = [pid for pid in mapped if namespace(str(pid), "ipc") == row["namespace"]]
        row["mapped_by"], row["open_by"] = sorted(mapped), sorted(use.open_by)
    made = row["creator_pid"]
    lives = bool(row["mapped_by"] or row["open_by"] or row["attached"])
    if not lives and made:
        lives = tasks.stat(made) is not None
    row["owner_state"] = "live" if lives else None if denied else "dead"
