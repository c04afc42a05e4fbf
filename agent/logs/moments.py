"""Moments as people write them, and as lines of log files bear them: microseconds since 1970."""

from __future__ import annotations

import re
from time import localtime, mktime, time

from fleetmem.agent.logs.stamps import microseconds
from fleetmem.agent.model import FAILED, Trouble

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional, Tuple

_UNITS = {"s": 1, "sec": 1, "second": 1, "m": 60, "min": 60, "minute": 60, "h": 3600, "hr": 3600,
          "hour": 3600, "d": 86400, "day": 86400, "w": 604800, "week": 604800}  # fmt: skip
_SPAN = re.compile(r"(-?)(\d{1,9}) ?([a-z]{1,7}?)s?( ago)?$")
_DATE = re.compile(r"(\d{4})-(\d\d)-(\d\d)(?:[ T](\d\d):(\d\d)(?::(\d\d))?)?$")
_CLOCK = re.compile(r"(\d\d):(\d\d)(?::(\d\d))?$")
_STAMP = re.compile(
    rb"(?:^|[\[ |])(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?)"
)
_SHORT = re.compile(rb"(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) (\d\d)-(\d\d) (\d\d:\d\d:\d\d)")
_FIRST_BYTES = 200


def span(
    since: Optional[str], until: Optional[str]
) -> Optional[Tuple[Optional[int], Optional[int]]]:
    """Both bounds; None where there is none."""
    if since is None and until is None:
        return None
    return (None if since is None else moment(since), None if until is None else moment(until))


def moment(text: str) -> int:
    """``-2h``, ``2 hours ago``, ``today``, ``10:30``, ``2026-03-01 11:50`` or ``@SECONDS``."""
    plain = text.strip().lower()
    now = time()
    if plain.startswith("@") and plain[1:].replace(".", "", 1).isdigit():
        return int(float(plain[1:]) * 1e6)
    if plain == "now":
        return int(now * 1e6)
    local = localtime(now)
    days = {"today": 0, "yesterday": -1, "tomorrow": 1}
    if plain in days:
        day = local.tm_mday + days[plain]
        return int(mktime((local.tm_year, local.tm_mon, day, 0, 0, 0, 0, 0, -1)) * 1e6)
    found = _SPAN.match(plain)
    if found and found[3] in _UNITS and (found[1] or found[4]):
        return int((now - int(found[2]) * _UNITS[found[3]]) * 1e6)
    date = _DATE.match(text.strip())
    if date:
        year, month, day, hour, minute, second = (int(part or 0) for part in date.groups())
        return int(mktime((year, month, day, hour, minute, second, 0, 0, -1)) * 1e6)
    clock = _CLOCK.match(plain)
    if clock:
        hour, minute, second = (int(part or 0) for part in clock.groups())
        fields = (local.tm_year, local.tm_mon, local.tm_mday, hour, minute, second, 0, 0, -1)
        return int(mktime(fields) * 1e6)
    raise Trouble(
        FAILED,
        "%r is not a time that is known for files: write -2h, today or 2026-03-01 11:50" % text,
        code="bad_time",
    )


def of_line(message: bytes) -> Optional[int]:
    """The time that a line begins with; one without a zone is this host's."""
    head = message[:_FIRST_BYTES]
    found = _STAMP.search(head)
    if found:
        stamp = found[1].decode("ascii").replace(" ", "T").replace(",", ".")
        if stamp.endswith("Z") or stamp[-6:-5] in ("+", "-") or stamp[-5:-4] in ("+", "-"):
            if stamp[-5:-4] in ("+", "-"):
                stamp = stamp[:-2] + ":" + stamp[-2:]
            return microseconds(stamp)
        return _local(stamp[:10], stamp[11:19])
    short = _SHORT.search(head)
    if short is None:
        return None
    month, day, clock = (part.decode("ascii") for part in short.groups())
    now = localtime()
    year = now.tm_year - (1 if (int(month), int(day)) > (now.tm_mon, now.tm_mday + 1) else 0)
    return _local("%04d-%s-%s" % (year, month, day), clock)


def _local(date: str, clock: str) -> Optional[int]:
    year, month, day = (int(part) for part in date.split("-"))
    hour, minute, second = (int(part) for part in clock.split(":"))
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return None
    try:
        return int(mktime((year, month, day, hour, minute, second, 0, 0, -1)) * 1e6)
    except (OverflowError, ValueError):
        return None
