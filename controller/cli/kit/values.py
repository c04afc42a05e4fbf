"""Values of options: durations, pids, names, caps. Each function is a click type."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

import click

from fleetmem.controller.errors import UsageError
from fleetmem.controller.text.cap import Cap, cap

_SPAN = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)(ms|s|m|h)?\Z")
_UNITS = {"ms": 0.001, "s": 1.0, None: 1.0, "m": 60.0, "h": 3600.0}
_PID = re.compile(r"[1-9][0-9]{0,6}\Z")


def span(value: str | float) -> float:
    """``10s``, ``500ms``, ``5m``, ``1h`` or plain seconds, in seconds; never 0."""
    if isinstance(value, (int, float)):
        return float(value)
    found = _SPAN.match(value)
    if not found or not float(found[1]):
        raise click.BadParameter(f"{value!r} is not a duration; use 10s, 500ms, 5m or 1h")
    return float(found[1]) * _UNITS[found[2]]


def pids(value: str | tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
    """``PID`` and ``HOST:PID`` joined by commas, as (host, pid); the host is "" where not given."""
    if isinstance(value, tuple):
        return value
    found = []
    for part in value.split(","):
        host, colon, pid = part.strip().rpartition(":")
        if not _PID.match(pid) or (colon and not host):
            raise click.BadParameter(f"{part.strip()!r} is not a PID; use 4711 or HOST:4711")
        found.append((host, int(pid)))
    return tuple(found)


def names(option: str, values: Iterable[str]) -> tuple[str, ...]:
    """Names of a repeatable option, each once; *option* is who asks. UsageError for an empty one:
    it may be a variable that is not set."""
    found = tuple(dict.fromkeys(value.strip() for value in values))
    if not all(found):
        raise UsageError(f"{option}: the value is empty")
    return found


def max_fail(value: str) -> Cap:
    """A number of hosts (``3``) or a share of the targeted ones (``10%``)."""
    found = cap(value)
    assert found is not None
    return found


def host_paths(option: str, values: Iterable[str]) -> tuple[str, ...]:
    """Paths on the hosts as the agent takes them, each once; *option* is who asks.

    From / on; ``hex:`` and its bytes for one that is no UTF-8, also where it was typed as it
    is. UsageError for anything else, an empty one too: it may be a variable that is not set.
    """
    return tuple(dict.fromkeys(_host_path(option, value) for value in values))


def _host_path(option: str, value: str) -> str:
    try:
        raw = bytes.fromhex(value[4:]) if value.startswith("hex:") else os.fsencode(value)
    except ValueError:
        raise UsageError(f"{option} {value}: hex: needs the path's bytes, such as 2f78"
                         ) from None  # fmt: skip
    if not raw.startswith(b"/") or b"\0" in raw:
        said = value or repr(value)
        raise UsageError(f"{option} {said}: use an absolute path on the hosts")
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError:
        return f"hex:{raw.hex()}"
    return value
