"""The layer's file behind one on overlayfs: the pages are its own, once for all mounts of it.

A file on overlayfs has another device than the layer's, and the kernel counts pages (and
those that are not written yet) only at the layer's. Used in a child (see ``apart``).
"""

from __future__ import annotations

import os
import stat

from fleetmem.agent.kernel import sysroot

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Optional, Tuple

    Overlay = Tuple[bytes, bytes, List[bytes]]
    """(mount point, what of the overlay is mounted there, layers from the upper one down)"""

_known: Dict[Tuple[bytes, bytes], Optional[Overlay]] = {}


def behind(fd: int, found: os.stat_result, place: bytes) -> Optional[int]:
    """A descriptor of the layer's file that *fd* shows, ``None`` where it cannot be told.

    *place* is what was opened; a file below /proc/PID may lie in that process's mounts. The
    first layer that has the name decides, and must agree in size and time of change. A file
    whose data may lie in a lower layer (it has no blocks) is left alone.
    """
    mount = _mount_of(fd, place)
    if mount is None:
        return None
    point, root, layers = mount
    try:
        name = os.readlink("/proc/self/fd/%d" % fd).encode("utf-8", "surrogateescape")
    except OSError:
        return None
    if point != b"/" and not name.startswith(point + b"/"):
        return None
    inside = root.rstrip(b"/") + (name if point == b"/" else name[len(point) :])
    for layer in layers:
        try:
            first = os.open(layer + inside, os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError:
            return None
        try:
            real = os.fstat(first)
            if (
                not stat.S_ISREG(real.st_mode)
                or not real.st_blocks
                or (real.st_size, real.st_mtime_ns) != (found.st_size, found.st_mtime_ns)
            ):
                return None
            flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
            return os.open("/proc/self/fd/%d" % first, flags | getattr(os, "O_NOATIME", 0))
        except OSError:
            return None
        finally:
            os.close(first)
    return None


def _mount_of(fd: int, place: bytes) -> Optional[Overlay]:
    """The overlay mount that *fd* was opened in, by its number."""
    try:
        text = sysroot.read("/proc/self/fdinfo/%d" % fd)
    except OSError:
        return None
    found = [line.split()[1] for line in text.split(b"\n") if line.startswith(b"mnt_id:")]
    if not found:
        return None
    words = place.split(b"/")
    whose = words[2] if place.startswith(b"/proc/") and words[2].isdigit() else b"self"
    for pid in dict.fromkeys((b"self", whose)):
        key = (pid, found[0])
        if key not in _known:
            _known[key] = _find(pid, found[0])
        if _known[key] is not None:
            return _known[key]
    return None


def _find(pid: bytes, number: bytes) -> Optional[Overlay]:
    try:
        data = sysroot.read("/proc/%s/mountinfo" % pid.decode("ascii"), sysroot.LARGE)
    except OSError:
        return None
    for line in data.split(b"\n"):
        if line.startswith(number + b" "):
            return parse(line)
    return None


def parse(line: bytes) -> Optional[Overlay]:
    """What a line of mountinfo says of an overlay, ``None`` for any other mount."""
    left, _, right = line.partition(b" - ")
    words, said = left.split(b" "), right.split(b" ")
    if len(words) < 5 or len(said) < 3 or said[0] != b"overlay":
        return None
    upper: List[bytes] = []
    lower: List[bytes] = []
    for option in said[2].split(b","):
        name, _, value = option.partition(b"=")
        value = _plain(value)
        if name == b"upperdir":
            upper.append(value)
        elif name == b"lowerdir":
            lower += _layers(value)
        elif name == b"lowerdir+":
            lower.append(value)
    return _plain(words[4]), _plain(words[3]), upper + lower


def _layers(value: bytes) -> List[bytes]:
    """The names between colons; one in a name comes after a backslash."""
    parts = [b""]
    at = 0
    while at < len(value):
        if value[at : at + 1] == b":":
            parts.append(b"")
        else:
            at += value[at : at + 1] == b"\\"
            parts[-1] += value[at : at + 1]
        at += 1
    return [part for part in parts if part]


def _plain(text: bytes) -> bytes:
    """Undo the kernel's octal escapes."""
    first, *rest = text.split(b"\\")
    for part in rest:
        octal = len(part) > 2 and all(char in b"01234567" for char in part[:3])
        first += bytes([int(part[:3], 8) & 255]) + part[3:] if octal else b"\\" + part
    return first
