"""Shapes of ``pagecache.files``, ``pagecache.drop``."""

from __future__ import annotations

from typing import Literal

from typing_extensions import TypedDict


class CachedFile(TypedDict):
    """One file (or block device) and its pages in memory.

    ``raw``: the path's bytes as hex where it is not UTF-8 or has control characters, else
    ``None``; ``hex:…`` is a path for ``pagecache.files`` and ``pagecache.drop``. ``None``
    figures are not known: this user may not ask (``problem`` says so), or the kernel cannot
    tell. ``resident_bytes`` counts whole pages, so it may pass ``size_bytes`` by less than a
    page. ``by_numa_node`` adds up to ``resident_bytes``. ``mapped_elsewhere``: the kernel
    counts more mappings of its pages than this scan's own (also by processes that cannot be
    seen here).
    ``sources``: mapping open path model block walk.
    """

    path: str
    raw: str | None
    device: str
    inode: int
    filesystem: str | None
    kind: Literal["file", "block"]
    size_bytes: int
    resident_bytes: int | None
    by_numa_node: dict[str, int] | None
    dirty_bytes: int | None
    writeback_bytes: int | None
    mapped_by: list[int]
    open_by: list[int]
    mapped_elsewhere: bool | None
    deleted: bool
    sources: list[str]
    problem: str | None


class NodeCoverage(TypedDict):
    """How much of one NUMA node's file pages the files explain; ``percent`` 0-100."""

    file_bytes: int
    found_bytes: int
    percent: float | None


class CacheCoverage(TypedDict):
    """Found over what the kernel counts as file pages (without shmem and swap cache)."""

    file_bytes: int
    found_bytes: int
    percent: float | None
    by_numa_node: dict[str, NodeCoverage]


class SmallFiles(TypedDict):
    """Files with rows of their own left out: below ``least_bytes``, or past ``largest`` rows."""

    files: int
    resident_bytes: int


class PathProblem(TypedDict):
    """A path that gave no row, and why."""

    path: str
    problem: str


class PageCacheFiles(TypedDict):
    """Reading of ``pagecache.files``, largest residency first.

    ``small`` counts those without a row; ``unlisted`` are the files of *paths* among them: there
    were more than ``largest`` with pages in memory. ``looked`` files were measured, ``unknown``
    of them may not be known to this user.
    ``complete`` is false where a limit ended the search: ``stopped`` says which.
    """

    page_size_bytes: int
    files: list[CachedFile]
    small: SmallFiles
    unlisted: SmallFiles
    looked: int
    unknown: int
    coverage: CacheCoverage
    complete: bool
    stopped: str | None
    problems: list[PathProblem]


class DroppedFile(TypedDict):
    """What became of one file.

    ``result``: dropped or migrated (all of it), partial (``residue`` says what stays and
    why), spared and refused (``why``), absent (no pages were there), failed (``why``).
    ``before`` and ``after``: bytes by NUMA node, ``None`` where the kernel cannot tell.
    """

    path: str
    raw: str | None
    device: str | None
    inode: int | None
    size_bytes: int | None
    result: Literal[
        "dropped", "migrated", "partial", "spared", "refused", "absent", "failed", "planned"
    ]
    why: str | None
    mapped_by: list[int]
    before_bytes: int | None
    after_bytes: int | None
    before: dict[str, int] | None
    after: dict[str, int] | None
    dirty_bytes: int | None
    residue: str | None
    rounds: int
    seconds: float


class NodeDelta(TypedDict):
    """One NUMA node before and after; gains are after minus before and may be negative."""

    id: int
    kind: Literal["cpu", "gpu", "memory"]
    total_bytes: int
    file_before_bytes: int
    file_after_bytes: int
    free_before_bytes: int
    free_after_bytes: int
    percpu_before_bytes: int | None
    percpu_after_bytes: int | None
    files_freed_bytes: int


class PageCacheDrop(TypedDict):
    """Reading of ``pagecache.drop``.

    ``freed_bytes`` left memory, ``moved_bytes`` went to ``target_node``, ``spared_bytes``
    stay because the call spares mapped or dirty files; all by residency of the files.
    ``files_freed_bytes`` of a node is what these files no longer have on it.
    """

    mode: Literal["auto", "migrate", "drop"]
    target_node: int | None
    files: list[DroppedFile]
    nodes: list[NodeDelta]
    freed_bytes: int
    moved_bytes: int
    spared_bytes: int
    problems: list[PathProblem]
    seconds: float
