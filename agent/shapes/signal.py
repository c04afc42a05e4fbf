"""Shapes of ``signal.send``."""

from __future__ import annotations

from typing import Literal

from typing_extensions import TypedDict


class SignalResult(TypedDict):
    """What became of one (identity, signal) pair.

    ``result``: sent, gone (no such identity any more), refused, already (this pair was
    signalled before), failed. ``code`` says why, in a word: never_signalled changed unreadable
    not_permitted signalled_before failed, or that of a ledger or trail that cannot be written.
    ``comm``: the kernel's name for the process at that moment. ``deaf``: why SIGTERM cannot end it
    as it is: ``stopped ignored blocked init``; ``None`` where it can, or nobody can say.
    """

    pid: int
    start_time: int
    signal: str
    result: Literal["sent", "gone", "refused", "already", "failed"]
    code: str | None
    why: str | None
    comm: str | None
    deaf: str | None


class SignalResults(TypedDict):
    """Reading of ``signal.send``."""

    results: list[SignalResult]
