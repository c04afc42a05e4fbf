"""One file's pages given back, in a child that may hang or die with the file (``apart``)."""

from __future__ import annotations

import os
import time

from fleetmem.agent.page_cache import pages
from fleetmem.agent.page_cache import scan as cache_scan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, List, Optional, Tuple

    from typing_extensions import TypedDict

    Key = Tuple[int, int, int]

    class Wish(TypedDict):
        """What the call wants. ``rooms``: pages that fit on each possible target."""

        mode: str
        dry_run: bool
        spare_mapped: bool
        spare_dirty: bool
        sources: frozenset[int]
        single: Optional[int]
        rooms: Dict[int, int]
        mapped: Dict[Key, List[int]]
        only: Dict[bytes, Key]

    class File(TypedDict):
        """What became of the file; counts are pages, by node."""

        key: Optional[Key]
        size: Optional[int]
        result: Any
        why: Optional[str]
        mapped_by: List[int]
        before: Optional[Dict[int, int]]
        after: Optional[Dict[int, int]]
        dirty: Optional[int]
        residue: Optional[str]
        rounds: int
        seconds: float


MOST_ROUNDS = 5
MOVES = 2
REPLACED = "another file has its name by now"
UNSEEN = "a process that cannot be seen from here maps it"


def blank(result: str, why: Optional[str]) -> File:
    """A row without figures."""
    return {
        "key": None,
        "size": None,
        "result": result,
        "why": why,
        "mapped_by": [],
        "before": None,
        "after": None,
        "dirty": None,
        "residue": None,
        "rounds": 0,
        "seconds": 0.0,
    }


def one(path: bytes, wish: Wish) -> Iterator[Optional[File]]:
    """Signs of life, then what became of the file."""
    began = time.monotonic()
    row = blank("failed", None)
    try:
        fd, found = cache_scan.open_file(path)
    except cache_scan.NotCached as trouble:
        row["result"], row["why"] = "refused", str(trouble)
        if path in wish["only"]:
            row["result"], row["why"] = "spared", REPLACED
        yield row
        return
    except OSError as error:
        row["why"] = error.strerror
        if path in wish["only"] and isinstance(error, (FileNotFoundError, NotADirectoryError)):
            row["result"], row["why"] = "absent", "it was deleted meanwhile"
        yield row
        return
    try:
        fd, found = cache_scan.layered(fd, found, path)
        row["key"] = cache_scan.key_of(found)
        row["size"] = cache_scan.file_size(fd, found)
        row["result"], row["why"] = "refused", _refusal(fd, found)
        if wish["only"].get(path, row["key"]) != row["key"]:
            row["result"], row["why"] = "spared", REPLACED
        if row["why"] is None:
            for _ in _give_back(fd, row, wish):
                yield None
    except OSError as error:
        row["result"], row["why"] = "failed", error.strerror
    finally:
        os.close(fd)
    row["seconds"] = time.monotonic() - began
    yield row


def _refusal(fd: int, found: os.stat_result) -> Optional[str]:
    kind = pages.filesystem(fd)
    if kind in pages.SHMEM:
        return "%s: its pages are the only copy" % pages.SHMEM[kind]
    if not cache_scan.may_know(fd, found):
        return "only root, its owner or a user who can write it can evict its pages"
    return None


def _give_back(fd: int, row: File, wish: Wish) -> Iterator[None]:
    size = row["size"] or 0
    key = row["key"]
    assert key is not None
    counts: Dict[int, int] = {}
    elsewhere = False
    for window in pages.windows(fd, size):
        elsewhere = _count(window, counts, wish) or elsewhere
        yield None
    row["before"] = row["after"] = counts
    state = pages.cachestat(fd, size)
    row["dirty"] = None if state is None else state[1] + state[2]
    row["mapped_by"] = sorted(wish["mapped"].get(key, ()))
    there = sum(counts.values())
    sources = wish["sources"]
    if not there or (sources and not any(counts.get(node) for node in sources)):
        row["result"] = "absent"
        row["why"] = None if not there else "it has no pages on the nodes in question"
        return
    mapped = bool(row["mapped_by"]) or elsewhere
    if mapped and wish["spare_mapped"]:
        row["result"] = "spared"
        row["why"] = (
            "mapped by %s" % ", ".join(map(str, row["mapped_by"][:8]))
            if row["mapped_by"]
            else UNSEEN
        )
        return
    if row["dirty"] and wish["spare_dirty"]:
        row["result"], row["why"] = "spared", "it has pages not yet written to disk"
        return
    target = _target(counts, wish)
    if wish["mode"] == "migrate" and target is None:
        row["result"] = "refused"
        row["why"] = _no_target(counts, wish)
        return
    if wish["dry_run"]:
        row["result"] = "planned"
        row["why"] = "drop" if target is None else "migrate to node %d" % target
        return
    if target is None:
        for _ in _drop(fd, row, wish, mapped):
            yield None
        return
    for _ in _migrate(fd, row, wish, target):
        yield None


