"""An invocation while its lines are being read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fleetmem.controller.startup.starts import Event, Line

MAX_LINES = 4000
MAX_LINES_ALIKE = 4
MAX_ERRORS = 64


def on_host(key: str) -> bool:
    """True for a rank key that names host memory: llama.cpp's and Ollama's devices."""
    return key.startswith("CPU") or key.endswith("Host")


@dataclass(slots=True)
class Rank:
    """The figures of one rank; ``spread`` is half the last printed digit of each size.

    ``planned`` names the figures that are Ollama's plan, not yet what its runner allocated.
    """

    values: dict[str, Any] = field(default_factory=dict)
    spread: dict[str, float] = field(default_factory=dict)
    loads: int = 0
    pools: int = 0
    pool_ends: int = 0
    window_pools: int = 0
    model_type: str | None = None
    begin_again: tuple[int, float] | None = None
    planned: set[str] = field(default_factory=set)

    def set(self, name: str, value: Any, spread: float | None = None) -> None:
        """Set a figure; of two prints that agree, the more precise one stays."""
        old, old_spread = self.values.get(name), self.spread.get(name)
        if (
            spread is not None
            and old_spread is not None
            and old_spread < spread
            and isinstance(old, int | float)
            and abs(value - old) <= spread + old_spread
        ):
            return
        self.values[name] = value
        if spread is not None:
            self.spread[name] = spread

    def add(self, name: str, value: Any, spread: float | None = None) -> None:
        """Add to a figure; the roundings add up too."""
        self.values[name] = self.values.get(name, 0) + value
        self.spread[name] = self.spread.get(name, 0.0) + (spread or 0.0)


@dataclass(slots=True)
class Build:
    """One invocation; turned into an ``Invocation`` by ``finish``."""

    invocation_id: str | None = None
    ranks: dict[str, Rank] = field(default_factory=dict)
    engine: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    errors: list[dict[str, Any]] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)
    lines: list[Line] = field(default_factory=list)
    alike: dict[tuple[str, str | None], int] = field(default_factory=dict)
    votes: dict[str, int] = field(default_factory=dict)
    starts: set[tuple[str, str | None]] = field(default_factory=set)
    pids: dict[str, int] = field(default_factory=dict)
    phases: dict[str | None, str] = field(default_factory=dict)
    gpu_list: list[dict[str, Any]] = field(default_factory=list)
    exceptions: list[dict[str, Any]] = field(default_factory=list)
    status: str = "unknown"
    was_ready: bool = False
    dirty: bool = False
    ended: bool = False
    started: str | None = None
    last: str | None = None
    restart_counter_after: int | None = None

    def rank(self, key: str) -> Rank:
        """The rank *key*, made where it is new."""
        found = self.ranks.get(key)
        if found is None:
            found = self.ranks[key] = Rank()
        return found

    def keep_line(self, event: Event, key: str | None) -> None:
        """Keep the line as evidence, a few of each pattern and rank."""
        head = event.head
        if head.time is not None:
            self.started = self.started or head.time
            self.last = head.time
        alike = (event.pattern, key)
        count = self.alike.get(alike, 0)
        if count >= MAX_LINES_ALIKE or len(self.lines) >= MAX_LINES:
            return
        self.alike[alike] = count + 1
        names = tuple(sorted(name for name in event.values if not name.startswith("error.kind")))
        self.lines.append(Line(head.text.strip()[:600], event.pattern, key, head.time, names))
