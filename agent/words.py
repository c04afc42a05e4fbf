"""How it is said that something could not be read; loaded only then."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

MANY = {"process": "processes"}


def count(number: int, one: str, of: Optional[int] = None) -> str:
    """``1 process``, ``2 files``, ``1 of 75 processes``."""
    whole = number if of is None else of
    word = one if whole == 1 else MANY.get(one, one + "s")
    return "%d %s" % (number, word) if of is None else "%d of %d %s" % (number, of, word)


def reader(before: str = "by") -> str:
    """``by this user``; as root what is true for root, whom only few things are kept from."""
    import os

    if os.geteuid():
        return "%s this user" % before
    return "even %s root (blocked by a container or LSM)" % before
