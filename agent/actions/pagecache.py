"""``pagecache.drop``: give back the memory of cached files, file by file, and prove it.

Migration moves the pages to a node with CPUs and destroys nothing; a drop makes the next
reader fetch them from disk. Never drop_caches, never a file that the call spares. What is
verified is each file's residency, not MemFree: freed pages lie on per-CPU lists for a while.
"""

from __future__ import annotations

import time

from fleetmem.agent import isolate as apart
from fleetmem.agent import ledger, trail
from fleetmem.agent.actions import pagecache_file
from fleetmem.agent.declare import action
from fleetmem.agent.kernel import maps as mappings
from fleetmem.agent.model import FAILED, PARTIAL, Trouble
from fleetmem.agent.page_cache import pages
from fleetmem.agent.page_cache import paths as cache_paths
from fleetmem.agent.page_cache import scan as cache_scan
from fleetmem.agent.probes import numa

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, List, Optional, Set, Tuple

    from fleetmem.agent.actions.pagecache_file import File, Wish
    from fleetmem.agent.shapes import DroppedFile, NodeDelta, NumaNode, PageCacheDrop, PathProblem

MODES = ("auto", "migrate", "drop")
ITEM_SECONDS = 60.0
"""Without a sign of life: a gigabyte is synced, or moved, well within this."""


def plan(paths: Tuple[str, ...] = (), mode: str = "auto") -> List[str]:
    """What :func:`drop` would do, one line a path."""
    return ["%s the cached pages of %s" % (mode, path) for path in paths]


@action(
    "pagecache.drop",
    plan=plan,
    reversible=True,
    blast_radius="the next read of a dropped file comes from disk; a migrated one stays cached",
)
def drop(
    *,
    paths: Tuple[str, ...] = (),
    keys: Tuple[str, ...] = (),
    mode: str = "auto",
    spare_mapped: int = 1,
    spare_dirty: int = 1,
    nodes: Tuple[int, ...] = (),
    dry_run: int = 0,
    operation: str = "",
    epoch: int = -1,
    boot_id: str = "",
    desk: str = "",
    reason: str = "",
    seconds: float = 240.0,
) -> PageCacheDrop:
    """Give back the page cache of *paths* (files, directories, patterns).

    *keys* (``MAJOR:MINOR:INODE``, one a path) say which files are meant: paths are then names
    of files only, and one that has another file by now is spared. *mode*: migrate to a node
    with CPUs where it fits, drop, or auto (migrate where the file fits, else drop). *nodes*:
    leave files alone that have no pages there. Files that a process maps (*spare_mapped*) or
    that have unwritten pages (*spare_dirty*) are spared. *dry_run* changes nothing and reports
    what would be done. *boot_id* and *epoch* (-1: any) are the plan's: Trouble ``stale_plan``
    where the host's are others.
    """
    began = time.monotonic()
    pages.load()
    _check(mode, boot_id, epoch)
    problems: List[PathProblem] = []
    silent = apart.stuck()
    deadline = began + seconds
    only = _only(paths, keys)
    files = list(only) if keys else _expand(paths, problems, silent, deadline)
    before = _nodes(deadline)
    if files and not dry_run:
        message = "pagecache %s of %d files, first %s, operation %s"
        trail.trail(
            {
                "message": message % (mode, len(files), cache_paths.show(files[0])[0], operation),
                "action": "pagecache.drop",
                "operation": operation,
                "epoch": epoch,
                "mode": mode,
                "files": len(files),
                "desk": desk,
                "reason": reason,
            }
        )
    uses, _, _ = mappings.in_use(fds=False)
    sources = frozenset(nodes)
    wish: Wish = {
        "mode": mode,
        "dry_run": bool(dry_run),
        "spare_mapped": bool(spare_mapped),
        "spare_dirty": bool(spare_dirty),
        "sources": sources,
        "single": before[0]["id"] if len(before) == 1 else None,
        "rooms": _rooms(before, sources) if len(before) > 1 else {},
        "mapped": {key: use.mapped_by for key, use in uses.items() if use.mapped_by},
        "only": only,
    }
    rows = _act(files, wish, silent, deadline, problems)
    after = before if dry_run else _nodes(deadline)
    reading = _reading(mode, wish, rows, before, after, problems)
    reading["seconds"] = round(time.monotonic() - began, 3)
    bad = [row for row in rows if row["result"] in ("partial", "refused", "failed")]
    if bad or problems:
        first = bad[0]["why"] or bad[0]["residue"] if bad else problems[0]["problem"]
        count = len(bad) + len(problems)
        raise Trouble(PARTIAL, "%d of the files stay as they were: %s" % (count, first), reading)
    return reading


