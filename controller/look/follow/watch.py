"""The newest start of one unit, as its host's journal goes on telling of it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fleetmem.controller import errors
from fleetmem.controller.contact import gather
from fleetmem.controller.logs.reading import read_log

if TYPE_CHECKING:
    from fleetmem.controller.answer.envelope import Reading
    from fleetmem.controller.contact.session import Session
    from fleetmem.controller.logs.reading import Log, LogLine

HEAD_ENTRIES = 50_000
"""A start is over by then; of a longer log the end is read too."""

READ_SECONDS = 30.0
MISSES = 5
"""So many looks in a row may give nothing before that is the host's error."""

_NEVER_STARTED = ("not-found", "masked", "bad-setting", "error")
MOST_LINES = 5000
"""Of one start: marks are few, whatever a host sends."""

_MARGIN_US = 2_000_000


@dataclass
class Start:
    """One invocation of the unit. ``lines`` are those that hold a word of a mark."""

    invocation: str
    started_us: int
    lines: dict[LogLine, None] = field(default_factory=dict)


class Watch:
    """Reads what is new in a unit's journal, a look at a time.

    ``newest`` is its newest start, None where the journal knows none.
    """

    def __init__(self, session: Session, unit: str, words: Sequence[str]) -> None:
        self.unit = unit
        self.newest: Start | None = None
        self._session = session
        self._words = list(words)
        self._since_us: int | None = None
        self._clock: tuple[int, float] | None = None
        self._past: set[str] = set()
        self._misses = 0

    @property
    def now_us(self) -> int:
        """The host's clock at this moment, as its last answer tells it."""
        assert self._clock is not None, "nothing was read yet"
        host_us, ours = self._clock
        return host_us + int((time.monotonic() - ours) * 1e6)

    async def first(self) -> None:
        """The first look, over all that the journal has of the newest start. ``unit`` is the
        unit's own name afterwards where it was an alias: the journal knows that one only.

        ProbeFailed where there is no journal, no such unit, or no right to read it.
        """
        row = await self._read({"head": HEAD_ENTRIES})
        if row["reading"] is not None and row["reading"]["scanned"]:
            return
        state = await self.state()
        if state is not None and state["name"] not in (self.unit, f"{self.unit}.service"):
            self.unit = state["name"]
            row = await self._read({"head": HEAD_ENTRIES})
            if row["reading"] is not None and row["reading"]["scanned"]:
                return
        blind = row["outcome"] == "partial" and not row["reading"]["damaged"]
        if row["reading"] is None or blind:
            raise gather.probe_error("journal.read", row)
        if state is not None and state["load"] in _NEVER_STARTED:
            raise errors.ProbeFailed(
                f"systemd has no unit {state['name']} to start ({state['load']})",
                "list them on the host with: systemctl list-unit-files",
            )

    async def look(self) -> None:
        """What was logged since the last look."""
        since = "@{}.{:06d}".format(*divmod(self._since_us or 0, 1_000_000))
        row = await self._read({"since": since})
        if row["reading"] is not None:
            self._misses = 0
            return
        self._misses += 1
        if self._misses >= MISSES:
            raise gather.probe_error("journal.read", row)

    async def state(self) -> dict[str, Any] | None:
        """The reading of ``unit.state``; None where systemd does not answer."""
        name = self.unit if "." in self.unit else f"{self.unit}.service"
        row = await gather.ask(self._session, "unit.state", {"unit": name})
        found: dict[str, Any] | None = row["reading"]
        return found

    async def earlier(self, invocation: str) -> Sequence[LogLine]:
        """The lines of a start that is not the newest any more."""
        asked = {"unit": self.unit, "invocation": invocation}
        log = await self._log(asked, {"head": HEAD_ENTRIES})
        return log.lines

    async def _log(self, asked: dict[str, Any], options: dict[str, Any]) -> Log:
        return await read_log(
            self._session,
            asked,
            timeout_seconds=READ_SECONDS,
            words=self._words,
            limit_lines=MOST_LINES,
            **options,
        )

    async def _read(self, more: dict[str, Any]) -> Reading:
        asked: dict[str, Any] = {"unit": self.unit}
        if "since" in more:
            asked["since"] = more.pop("since")
        log = await self._log(asked, more)
        row: Reading = log.reading
        if row["reading"] is None:
            return row
        self._clock = (row["reading"]["now_us"], time.monotonic())
        if self._since_us is None:
            self._since_us = row["reading"]["now_us"] - _MARGIN_US
        spans = sorted(log.invocations, key=lambda one: int(one["age"]))
        if spans:
            self._take(spans[0], log.invocations.index(spans[0]), log.lines)
        return row

    def _take(self, span: dict[str, Any], number: int, lines: Sequence[LogLine]) -> None:
        """Keep what belongs to the newest start. An earlier one's last words change nothing:
        the newest start's, beside them, are then read again."""
        name = str(span["id"])
        if name in self._past:
            return
        if self.newest is None or self.newest.invocation != name:
            if self.newest is not None:
                self._past.add(self.newest.invocation)
            self.newest = Start(name, span["first_us"] or self.now_us)
        if span["last_us"] is not None:
            self._since_us = span["last_us"]
        for line in lines:
            if line.invocation == number and len(self.newest.lines) < MOST_LINES:
                self.newest.lines[line] = None
