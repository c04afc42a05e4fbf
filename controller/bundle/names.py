"""Names inside a bundle. The desk alone chooses them; what is read back is held to the same rules.

A name is at most 200 ASCII characters, ``/`` between parts, no part hidden, empty or ``..``. Two
names that differ in case alone cannot stand in one bundle: some file systems take them for one.
"""

from __future__ import annotations

import hashlib
import re

MANIFEST = "manifest.json"
SUMS = "SHA256SUMS"
README = "README.txt"
COLLECTORS = "collectors.jsonl"
REDACTIONS = "redactions.jsonl"
RUN = "run.json"

LONGEST = 200
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+@=-]*(?:/[A-Za-z0-9_][A-Za-z0-9._+@=-]*)*\Z")
_OTHER = re.compile(r"[^A-Za-z0-9._-]+")
_DEVICES = {"con", "prn", "aux", "nul", *(f"{n}{i}" for n in ("com", "lpt") for i in range(10))}


def fault(name: str) -> str | None:
    """Why *name* cannot stand in a bundle; ``None`` where it can."""
    if len(name) > LONGEST:
        return f"a name of {len(name)} characters"
    if not _NAME.match(name):
        return "a name with a part that is hidden, empty, or not plain ASCII"
    parts = name.split("/")
    if any(part.endswith(".") or part.split(".")[0].lower() in _DEVICES for part in parts):
        return "a name that some systems take for a device"
    return None


def of_host(host: str) -> str:
    """The folder of a host: its name, made safe; different hosts get different folders."""
    plain = _OTHER.sub("_", host).strip("._-")[:60]
    if plain == host and fault(plain) is None:
        return plain
    return f"{plain or 'host'}-{hashlib.sha256(host.encode()).hexdigest()[:10]}"
