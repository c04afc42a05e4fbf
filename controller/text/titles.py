"""Titles that engines give their workers, matched without backtracking. Pure.

A form is literal text with at most one beginning and one end: ``{path}`` (directories, or
nothing) or ``{prefix}`` (a word and ``::``) before it, ``{ranks}`` (``_TP0_PP1``, ``_0``, or
nothing), ``{rank}`` (at least one, with letters) or ``*`` (anything) after it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

_COMM_LENGTH = 15
_BEGINNINGS: tuple[tuple[str, Literal["path", "prefix"]], ...] = (
    ("{path}", "path"),
    ("{prefix}", "prefix"),
)
_ENDS: tuple[tuple[str, Literal["ranks", "rank", "any"]], ...] = (
    ("{ranks}", "ranks"),
    ("{rank}", "rank"),
    ("*", "any"),
)


@dataclass(frozen=True)
class Form:
    """One way a worker's title can look."""

    text: str
    beginning: Literal["path", "prefix"] | None
    end: Literal["ranks", "rank", "any"] | None


def form(written: str) -> Form:
    """The form that *written* describes; ValueError where it could mean anything."""
    text = written
    beginning = end = None
    for mark, begins in _BEGINNINGS:
        if text.startswith(mark):
            text, beginning = text[len(mark) :], begins
    for mark, ends in _ENDS:
        if text.endswith(mark):
            text, end = text[: -len(mark)], ends
            break
    if len(text.strip()) < 4 or any(sign in text for sign in "*{}"):
        raise ValueError("a title has four signs of its own, a beginning and an end at most")
    return Form(text, beginning, end)


def matches(one: Form, title: str, comm: str) -> bool:
    """Whether a process of this title is a worker of this form.

    comm decides only where it is as long as the kernel keeps and the title says nothing.
    """
    text = title.strip()
    if _fits(one, text):
        return True
    if text not in ("", comm):
        return False
    return _fits(one, comm) or (
        len(comm) == _COMM_LENGTH and one.beginning is None and one.text.startswith(comm)
    )


def _fits(one: Form, text: str) -> bool:
    if one.beginning == "prefix":
        at = text.rfind("::" + one.text)
        if at <= 0 or " " in text[:at]:
            return False
        rest = text[at + 2 + len(one.text) :]
    elif one.beginning == "path":
        first = text.split(" ", 1)[0]
        base = text[first.rfind("/") + 1 :]
        if not base.startswith(one.text):
            return False
        rest = base[len(one.text) :]
    elif text.startswith(one.text):
        rest = text[len(one.text) :]
    else:
        return False
    return _ends(one, rest)


def _ends(one: Form, rest: str) -> bool:
    if one.end == "any":
        return True
    if one.end is None or not rest:
        return not rest and one.end != "rank"
    if not rest.startswith("_"):
        return False
    for part in rest[1:].split("_"):
        letters = part.rstrip("0123456789")
        if letters == part or not (letters == "" or (letters.isascii() and letters.isupper())):
            return False
        if one.end == "rank" and not letters:
            return False
    return True
