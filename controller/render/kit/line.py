"""Lines of styled text, measured in terminal cells; no terminal is touched here.

A line is a tuple of (text, style) spans. Styles are words of :data:`STYLES`; a painter
gives them colour or drops them.
"""

from __future__ import annotations

from collections.abc import Sequence

Span = tuple[str, str]
Line = tuple[Span, ...]

STYLES = {
    "": "",
    "bad": "red",
    "warn": "yellow",
    "good": "green",
    "dim": "dim",
    "bold": "bold",
    "next": "cyan",
    "foreign": "red",
    "red": "red",
    "blue": "blue",
    "magenta": "magenta",
    "cyan": "cyan",
    "grey": "bright_black",
    "yellow": "yellow",
    "sure": "bold green",
}
WIDTH = 100
"""Columns of a screen that no terminal measures."""

_NARROW = frozenset("–…✗✓→×█▉▊▋▌▍▎▏")


def plain(line: Line) -> str:
    """The text of *line* without styles or trailing blanks."""
    return "".join(text for text, _ in line).rstrip()


def cells(text: str) -> int:
    """Terminal columns that *text* takes: wide characters two, combining ones none."""
    if text.isascii():
        return len(text)
    return sum(_cell(char) for char in text)


def _cell(char: str) -> int:
    """As rich measures: its tables must agree with what is cut and broken here."""
    if char < "\u0300" or char in _NARROW:
        return 1
    from rich.cells import get_character_cell_size

    return get_character_cell_size(char)


def clip(text: str, width: int) -> str:
    """*text* cut to *width* cells, with ``…`` where something is missing."""
    if cells(text) <= width:
        return text
    kept, used = [], 1
    for char in text:
        used += _cell(char)
        if used > width:
            break
        kept.append(char)
    return "".join(kept) + "…"


def left(text: str, width: int) -> str:
    """*text* at the left of *width* cells, cut where it is longer."""
    text = clip(text, width)
    return text + " " * (width - cells(text))


def right(text: str, width: int) -> str:
    """*text* at the right of *width* cells, cut where it is longer."""
    text = clip(text, width)
    return " " * (width - cells(text)) + text


def wrap(text: str, width: int) -> list[str]:
    """*text* broken at blanks (or commas) into pieces of at most *width* cells, nothing lost."""
    pieces: list[str] = []
    rest = text
    while cells(rest) > width:
        cut = _break(rest, width)
        pieces.append(rest[:cut].rstrip())
        rest = rest[cut:].lstrip()
    pieces.append(rest)
    return pieces


def block(text: str, width: int, style: str = "", indent: int = 0, first: str = "") -> list[Line]:
    """*text* wrapped into whole lines; *first* stands before it, *indent* before what follows."""
    head = first or " " * indent
    room = max(width - max(indent, cells(head)), 1)
    pieces = wrap(text, room)
    lead = [head, *[" " * max(indent, cells(head) if first else 0)] * (len(pieces) - 1)]
    return [((start + piece, style),) for start, piece in zip(lead, pieces, strict=True)]


def joined(first: str, parts: Sequence[str], width: int) -> list[str]:
    """*first* and *parts* with `` · `` between them, broken there rather than inside a part."""
    lines = [first]
    for part in parts:
        if cells(f"{lines[-1]} · {part}") > width:
            lines.append(f"  {part}")
        else:
            lines[-1] += f" · {part}"
    return [piece for line in lines for piece in wrap(line, width)]


def _break(text: str, width: int) -> int:
    used = fits = 0
    for char in text:
        used += _cell(char)
        if used > width:
            break
        fits += 1
    fits = max(fits, 1)
    if fits < len(text) and text[fits] == " ":
        return fits
    at = max(text.rfind(" ", 0, fits), text.rfind(",", 0, fits)) + 1
    return at if at > fits // 3 else fits
