"""One host's unit, followed: wait for its start, look at memory at each mark of its log."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from fleetmem.controller.answer.step import DIRECT, Reach, complete, next_step
from fleetmem.controller.contact.gather import judging
from fleetmem.controller.errors import TimedOut
from fleetmem.controller.look.follow.marks import FAILED, PHASES, READY, Mark, Told, due, told

if TYPE_CHECKING:
    from fleetmem.controller.look.follow.watch import Start, Watch
    from fleetmem.controller.memory.snapshot_shapes import Follow, PhaseMark
    from fleetmem.controller.startup.read.patterns import Pattern

    Look = Callable[[str, "PhaseMark", Callable[[], int]], Awaitable[str]]

POLL_SECONDS = 0.5
"""Between two looks into the journal: with the reading of memory, less than 2 s from a line."""

WAIT_SECONDS = 1.0
"""The same while no start is under way."""

_CLOSED = {
    "before-load": "weights began to load",
    "after-load": "the KV pool was made",
}

MOST_RESTARTS = 4
"""A unit that is started again more often in one follow is in a loop: it is left."""

EXIT_SECONDS = 10.0
"""How long an engine that said that it failed may take to end, before that is its end."""


def new_follow(unit: str) -> Follow:
    """The section of a host whose unit is waited for."""
    return {
        "unit": unit,
        "status": "waiting",
        "invocation": None,
        "restarts": 0,
        "phases": [],
        "missed": [],
        "failed": [],
        "changes": [],
        "next": [],
    }


@dataclass
class Follower:
    """Fills ``section`` of one host until its unit's start is over.

    ``look`` takes the snapshot of a phase and fills in its mark's own moment; it answers the
    id of the run that recorded it. ``amend`` records a phase again, whose mark has changed
    since. ``say`` is told of what happens, ``phase`` of what is
    waited for.
    """

    host: str
    watch: Watch
    rows: Sequence[Pattern]
    section: Follow
    look: Look
    amend: Callable[[str], None]
    say: Callable[[str], None]
    phase: Callable[[str], None]
    timeout_seconds: float
    reach: Reach = DIRECT
    _taken: set[str] = field(default_factory=set)
    _over: set[str] = field(default_factory=set)
    _told: Told = field(default_factory=Told)
    _failed_at: float = 0.0
    _last: tuple[str, PhaseMark, int] | None = None
    _ready_before: bool = False

    async def run(self) -> None:
        """Until the engine is ready, or failed for good. TimedOut after ``timeout_seconds``."""
        with judging(self.host):
            await self._follow(time.monotonic() + self.timeout_seconds)

    async def _follow(self, until: float) -> None:
        self.phase("reading the journal")
        await self.watch.first()
        self.section["unit"] = self.watch.unit
        self._pass_over_old()
        if self.watch.newest is None or self.watch.newest.invocation in self._over:
            self._wait()
        while True:
            start = self.watch.newest
            taken = False
            if start is not None and start.invocation not in self._over:
                if start.invocation != self.section["invocation"] and not await self._begin(start):
                    break
                self._told = told(start.lines, self.rows, start.started_us)
                if self._late_note() and self._last is not None:
                    self.amend(self._last[0])
                name = due(self._told, self._taken)
                if name is not None:
                    await self._take(start, name, self._told.marks[name])
                    taken = True
                elif await self._finished(start):
                    break
            if time.monotonic() > until:
                raise self._late()
            if not taken:
                idle = self.section["status"] == "waiting"
                await asyncio.sleep(WAIT_SECONDS if idle else POLL_SECONDS)
            await self.watch.look()
        self._missing()

    def _pass_over_old(self) -> None:
        """A start that is over, or older than could be waited for, is not the one to come."""
        start = self.watch.newest
        if start is None:
            return
        found = told(start.lines, self.rows, start.started_us)
        age_seconds = (self.watch.now_us - start.started_us) / 1e6
        if found.over is None and age_seconds <= self.timeout_seconds:
            return
        self._over.add(start.invocation)
        self._ready_before = found.over == READY
        if found.over == FAILED:
            self._keep_failed(start.invocation, found.marks.get(FAILED))

    async def _begin(self, start: Start) -> bool:
        """Turn to a start that was not followed yet; false where the unit is in a loop."""
        section = self.section
        before = section["invocation"]
        if before is not None:
            if section["status"] != "waiting":  # it was not stopped
                ended = self._told
                if ended.over is None:  # it ended between two looks
                    ended = told(await self.watch.earlier(before), self.rows, 0)
                if ended.over in (FAILED, None):  # else it was ready, or restarted by hand
                    self._keep_failed(before, ended.marks.get(FAILED))
            if section["restarts"] >= MOST_RESTARTS:
                section["status"] = "failed"
                return False
            section["restarts"] += 1
            self.say(f"{section['unit']} was restarted (restart {section['restarts']})")
        section["invocation"] = start.invocation
        section["status"] = "starting"
        section["phases"], section["missed"] = [], []
        self._taken = set()
        self._last = None
        self.phase("starting")
        return True

    async def _take(self, start: Start, name: str, mark: Mark) -> None:
        shape: PhaseMark = {
            "unit": self.section["unit"],
            "invocation": start.invocation,
            "time": moment(mark.microseconds),
            "text": mark.text,
            "rank": mark.rank,
            "pattern": mark.pattern,
            "taken": "",
            "delay_seconds": 0.0,
            "note": None,
        }
        self.phase(f"{name}: reading")

        def stamp() -> int:
            """Fill in the moment at which the readings were there."""
            now_us = self.watch.now_us
            shape["taken"] = moment(now_us)
            shape["delay_seconds"] = round((now_us - mark.microseconds) / 1e6, 3)
            self._last = (name, shape, now_us)
            self._late_note()
            return now_us

        run = await self.look(name, shape, stamp)
        self._taken.add(name)
        self.section["phases"].append({"phase": name, "run": run, "mark": shape})
        self.say(f"{name}, {shape['delay_seconds']:.1f} s after: {_said(shape)}")
        if name == "after-init":
            self.section["status"] = "ready"
        elif name == FAILED:
            self.section["status"] = "failed"
            self._failed_at = time.monotonic()
        self.phase(f"starting, {name} taken")

    def _late_note(self) -> bool:
        """Say in the last mark what its snapshot has of the time after its phase; whether the
        note is new: the line that tells of it may come after the snapshot."""
        if self._last is None:
            return False
        name, shape, taken_us = self._last
        closed_us = self._told.closed_us.get(name)
        if closed_us is None or closed_us >= taken_us or shape["note"] is not None:
            return False
        seconds = (taken_us - closed_us) / 1e6
        shape["note"] = f"{_CLOSED[name]} {seconds:.1f} s before memory was read"
        return True

    async def _finished(self, start: Start) -> bool:
        """Whether this start is over and no other one follows it."""
        over = self._told.over
        if over == "after-init":
            return True
        if over == "stopped":
            self.say(f"{self.section['unit']} was stopped before it was ready")
            self._over.add(start.invocation)
            self.section["status"] = "waiting"
            self._wait()
            return False
        if over != FAILED:
            return False
        state = await self.watch.state()
        active = state["active"] if state is not None else ""
        if active == "activating" and state is not None and state["sub"].startswith("auto-restart"):
            self._keep_failed(start.invocation, self._told.marks[FAILED])
            self.phase("waiting for the restart")
            return False
        ended = active in ("failed", "inactive", "")
        return ended or time.monotonic() - self._failed_at > EXIT_SECONDS

    def _keep_failed(self, invocation: str, mark: Mark | None) -> None:
        if any(one["invocation"] == invocation for one in self.section["failed"]):
            return
        time_ = None if mark is None else moment(mark.microseconds)
        text = None if mark is None else mark.text
        self.section["failed"].append({"invocation": invocation, "time": time_, "text": text})

    def _wait(self) -> None:
        self.phase("waiting for the start")
        again = " again: its newest start is already ready" if self._ready_before else ""
        self.say(f"waiting for {self.section['unit']} to start{again}")

    def _late(self) -> TimedOut:
        self._missing()
        unit, status = self.section["unit"], self.section["status"]
        what = "was not started" if status == "waiting" else "was not ready"
        if status == "waiting" and self._ready_before:
            what = "was already ready and was not restarted"
        if status == "failed":
            what = "was not restarted after it failed"
        taken = ", ".join(one["phase"] for one in self.section["phases"]) or "nothing"
        return TimedOut(
            f"{unit} {what} within {self.timeout_seconds:g} s; taken: {taken}",
            f"see what it logs: {complete(next_step('logs', self.host, unit=unit), self.reach)}",
        )

    def _missing(self) -> None:
        """Say why a phase before the last one taken has no snapshot."""
        done = [one["phase"] for one in self.section["phases"]]
        self.section["missed"] = []
        ready = "after-init" in done
        for name in PHASES:
            if name in done:
                continue
            mark = self._told.marks.get(name)
            if name == "after-load" and ready and mark is None:
                why = "no line says that the weights are loaded"
                if self._told.loading:
                    ranks = ", ".join(self._told.loading)
                    why = f"no line of rank {ranks} says that its weights are loaded"
            elif mark is not None:
                why = f"its line of {moment(mark.microseconds)} was no longer the newest milestone"
            else:
                continue
            self.section["missed"].append({"phase": name, "why": why})


def moment(microseconds: int) -> str:
    """RFC 3339 in UTC, to the millisecond."""
    found = datetime.fromtimestamp(microseconds / 1e6, UTC)
    return found.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _said(mark: PhaseMark) -> str:
    return mark["text"] or f"the start of {mark['unit']}"
