"""One sign for one meaning, on every screen; ASCII stands in where a terminal has nothing else.

``✗`` bad, ``!`` look at it, ``✓`` good, ``·`` nothing to do, ``–`` not known. The sign carries
the meaning, colour only repeats it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TextIO

Sign = tuple[str, str]
"""A glyph and its style."""

BAD: Sign = ("✗", "bad")
LOOK: Sign = ("!", "warn")
GOOD: Sign = ("✓", "good")
IDLE: Sign = ("·", "dim")
UNKNOWN: Sign = ("–", "bad")
NOT_ASKED: Sign = ("–", "dim")

SEVERITIES: Mapping[str, Sign] = {"critical": BAD, "warn": LOOK, "info": IDLE}
"""Worst first."""

OUTCOMES: Mapping[str, Sign] = {
    "failed": BAD,
    "unreachable": UNKNOWN,
    "timed_out": UNKNOWN,
    "unknown": UNKNOWN,
    "partial": LOOK,
    "not_attempted": NOT_ASKED,
    "ok": GOOD,
}
"""How a host ended, worst first. What was not reached is not known, and never green."""


def verdict_sign(verdict: str) -> Sign:
    """The sign of a reclaim's verdict."""
    return {"reclaimed": GOOD, "planned": LOOK, "nothing_to_do": IDLE}.get(verdict, BAD)


_ASCII = str.maketrans(
    {
        "✗": "X", "✓": "+", "·": "-", "–": "-", "…": "~", "→": ">", "×": "x", "±": "~", "≥": ">",
        "█": "#", "▉": "#", "▊": "#", "▋": "#", "▌": "=", "▍": "=", "▎": "-", "▏": "-",
    }
)  # fmt: skip
"""Each sign of ours is one character here too: columns stay where they are."""


def to_ascii(text: str) -> str:
    """*text* with our signs as ASCII; what else is not ASCII stays for the stream to escape."""
    return text.translate(_ASCII)


def wants_ascii(stream: TextIO, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether *stream* cannot show our signs: by its encoding, or by a locale of C or POSIX."""
    try:
        "✗".encode(getattr(stream, "encoding", None) or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return True
    names = ("LC_ALL", "LC_CTYPE", "LANG")
    locale = next((environ[name] for name in names if environ.get(name)), "")
    return locale in ("C", "POSIX")
