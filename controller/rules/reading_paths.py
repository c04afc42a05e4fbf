"""Paths into readings, and the rows and values they lead to. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fleetmem.agent.declare import CALLS


def reading_of(each: str) -> str:
    """The probe whose reading the path *each* leads into; *each* itself where there is none."""
    return next((name for name in prefixes(each) if name in CALLS), each)


def rows_of(each: str, readings: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The rows of *each* (not a view) in plain *readings*; none where the reading is missing."""
    probe = reading_of(each)
    path = each[len(probe) + 1 :].split(".") if len(each) > len(probe) else []
    found: list[Any] = [readings.get(probe)]
    for part in path:
        found = [item for one in found if isinstance(one, dict) for item in _items(one.get(part))]
    return [one for one in found if isinstance(one, dict)]


def value_of(row: Mapping[str, Any], path: str) -> Any:
    """The value at a dotted *path*; ``None`` where a part is missing."""
    value: Any = row
    for part in path.split("."):
        if not isinstance(value, Mapping):
            return None
        value = value.get(part)
    return value


def _items(value: Any) -> Iterable[Any]:
    return value if isinstance(value, list) else [value]


def prefixes(each: str) -> Sequence[str]:
    """*each* and what it is a path below, longest first."""
    parts = each.split(".")
    return [".".join(parts[:n]) for n in range(len(parts), 0, -1)]
