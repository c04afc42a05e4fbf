"""The desk's state directory: where it is, that it is ours alone, what it lies on."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

_NETWORK = ("nfs", "cifs", "smb", "9p", "lustre", "ceph", "afs", "gpfs", "beegfs", "fuse.")
"""File systems on which shared memory between machines, and so SQLite's WAL, is not safe."""


def state_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """Where the history lies; a relative XDG_STATE_HOME is ignored, as its standard says."""
    base = environ.get("XDG_STATE_HOME", "")
    root = Path(base) if base.startswith("/") else Path(os.path.expanduser("~/.local/state"))
    return root / "fleetmem"


def own_directory(directory: Path) -> None:
    """Create it for us alone, or check that it is; OSError where it is not ours."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    directory.mkdir(mode=0o700, exist_ok=True)
    info = directory.lstat()
    if not stat.S_ISDIR(info.st_mode):
        raise OSError("the state directory is a link or no directory")
    if info.st_uid != os.geteuid():
        raise OSError(f"the state directory belongs to uid {info.st_uid}, not to you")
    if info.st_mode & 0o077:
        directory.chmod(0o700)


def file_system(directory: Path) -> str:
    """Type of the file system that *directory* lies on; empty where the kernel cannot say."""
    best, kind = "", ""
    where = os.path.realpath(directory)
    try:
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    for line in mounts.splitlines():
        fields, _, rest = line.partition(" - ")
        mount = fields.split()[4].replace("\\040", " ")
        inside = where == mount or where.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best):
            best, kind = mount, rest.split()[0]
    return kind


def on_network(directory: Path) -> bool:
    """Whether other machines may use *directory* at the same time."""
    return file_system(directory).startswith(_NETWORK)
