"""``manifest.json``: what a bundle contains, with a hash for each file and one over all. Pure."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fleetmem.controller.bundle import names

SCHEMA = "fleetmem-bundle/1"
LARGEST_BYTES = 16 << 20
_HASH = re.compile(r"[0-9a-f]{64}\Z")


class ManifestError(ValueError):
    """A manifest that does not describe a bundle, in one line."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One file: name, size in bytes, SHA-256 as hex."""

    name: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """What stands in ``manifest.json``. ``about`` has what is said of the bundle as a whole:
    created, fleetmem, incident, redacted, hosts, complete."""

    entries: tuple[Entry, ...]
    about: Mapping[str, Any]

    @property
    def root(self) -> str:
        """SHA-256 over all entries in the order of their names, as hex."""
        return hashlib.sha256(sums(self.entries).encode()).hexdigest()

    def to_bytes(self) -> bytes:
        """The file's content; equal for equal manifests."""
        whole = {
            "schema": SCHEMA,
            **{key: self.about[key] for key in sorted(self.about)},
            "root": self.root,
            "files": [
                {"name": one.name, "bytes": one.size_bytes, "sha256": one.sha256}
                for one in _sorted(self.entries)
            ],
        }
        return (json.dumps(whole, indent=1, ensure_ascii=True) + "\n").encode()


def sums(entries: Iterable[Entry]) -> str:
    """``SHA256SUMS`` as ``sha256sum --check`` reads it."""
    return "".join(f"{one.sha256}  {one.name}\n" for one in _sorted(entries))


def _sorted(entries: Iterable[Entry]) -> list[Entry]:
    return sorted(entries, key=lambda one: one.name)


def parse(data: bytes) -> Manifest:
    """The manifest in *data*; ManifestError says what is wrong with it."""
    try:
        whole = json.loads(data.decode("ascii"))
    except (ValueError, RecursionError):
        raise ManifestError("manifest.json is not JSON") from None
    if not isinstance(whole, dict) or whole.get("schema") != SCHEMA:
        raise ManifestError(f"manifest.json is not of schema {SCHEMA}")
    rows = whole.get("files")
    if not isinstance(rows, list):
        raise ManifestError("manifest.json lists no files")
    about = {key: whole[key] for key in whole if key not in ("schema", "root", "files")}
    manifest = Manifest(tuple(_entry(row) for row in rows), about)
    folded = [one.name.lower() for one in manifest.entries]
    if len(set(folded)) != len(folded):
        raise ManifestError("manifest.json names a file twice")
    if whole.get("root") != manifest.root:
        raise ManifestError("the root hash of manifest.json does not fit its files")
    return manifest


def _entry(row: Any) -> Entry:
    if not isinstance(row, dict):
        raise ManifestError("manifest.json has a file that is not an object")
    name, size, digest = row.get("name"), row.get("bytes"), row.get("sha256")
    if not isinstance(name, str) or names.fault(name) is not None:
        raise ManifestError("manifest.json has a file with a name that cannot be")
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise ManifestError(f"manifest.json: {name} has no size")
    if not isinstance(digest, str) or not _HASH.match(digest):
        raise ManifestError(f"manifest.json: {name} has no SHA-256")
    return Entry(name, size, digest)
