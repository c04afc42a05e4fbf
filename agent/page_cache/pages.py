"""The system calls on the page cache of one open file. Used in a child only (see ``apart``).

The node of each page is read from the kernel's own account of a mapping: resident pages are
found by mincore, touched (nothing is read from disk), and counted by node in
/proc/self/numa_maps. Exact, 55 ms a GiB; in windows, with a sign of life after each.
"""

from __future__ import annotations

import os

from fleetmem.agent.model import UNSUPPORTED, Trouble

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, List, Optional, Tuple

WINDOW = 1 << 30
PAGE = os.sysconf("SC_PAGE_SIZE")
CACHESTAT = 451
"""The same number on every architecture (Linux 6.5)."""
MOVE_PAGES = {"x86_64": 279, "aarch64": 239, "ppc64le": 301, "riscv64": 239}
MADV_RANDOM, PROT_READ, MAP_SHARED, MPOL_MF_MOVE = 1, 1, 1, 2
DONTNEED = 4
SHMEM = {0x01021994: "tmpfs", 0x858458F6: "ramfs", 0x958458F6: "hugetlbfs"}
OVERLAY = 0x794C7630
KERNEL = {
    0x9FA0: "proc", 0x62656572: "sysfs", 0x27E0EB: "cgroup", 0x63677270: "cgroup2",
    0x64626720: "debugfs", 0x74726163: "tracefs", 0x73636673: "securityfs", 0xCAFE4A11: "bpf",
    0x6165676C: "pstore", 0xDE5E81E4: "efivarfs", 0x62656570: "configfs", 0xF97CFF8C: "selinuxfs",
    0x42494E4D: "binfmt_misc",
}  # fmt: skip
"""File systems that the kernel makes up as they are read: they have no page cache."""
LOW_BIT = bytes(byte & 1 for byte in range(256))

_libc: Any = None
_ctypes: Any = None


def load() -> Any:
    """The C library; Trouble where this Python lacks ctypes (Debian's python3-minimal)."""
    global _libc, _ctypes
    if _libc is None:
        try:
            import ctypes
        except ImportError:
            raise Trouble(
                UNSUPPORTED, "this Python has no ctypes", code="python_incomplete"
            ) from None
        libc = ctypes.CDLL(None, use_errno=True)
        size, at = ctypes.c_size_t, ctypes.c_void_p
        libc.mmap.restype = at
        libc.mmap.argtypes = [at, size, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64]
        libc.munmap.argtypes = [at, size]
        libc.madvise.argtypes = [at, size, ctypes.c_int]
        libc.mincore.argtypes = [at, size, at]
        libc.syscall.restype = ctypes.c_long
        libc.fstatfs.argtypes = [ctypes.c_int, at]
        _libc, _ctypes = libc, ctypes
    return _libc


def filesystem(fd: int) -> int:
    """The magic number of the file system, 0 where it does not say."""
    libc = load()
    buffer = _ctypes.create_string_buffer(256)
    if libc.fstatfs(fd, buffer):
        return 0
    return int.from_bytes(buffer[: _ctypes.sizeof(_ctypes.c_long)], "little") & 0xFFFFFFFF


def cachestat(fd: int, size: int) -> Optional[Tuple[int, int, int]]:
    """Pages (cached, dirty, under writeback); ``None`` where the kernel does not say."""
    libc = load()
    place = (_ctypes.c_uint64 * 2)(0, size)
    found = (_ctypes.c_uint64 * 5)()
    number, flags = _ctypes.c_long(CACHESTAT), _ctypes.c_uint(0)
    if libc.syscall(number, _ctypes.c_int(fd), place, found, flags):
        return None
    return found[0], found[1], found[2]


class Window:
    """A part of a file mapped for reading; the pages' state is asked when it is made."""

    __slots__ = ("at", "base", "size", "states")

    def __init__(self, fd: int, start: int, size: int) -> None:
        libc = load()
        self.size = size
        base = libc.mmap(None, size, PROT_READ, MAP_SHARED, fd, start)
        if base is None or base == _ctypes.c_void_p(-1).value:
            number = _ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        self.base: int = base
        libc.madvise(base, size, MADV_RANDOM)
        pages = (size + PAGE - 1) // PAGE
        vector = _ctypes.create_string_buffer(pages)
        if libc.mincore(base, size, vector):
            number = _ctypes.get_errno()
            self.close()
            raise OSError(number, os.strerror(number))
        self.states: bytes = vector.raw.translate(LOW_BIT)

    def close(self) -> None:
        """Unmap: one's own mapping would keep the pages."""
        load().munmap(self.base, self.size)

    def runs(self) -> Iterator[Tuple[int, int]]:
        """(first, past the last) page of each resident run."""
        states, at = self.states, 0
        while True:
            first = states.find(b"\1", at)
            if first < 0:
                return
            at = states.find(b"\0", first)
            if at < 0:
                at = len(states)
            yield first, at

    def touch(self) -> None:
        """Map every resident page here."""
        view = memoryview((_ctypes.c_char * self.size).from_address(self.base)).cast("B")
        for first, last in self.runs():
            bytes(view[first * PAGE : min(last * PAGE, self.size) : PAGE])

    def nodes(self) -> Tuple[Dict[int, int], bool]:
        """Pages of this mapping by NUMA node, and whether anybody else maps some."""
        with open("/proc/self/numa_maps", "rb") as file:
            start = b"%x " % self.base
            short = b"%08x " % self.base
            for line in file:
                if line.startswith((start, short)):
                    return parse_numa_maps(line)
        return {}, False

    def move(self, node: int) -> List[int]:
        """Ask the kernel to move each resident page to *node*: counts (moved, stayed)."""
        libc = load()
        moved = stayed = 0
        for first, last in self.runs():
            for low in range(first, last, 1 << 16):
                count = min(1 << 16, last - low)
                begin = self.base + low * PAGE
                places = (_ctypes.c_void_p * count)(*range(begin, begin + count * PAGE, PAGE))
                targets = (_ctypes.c_int * count)(*([node] * count))
                status = (_ctypes.c_int * count)()
                number = _ctypes.c_long(MOVE_PAGES.get(os.uname().machine, 0))
                rc = libc.syscall(
                    number,
                    _ctypes.c_int(0),
                    _ctypes.c_ulong(count),
                    places,
                    targets,
                    status,
                    _ctypes.c_int(MPOL_MF_MOVE),
                )
                if rc < 0:
                    error = _ctypes.get_errno()
                    raise OSError(error, os.strerror(error))
                good = sum(1 for value in status if value == node)
                moved, stayed = moved + good, stayed + count - good
        return [moved, stayed]


def parse_numa_maps(line: bytes) -> Tuple[Dict[int, int], bool]:
    """Pages by node of one line of numa_maps, and whether mapmax says more than one mapper."""
    found: Dict[int, int] = {}
    shared = False
    for word in line.split()[2:]:
        name, _, value = word.partition(b"=")
        if name[:1] == b"N" and name[1:].isdigit():
            found[int(name[1:])] = int(value)
        elif name == b"mapmax":
            shared = int(value) > 1
    return found, shared


def windows(fd: int, size: int) -> Iterator[Window]:
    """The file in mapped windows, each unmapped when the next is asked for."""
    for start in range(0, size, WINDOW):
        window = Window(fd, start, min(WINDOW, size - start))
        try:
            yield window
        finally:
            window.close()