def _check(mode: str, boot_id: str, epoch: int) -> None:
    if mode not in MODES:
        raise Trouble(FAILED, "mode is auto, migrate or drop")
    if boot_id:
        from fleetmem.agent.actions.signal import read_boot_id

        if boot_id != read_boot_id():
            raise Trouble(
                FAILED, "the host was rebooted since the plan was made", code="stale_plan"
            )
    if epoch >= 0 and epoch != ledger.read_epoch():
        raise Trouble(FAILED, "another run took the host's lock in between", code="stale_plan")


def _key(table: cache_paths.Mounts) -> Any:
    return lambda path: table.of(path).device


def _only(paths: Tuple[str, ...], keys: Tuple[str, ...]) -> Dict[bytes, Tuple[int, int, int]]:
    """The files that are meant, by name; Trouble where *keys* do not fit *paths*."""
    if keys and len(keys) != len(paths):
        raise Trouble(FAILED, "%d keys for %d paths" % (len(keys), len(paths)))
    found = {}
    for path, key in zip(paths, keys):  # noqa: B905  strict= came with 3.10
        try:
            major, minor, inode = map(int, key.split(":"))
            found[cache_paths.decode(path)] = (major, minor, inode)
        except ValueError as error:
            raise Trouble(FAILED, "%s %s: %s" % (path, key, error)) from None
    return found


def _expand(
    paths: Tuple[str, ...], problems: List[PathProblem], silent: Set[str], deadline: float
) -> List[bytes]:
    """The files that *paths* name, each once."""
    found: Dict[Tuple[int, int, int], bytes] = {}
    table = cache_paths.mounts()
    places: List[bytes] = []
    for path in paths:
        try:
            places.append(cache_paths.decode(path))
        except ValueError as error:
            problems.append({"path": path, "problem": str(error)})

    answers = apart.run(places, cache_scan.named, _key(table), ITEM_SECONDS, deadline, silent)
    for at, value, problem in answers:
        if problem is not None:
            problems.append({"path": cache_paths.show(places[at])[0], "problem": problem})
        for row in value or ():
            if row[1] != (0, 0, 0):
                found.setdefault(row[1], row[0])
            elif row[7]:
                problems.append({"path": cache_paths.show(row[0])[0], "problem": row[7]})
    return list(found.values())


def _act(
    files: List[bytes],
    wish: Wish,
    silent: Set[str],
    deadline: float,
    problems: List[PathProblem],
) -> List[DroppedFile]:
    rows: List[DroppedFile] = []
    table = cache_paths.mounts()

    def work(path: bytes) -> Iterator[Optional[File]]:
        return pagecache_file.one(path, wish)

    for at, value, problem in apart.run(files, work, _key(table), ITEM_SECONDS, deadline, silent):
        if problem == apart.STOPPED:
            for path in files[at:]:
                problems.append({"path": cache_paths.show(path)[0], "problem": problem})
            break
        rows.append(_row(files[at], value, problem))
    return rows


