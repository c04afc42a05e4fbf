"""Shapes of ``journal.read``."""

from __future__ import annotations

from typing import Literal

from typing_extensions import TypedDict


class JournalInvocation(TypedDict):
    """One of systemd's service invocations; ``age`` 0 is the unit's newest.

    Times are microseconds since 1970 of the oldest and newest entry that was read.
    """

    id: str
    unit: str
    age: int
    first_us: int | None
    last_us: int | None
    entries: int


class JournalRead(TypedDict):
    """Reading of ``journal.read``; the lines themselves came as chunks.

    ``scanned`` entries or lines were looked at, ``rows`` sent; ``cut`` messages were longer
    than 2 MiB. ``truncated`` says which budget ended it: lines, bytes or time; middle: what
    stands between beginning and end was passed over. ``damaged`` journal files were left
    out. ``now_us`` is the host's own clock.
    """

    kind: Literal["unit", "file", "container", "journal"]
    name: str | None
    user: str | None
    units: list[str]
    files: list[str]
    invocations: list[JournalInvocation]
    scanned: int
    rows: int
    bytes: int
    cut: int
    kernel_rows: int
    truncated: Literal["lines", "bytes", "time", "middle"] | None
    damaged: list[str]
    now_us: int
