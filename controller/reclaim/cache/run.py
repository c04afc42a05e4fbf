"""Reclaim from the page cache: what a host's plan is made of, one drop or migration, verified."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fleetmem.controller import errors
from fleetmem.controller.contact import gather
from fleetmem.controller.contact.memory_gather import Rows, memory_readings, partial, plain
from fleetmem.controller.reclaim.cache.plan import CacheEnd, make_plan, outcome
from fleetmem.controller.reclaim.cache.section import cache_section
from fleetmem.controller.run.fanout import HostEnd

if TYPE_CHECKING:
    from fleetmem.controller.answer.envelope import Reading, Rung
    from fleetmem.controller.contact.session import Session
    from fleetmem.controller.reclaim.options import ReclaimOptions
    from fleetmem.controller.reclaim.run import Seat, Turn
    from fleetmem.controller.run.fanout import Phase
    from fleetmem.controller.run.life import Life

ACTION = "pagecache.drop"
POST_CHECK = "engine.request"
_LOOK = ("host.facts", "host.operations", "gpu.devices", "numa.nodes")
_AFTER = ("gpu.devices", "numa.nodes")
_ROWS = 5000
_DROP_SECONDS = 300.0
_SLACK_SECONDS = 30.0


@dataclass
class Cache:
    """Reclaims file pages. ``before`` has each host's readings as the plan was made."""

    life: Life
    options: ReclaimOptions
    before: dict[str, Rows] = field(default_factory=dict)

    async def plan(self, seat: Seat, session: Session, phase: Phase) -> HostEnd:
        """Read which files have pages where, and plan."""
        paths = list(self.options.cache or ())
        calls: dict[str, dict[str, Any]] = {name: {} for name in _LOOK}
        calls["pagecache.files"] = {"paths": paths, "largest": _ROWS}
        if paths:
            calls["pagecache.files"]["walk"] = "never"
        rows = await memory_readings(session, calls)
        for name in ("host.facts", "host.operations", "numa.nodes", "pagecache.files"):
            if rows[name]["reading"] is None:
                raise gather.probe_error(name, rows[name])
        pids = sorted(
            {pid for one in rows["pagecache.files"]["reading"]["files"] for pid in one["mapped_by"]}
        )[:_ROWS]
        if pids:
            rows["processes.identity"] = await gather.ask(
                session, "processes.identity", {"pids": pids}
            )
        seat.entry["readings"] = self.before[seat.host.name] = rows
        with gather.judging(seat.host.name):
            self._judge(seat)
        return HostEnd(seat.host.name, "partial" if partial(rows) else "ok")

    def _judge(self, seat: Seat) -> None:
        readings = plain(self.before[seat.host.name])
        seat.plan = make_plan(
            readings,
            list(self.options.cache or ()),
            self.options.cache_mode,
            _names(readings),
            post_check=self.options.post_check,
        )
        seat.entry["reclaim"] = cache_section(seat.plan, readings, None, None, seat.host.name)

    def is_watched(self, seat: Seat) -> bool:
        """Never: pages that nobody asked to leave stay."""
        return False

    def check(self, seats: Sequence[Seat]) -> None:
        """Nothing: a path without pages is no mistake."""

    def seconds(self, seats: Sequence[Seat]) -> float:
        """As long as a drop, and the engine's answer afterwards, may take."""
        spare = _DROP_SECONDS + _SLACK_SECONDS
        if self.options.post_check is not None:
            spare += self.options.post_check_seconds + _SLACK_SECONDS
        return spare

    async def apply(self, seat: Seat, turn: Turn) -> HostEnd:
        """Drop or migrate once, look again, ask the engine where that was asked for."""
        turn.phase("page cache")
        end = await self._drop(seat, turn)
        turn.phase("looking again")
        found = await asyncio.gather(*(gather.ask(turn.session, name) for name in _AFTER))
        after = {**self.before[seat.host.name], **dict(zip(_AFTER, found, strict=True))}
        await turn.release()
        checked = await self._post_check(seat, turn, end)
        with gather.judging(seat.host.name):
            self._finish(seat, end, after, checked)
        if end.unknown:
            return HostEnd(seat.host.name, "unknown", errors.OutcomeUnknown(str(end.reason)))
        if checked is not None:
            after = {**after, POST_CHECK: checked}
        return HostEnd(seat.host.name, "partial" if partial(after) else "ok")

    def left_open(self, seat: Seat, why: str) -> None:
        """The drop was begun and its end was not seen."""
        self._finish(seat, CacheEnd(None, why, True, None), self.before[seat.host.name])

    async def _post_check(self, seat: Seat, turn: Turn, end: CacheEnd) -> Reading | None:
        """Ask the engine on the host once. Whatever comes of it, the rung's end is known."""
        url = seat.plan.post_check
        if url is None or end.reading is None:
            return None
        turn.phase("post-check")
        limit = self.options.post_check_seconds
        try:
            row = await gather.ask(
                turn.session,
                POST_CHECK,
                {"url": url, "seconds": limit},
                timeout_seconds=limit + _SLACK_SECONDS,
            )
        except (errors.FleetError, asyncio.CancelledError) as error:
            why = getattr(error, "message", "interrupted, or over the host's deadline")
            row = {"outcome": "failed", "reason": why, "reading": None, "seconds": None}
        seat.entry["readings"][POST_CHECK] = row
        return row

    async def _drop(self, seat: Seat, turn: Turn) -> CacheEnd:
        """The action itself, once; both trails have it before it happens."""
        plan = seat.plan
        turn.announce(
            {
                "action": ACTION,
                "mode": plan.mode,
                "files": [file.argument for file in plan.targets],
                "bytes": plan.bytes,
                "reason": self.options.reason,
            }
        )
        begin = time.monotonic()
        row = await gather.ask(
            turn.session,
            ACTION,
            {
                "paths": [file.argument for file in plan.targets],
                "keys": [f"{file.device}:{file.inode}" for file in plan.targets],
                "mode": plan.mode,
                "nodes": list(plan.nodes),
                "operation": plan.id,
                "epoch": turn.epoch,
                "boot_id": plan.boot_id,
                "desk": turn.desk,
                "reason": self.options.reason or "",
            },
            timeout_seconds=_DROP_SECONDS,
        )
        seconds = time.monotonic() - begin
        seat.entry["readings"][ACTION] = row
        unknown = row["reading"] is None and row["outcome"] not in ("denied", "unsupported")
        if unknown and row.get("code") == "stale_plan":
            raise gather.probe_error(ACTION, row)
        done = row["reading"] or {}
        turn.answered(
            {
                "action": f"{ACTION}.done",
                "outcome": row["outcome"],
                "reason": row["reason"],
                "freed_bytes": done.get("freed_bytes"),
                "moved_bytes": done.get("moved_bytes"),
            },
            row["reading"] is not None or unknown,
        )
        return CacheEnd(row["reading"], row["reason"] or row["outcome"], unknown, seconds)

    def _finish(
        self, seat: Seat, end: CacheEnd, after: Rows, checked: Reading | None = None
    ) -> None:
        plan = seat.plan
        done = end.reading or {}
        rung: Rung = {
            "rung": "cache",
            "outcome": outcome(plan, end),  # type: ignore[typeddict-item]  # the same words
            "seconds": None if end.seconds is None else round(end.seconds, 3),
            "signalled": [],
            "freed_bytes": done["freed_bytes"] + done["moved_bytes"] if done else None,
            "why": end.reason if end.reading is None else None,
        }
        before = plain(self.before[seat.host.name])
        seat.entry["reclaim"] = cache_section(
            plan, before, end, plain(after), seat.host.name, [rung], checked
        )
        self.life.on_event({"kind": "rung", "host": seat.host.name, "rung": rung})


def _names(readings: Any) -> dict[int, str]:
    """Who a pid is, for people: its name and number."""
    found = readings.get("processes.identity")
    rows = found["processes"] if found else ()
    return {row["pid"]: f"{row['comm']} {row['pid']}" for row in rows}
