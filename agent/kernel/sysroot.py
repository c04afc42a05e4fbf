"""Every read of /proc, /sys, /dev and /run goes through here; tests swap ``ROOT``.

Reads are bounded. Text is UTF-8 with anything else replaced, so that it is safe as JSON.
A *dir_fd* of /proc/PID stays bound to that process, whoever gets its number later.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List, Optional, Tuple

    Node = Tuple[int, int, int, int, int, int]
    """mode, inode, rdev major and minor, dev major and minor"""

ROOT = ""
"""Prefix of every absolute path; empty on a host."""

SMALL = 64 * 1024
LARGE = 16 * 1024 * 1024
"""Enough for the maps of a process with 100 000 mappings."""

AT_FDCWD = -100
AT_STATX_DONT_SYNC = 0x4000
STATX_TYPE_AND_INO = 0x0101
STATX_NUMBERS = {"x86_64": 332, "aarch64": 291, "ppc64le": 383, "s390x": 379, "riscv64": 291}


def path(name: str) -> str:
    """Where *name* really lies."""
    return ROOT + name


def read(name: str, limit: int = SMALL, dir_fd: Optional[int] = None) -> bytes:
    """At most *limit* bytes of a file; OSError where it cannot be read."""
    if dir_fd is None:
        name = ROOT + name
    fd = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY, dir_fd=dir_fd)
    try:
        data = os.read(fd, min(limit, SMALL))
        if not data:
            return data
        parts = []
        while data:
            parts.append(data)
            limit -= len(data)
            data = os.read(fd, min(limit, SMALL)) if limit > 0 else b""
        return parts[0] if len(parts) == 1 else b"".join(parts)
    finally:
        os.close(fd)


def text(name: str, limit: int = SMALL, dir_fd: Optional[int] = None) -> str:
    """The same as text."""
    return read(name, limit, dir_fd).decode("utf-8", "replace")


def clean(name: str) -> str:
    """A file name from the system as text that any JSON reader takes."""
    return os.fsencode(name).decode("utf-8", "replace")


def names(name: str) -> List[str]:
    """Names in a directory; OSError where it cannot be read."""
    return os.listdir(ROOT + name)


def open_dir(name: str, dir_fd: Optional[int] = None) -> int:
    """A descriptor of a directory, for reads relative to it. The caller closes it."""
    if dir_fd is None:
        name = ROOT + name
    return os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=dir_fd)


def link(name: str, dir_fd: Optional[int] = None) -> str:
    """What a symbolic link says; OSError where it cannot be read."""
    if dir_fd is None:
        name = ROOT + name
    return os.readlink(name, dir_fd=dir_fd)


def link_mode(name: str) -> int:
    """Mode of a symbolic link itself; in /proc/PID/fd how the file was opened."""
    return os.lstat(ROOT + name).st_mode


def exists(name: str) -> bool:
    """Whether something lies there."""
    return os.access(ROOT + name, os.F_OK)


def pids() -> List[int]:
    """All processes of this pid namespace, in the order of /proc."""
    return [int(name) for name in os.listdir(ROOT + "/proc") if name.isdigit()]


class _Statx:
    """statx of the C library, loaded at the first use and kept."""

    __slots__ = ("buffer", "call", "errno", "fields", "number")

    def __init__(self) -> None:
        self.call: Any = None
        self.number = 0
        from _struct import Struct

        from fleetmem.agent.kernel import clib

        try:  # without argument types, which cost a quarter of the call
            call = clib.function("statx")
        except AttributeError:
            self.number = STATX_NUMBERS.get(os.uname().machine, 0)
            if not self.number:
                return
            call = clib.function("syscall")
        self.buffer = clib.create_string_buffer(256)
        self.fields = Struct("=28xHxxQ88xIIII").unpack_from
        self.errno = clib.get_errno
        self.call = call


_statx: Optional[_Statx] = None


def node(name: str, dir_fd: Optional[int] = None) -> Optional[Node]:
    """Type and numbers of what *name* leads to, never waiting for a file server.

    ``os.stat`` through /proc/PID/fd hangs for ever where a FUSE server is dead; statx with
    DONT_SYNC does not. OSError where the kernel refuses, ``None`` where it has no statx
    (older than 4.11): the caller must then not follow links it does not know.
    """
    global _statx  # noqa: PLW0603 - one libc for the life of the process
    if _statx is None:
        _statx = _Statx()
    if _statx.call is None:
        return None
    if dir_fd is None:
        where, place = AT_FDCWD, os.fsencode(ROOT + name)
    else:
        where, place = dir_fd, name.encode("utf-8", "surrogateescape")
    buffer = _statx.buffer
    if _statx.number:
        rc = _statx.call(
            _statx.number, where, place, AT_STATX_DONT_SYNC, STATX_TYPE_AND_INO, buffer
        )
    else:
        rc = _statx.call(where, place, AT_STATX_DONT_SYNC, STATX_TYPE_AND_INO, buffer)
    if rc == 0:
        return _statx.fields(buffer)
    number = _statx.errno()
    if number == 38:  # ENOSYS
        _statx.call = None
        return None
    raise OSError(number, os.strerror(number), name)


def local_node(name: str) -> Optional[Node]:
    """The same for a path of /dev that is known to be local; ``None`` where it is missing."""
    try:
        found = node(name)
        if found is not None:
            return found
        status = os.stat(ROOT + name)
    except OSError:
        return None
    device, home = status.st_rdev, status.st_dev
    return (
        status.st_mode,
        status.st_ino,
        os.major(device),
        os.minor(device),
        os.major(home),
        os.minor(home),
    )
