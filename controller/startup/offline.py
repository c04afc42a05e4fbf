"""Saved logs to host entries and findings: what ``audit startup --log FILE`` shows."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from typing import IO, Any

from fleetmem.controller.errors import LogUnreadable

from .group import outliers
from .judge import judge
from .model import Startup
from .parse import Parser
from .patterns import Patterns

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

    Each path is a host ``file:NAME``; ``-`` is stdin; ``.gz`` files are opened. A file that
    cannot be read is a host that failed, with one line. ``startups`` is for the screen and is
    no part of the envelope.
    """
    hosts: list[dict[str, Any]] = []
    found: list[dict[str, Any]] = []
    startups: dict[str, Startup] = {}
    for path in paths:
        name = _host_name(path, {one["host"] for one in hosts})
        try:
            startup = read_log(path, engine=engine, patterns=patterns)
        except (OSError, EOFError) as error:
            hosts.append(_failed(name, path, error))
            continue
        startups[name] = startup
        hosts.append(
            {
                "host": name,
                "outcome": "ok",
                "error": None,
                "seconds": None,
                "readings": {},
                "startup": [startup.to_json(lines, unmatched)] if startup.invocations else [],
            }
        )
        found += judge(startup, name)
    found += outliers(list(startups.items()))
    return {"hosts": hosts, "findings": found, "startups": startups}


def read_log(path: str, *, engine: str | None = None, patterns: Patterns | None = None) -> Startup:
    """The start-ups in one saved log; raises ``OSError`` where it cannot be read."""
    parser = Parser(engine=engine, patterns=patterns, source=path)
    for data in _portions(path):
        parser.feed(data)
    return parser.finish()


def _portions(path: str) -> Iterator[bytes]:
    if path == "-":
        yield from _all(sys.stdin.buffer)
        return
    with open(path, "rb") as file:
        if file.read(2) == b"\x1f\x8b":
            import gzip
            import zlib

            file.seek(0)
            try:
                with gzip.open(file) as unpacked:
                    yield from _all(unpacked)
            except zlib.error as error:
                raise OSError(f"damaged gzip data: {error}") from None
            return
        file.seek(0)
        yield from _all(file)


def _all(file: IO[bytes] | Any) -> Iterator[bytes]:
    while data := file.read(READ_BYTES):
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


def _failed(name: str, path: str, error: Exception) -> dict[str, Any]:
    reason = (getattr(error, "strerror", None) or str(error) or "cannot be read").lower()
    return {
        "host": name,
        "outcome": "failed",
        "error": LogUnreadable(f"{path}: {reason}").to_json(),
        "seconds": None,
        "readings": {},
        "startup": [],
    }