def _row(path: bytes, found: Optional[File], problem: Optional[str]) -> DroppedFile:
    text, raw = cache_paths.show(path)
    if found is None:
        found = pagecache_file.blank("failed", problem)
    before, after = _by_node(found["before"]), _by_node(found["after"])
    return {
        "path": text,
        "raw": raw,
        "device": None if found["key"] is None else "%d:%d" % tuple(found["key"][:2]),
        "inode": None if found["key"] is None else found["key"][2],
        "size_bytes": found["size"],
        "result": found["result"],
        "why": found["why"],
        "mapped_by": found["mapped_by"],
        "before_bytes": None if before is None else sum(before.values()),
        "after_bytes": None if after is None else sum(after.values()),
        "before": before,
        "after": after,
        "dirty_bytes": None if found["dirty"] is None else found["dirty"] * pages.PAGE,
        "residue": found["residue"],
        "rounds": found["rounds"],
        "seconds": round(found["seconds"], 3),
    }


def _by_node(counts: Optional[Dict[int, int]]) -> Optional[Dict[str, int]]:
    if counts is None:
        return None
    return {str(node): count * pages.PAGE for node, count in sorted(counts.items()) if count}


def _settle(_: bytes) -> Iterator[object]:
    """Sum up the kernel's per-CPU counters; only root may."""
    try:
        with open("/proc/sys/vm/stat_refresh", "wb") as file:
            file.write(b"1")
    except OSError:
        pass
    yield None


def _nodes(deadline: float) -> List[NumaNode]:
    for _ in apart.run([b""], _settle, lambda _: "settle", 3.0, deadline, set()):
        pass
    return numa.numa_nodes(vmalloc=False)["nodes"]


def _rooms(rows: List[NumaNode], sources: frozenset[int]) -> Dict[int, int]:
    """Pages that fit on each node with CPUs, nearest to the sources first."""
    far = {row["id"]: row["distances"] for row in rows}
    from_ = sorted(sources) or [row["id"] for row in rows if row["kind"] != "cpu"]

    def distance(node: int) -> int:
        return sum(far[one][node] for one in from_ if one in far and node < len(far[one]))

    fits = [(node, room) for node, room in numa.cpu_nodes(rows) if node not in sources]
    fits.sort(key=lambda pair: (distance(pair[0]), -pair[1]))
    return {node: max(0, room) // pages.PAGE for node, room in fits}


def _reading(
    mode: Any,
    wish: Wish,
    rows: List[DroppedFile],
    before: List[NumaNode],
    after: List[NumaNode],
    problems: List[PathProblem],
) -> PageCacheDrop:
    later = {row["id"]: row for row in after}
    freed = moved = spared = 0
    by_node: Dict[int, int] = {row["id"]: 0 for row in before}
    for row in rows:
        if row["result"] == "spared":
            spared += row["before_bytes"] or 0
        if row["before"] is None or row["after"] is None or row["result"] == "planned":
            continue
        freed += max(0, (row["before_bytes"] or 0) - (row["after_bytes"] or 0))
        for node in by_node:
            gone = row["before"].get(str(node), 0) - row["after"].get(str(node), 0)
            by_node[node] += gone
            if gone < 0:
                moved -= gone
    deltas: List[NodeDelta] = []
    for row_ in before:
        then = later.get(row_["id"], row_)
        deltas.append(
            {
                "id": row_["id"],
                "kind": row_["kind"],
                "total_bytes": row_["total_bytes"],
                "file_before_bytes": row_["file_bytes"],
                "file_after_bytes": then["file_bytes"],
                "free_before_bytes": row_["free_bytes"],
                "free_after_bytes": then["free_bytes"],
                "percpu_before_bytes": row_["percpu_bytes"],
                "percpu_after_bytes": then["percpu_bytes"],
                "files_freed_bytes": by_node[row_["id"]],
            }
        )
    return {
        "mode": mode,
        "target_node": next(iter(wish["rooms"]), None) if mode != "drop" else None,
        "files": rows,
        "nodes": deltas,
        "freed_bytes": freed,
        "moved_bytes": moved,
        "spared_bytes": spared,
        "problems": problems,
        "seconds": 0.0,
    }
