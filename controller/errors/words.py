"""How a host ends, and an error as JSON: what every room may name."""

from __future__ import annotations

from typing import Literal, TypedDict

HostOutcome = Literal[
    "ok", "partial", "failed", "unreachable", "timed_out", "not_attempted", "unknown"
]


class Error(TypedDict):
    """Why something did not work: a stable word, a sentence, what to do about it."""

    code: str
    message: str
    hint: str | None
