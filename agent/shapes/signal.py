"""Shapes of ``signal.send``."""

from __future__ import annotations

from typing import Literal

from typing_extensions import TypedDict


class SignalResult(TypedDict):
    """What became of one (identity, signal) pair.

    ``result``: sent, gone (no such identity any more), refused (``why``), already
    (this pair was signalled before), failed (``why``).
    """

    pid: int
    start_time: int
    signal: str
    result: Literal["sent", "gone", "refused", "already", "failed"]
    why: str | None


class SignalResults(TypedDict):
    """Reading of ``signal.send``."""

    results: list[SignalResult]
