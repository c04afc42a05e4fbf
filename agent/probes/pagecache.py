"""``pagecache.files``: whose pages the page cache is, by file and NUMA node, with coverage."""

from __future__ import annotations

import os
import time

from fleetmem.agent import isolate as apart
from fleetmem.agent.declare import probe
from fleetmem.agent.kernel import maps as mappings
from fleetmem.agent.model import FAILED, PARTIAL, Trouble
from fleetmem.agent.page_cache import pages
from fleetmem.agent.page_cache import paths as cache_paths
from fleetmem.agent.page_cache import scan as cache_scan
from fleetmem.agent.probes import numa

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Dict, List, Optional, Set, Tuple

    from fleetmem.agent.page_cache.scan import Item, Key, Measure
    from fleetmem.agent.shapes import CacheCoverage, CachedFile, PageCacheFiles, PathProblem

ITEM_SECONDS = 8.0
ENOUGH_PERCENT = 95.0
WORTH_BYTES = 64 << 20
"""A NUMA node with fewer file pages is not searched for."""
NOT_FILES = (b"/memfd:", b"/SYSV", b"/dev/zero", b"/dev/shm/", b"/anon_hugepage", b"/i915")
MOST_PROBLEMS = 100
MOST_FILES = 50_000
"""So many are kept apart, the largest; at most twice as many are known at a time (some 110 MB)."""


class Found:
    """One file as far as it is known: the measure, where it came from, its pages by node."""

    __slots__ = ("elsewhere", "measure", "nodes", "opener", "problem", "sources", "use")

    def __init__(self, measure: Measure, opener: bytes) -> None:
        self.measure = measure
        self.opener = opener
        self.sources: Set[str] = set()
        self.use: Optional[mappings.Use] = None
        self.nodes: Optional[Dict[int, int]] = None
        self.elsewhere: Optional[bool] = None
        self.problem: Optional[str] = measure[7]

    @property
    def resident(self) -> Optional[int]:
        """Bytes in the page cache, ``None`` where that is not known."""
        if self.nodes is not None:
            return sum(self.nodes.values()) * pages.PAGE
        return None if self.measure[4] is None else self.measure[4] * pages.PAGE


class Rest:
    """Files that are counted and no longer kept apart. ``named`` of them are of *paths*."""

    __slots__ = ("files", "named", "named_pages", "pages", "unknown")

    def __init__(self) -> None:
        self.files = self.pages = self.named = self.named_pages = self.unknown = 0

    def take(self, found: Found) -> None:
        """Count one file."""
        resident = found.resident
        if resident is None:
            self.unknown += 1
            return
        count = resident // pages.PAGE
        self.files += 1
        self.pages += count
        if count and "path" in found.sources:
            self.named += 1
            self.named_pages += count


