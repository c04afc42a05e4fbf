"""Reading a bundle that anybody may have written: nothing is believed, everything is bounded.

``members`` is the one way in; showing, verifying and extracting stand on it.
"""

from __future__ import annotations

import hashlib
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from fleetmem.controller.bundle import archive, manifest, names
from fleetmem.controller.bundle.manifest import Entry, Manifest

CHUNK_BYTES = 1 << 20
MOST_FILES = 1_000_000


class BundleError(ValueError):
    """A bundle that cannot be read any further, in one line."""


@dataclass(frozen=True)
class PackedFile:
    """One file of a bundle while it is read: its entry in the manifest, and its bytes once."""

    entry: Entry
    chunks: Iterator[bytes]


class _Plain:
    """The tar stream inside the archive; what reads add up to is bounded."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._unzip = zlib.decompressobj(16 + zlib.MAX_WBITS)
        self._ready = b""
        self.at = 0
        self.most_bytes = manifest.LARGEST_BYTES + 2 * tarfile.RECORDSIZE

    def read(self, size: int) -> bytes:
        """Up to *size* bytes, fewer only at the end; BundleError beyond the bound."""
        while len(self._ready) < size and not self._unzip.eof:
            data = self._unzip.unconsumed_tail or self._file.read(CHUNK_BYTES)
            if not data:
                raise BundleError("it ends in the middle")
            try:
                self._ready += self._unzip.decompress(data, CHUNK_BYTES)
            except zlib.error as error:
                raise BundleError(f"damaged after byte {self.at} of its content: {error}") from None
        found, self._ready = self._ready[:size], self._ready[size:]
        self.at += len(found)
        if self.at > self.most_bytes:
            raise BundleError("it unpacks to more than its manifest says")
        return found


def members(file: BinaryIO) -> Iterator[tuple[Manifest, PackedFile]]:
    """Each file of a bundle with the manifest, in the archive's order; BundleError at the first
    thing that is not as the manifest says. What a caller leaves of a member is read over."""
    plain = _Plain(file)
    whole = _manifest(plain)
    wanted = {one.name: one for one in whole.entries}
    while (row := _header(plain)) is not None:
        entry = wanted.pop(row.name, None)
        if entry is None:
            raise BundleError(f"{row.name[:80]!r} is not in its manifest, or stands there twice")
        if row.size != entry.size_bytes:
            raise BundleError(f"{row.name}: {row.size} bytes, {entry.size_bytes} expected")
        member = PackedFile(entry, _chunks(plain, entry))
        yield whole, member
        for _ in member.chunks:
            pass
    if wanted:
        raise BundleError(f"{min(wanted)} is missing")
    while data := plain.read(CHUNK_BYTES):
        if any(data):
            raise BundleError("something follows its last file")


def _header(plain: _Plain) -> tarfile.TarInfo | None:
    """The next header; ``None`` at the end. Only what `archive.head` writes is one: no extended
    header of any kind is followed, so none can ask for memory."""
    block = plain.read(tarfile.BLOCKSIZE)
    if not any(block):
        return None
    try:
        row = tarfile.TarInfo.frombuf(block, "ascii", "strict")
    except (tarfile.TarError, UnicodeError, ValueError) as error:
        raise BundleError(f"damaged header before byte {plain.at}: {error}") from None
    if row.type != tarfile.REGTYPE or row.linkname:
        raise BundleError(f"{row.name[:80]!r} is not an ordinary file")
    if not _as_packed(row, block):
        raise BundleError(f"{row.name[:80]!r}: its header is not as a bundle's")
    return row


def _as_packed(row: tarfile.TarInfo, block: bytes) -> bool:
    try:
        return archive.head(row.name, row.size).tobuf(tarfile.USTAR_FORMAT) == block
    except ValueError:  # a number or name that such a header has no room for
        return False


def _manifest(plain: _Plain) -> Manifest:
    row = _header(plain)
    if row is None or row.name != names.MANIFEST:
        raise BundleError("it does not begin with manifest.json: not a bundle")
    if row.size > manifest.LARGEST_BYTES:
        raise BundleError(f"manifest.json has {row.size} bytes")
    data = b"".join(_blocks(plain, row.size))
    try:
        whole = manifest.parse(data)
    except manifest.ManifestError as error:
        raise BundleError(str(error)) from None
    if len(whole.entries) > MOST_FILES:
        raise BundleError(f"it names {len(whole.entries)} files")
    blocks = sum(-(-one.size_bytes // tarfile.BLOCKSIZE) + 1 for one in whole.entries)
    plain.most_bytes = plain.at + blocks * tarfile.BLOCKSIZE + 2 * tarfile.RECORDSIZE
    return whole


def _blocks(plain: _Plain, size: int) -> Iterator[bytes]:
    """*size* bytes of content; the padding after them, which is zeros, is read too."""
    left = size
    while left:
        data = plain.read(min(left, CHUNK_BYTES))
        left -= len(data)
        if not data:
            raise BundleError("it ends in the middle of a file")
        yield data
    padding = plain.read(-size % tarfile.BLOCKSIZE)
    if any(padding):
        raise BundleError(f"padding before byte {plain.at} is not empty")


def _chunks(plain: _Plain, entry: Entry) -> Iterator[bytes]:
    digest = hashlib.sha256()
    for data in _blocks(plain, entry.size_bytes):
        digest.update(data)
        yield data
    if digest.hexdigest() != entry.sha256:
        raise BundleError(f"{entry.name}: its content is not what was packed (SHA-256 differs)")


def verify(path: Path) -> Manifest:
    """Check every byte of the bundle at *path*; BundleError names the first thing that differs."""
    with path.open("rb") as file:
        whole: Manifest | None = None
        for found, _member in members(file):
            whole = found
    if whole is None:
        raise BundleError("it has no files")
    _check_seal(path)
    return whole


def _check_seal(path: Path) -> None:
    """All bytes but the seal have the hash that the seal says, and the seal is one."""
    left = path.stat().st_size - archive.SEAL_BYTES
    digest = hashlib.sha256()
    with path.open("rb") as file:
        if left < 0 or file.read(len(archive.GZIP_HEAD)) != archive.GZIP_HEAD:
            raise BundleError("its first bytes are not as they were packed")
        digest.update(archive.GZIP_HEAD)
        left -= len(archive.GZIP_HEAD)
        while left > 0:
            data = file.read(min(left, CHUNK_BYTES))
            digest.update(data)
            left -= len(data)
        if file.read() != archive.seal(digest.digest()):
            raise BundleError("its bytes are not as they were packed (the seal at its end differs)")
