"""Who maps or has open which file: one pass over the processes that may be looked at."""

from __future__ import annotations

import os

from fleetmem.agent.kernel import sysroot, tasks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Iterator, List, Optional, Tuple

    Key = Tuple[int, int, int]
    """device's major and minor, inode"""

MOST_PIDS = 64
DELETED = b" (deleted)"


class Use:
    """One file in use. ``place`` opens exactly this file, also when it has no name any more."""

    __slots__ = ("map_bytes", "mapped_by", "open_by", "path", "place")

    def __init__(self, path: bytes, place: bytes) -> None:
        self.path = path
        self.place = place
        self.map_bytes = 0
        self.mapped_by: List[int] = []
        self.open_by: List[int] = []


def joined(one: Use, other: Use) -> Use:
    """Both uses of one file: overlayfs and btrfs show it under several devices."""
    use = Use(one.path, one.place)
    use.map_bytes = one.map_bytes + other.map_bytes
    use.mapped_by = sorted({*one.mapped_by, *other.mapped_by})[:MOST_PIDS]
    use.open_by = sorted({*one.open_by, *other.open_by})[:MOST_PIDS]
    return use


def maps(pid: int) -> Iterator[Tuple[bytes, int, Key, bytes]]:
    """(range, bytes, key, path) of each mapping of a file; PermissionError where refused."""
    data = sysroot.read("/proc/%d/maps" % pid, sysroot.LARGE)
    if not data:
        # A leader that has exited has none; another task may.
        found = tasks.stat(pid)
        live = (
            tasks.live_task(found) if found is not None and not found.flags & tasks.KTHREAD else 0
        )
        if live and live != pid:
            data = sysroot.read("/proc/%d/task/%d/maps" % (pid, live), sysroot.LARGE)
    for line in data.split(b"\n"):
        words = line.split(None, 5)
        # Inode 0 is anonymous memory, or the first System V segment of an ipc namespace.
        if len(words) == 6 and (words[4] != b"0" or words[5].startswith(b"/SYSV")):
            major, _, minor = words[3].partition(b":")
            low, _, high = words[0].partition(b"-")
            size = int(high, 16) - int(low, 16)
            yield words[0], size, (int(major, 16), int(minor, 16), int(words[4])), words[5]


def in_use(fds: bool = True) -> Tuple[Dict[Key, Use], int, int]:
    """Files in use by (device, inode), processes that were refused, processes looked at.

    Devices are left out; shared memory is not. Only regular files among the open ones.
    """
    found: Dict[Key, Use] = {}
    denied = scanned = 0
    me = os.getpid()
    for pid in sysroot.pids():
        if pid == me:
            continue
        refused = False
        try:
            for place, size, key, path in maps(pid):
                use = found.get(key)
                if use is None:
                    if path.startswith((b"/dev/", b"[")) and not path.startswith(
                        (b"/dev/shm/", b"/dev/zero", b"/dev/hugepages/")
                    ):
                        continue
                    opener = b"/proc/%d/map_files/%s" % (pid, _short(place))
                    use = found[key] = Use(path, opener)
                use.map_bytes += size
                if use.mapped_by[-1:] != [pid] and len(use.mapped_by) < MOST_PIDS:
                    use.mapped_by.append(pid)
        except PermissionError:
            refused = True
        except (OSError, ValueError):
            continue
        if fds and not refused:
            try:
                _open_files(pid, found)
            except PermissionError:
                refused = True
            except OSError:
                pass
        scanned += 1
        denied += refused
    return found, denied, scanned


def _short(place: bytes) -> bytes:
    """A range as /proc/PID/map_files names it: without leading zeros."""
    low, _, high = place.partition(b"-")
    return b"%x-%x" % (int(low, 16), int(high, 16))


def _open_files(pid: int, found: Dict[Key, Use]) -> None:
    place = "/proc/%d/fd/" % pid
    for name in sysroot.names(place):
        try:
            path = os.fsencode(sysroot.link(place + name))
            if path[:1] != b"/" or path.startswith((b"/dev/null", b"/proc/", b"/sys/")):
                continue
            node = sysroot.node(place + name)
        except FileNotFoundError:
            continue
        if node is None or node[0] & 0o170000 != 0o100000:
            continue
        key = (node[4], node[5], node[1])
        use = found.get(key)
        if use is None:
            use = found[key] = Use(path, os.fsencode(place + name))
        if use.open_by[-1:] != [pid] and len(use.open_by) < MOST_PIDS:
            use.open_by.append(pid)


def is_deleted(path: bytes) -> bool:
    """Whether the kernel says that the file has no name any more."""
    return path.endswith(DELETED)


def plain(path: bytes) -> bytes:
    """The path without the kernel's remark; maps escape only the end of a line."""
    if path.endswith(DELETED):
        path = path[: -len(DELETED)]
    return path.replace(b"\\012", b"\n")


def title_words(pid: int) -> List[bytes]:
    """Words of the command line, empty where it cannot be read."""
    try:
        return sysroot.read("/proc/%d/cmdline" % pid, 16384).split(b"\0")
    except OSError:
        return []


def numbers(pids: Optional[List[int]]) -> List[int]:
    """Sorted copy for a reading."""
    return sorted(pids or ())