class Scan:
    """What one call has found so far."""

    def __init__(self, seconds: float) -> None:
        self.deadline = time.monotonic() + seconds
        self.mounts = cache_paths.mounts()
        self.files: Dict[Key, Found] = {}
        self.rest = Rest()
        self.problems: List[PathProblem] = []
        self.stopped: Optional[str] = None
        self.denied = 0
        remote = any(row.remote for row in self.mounts.rows)
        self.silent: Set[str] = apart.stuck() if remote else set()

    def run(self, items: List[Item], hear: Callable[[Item, object, Optional[str]], None]) -> None:
        """Do *items* in a child; *hear* gets what it says."""
        for at, value, problem in apart.run(
            items, cache_scan.work, self._key, ITEM_SECONDS, self.deadline, self.silent
        ):
            if problem == apart.STOPPED:
                self.stopped = problem
                return
            hear(items[at], value, problem)

    def _key(self, item: Item) -> str:
        return self.mounts.of(item[1]).device

    def trouble(self, path: bytes, problem: str) -> None:
        """Note a path that gave no row."""
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append({"path": cache_paths.show(path)[0], "problem": problem})

    def measure(self, items: List[Item], source: str, aloud: bool) -> None:
        """Measure files and trees; *aloud*: say so where one cannot be."""

        def hear(item: Item, value: object, problem: Optional[str]) -> None:
            if problem is not None and (aloud or problem == apart.SILENT):
                self.trouble(item[1], problem)
            if len(self.files) > 2 * MOST_FILES:
                self.prune()
            for row in value or ():  # type: ignore[attr-defined]
                if row[7] is None or row[7] == cache_scan.NOT_ALLOWED:
                    self.add(row, item[1] if item[0] == "file" else row[0]).sources.add(source)
                elif aloud:
                    self.trouble(row[0], row[7])

        self.run(items, hear)

    def add(self, row: Measure, opener: bytes) -> Found:
        """The file of a measure, new or known."""
        found = self.files.get(row[1])
        if found is None:
            found = self.files[row[1]] = Found(row, opener)
        elif found.measure[0].startswith(b"/proc/") or found.measure[8]:
            found.measure = (row[0], *found.measure[1:8], row[8])
        return found

    def prune(self) -> None:
        """Keep the largest files, count the others: memory does not grow with a tree."""
        order = sorted(self.files, key=lambda key: self.files[key].resident or 0)
        for key in order[:-MOST_FILES]:
            self.rest.take(self.files.pop(key))

    def in_use(self) -> None:
        """Measure what processes map or have open."""
        uses, self.denied, _ = mappings.in_use()
        root = os.geteuid() == 0
        shared = {row.device for row in self.mounts.rows if row.kind in ("tmpfs", "devtmpfs")}
        by_item: Dict[bytes, mappings.Use] = {}
        for key, use in uses.items():
            if use.path.startswith(NOT_FILES) or "%d:%d" % key[:2] in shared:
                continue
            path = use.path if not root and use.mapped_by else use.place
            by_item[mappings.plain(path) if path is use.path else path] = use
        failed: List[Item] = []

        def hear(item: Item, value: object, problem: Optional[str]) -> None:
            use = by_item[item[1]]
            if problem == apart.SILENT:
                self.trouble(mappings.plain(use.path), problem)
            for row in value or ():  # type: ignore[attr-defined]
                if row[7] is not None and row[7] != cache_scan.NOT_ALLOWED:
                    name = mappings.plain(use.path)
                    if item[1] != name and not mappings.is_deleted(use.path):
                        by_item[name] = use
                        failed.append(("file", name, 0))
                    continue
                found = self.add(row, item[1])
                found.use = use if found.use is None else mappings.joined(found.use, use)
                found.sources.update(("mapping",) if use.mapped_by else ())
                found.sources.update(("open",) if use.open_by else ())

        self.run([("file", path, 0) for path in by_item], hear)
        if failed and self.stopped is None:
            self.run(list(failed), hear)

    def count(self, least_bytes: int, nodes: List[int]) -> None:
        """Pages by node of all files of at least *least_bytes*, and of the named ones."""
        if len(nodes) == 1:
            for found in self.files.values():
                if found.measure[4] is not None:
                    found.nodes = {nodes[0]: found.measure[4]}
            return
        wanted = [
            (found.resident or 0, key)
            for key, found in self.files.items()
            if found.nodes is None
            and found.resident
            and (found.resident >= least_bytes or "path" in found.sources)
        ]
        keys = {self.files[key].opener: key for _, key in sorted(wanted, reverse=True)}
        again: List[Item] = []

        def name(found: Found) -> bytes:
            return found.measure[0]

        def hear(item: Item, value: object, problem: Optional[str]) -> None:
            key = keys[item[1]]
            found = self.files[key]
            if problem == apart.SHRANK and found.problem != problem:
                again.append(item)
            if problem is None and value is not None:
                counted: Tuple[List[Tuple[int, int]], Optional[bool], Optional[str]] = value  # type: ignore[assignment]
                found.elsewhere, problem = counted[1:]
                if problem is None:
                    found.nodes = dict(counted[0])
            if problem is not None and item[1].startswith(b"/proc/") and item[1] != name(found):
                keys[name(found)] = key  # the process is gone: by its own name then
                again.append(("nodes", name(found), 0))
            if problem is not None or found.nodes is not None:
                found.problem = problem

        self.run([("nodes", opener, 0) for opener in keys], hear)
        if again:
            self.run(list(again), hear)

    def coverage(self) -> CacheCoverage:
        """Found over what the kernel counts, now."""
        table = numa.file_bytes()
        by_node = dict.fromkeys(table, 0)
        total = self.rest.pages * pages.PAGE
        if len(by_node) == 1:
            by_node = dict.fromkeys(by_node, total)
        for found in self.files.values():
            total += found.resident or 0
            for node, count in (found.nodes or {}).items():
                by_node[node] = by_node.get(node, 0) + count * pages.PAGE
        whole = sum(row[0] for row in table.values())
        return {
            "file_bytes": whole,
            "found_bytes": total,
            "percent": _percent(total, whole),
            "by_numa_node": {
                str(number): {
                    "file_bytes": row[0],
                    "found_bytes": by_node[number],
                    "percent": _percent(by_node[number], row[0]),
                }
                for number, row in table.items()
            },
        }

    def wants_walk(self, coverage: CacheCoverage) -> bool:
        """Whether file pages on a node without CPUs are still without a name."""
        for number, (size, cpus) in numa.file_bytes().items():
            row = coverage["by_numa_node"].get(str(number))
            low = row is None or (row["percent"] or 0.0) < ENOUGH_PERCENT
            if not cpus and size >= WORTH_BYTES and low:
                return True
        return False


def _percent(part: int, whole: int) -> Optional[float]:
    return round(100.0 * part / whole, 2) if whole > 0 else None


