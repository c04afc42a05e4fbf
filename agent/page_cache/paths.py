"""Where cached files may lie: named paths, model directories, mounts."""

from __future__ import annotations

import os

from fleetmem.agent.kernel import sysroot
from fleetmem.agent.kernel.maps import title_words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Optional, Tuple

REMOTE = ("nfs", "fuse", "cifs", "smb", "ceph", "lustre", "9p", "afs", "gpfs", "beegfs", "gluster")
LOCAL = frozenset(("ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "bcachefs", "zfs", "jfs"))
MODEL_PLACES = (
    "/models",
    "/data/models",
    "/mnt/models",
    "/srv/models",
    "/opt/models",
    "/var/lib/models",
    "/root/.cache/huggingface",
)
HOME_PLACE = "/home/%s/.cache/huggingface"
MODEL_OPTIONS = (b"--model", b"--model-path", b"--model_path", b"--download-dir", b"-m", b"serve")
MOST_MODELS = 64


class Mount:
    """One line of mountinfo: where, what kind, which device."""

    __slots__ = ("device", "kind", "point")

    def __init__(self, point: bytes, kind: str, device: str) -> None:
        self.point = point
        self.kind = kind
        self.device = device

    @property
    def remote(self) -> bool:
        """Whether a server of its own stands behind it, which may be gone."""
        return self.kind.startswith(REMOTE)


class Mounts:
    """The mounts of this mount namespace."""

    def __init__(self, text: bytes) -> None:
        self.rows: List[Mount] = []
        for line in text.split(b"\n"):
            left, _, right = line.partition(b" - ")
            words = left.split(b" ")
            if len(words) > 4 and right:
                kind = right.split(b" ")[0].decode("ascii", "replace")
                self.rows.append(Mount(unescape(words[4]), kind, words[2].decode("ascii")))
        self.by_device: Dict[str, Mount] = {}
        for row in self.rows:
            self.by_device.setdefault(row.device, row)
        self._points = {row.point: row for row in self.rows}

    def of(self, path: bytes) -> Mount:
        """The mount that *path* lies in by its text; nothing is asked of the file system."""
        while path not in self._points:
            if path in (b"", b"/"):
                return Mount(b"/", "", "0:0")
            path = path.rpartition(b"/")[0] or b"/"
        return self._points[path]


def mounts() -> Mounts:
    """The mounts as they are now."""
    try:
        return Mounts(sysroot.read("/proc/self/mountinfo", sysroot.LARGE))
    except OSError:
        return Mounts(b"")


def unescape(text: bytes) -> bytes:
    """Undo mountinfo's octal escapes of blank, tab, line end and backslash."""
    for number in (b"040", b"011", b"012"):
        text = text.replace(b"\\" + number, bytes([int(number, 8)]))
    return text.replace(b"\\134", b"\\")


def decode(path: str) -> bytes:
    """A path from a call as bytes; ``hex:…`` names any by its bytes. ValueError if bad."""
    found = bytes.fromhex(path[4:]) if path.startswith("hex:") else path.encode("utf-8")
    if found[:1] != b"/" or b"\0" in found:
        raise ValueError("not an absolute path")
    return os.path.normpath(found)


def show(path: bytes) -> Tuple[str, Optional[str]]:
    """(text, hex or ``None``) of a path for a reading.

    The hex where the text does not lead back to the file: not UTF-8, or characters that a
    controller shows as escapes.
    """
    try:
        text = path.decode("utf-8")
    except UnicodeDecodeError:
        return path.decode("utf-8", "replace"), path.hex()
    return text, None if text.isprintable() else path.hex()


def is_pattern(path: bytes) -> bool:
    """Whether a path has wildcards."""
    return any(mark in path for mark in (b"*", b"?", b"["))


def model_places() -> List[bytes]:
    """Usual model directories, and those that engines were started with."""
    found = [os.fsencode(place) for place in MODEL_PLACES]
    try:
        homes = sorted(sysroot.names("/home"))[:MOST_MODELS]
    except OSError:
        homes = []
    found += [os.fsencode(HOME_PLACE % name) for name in homes]
    for pid in sysroot.pids():
        words = title_words(pid)
        for at, word in enumerate(words[:-1]):
            name, equal, value = word.partition(b"=")
            if name in MODEL_OPTIONS:
                value = value if equal else words[at + 1]
                if value[:1] == b"/" and value not in found and len(found) < 2 * MOST_MODELS:
                    found.append(os.path.normpath(value))
    return found


def block_devices(table: Mounts) -> List[bytes]:
    """Devices that file systems here are mounted from: their own pages are metadata."""
    found = []
    for device, row in table.by_device.items():
        if row.kind in LOCAL:
            try:
                text = sysroot.read("/sys/dev/block/%s/uevent" % device)
            except OSError:
                continue
            for line in text.split(b"\n"):
                if line.startswith(b"DEVNAME="):
                    found.append(b"/dev/" + line[8:])
    return found