def _count(window: pages.Window, counts: Dict[int, int], wish: Wish) -> bool:
    """Add a window's pages by node; whether others map some of them."""
    if b"\1" not in window.states:
        return False
    if wish["single"] is not None:
        node = wish["single"]
        counts[node] = counts.get(node, 0) + window.states.count(b"\1")
    window.touch()
    found, shared = window.nodes()
    if wish["single"] is None:
        for node, count in found.items():
            counts[node] = counts.get(node, 0) + count
    return shared


def _target(counts: Dict[int, int], wish: Wish) -> Optional[int]:
    """The node to migrate to: one that has room for the pages that are not there yet."""
    if wish["mode"] == "drop":
        return None
    there = sum(counts.values())
    for node, room in wish["rooms"].items():
        missing = there - counts.get(node, 0)
        if 0 < missing <= room:
            wish["rooms"][node] = room - missing
            return node
    return None


def _no_target(counts: Dict[int, int], wish: Wish) -> str:
    if not wish["rooms"]:
        return "there is no other node with CPUs to move it to"
    if any(counts.get(node) == sum(counts.values()) for node in wish["rooms"]):
        return "its pages lie on a node with CPUs already"
    most = max(wish["rooms"].values()) * pages.PAGE >> 20
    return "it does not fit: %d MiB of room on the node with CPUs" % most


def _migrate(fd: int, row: File, wish: Wish, target: int) -> Iterator[None]:
    size = row["size"] or 0
    counts: Dict[int, int] = {}
    for _ in range(MOVES):
        row["rounds"] += 1
        counts = {}
        for window in pages.windows(fd, size):
            if b"\1" in window.states:
                window.touch()
                window.move(target)
                _count(window, counts, wish)
            yield None
        row["after"] = counts
        if all(node == target or not count for node, count in counts.items()):
            row["result"] = "migrated"
            return
    left = sum(count for node, count in counts.items() if node != target)
    row["result"] = "partial"
    row["residue"] = "%d KiB cannot be moved: mapped elsewhere, locked or pinned" % (
        left * pages.PAGE >> 10
    )


def _drop(fd: int, row: File, wish: Wish, mapped: bool) -> Iterator[None]:
    """fdatasync, DONTNEED, look; again only while pages wait to be written."""
    size = row["size"] or 0
    left = waiting = 0
    for _ in range(MOST_ROUNDS):
        row["rounds"] += 1
        try:
            os.fdatasync(fd)
        except OSError as error:
            if row["dirty"]:
                row["result"], row["why"] = "failed", "fdatasync: %s" % error.strerror
                return
        yield None
        os.posix_fadvise(fd, 0, 0, pages.DONTNEED)
        yield None
        state = pages.cachestat(fd, size)
        left, waiting = (0, 0) if state is None else (state[0], state[1] + state[2])
        if not left:
            left = sum(window.states.count(b"\1") for window in pages.windows(fd, size))
        if not left or not waiting:
            break
    counts: Dict[int, int] = {}
    shared = mapped
    if left:
        for window in pages.windows(fd, size):
            shared = _count(window, counts, wish) or shared
            yield None
    row["after"] = counts
    row["result"] = "partial" if left else "dropped"
    if left:
        row["residue"] = "%d KiB stay: %s" % (
            left * pages.PAGE >> 10,
            "written again and again"
            if waiting
            else "mapped"
            if shared
            else "locked, pinned, or part of a large page in use",
        )
