"""A log and its rotated siblings."""

from __future__ import annotations

import os

from fleetmem.agent.kernel import sysroot

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List


def family(path: str) -> List[str]:
    """The file with its rotated siblings, newest first."""
    folder, _, base = path.rpartition("/")
    try:
        names = sysroot.names(folder or "/")
    except OSError:
        names = [base] if sysroot.exists(path) else []
    found = []
    for name in names:
        if name == base or _rotated(name, base):
            place = folder + "/" + name
            try:
                status = os.stat(sysroot.path(place))
            except OSError:
                continue
            found.append((name == base, status.st_mtime, place))
    return [place for _, _, place in sorted(found, reverse=True)]


def _rotated(name: str, base: str) -> bool:
    """``base.1``, ``base.2.gz``, ``base-20260301``, ``base.2026-03-01.gz``; never ``base.pid``."""
    if not name.startswith(base) or len(name) <= len(base) + 1 or name[len(base)] not in ".-_":
        return False
    rest = name[len(base) + 1 :]
    if rest.endswith((".gz", ".xz", ".bz2", ".zst")):
        rest = rest.rpartition(".")[0]
    return bool(rest) and rest[0].isdigit() and all(c.isdigit() or c in "-_.:T" for c in rest)
