"""A bundle as one ``.tar.gz``: the same bytes for the same files, sealed at its end.

Any tar and gunzip read it. Names are sorted after the manifest; owner, mode and times are fixed.
The last gzip member is empty and carries the SHA-256 of all bytes before it in its extra field
(RFC 1952), so that no byte of the file can change unnoticed, padding included.
"""

from __future__ import annotations

import hashlib
import os
import struct
import tarfile
import zlib
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, cast

from fleetmem.controller.bundle import manifest, names
from fleetmem.controller.bundle.manifest import Entry, Manifest

CHUNK_BYTES = 1 << 20
LEVEL = 6
MODE = 0o644
GZIP_HEAD = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
"""A gzip member without name, comment or time, made by "unknown"."""

_SEAL_HEAD = b"\x1f\x8b\x08\x04\x00\x00\x00\x00\x00\xff"
_SEAL_TAIL = b"\x03\x00" + bytes(8)
_FIELD = b"FM"
SEAL_BYTES = len(_SEAL_HEAD) + 2 + 4 + 32 + len(_SEAL_TAIL)


def seal(digest: bytes) -> bytes:
    """The last member: empty, with *digest* (32 bytes) in its extra field."""
    extra = _FIELD + struct.pack("<H", len(digest)) + digest
    return _SEAL_HEAD + struct.pack("<H", len(extra)) + extra + _SEAL_TAIL


def pack(folder: Path, out: BinaryIO, about: dict[str, object]) -> Manifest:
    """Write everything below *folder* to *out*; the manifest that went in.

    ValueError names a file that cannot stand in a bundle. Files are read twice (hash, content)
    and must not change between.
    """
    entries = tuple(_entry(folder, path) for path in _files(folder))
    folded = {entry.name.lower() for entry in entries}
    if len(folded) != len(entries):
        raise ValueError("two files whose names differ in case alone")
    listing = manifest.sums(entries).encode()
    sums = Entry(names.SUMS, len(listing), hashlib.sha256(listing).hexdigest())
    whole = Manifest((*entries, sums), about)
    sealed = _Sealed(out)
    with tarfile.open(
        fileobj=cast(BinaryIO, sealed), mode="w|", format=tarfile.USTAR_FORMAT
    ) as tar:
        _add(tar, names.MANIFEST, BytesIO(data := whole.to_bytes()), len(data))
        for entry in sorted(whole.entries, key=lambda one: one.name):
            if entry.name == names.SUMS:
                _add(tar, entry.name, BytesIO(listing), entry.size_bytes)
                continue
            with (folder / entry.name).open("rb") as file:
                _add(tar, entry.name, file, entry.size_bytes)
    sealed.finish()
    return whole


def _files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() or not (path.is_dir() or path.is_file()):
            raise ValueError(f"{path.relative_to(folder)}: not an ordinary file")
        if path.is_file():
            yield path


def _entry(folder: Path, path: Path) -> Entry:
    name = path.relative_to(folder).as_posix()
    wrong = names.fault(name)
    if wrong is not None or name in (names.MANIFEST, names.SUMS):
        raise ValueError(f"{name!r}: {wrong or 'a name that the archive itself uses'}")
    digest = hashlib.sha256()
    size = 0
    with path.open("rb") as file:
        while data := file.read(CHUNK_BYTES):
            digest.update(data)
            size += len(data)
    return Entry(name, size, digest.hexdigest())


def head(name: str, size: int) -> tarfile.TarInfo:
    """The tar header of a file, the same wherever it is made."""
    row = tarfile.TarInfo(name)
    row.size, row.mode = size, MODE
    return row


def _add(tar: tarfile.TarFile, name: str, file: BinaryIO, size: int) -> None:
    tar.addfile(head(name, size), file)
    if file.read(1):
        raise ValueError(f"{name}: it grew while it was packed")


class _Sealed:
    """A gzip stream onto *out* that hashes what it writes; only what tarfile needs of a file."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._digest = hashlib.sha256()
        self._zip = zlib.compressobj(LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
        self._sum = zlib.crc32(b"")
        self._size = 0
        self._put(GZIP_HEAD)

    def write(self, data: bytes) -> int:
        """Compress and write *data*."""
        self._sum = zlib.crc32(data, self._sum)
        self._size += len(data)
        self._put(self._zip.compress(data))
        return len(data)

    def finish(self) -> None:
        """End the stream and seal it."""
        self._put(self._zip.flush())
        self._put(struct.pack("<II", self._sum, self._size & 0xFFFFFFFF))
        self._out.write(seal(self._digest.digest()))

    def _put(self, data: bytes) -> None:
        self._digest.update(data)
        self._out.write(data)


def write(folder: Path, target: Path, about: dict[str, object]) -> Manifest:
    """Pack *folder* to *target* (mode 600): there at once and whole, or not at all."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as out:
            whole = pack(folder, out, about)
            out.flush()
            os.fsync(out.fileno())
        temporary.rename(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return whole
