"""What was parsed once, kept in the user's cache directory by the hash of what it came from.

Parsing what people write (YAML, with every mistake named) costs more than everything else a
small run does, and its result depends on the text and on our code alone. Only a convenience:
what cannot be read, written or trusted is parsed again, silently. The directory is ours and
0700, a file is ours, an ordinary one and bound by a checksum to its name.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

_FILES = 8
"""Of one kind; the oldest goes when another is kept."""

_MAX_BYTES = 64 << 20
_WRITTEN_BYTES = 8 << 20
"""What people write is smaller."""

YAML = os.path.join(os.path.dirname(__file__), "yaml_nodes.py")
"""Our source that reads YAML, which need not be loaded where its result is kept."""


def folder() -> Path:
    """``$XDG_CACHE_HOME/fleetmem``, by default ``~/.cache/fleetmem``."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "fleetmem"


def kept(kind: str, inputs: Iterable[bytes], make: Callable[[], Any]) -> Any:
    """What ``make()`` gives (plain JSON data), kept for the same *inputs*.

    What *make* raises passes through, and nothing is kept then.
    """
    key = key_of(inputs)
    found = read(kind, key)
    if found is None:
        found = make()
        write(kind, key, found)
    return found


def content(path: str) -> bytes | None:
    """What the ordinary file at *path* holds; None where a parser must say what is wrong."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return None
        with open(path, "rb") as file:
            data = file.read(_WRITTEN_BYTES + 1)
    except (OSError, ValueError):
        return None
    return data if len(data) <= _WRITTEN_BYTES else None


def key_of(inputs: Iterable[bytes]) -> str:
    """One word for all *inputs*, in their order."""
    digests = (hashlib.sha256(data).digest() for data in inputs)
    return hashlib.sha256(b"".join(digests)).hexdigest()


def code_stamp(*places: str | Path) -> bytes:
    """What tells one state of our own sources from another: files, and all ``*.py`` of folders."""
    files: list[Path] = []
    for place in map(Path, places):
        files += sorted(place.rglob("*.py")) if place.is_dir() else [place]
    lines = []
    for file in files:
        info = file.stat()
        lines.append(f"{file}:{info.st_mtime_ns}:{info.st_size}")
    return "\n".join(lines).encode()


def read(kind: str, key: str) -> Any:
    """What is kept under *kind* and *key*; None where there is nothing that can be trusted."""
    try:
        if not _ours(os.lstat(folder()), 0o077, directory=True):
            return None
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        number = os.open(folder() / _name(kind, key), flags)
        with open(number, "rb") as file:
            if not _ours(os.fstat(number), 0o022):
                return None
            data = file.read(_MAX_BYTES)
        digest, _, body = data.partition(b"\n")
        if digest.decode("ascii") != _checksum(kind, key, body):
            return None
        return json.loads(body)
    except (OSError, ValueError, RecursionError):
        return None


def write(kind: str, key: str, value: Any) -> None:
    """Keep *value*; nothing happens where that is not possible."""
    with contextlib.suppress(OSError):
        place = folder()
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _ours(os.lstat(place), 0o077, directory=True):
            return
        body = json.dumps(value, separators=(",", ":")).encode()
        if len(body) > _MAX_BYTES // 2:
            return
        temporary = place / f".{kind}-{os.getpid()}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(temporary, flags, 0o600), "wb") as file:
            file.write(_checksum(kind, key, body).encode() + b"\n" + body)
        temporary.rename(place / _name(kind, key))
        _forget(place, kind)


def _name(kind: str, key: str) -> str:
    return f"{kind}-{key}.json"


def _checksum(kind: str, key: str, body: bytes) -> str:
    return hashlib.sha256(f"{kind}\n{key}\n".encode() + body).hexdigest()


def _ours(info: os.stat_result, forbidden: int, *, directory: bool = False) -> bool:
    of_kind = stat.S_ISDIR if directory else stat.S_ISREG
    return of_kind(info.st_mode) and info.st_uid == os.geteuid() and not info.st_mode & forbidden


def _forget(place: Path, kind: str) -> None:
    files = sorted(place.glob(f"{kind}-*.json"), key=lambda file: file.stat().st_mtime_ns)
    for file in files[:-_FILES]:
        file.unlink()
