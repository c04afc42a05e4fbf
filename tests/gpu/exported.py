"""CUDA memory whose handle is handed on: a broker that keeps it needs no CUDA of its own.

``create`` makes memory that is mapped nowhere and exports it as a file; ``hand_over`` and
``receive`` pass that file over a Unix socket. Whoever holds the last one holds the memory.
"""

from __future__ import annotations

import ctypes
import os
import socket
import time

PINNED, POSIX_FILE, ON_DEVICE = 1, 1, 1
GRANULARITY = 2 << 20


class _Location(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int), ("number", ctypes.c_int)]


class _Properties(ctypes.Structure):
    """CUmemAllocationProp of CUDA 10.2 and newer."""

    _fields_ = [
        ("kind", ctypes.c_int),
        ("handles", ctypes.c_int),
        ("location", _Location),
        ("windows", ctypes.c_void_p),
        ("compression", ctypes.c_ubyte),
        ("direct", ctypes.c_ubyte),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 4),
    ]


def create(size: int, gpu: int) -> tuple[ctypes.c_uint64, int]:
    """(handle, descriptor) of *size* bytes on *gpu*; the calling thread has a context."""
    library = ctypes.CDLL("libcuda.so.1")
    wanted = _Properties(kind=PINNED, handles=POSIX_FILE, location=_Location(ON_DEVICE, gpu))
    rounded = -(-size // GRANULARITY) * GRANULARITY
    handle, descriptor = ctypes.c_uint64(), ctypes.c_int(-1)
    code = library.cuMemCreate(
        ctypes.byref(handle), ctypes.c_size_t(rounded), ctypes.byref(wanted), ctypes.c_ulonglong(0)
    )
    if code:
        raise RuntimeError(f"cuMemCreate failed with {code}")
    code = library.cuMemExportToShareableHandle(
        ctypes.byref(descriptor), handle, POSIX_FILE, ctypes.c_ulonglong(0)
    )
    if code:
        raise RuntimeError(f"cuMemExportToShareableHandle failed with {code}")
    return handle, descriptor.value


def hand_over(path: str, descriptor: int, seconds: float = 60.0) -> None:
    """Send *descriptor* to whoever listens at *path*."""
    end = time.monotonic() + seconds
    while True:
        with socket.socket(socket.AF_UNIX) as channel:
            try:
                channel.connect(path)
                socket.send_fds(channel, [b"."], [descriptor])
                return
            except OSError:
                if time.monotonic() > end:
                    raise
        time.sleep(0.05)


def receive(path: str) -> int:
    """A descriptor that somebody sends to *path*; nothing else of that connection is kept."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen(1)
        server.settimeout(60.0)
        channel, _ = server.accept()
        with channel:
            _, found, _, _ = socket.recv_fds(channel, 1, 1)
    os.unlink(path)
    return found[0]
