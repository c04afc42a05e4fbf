"""Device numbers for simulated GPUs: they open, and nobody else holds them."""

from __future__ import annotations

import fcntl
import os
import stat
import tempfile
from pathlib import Path

VCS = 7
VT_DISALLOCATE = 0x5608
# Misc devices that most kernels register and few processes hold open.
MISC = (235, 237, 259, 234, 256, 257, 258, 232, 229, 200)


def gpu_numbers(count: int, scratch: Path) -> tuple[tuple[tuple[int, int], ...], list[int]]:
    """``count`` numbers, and open files that must stay open as long as they are used.

    vcs N needs console N to exist; opening ttyN makes it. Raises OSError where the
    machine has too few numbers.
    """
    kept: list[int] = []
    for console in range(1, count):
        try:
            kept.append(os.open(f"/dev/tty{console}", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
        except OSError:
            break
    numbers = [(VCS, minor) for minor in range(count) if _opens(VCS, minor, scratch)]
    if len(numbers) < count:
        release(kept)
        kept = []
        numbers = [(10, minor) for minor in MISC if _opens(10, minor, scratch)][:count]
    if len(numbers) < count:
        raise OSError(f"this machine has device numbers for {len(numbers)} simulated GPUs only")
    return tuple(numbers), kept


def release(kept: list[int]) -> None:
    """Closes what ``gpu_numbers`` opened and frees the consoles that nobody else uses."""
    consoles = [int(os.readlink(f"/proc/self/fd/{fd}").rpartition("tty")[2]) for fd in kept]
    for fd in kept:
        os.close(fd)
    if not consoles:
        return
    try:
        control = os.open("/dev/tty0", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return
    for console in consoles:
        try:
            if console > 1:
                fcntl.ioctl(control, VT_DISALLOCATE, console)
        except OSError:
            continue  # busy: another lab or a login uses it
    os.close(control)


def _opens(major: int, minor: int, scratch: Path) -> bool:
    with tempfile.TemporaryDirectory(dir=scratch) as place:
        path = f"{place}/node"
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(major, minor))
        try:
            os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC))
        except OSError:
            return False
        return True
