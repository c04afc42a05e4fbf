"""Whose systemd line is it: a log of a whole host carries other units' starts and stops too."""

from __future__ import annotations

import re

from fleetmem.controller.startup.starts import Event

MAX_PENDING = 64
_SERVES = re.compile(r"sglang|vllm|llm|llama|infer|serv(?:e|ing)|model|trt|tgi|lmdeploy", re.I)
_START = re.compile(r"(?:Started|Starting) (?P<name>.{1,200}?)(?: - .*)?(?:\.{1,3})?$")
_STOP = re.compile(r"(?:Stopping|Stopped) (?P<name>.{1,200}?)(?: - .*)?(?:\.{1,3})?$")


class Units:
    """Learns the engine's own unit: the one started last before its lines, or that failed."""

    def __init__(self) -> None:
        self._own: set[str] = set()
        self._pending: dict[str, str | None] = {}

    @property
    def name(self) -> str | None:
        """The unit's name without ``.service``; None where the log does not tell."""
        found = sorted(one for one in self._own if one.endswith(".service"))
        return found[0].removesuffix(".service") if found else None

    def concerns(self, event: Event) -> bool:
        """True where a systemd line is about the engine's own unit."""
        name = _name(event)
        if event.step == "start":
            self._pending.pop(name, None)
            self._pending[name] = event.head.time
            if len(self._pending) > MAX_PENDING:
                self._pending.pop(next(iter(self._pending)))
            return name in self._own
        if name in self._own:
            return True
        services = any(one.endswith(".service") for one in self._own)
        if services or (not self._own and event.step == "stopped"):
            return False
        self._own.add(name)
        return True

    def engine_speaks(self) -> str | None:
        """The engine's first line: settles the unit, and gives the time of its start."""
        if self._own or not self._pending:
            return None
        likely = [name for name in self._pending if _SERVES.search(name)]
        name = (likely or list(self._pending))[-1]
        self._own.add(name)
        return self._pending[name]


def _name(event: Event) -> str:
    text = event.head.text.strip()
    found = _START.match(text) or _STOP.match(text)
    if found:
        return found["name"].rstrip(".")
    return text.partition(": ")[0]
