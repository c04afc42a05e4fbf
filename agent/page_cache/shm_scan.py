"""Shared memory objects of one place, read in a child: it may enter another namespace."""

from __future__ import annotations

import os
import stat

from fleetmem.agent.page_cache import pages

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterator, List, Optional, Tuple

MOST_FILES = 20000
CLONE_NEWIPC = 0x08000000


def work(item: Tuple[str, bytes, Optional[int]]) -> Iterator[object]:
    """Lists of rows: kind, path, key, device, inode, size, resident, swap, uid, creator,
    attached, time of change."""
    what, place, _ = item
    return sysv(place) if what == "sysv" else tmpfs(place)


def tmpfs(place: bytes) -> Iterator[object]:
    """Regular files of a tmpfs; nothing of another file system below it."""
    rows: List[Any] = []
    try:
        root = os.open(place, os.O_PATH | os.O_DIRECTORY)
        try:
            device = os.fstat(root).st_dev
            if pages.filesystem(root) not in pages.SHMEM:
                return
        finally:
            os.close(root)
    except OSError:
        return
    stack, seen = [place], 0
    while stack and seen < MOST_FILES:
        try:
            with os.scandir(stack.pop()) as entries:
                found = list(entries)
        except OSError:
            continue
        for entry in found:
            seen += 1
            try:
                status = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            if status.st_dev != device:
                continue
            if stat.S_ISDIR(status.st_mode):
                stack.append(entry.path)
            elif stat.S_ISREG(status.st_mode) and status.st_blocks:
                rows.append(_file("posix", entry.path, entry.path, status))
        yield None
    yield rows


def _file(kind: str, place: bytes, path: bytes, status: os.stat_result) -> Any:
    """Allocated pages are in memory or swapped; cachestat tells the two apart where it may."""
    allocated = status.st_blocks * 512
    resident, swap = allocated, None
    try:
        fd = os.open(place, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            counts = pages.cachestat(fd, status.st_size)
        finally:
            os.close(fd)
        if counts is not None:
            resident = min(allocated, counts[0] * pages.PAGE)
            swap = allocated - resident
    except OSError:
        pass
    device = [os.major(status.st_dev), os.minor(status.st_dev)]
    size, inode = status.st_size, status.st_ino
    changed = status.st_mtime
    return (
        kind, path, None, device, inode, size, resident, swap, status.st_uid, None, None, changed
    )  # fmt: skip


def memfd(place: bytes, path: bytes, key: Tuple[int, int, int]) -> Optional[Any]:
    """A memfd by a process that has it; ``None`` where it may not be looked at."""
    try:
        status = os.stat(place)
    except OSError:
        return None
    if status.st_ino != key[2]:
        return None
    name = path[: -len(b" (deleted)")] if path.endswith(b" (deleted)") else path
    return _file("memfd", place, name, status)


def sysv(place: bytes) -> Iterator[object]:
    """System V segments of the ipc namespace *place* (a file of /proc/PID/ns)."""
    try:
        wanted = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
        try:
            own = os.stat("/proc/self/ns/ipc")
            other = os.fstat(wanted)
            if own.st_ino != other.st_ino and pages.load().setns(wanted, CLONE_NEWIPC):
                return
        finally:
            os.close(wanted)
        with open("/proc/sysvipc/shm", "rb") as file:
            lines = file.read().splitlines()
    except OSError:
        return
    yield parse_sysv(lines)


def parse_sysv(lines: List[bytes]) -> List[Any]:
    """Rows of /proc/sysvipc/shm, by the names in its first line."""
    names = [name.decode() for name in lines[0].split()] if lines else []
    rows = []
    for line in lines[1:]:
        row = dict(zip(names, map(int, line.split())))  # noqa: B905  strict= came with 3.10
        if "shmid" not in row or "size" not in row:
            continue
        rows.append(
            (
                "sysv",
                None,
                row.get("key", 0) & 0xFFFFFFFF,
                None,
                row["shmid"],
                row["size"],
                row.get("rss"),
                row.get("swap"),
                row.get("uid", 0),
                row.get("cpid") or None,
                row.get("nattch"),
                row.get("ctime"),
            )
        )
    return rows
