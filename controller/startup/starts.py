"""The words of a start-up budget: records in, lines kept as evidence, invocations out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

GIB = 2**30


@dataclass(frozen=True, slots=True)
class Record:
    """One journal record, or one line whose metadata is known apart from its text.

    ``time`` is text as the source gives it; ``invocation`` is systemd's invocation id;
    ``pid`` the logging process as the journal saw it; ``name`` its identifier.
    """

    message: str | bytes
    time: str | None = None
    invocation: str | None = None
    pid: int | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Head:
    """What a line said before its message: clock, process tag and rank."""

    text: str
    time: str | None = None
    rank: str | None = None
    process: str | None = None
    pid: int | None = None
    ip: str | None = None
    repeated: int | None = None
    name: str | None = None
    name_pid: int | None = None
    level: str | None = None
    invocation: str | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """A line that a figure rests on. ``fields`` are the figures, ``rank`` its key."""

    text: str
    pattern: str
    rank: str | None
    time: str | None
    fields: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "time": self.time,
            "rank": self.rank,
            "text": self.text,
            "pattern": self.pattern,
            "fields": list(self.fields),
        }


@dataclass(frozen=True, slots=True)
class Event:
    """A line that a pattern understood.

    ``values`` are by scope-qualified name (``weights_bytes``, ``engine.max_tokens``);
    ``error_bytes`` is half the last printed digit of each size.
    """

    step: str
    pattern: str
    engine: str | None
    head: Head
    values: dict[str, Any]
    error_bytes: dict[str, float] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Invocation:
    """One start of one engine, as its log tells it. Bytes are real bytes.

    ``ranks`` maps a rank key to its figures; ``derived`` names figures that were computed,
    as ``rank.field`` or ``engine.field``; ``age`` is 0 for the newest. ``exception`` is the
    last one of the process that failed first: type, message, rank, time and its causes.
    """

    index: int
    age: int
    status: str
    engine_name: str | None
    version: str | None
    invocation_id: str | None
    started: str | None
    ended: str | None
    ranks: dict[str, dict[str, Any]]
    engine: dict[str, Any]
    config: dict[str, Any]
    errors: list[dict[str, Any]]
    flags: dict[str, Any]
    derived: tuple[str, ...]
    restart_counter_after: int | None
    lines: tuple[Line, ...]
    exception: dict[str, Any] | None = None

    def to_json(self, lines: bool = False) -> dict[str, Any]:
        """The entry that DESIGN's ``startup`` list holds; ``lines`` adds the evidence."""
        body: dict[str, Any] = {
            "index": self.index,
            "age": self.age,
            "current": self.age == 0,
            "status": self.status,
            "engine_name": self.engine_name,
            "engine_version": self.version,
            "invocation_id": self.invocation_id,
            "started": self.started,
            "ended": self.ended,
            "ranks": self.ranks,
            "engine": self.engine,
            "config": self.config,
            "errors": self.errors,
            "exception": self.exception,
            "notes": self.flags,
            "derived": list(self.derived),
        }
        if self.restart_counter_after is not None:
            body["restart_counter_after"] = self.restart_counter_after
        if lines:
            body["lines"] = [line.to_json() for line in self.lines]
        return body


@dataclass(frozen=True, slots=True)
class Startup:
    """All invocations of one log, oldest first, and what no pattern understood."""

    engine: str | None
    unit: str | None
    source: str | None
    invocations: tuple[Invocation, ...]
    unmatched_count: int = 0
    unmatched: tuple[str, ...] = ()

    @property
    def newest(self) -> Invocation | None:
        """The invocation of age 0; None when the log held none."""
        return self.invocations[-1] if self.invocations else None

    def by_age(self) -> Iterable[Invocation]:
        """Newest first."""
        return reversed(self.invocations)

    def to_json(self, lines: bool = False, unmatched: bool = False) -> dict[str, Any]:
        """One entry of a host's ``startup`` list."""
        body: dict[str, Any] = {
            "engine": self.engine,
            "unit": self.unit,
            "source": self.source,
            "invocations": [one.to_json(lines) for one in self.invocations],
            "unmatched_count": self.unmatched_count,
        }
        if unmatched:
            body["unmatched"] = list(self.unmatched)
        return body
