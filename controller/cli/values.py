"""Values of options: spans of time, pids, caps. Each function is a click type."""

from __future__ import annotations

import re

import click

_SPAN = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)(ms|s|m|h)?\Z")
_UNITS = {"ms": 0.001, "s": 1.0, None: 1.0, "m": 60.0, "h": 3600.0}
_PID = re.compile(r"[1-9][0-9]{0,6}\Z")
_CAP = re.compile(r"[0-9]{1,6}\Z|(?:100|[0-9]{1,2})%\Z")


def span(value: str | float) -> float:
    """``10s``, ``500ms``, ``5m``, ``1h`` or plain seconds, in seconds; never 0."""
    if isinstance(value, (int, float)):
        return float(value)
    found = _SPAN.match(value)
    if not found or not float(found[1]):
        raise click.BadParameter(f"{value!r} is no span of time; write 10s, 500ms, 5m or 1h")
    return float(found[1]) * _UNITS[found[2]]


def pids(value: str | tuple[int, ...]) -> tuple[int, ...]:
    """Process ids joined by commas, in the order given."""
    if isinstance(value, tuple):
        return value
    parts = [part.strip() for part in value.split(",")]
    for part in parts:
        if not _PID.match(part):
            raise click.BadParameter(f"{part!r} is no pid")
    return tuple(map(int, parts))


def cap(value: str) -> str:
    """A number of hosts (``3``) or a share of the targeted ones (``10%``), kept as text."""
    if not _CAP.match(value):
        raise click.BadParameter(f"{value!r} is neither a number of hosts nor a percentage")
    return value
