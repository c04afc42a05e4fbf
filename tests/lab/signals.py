"""What hog processes wrote down about the signals they got."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Signal:
    """One signal: its name without SIG, when (seconds since the epoch), and the sender."""

    name: str
    at: float
    sender: int


def read_signals(log: Path) -> list[Signal]:
    """Lines ``TERM 1764428000.123 from 45``; raises FileNotFoundError where no hog wrote."""
    seen = []
    for line in log.read_text("ascii").splitlines():
        name, at, _, sender = line.split()
        seen.append(Signal(name, float(at), int(sender)))
    return seen
