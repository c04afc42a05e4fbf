"""Events of a running command, as they are shown: rows on stdout, the progress line on stderr."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from fleetmem.controller.cli.kit.screen import Screen
from fleetmem.controller.render.kit.line import Line
from fleetmem.controller.render.kit.progress import Progress, wait_text
from fleetmem.controller.render.reclaim.step_table import step_header, step_lines

TICK_SECONDS = 0.25


class Live:
    """What is seen while a fleet works on *hosts*."""

    def __init__(self, screen: Screen, hosts: Sequence[str], quiet: bool) -> None:
        self.rows = 0
        self._screen = screen
        self._single = len(hosts) == 1
        self._progress = Progress(sys.stderr, quiet)
        self._progress.begin(hosts)

    def on_event(self, event: Mapping[str, Any]) -> None:
        """Take one event of the fleet; kinds that are not known yet are passed over."""
        kind = event["kind"]
        if kind == "phase":
            self._progress.phase(event["host"], event["text"])
        elif kind == "host_done":
            self._progress.done(event["host"])
        elif kind == "wait":
            self._progress.note(wait_text(event))
        elif kind == "warning":
            self.note(f"warning: {event['text']}")
        elif kind == "rung" and self._single:
            self._row(event["rung"])

    def show(self, lines: Sequence[Line]) -> None:
        """Write *lines* of the answer without the progress line in their way."""
        self._progress.clear()
        self._screen.lines(lines)

    def note(self, text: str) -> None:
        """Write a note without the progress line in its way."""
        self._progress.clear()
        self._screen.note(text)

    @contextlib.contextmanager
    def asking(self) -> Any:
        """Keep the progress line away while a person reads and answers."""
        self._progress.pause()
        try:
            yield
        finally:
            self._progress.resume()

    @contextlib.asynccontextmanager
    async def ticking(self) -> AsyncIterator[None]:
        """Keep the progress line fresh while the block runs, remove it afterwards."""
        task = asyncio.ensure_future(self._tick())
        try:
            yield
        finally:
            task.cancel()
            self._progress.clear()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self._progress.tick()

    def _row(self, rung: Any) -> None:
        if not self.rows:
            self.show([(), step_header(self._screen.width)])
        self.rows += 1
        self.show(step_lines(rung, self._screen.width))
