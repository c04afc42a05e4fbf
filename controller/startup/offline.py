"""Saved logs to host entries and findings: what ``audit startup --log FILE`` shows."""

from __future__ import annotations

import codecs
import os
import stat
import sys
from collections.abc import Iterator, Sequence
from typing import IO, Any

from fleetmem.controller.errors import LogUnreadable
from fleetmem.controller.startup.judge.across_hosts import outliers
from fleetmem.controller.startup.judge.diagnose import judge
from fleetmem.controller.startup.read.parse import Parser
from fleetmem.controller.startup.read.patterns import Patterns
from fleetmem.controller.startup.read.split import by_engine
from fleetmem.controller.startup.starts import Startup

READ_BYTES = 1 << 20


def audit_logs(
    paths: Sequence[str],
    *,
    engine: str | None = None,
    patterns: Patterns | None = None,
    lines: bool = False,
    unmatched: bool = False,
) -> dict[str, Any]:
    """``{"hosts": […], "findings": […], "startups": {name: Startup}}`` for saved logs.

    Each path is a host ``file:NAME``; ``-`` is stdin; gzip and UTF-16 are recognised, a pipe will
    do. A file that cannot be read is a host that failed, with one line; one that breaks off after
    a start is ``partial``. ``startups`` is for the screen and is no part of the envelope.
    """
    hosts: list[dict[str, Any]] = []
    found: list[dict[str, Any]] = []
    startups: dict[str, Startup] = {}
    for path in paths:
        name = _host_name(path, {one["host"] for one in hosts})
        startup, error = _read(path, engine, patterns)
        parts = by_engine(startup) if startup.invocations else []
        if error is None or parts:
            startups[name] = startup
        for one in parts:
            found += judge(one, name, subject=one.engine if len(parts) > 1 else None)
        hosts.append(
            {
                "host": name,
                "outcome": "ok"
                if error is None
                else "partial"
                if startup.invocations
                else "failed",
                "error": None if error is None else _unreadable(path, error),
                "seconds": None,
                "readings": {},
                "startup": [one.to_json(lines, unmatched) for one in parts],
            }
        )
    pairs = [(name, one) for name, startup in startups.items() for one in by_engine(startup)]
    found += outliers(pairs)
    return {"hosts": hosts, "findings": found, "startups": startups}


def read_log(path: str, *, engine: str | None = None, patterns: Patterns | None = None) -> Startup:
    """The start-ups in one saved log; raises ``OSError`` where it cannot be read to its end."""
    startup, error = _read(path, engine, patterns)
    if error is not None:
        raise error
    return startup


def _read(
    path: str, engine: str | None, patterns: Patterns | None
) -> tuple[Startup, OSError | None]:
    """What could be read, and why no more could."""
    parser = Parser(engine=engine, patterns=patterns, source=path)
    stopped: OSError | None = None
    try:
        for data in _portions(path):
            parser.feed(data)
    except (OSError, EOFError) as error:
        stopped = error if isinstance(error, OSError) else OSError(str(error))
    return parser.finish(), stopped


def _portions(path: str) -> Iterator[bytes]:
    if path == "-":
        yield from _decoded(sys.stdin.buffer)
        return
    with open(path, "rb") as file:
        facts = os.fstat(file.fileno())
        # What is written while this is read belongs to the next reading.
        yield from _decoded(file, facts.st_size if stat.S_ISREG(facts.st_mode) else None)


def _decoded(file: Any, size: int | None = None) -> Iterator[bytes]:
    begin = file.peek(2)[:2]  # a pipe cannot be wound back
    if begin == b"\x1f\x8b":
        import gzip
        import zlib

        try:
            with gzip.open(file) as unpacked:
                while data := unpacked.read1(READ_BYTES):  # what comes before damage counts
                    yield data
        except zlib.error as error:
            raise OSError(f"damaged gzip data: {error}") from None
    elif begin in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):  # as PowerShell redirects
        decoder = codecs.getincrementaldecoder("utf-16")("replace")
        for data in _all(file, size):
            yield decoder.decode(data).encode("utf-8", "replace")
    else:
        yield from _all(file, size)


def _all(file: IO[bytes] | Any, size: int | None = None) -> Iterator[bytes]:
    """All of *file*, at most *size* bytes; files of /proc say 0 and hold more."""
    left = size or sys.maxsize
    while left > 0 and (data := file.read(min(READ_BYTES, left))):
        left -= len(data)
        yield data


def _host_name(path: str, taken: set[str]) -> str:
    """``file:NAME``, with the whole path where the name alone is taken, numbered if need be."""
    name = "file:-" if path == "-" else f"file:{os.path.basename(path)}"
    if name in taken:
        name = f"file:{path}"
    number = 2
    while name in taken:
        name = f"file:{path}#{number}"
        number += 1
    return name


def _unreadable(path: str, error: OSError) -> dict[str, Any]:
    reason = (error.strerror or str(error) or "cannot be read").lower()
    return dict(LogUnreadable(f"{path}: {reason}").to_json())
