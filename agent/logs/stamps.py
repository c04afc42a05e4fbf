"""Times as container runtimes write them."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional


def microseconds(stamp: str) -> Optional[int]:
    """RFC 3339 to microseconds since 1970, ``None`` where it is none."""
    try:
        year, month, day = int(stamp[0:4]), int(stamp[5:7]), int(stamp[8:10])
        hour, minute, second = int(stamp[11:13]), int(stamp[14:16]), int(stamp[17:19])
    except ValueError:
        return None
    rest = stamp[19:]
    digits = ""
    if rest.startswith("."):
        for char in rest[1:]:
            if not char.isdigit():
                break
            digits += char
        rest = rest[1 + len(digits) :]
    offset = 0
    if len(rest) == 6 and rest[0] in "+-":
        try:
            offset = (int(rest[1:3]) * 60 + int(rest[4:6])) * (-60 if rest[0] == "-" else 60)
        except ValueError:
            return None
    year -= month <= 2
    of_era = year % 400
    of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    days = year // 400 * 146097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719468
    seconds = days * 86400 + hour * 3600 + minute * 60 + second - offset
    return seconds * 1000000 + int((digits + "000000")[:6])
