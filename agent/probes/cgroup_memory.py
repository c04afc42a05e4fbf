"""``cgroups.memory``: the memory of control groups, version 1 or 2, by backing and NUMA node."""

from __future__ import annotations

import os

from fleetmem.agent.declare import probe
from fleetmem.agent.kernel import sysroot
from fleetmem.agent.model import PARTIAL, UNSUPPORTED, Trouble
from fleetmem.agent.page_cache import paths as cache_paths

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Dict, List, Optional, Tuple

    from fleetmem.agent.shapes import CgroupMemory, CgroupsMemory

MOST_GROUPS = 20000
NO_LIMIT = 1 << 60
"""Version 1 writes a number near the largest where there is no limit."""


@probe("cgroups.memory")
def cgroups_memory(*, largest: int = 50, least_bytes: int = 1 << 20) -> CgroupsMemory:
    """Control groups with the memory controller, largest first; each includes its descendants."""
    version, root = find()
    name = "memory.current" if version == 2 else "memory.usage_in_bytes"
    sizes, seen = _sizes(root, name)
    sizes.sort(reverse=True)
    read = _version_2 if version == 2 else _version_1
    rows = [_row(read, root, place, size) for size, place in sizes[:largest] if size >= least_bytes]
    reading: CgroupsMemory = {
        "version": version,
        "cgroups": rows,
        "seen": seen,
        "complete": seen < MOST_GROUPS,
    }
    if seen >= MOST_GROUPS:
        raise Trouble(PARTIAL, "more than %d control groups" % MOST_GROUPS, reading)
    return reading


def find() -> Tuple[int, str]:
    """(version, directory) of the hierarchy that has the memory controller."""
    second: Optional[str] = None
    try:
        lines = sysroot.read("/proc/self/mountinfo", sysroot.LARGE).split(b"\n")
    except OSError:
        lines = []
    for line in lines:
        left, _, right = line.partition(b" - ")
        words, kind = left.split(b" "), right.split(b" ")
        if len(words) < 5 or len(kind) < 3:
            continue
        point = os.fsdecode(cache_paths.unescape(words[4]))
        if kind[0] == b"cgroup" and b"memory" in kind[2].split(b","):
            return 1, point
        if kind[0] == b"cgroup2" and "memory" in _text(point + "/cgroup.controllers").split():
            second = point
    if second is None:
        raise Trouble(UNSUPPORTED, "no control groups with the memory controller here")
    return 2, second


def _sizes(root: str, name: str) -> Tuple[List[Tuple[int, str]], int]:
    found: List[Tuple[int, str]] = []
    stack = [root]
    seen = 0
    while stack and seen < MOST_GROUPS:
        place = stack.pop()
        seen += 1
        size = _number("%s/%s" % (place, name))
        if size is not None:
            found.append((size, place))
        try:
            with os.scandir(sysroot.path(place)) as entries:
                stack += [
                    "%s/%s" % (place.rstrip("/"), entry.name)
                    for entry in entries
                    if entry.is_dir(follow_symlinks=False)
                ]
        except OSError:
            continue
    return found, seen


def _row(read: Callable[[str], CgroupMemory], root: str, place: str, size: int) -> CgroupMemory:
    row = read(place)
    row["path"] = sysroot.clean(place[len(root.rstrip("/")) :] or "/")
    row["current_bytes"] = size
    try:
        row["processes"] = sysroot.read(place + "/cgroup.procs", sysroot.LARGE).count(b"\n")
    except OSError:
        row["processes"] = None
    return row


def _version_2(place: str) -> CgroupMemory:
    stat = _pairs(place + "/memory.stat")
    return {
        "path": "",
        "current_bytes": 0,
        "max_bytes": _number(place + "/memory.max"),
        "high_bytes": _number(place + "/memory.high"),
        "swap_bytes": _number(place + "/memory.swap.current"),
        "anon_bytes": stat.get("anon"),
        "file_bytes": None if "file" not in stat else stat["file"] - stat.get("shmem", 0),
        "shmem_bytes": stat.get("shmem"),
        "kernel_bytes": stat.get("kernel"),
        "slab_bytes": stat.get("slab"),
        "dirty_bytes": stat.get("file_dirty"),
        "writeback_bytes": stat.get("file_writeback"),
        "by_numa_node": _by_node(place, ("anon", "file", "shmem"), 1),
        "events": _pairs(place + "/memory.events"),
        "processes": None,
    }


def _version_1(place: str) -> CgroupMemory:
    stat = _pairs(place + "/memory.stat")
    shmem = stat.get("total_shmem")
    limit = _number(place + "/memory.limit_in_bytes")
    events = {}
    for name, field in (("failcnt", "max"), ("memsw.failcnt", "swap_max")):
        count = _number("%s/memory.%s" % (place, name))
        if count is not None:
            events[field] = count
    killed = _pairs(place + "/memory.oom_control").get("oom_kill")
    if killed is not None:
        events["oom_kill"] = killed
    return {
        "path": "",
        "current_bytes": 0,
        "max_bytes": None if limit is None or limit >= NO_LIMIT else limit,
        "high_bytes": None,
        "swap_bytes": stat.get("total_swap"),
        "anon_bytes": stat.get("total_rss"),
        "file_bytes": None if "total_cache" not in stat else stat["total_cache"] - (shmem or 0),
        "shmem_bytes": shmem,
        "kernel_bytes": _number(place + "/memory.kmem.usage_in_bytes"),
        "slab_bytes": None,
        "dirty_bytes": stat.get("total_dirty"),
        "writeback_bytes": stat.get("total_writeback"),
        "by_numa_node": _by_node(
            place, ("hierarchical_anon", "hierarchical_file"), os.sysconf("SC_PAGE_SIZE")
        ),
        "events": events,
        "processes": None,
    }


def _by_node(place: str, wanted: Tuple[str, ...], unit: int) -> Optional[Dict[str, Dict[str, int]]]:
    """memory.numa_stat: bytes by node and backing."""
    found: Dict[str, Dict[str, int]] = {}
    for line in _text(place + "/memory.numa_stat").splitlines():
        words = line.split()
        backing = words[0].partition("=")[0] if words else ""
        if backing not in wanted:
            continue
        field = backing.replace("hierarchical_", "") + "_bytes"
        for word in words[1:]:
            name, _, value = word.partition("=")
            if name[:1] == "N" and value.isdigit():
                found.setdefault(name[1:], {})[field] = int(value) * unit
    return found or None


def _pairs(name: str) -> Dict[str, int]:
    found = {}
    for line in _text(name).splitlines():
        words = line.split()
        if len(words) == 2 and words[1].isdigit():
            found[words[0]] = int(words[1])
    return found


def _number(name: str) -> Optional[int]:
    text = _text(name).strip()
    return int(text) if text.isdigit() else None


def _text(name: str) -> str:
    try:
        return sysroot.text(name)
    except OSError:
        return ""
