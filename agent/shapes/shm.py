"""Shapes of ``shm.segments``."""

from __future__ import annotations

from typing import Literal

from typing_extensions import TypedDict

from fleetmem.agent.shapes.pagecache import PathProblem


class ShmSegment(TypedDict):
    """One shared memory object.

    ``kind``: posix (a file on tmpfs), sysv, memfd (no name, known by who has it open).
    ``owner_state``: live (somebody maps it, has it open or made it and lives), dead (nobody
    does, as far as can be seen), ``None`` where not all processes could be looked at.
    ``namespace``: inode of the mount (posix) or ipc (sysv) namespace it was found in.
    """

    kind: Literal["posix", "sysv", "memfd"]
    path: str | None
    raw: str | None
    key: int | None
    shmid: int | None
    device: str | None
    inode: int
    size_bytes: int
    resident_bytes: int | None
    swap_bytes: int | None
    uid: int
    user: str | None
    creator_pid: int | None
    attached: int | None
    mapped_by: list[int]
    open_by: list[int]
    owner_state: Literal["live", "dead"] | None
    namespace: int | None
    modified_seconds_ago: float | None


class ShmSegments(TypedDict):
    """Reading of ``shm.segments``, largest first; ``denied`` processes were not looked at."""

    segments: list[ShmSegment]
    denied: int
    complete: bool
    problems: list[PathProblem]