@probe("pagecache.files")
def pagecache_files(
    *,
    paths: Tuple[str, ...] = (),
    discover: int = 1,
    walk: str = "auto",
    largest: int = 200,
    least_bytes: int = 1 << 20,
    seconds: float = 30.0,
) -> PageCacheFiles:
    """Files in the page cache: bytes by NUMA node, dirty bytes, and who maps them.

    *paths* are files, directories and patterns, always searched. *discover* 1 adds what
    processes map or have open, model directories and block devices. *walk* searches local
    file systems for files of at least *least_bytes*: never, always, or auto (where a node
    without CPUs has file pages that nothing else explains). Nothing is read from disk.
    """
    pages.load()
    if walk not in ("never", "always", "auto"):
        raise Trouble(FAILED, "walk is never, always or auto")
    scan = Scan(seconds)
    named: List[Item] = []
    for path in paths:
        try:
            named.append(("named", cache_paths.decode(path), 0))
        except ValueError as error:
            scan.problems.append({"path": path, "problem": str(error)})
    nodes = sorted(numa.file_bytes())
    scan.measure(named, "path", True)
    if discover and scan.stopped is None:
        scan.in_use()
        places = cache_paths.model_places()
        scan.measure([("tree", place, least_bytes) for place in places], "model", False)
        if os.geteuid() == 0:
            blocks = cache_paths.block_devices(scan.mounts)
            scan.measure([("file", place, 0) for place in blocks], "block", False)
    if scan.stopped is None:
        scan.count(least_bytes, nodes)
    coverage = scan.coverage()
    if scan.stopped is None and (
        walk == "always" or (walk == "auto" and scan.wants_walk(coverage))
    ):
        points = [r.point for r in scan.mounts.by_device.values() if r.kind in cache_paths.LOCAL]
        scan.measure([("tree", point, least_bytes) for point in points], "walk", False)
        scan.count(least_bytes, nodes)
        coverage = scan.coverage()
    return _reading(scan, coverage, largest, least_bytes)


def _reading(scan: Scan, coverage: CacheCoverage, largest: int, least_bytes: int) -> PageCacheFiles:
    rest = scan.rest
    unknown = rest.unknown + sum(1 for found in scan.files.values() if found.resident is None)
    order = sorted(
        scan.files.items(), key=lambda pair: (-(pair[1].resident or 0), pair[1].measure[0])
    )
    rows: List[CachedFile] = []
    small_files, small_bytes = rest.files, rest.pages * pages.PAGE
    more_files, more_bytes = rest.named, rest.named_pages * pages.PAGE
    for key, found in order:
        resident = found.resident
        named = "path" in found.sources
        worth = named or (found.measure[3] if resident is None else resident) >= least_bytes
        if worth and len(rows) < largest:
            rows.append(_row(scan, key, found))
        elif resident:
            small_files += 1
            small_bytes += resident
            if named:
                more_files += 1
                more_bytes += resident
    reading: PageCacheFiles = {
        "page_size_bytes": pages.PAGE,
        "files": rows,
        "small": {"files": small_files, "resident_bytes": small_bytes},
        "unlisted": {"files": more_files, "resident_bytes": more_bytes},
        "looked": len(scan.files) + rest.files + rest.unknown,
        "unknown": unknown,
        "coverage": coverage,
        "complete": scan.stopped is None,
        "stopped": scan.stopped,
        "problems": scan.problems,
    }
    why = []
    if unknown or scan.denied:
        from fleetmem.agent.words import count, reader

        hidden = ((unknown, "file"), (scan.denied, "process"))
        what = " and ".join(count(number, word) for number, word in hidden if number)
        why.append("%s could not be determined %s" % (what, reader("to")))
    if scan.stopped:
        why.append(scan.stopped)
    if any(row["problem"] == apart.SILENT for row in scan.problems):
        why.append("a file system does not answer")
    if why:
        raise Trouble(PARTIAL, "; ".join(why), reading)
    return reading


def _row(scan: Scan, key: Key, found: Found) -> CachedFile:
    path, _, block, size, _, dirty, writeback, _, deleted = found.measure
    use = found.use
    text, raw = cache_paths.show(mappings.plain(path) if deleted else path)
    device = "%d:%d" % key[:2]
    mount = scan.mounts.by_device.get(device)
    nodes = found.nodes
    if nodes is not None:
        nodes = {node: count for node, count in nodes.items() if count}
    return {
        "path": text,
        "raw": raw,
        "device": device,
        "inode": key[2],
        "filesystem": mount.kind if mount else None,
        "kind": "block" if block else "file",
        "size_bytes": size,
        "resident_bytes": found.resident,
        "by_numa_node": None
        if nodes is None
        else {str(node): count * pages.PAGE for node, count in sorted(nodes.items())},
        "dirty_bytes": None if dirty is None else dirty * pages.PAGE,
        "writeback_bytes": None if writeback is None else writeback * pages.PAGE,
        "mapped_by": sorted(use.mapped_by) if use else [],
        "open_by": sorted(use.open_by) if use else [],
        "mapped_elsewhere": found.elsewhere,
        "deleted": deleted,
        "sources": sorted(found.sources),
        "problem": found.problem,
    }
