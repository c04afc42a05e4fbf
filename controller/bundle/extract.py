"""Safe extraction: only ordinary files, only below a new folder of one's own."""

from __future__ import annotations

import os
from pathlib import Path

from fleetmem.controller.bundle.manifest import Manifest
from fleetmem.controller.bundle.read import BundleError, members, verify

MARGIN_BYTES = 64 << 20


def extract(path: Path, folder: Path) -> Manifest:
    """Unpack the bundle at *path* into *folder*, which must not exist yet.

    It is verified first, so nothing is written of a bundle that is damaged. BundleError in one
    line, also where the disk has too little room.
    """
    whole = verify(path)
    try:
        folder.mkdir(mode=0o700, parents=True)
    except FileExistsError:
        raise BundleError(f"{folder} exists; name a new folder") from None
    size = sum(one.size_bytes for one in whole.entries)
    room = os.statvfs(folder)
    if room.f_bavail * room.f_frsize < size + MARGIN_BYTES:
        folder.rmdir()
        raise BundleError(f"{folder}: it needs {size >> 20} MiB, which the disk has not free")
    with path.open("rb") as file:
        for _, member in members(file):
            place = folder / member.entry.name
            place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            with os.fdopen(os.open(place, flags, 0o600), "wb") as out:
                for data in member.chunks:
                    out.write(data)
    (folder / "manifest.json").write_bytes(whole.to_bytes())
    return whole
