"""Named pipes that processes have open. They are files: found by their numbers, not by a name."""

from __future__ import annotations

import os

from fleetmem.agent.kernel import sysroot, tasks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Optional, Tuple

    Number = Tuple[int, int, int]
    """device's major and minor, inode"""

FIFO, TYPE_MASK = 0o010000, 0o170000
MOST_FILES = 10_000


def open_by(pid: int) -> List[Tuple[str, Number]]:
    """(name, device and inode) of the FIFOs that a process has open."""
    return [(name, number) for name, number, _ in _open_fifos(pid, None)]


def places(pid: int, base: str, number: Number) -> List[Tuple[int, int, int]]:
    return [where for _, found, where in _open_fifos(pid, base) if found == number]


def _open_fifos(pid: int, base: Optional[str]) -> List[Tuple[str, Number, Tuple[int, int, int]]]:
    """FIFOs among the descriptors of a process, those whose name ends in *base* if given."""
    found = []
    try:
        proc_fd = sysroot.open_dir("/proc/%d" % pid)
    except OSError:
        return []
    try:
        for tid, place, names in tasks.tables(pid, proc_fd, set(), MOST_FILES):
            for name in names:
                try:
                    link = os.readlink(name, dir_fd=place)
                    if link[0] != "/" or link.startswith("/dev/"):
                        continue
                    if base is not None and link.rpartition("/")[2] != base:
                        continue
                    node = sysroot.node(name, place)
                except OSError:
                    continue
                if node is not None and node[0] & TYPE_MASK == FIFO:
                    found.append(
                        (sysroot.clean(link), (node[4], node[5], node[1]), (pid, tid, int(name)))
                    )
    except OSError:
        return found
    finally:
        os.close(proc_fd)
    return found
