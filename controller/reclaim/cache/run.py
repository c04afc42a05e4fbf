"""``reclaim --cache`` over many hosts: look, plan, ask once, lock, drop or migrate, verify."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from fleetmem.controller import errors
from fleetmem.controller.answer import envelope as env
from fleetmem.controller.answer.exit_codes import exit_code
from fleetmem.controller.contact import gather, link
from fleetmem.controller.contact.memory_gather import Rows, memory_readings, partial, plain
from fleetmem.controller.reclaim.cache.plan import CacheEnd, CachePlan, make_plan, outcome
from fleetmem.controller.reclaim.cache.section import cache_section
from fleetmem.controller.reclaim.plan import refuse_expired
from fleetmem.controller.run.fanout import FAILURES, HostEnd, failure_cap, run_hosts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fleetmem.controller.answer.envelope import Envelope, HostEntry, Reading, Rung
    from fleetmem.controller.hosts.host import Host
    from fleetmem.controller.reclaim.options import ReclaimOptions
    from fleetmem.controller.record.history import History
    from fleetmem.controller.run.settings import Approve, FleetSettings, OnEvent

ACTION = "pagecache.drop"
POST_CHECK = "engine.request"
_LOOK = ("host.facts", "host.operations", "gpu.devices", "numa.nodes")
_AFTER = ("gpu.devices", "numa.nodes")
_ROWS = 5000
_DROP_SECONDS = 300.0
_SLACK_SECONDS = 30.0


@dataclass
class _Seat:
    """What is known of one host in this run."""

    host: Host
    entry: HostEntry
    plan: CachePlan | None = None
    before: Rows = field(default_factory=dict)
    begun: bool = False
    seconds: float = 0.0


class CacheRun:
    """The run itself; :meth:`run` may be awaited once."""

    def __init__(
        self,
        hosts: tuple[Host, ...],
        settings: FleetSettings,
        options: ReclaimOptions,
        approve: Approve,
        on_event: OnEvent,
    ) -> None:
        self.hosts = hosts
        self.settings = settings
        self.options = options
        self.approve = approve
        self.on_event = on_event
        self.run_info = env.new_run("reclaim")
        self.seats = {h.name: _Seat(h, env.new_host(h.name, "not_attempted")) for h in hosts}
        self.history: History | None = None
        self.desk = link.desk()
        self.linker = link.Linker(settings, on_event)
        self.declined = self.interrupted = False

    async def run(self) -> Envelope:
        """The envelope; HistoryUnavailable before anything is changed."""
        from fleetmem.controller.record.history import open_history, open_or_warn

        opened = open_or_warn if self.options.dry_run else open_history
        self.history = opened(self._warn, self.settings.history_dir)
        self.on_event({"kind": "run", "run": self.run_info["id"]})
        if self.history:
            self.history.begin(self.run_info, list(self.seats))
        try:
            await self._over(self.hosts, self._plan_host, self.options.max_fail)
            chosen = [seat.host for seat in self.seats.values() if seat.plan and seat.plan.targets]
            left = self._failures_left()
            if chosen and not self.options.dry_run and left != 0:
                entries = [seat.entry for seat in self.seats.values()]
                self.declined = not await self.approve(entries)
                if not self.declined:
                    await self._apply_all(chosen, left)
        except asyncio.CancelledError:
            self.interrupted = True  # every host has said how far it came
        return self._envelope()

    async def _over(
        self,
        hosts: Sequence[Host],
        work: Any,
        max_fail: Any,
        more_seconds: float = 0.0,
    ) -> None:
        await run_hosts(
            hosts,
            work,
            fanout=self.settings.fanout,
            deadline_seconds=self.settings.host_timeout_seconds + more_seconds,
            max_fail=max_fail,
            on_end=self._ended,
            on_phase=lambda host, text: self.on_event(
                {"kind": "phase", "host": host, "text": text}
            ),
            on_warning=self._warn,
        )

    def _failures_left(self) -> int | None:
        cap = failure_cap(self.options.max_fail, len(self.seats))
        failed = sum(seat.entry["outcome"] in FAILURES for seat in self.seats.values())
        return None if cap is None else max(0, cap - failed)

    async def _apply_all(self, hosts: Sequence[Host], left: int | None) -> None:
        first = hosts[: self.options.canary]
        more = _DROP_SECONDS + _SLACK_SECONDS
        if self.options.post_check is not None:
            more += self.options.post_check_seconds + _SLACK_SECONDS
        if first:
            await self._over(first, self._apply_host, left, more)
            if any(self.seats[h.name].entry["outcome"] not in ("ok", "partial") for h in first):
                return
        await self._over(hosts[len(first) :], self._apply_host, left, more)

    # --- one host --------------------------------------------------------------------------

    async def _plan_host(self, host: Host, phase: Any) -> HostEnd:
        seat = self.seats[host.name]
        begin = time.monotonic()
        paths = list(self.options.cache or ())
        calls: dict[str, dict[str, Any]] = {name: {} for name in _LOOK}
        calls["pagecache.files"] = {"paths": paths, "largest": _ROWS}
        if paths:
            calls["pagecache.files"]["walk"] = "never"
        held = await self.linker.open(host, phase)
        try:
            phase("reading")
            rows = await memory_readings(held.session, calls)
            for name in ("host.facts", "host.operations", "numa.nodes", "pagecache.files"):
                if rows[name]["reading"] is None:
                    raise gather.probe_error(name, rows[name])
            pids = sorted(
                {pid for one in rows["pagecache.files"]["reading"]["files"]
                 for pid in one["mapped_by"]}
            )[:_ROWS]  # fmt: skip
            if pids:
                rows["processes.identity"] = await gather.ask(
                    held.session, "processes.identity", {"pids": pids}
                )
        finally:
            await held.close()
        seat.entry["readings"] = rows
        seat.before = rows
        readings = plain(rows)
        seat.plan = make_plan(
            readings,
            paths,
            self.options.cache_mode,
            _names(readings),
            post_check=self.options.post_check,
        )
        seat.entry["reclaim"] = cache_section(seat.plan, readings, None, None, host.name)
        seat.seconds = time.monotonic() - begin
        if self.history and seat.plan.targets:
            plan = seat.entry["reclaim"]["plan"]
            assert plan is not None
            self.history.save_plan(self.run_info["id"], host.name, plan, seat.plan.document)
        return HostEnd(host.name, "partial" if partial(rows) else "ok")

    async def _apply_host(self, host: Host, phase: Any) -> HostEnd:
        seat = self.seats[host.name]
        plan = seat.plan
        assert plan is not None
        begin = time.monotonic()
        refuse_expired(plan.created, datetime.now(UTC))
        held = await self.linker.open(host, phase)
        try:
            phase("lock")
            epoch = await self._lock(held.session, plan)
            phase("page cache")
            end = await self._drop(seat, held.session, epoch)
            phase("looking again")
            found = await asyncio.gather(*(gather.ask(held.session, name) for name in _AFTER))
            after = {**seat.before, **dict(zip(_AFTER, found, strict=True))}
            with contextlib.suppress(errors.FleetError):
                await held.session.unlock()
            checked = await self._post_check(seat, held.session, end, phase)
        except (errors.FleetError, asyncio.CancelledError) as error:
            if not seat.begun or isinstance(error, errors.Refused):
                raise
            why = getattr(error, "message", "interrupted, or over its deadline")
            self._finish(seat, CacheEnd(None, why, True, None), seat.before)
            unknown = errors.OutcomeUnknown(f"the end of {ACTION} was not seen: {why}")
            return HostEnd(host.name, "unknown", unknown)
        finally:
            await held.close()
        self._finish(seat, end, after, checked)
        seat.seconds += time.monotonic() - begin
        if end.unknown:
            return HostEnd(host.name, "unknown", errors.OutcomeUnknown(str(end.reason)))
        if checked is not None:
            after = {**after, POST_CHECK: checked}
        return HostEnd(host.name, "partial" if partial(after) else "ok")

    async def _post_check(
        self, seat: _Seat, session: Any, end: CacheEnd, phase: Any
    ) -> Reading | None:
        """Ask the engine on the host once. Whatever comes of it, the rung's end is known."""
        assert seat.plan is not None
        url = seat.plan.post_check
        if url is None or end.reading is None:
            return None
        phase("post-check")
        limit = self.options.post_check_seconds
        try:
            row = await gather.ask(
                session,
                POST_CHECK,
                {"url": url, "seconds": limit},
                timeout_seconds=limit + _SLACK_SECONDS,
            )
        except (errors.FleetError, asyncio.CancelledError) as error:
            why = getattr(error, "message", "interrupted, or over the host's deadline")
            row = {"outcome": "failed", "reason": why, "reading": None, "seconds": None}
        seat.entry["readings"][POST_CHECK] = row
        return row

    async def _lock(self, session: Any, plan: CachePlan) -> int:
        """Take the host's lock; the epoch must be the plan's plus this one."""
        epoch = await gather.lock(session, f"{plan.id} {self.desk}")
        if epoch != plan.epoch + 1:
            raise errors.StalePlan("another run changed this host since the plan was made")
        return epoch

    async def _drop(self, seat: _Seat, session: Any, epoch: int) -> CacheEnd:
        """The action itself, once; both trails have it before it happens."""
        plan, history = seat.plan, self.history
        assert plan is not None
        assert history is not None
        history.trail(
            plan.id,
            seat.host.name,
            {
                "action": ACTION,
                "mode": plan.mode,
                "files": [file.argument for file in plan.targets],
                "bytes": plan.bytes,
                "reason": self.options.reason,
            },
        )
        seat.begun = True
        begin = time.monotonic()
        row = await gather.ask(
            session,
            ACTION,
            {
                "paths": [file.argument for file in plan.targets],
                "keys": [f"{file.device}:{file.inode}" for file in plan.targets],
                "mode": plan.mode,
                "nodes": list(plan.nodes),
                "operation": plan.id,
                "epoch": epoch,
                "boot_id": plan.boot_id,
                "desk": self.desk,
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
        history.trail(
            plan.id,
            seat.host.name,
            {
                "action": f"{ACTION}.done",
                "outcome": row["outcome"],
                "reason": row["reason"],
                "freed_bytes": done.get("freed_bytes"),
                "moved_bytes": done.get("moved_bytes"),
            },
        )
        return CacheEnd(row["reading"], row["reason"] or row["outcome"], unknown, seconds)

    def _finish(
        self, seat: _Seat, end: CacheEnd, after: Rows, checked: Reading | None = None
    ) -> None:
        plan = seat.plan
        assert plan is not None
        done = end.reading or {}
        rung: Rung = {
            "rung": "cache",
            "outcome": outcome(plan, end),  # type: ignore[typeddict-item]  # the same words
            "seconds": None if end.seconds is None else round(end.seconds, 3),
            "signalled": [],
            "freed_bytes": done["freed_bytes"] + done["moved_bytes"] if done else None,
            "why": end.reason if end.reading is None else None,
        }
        before = plain(seat.before)
        seat.entry["reclaim"] = cache_section(
            plan, before, end, plain(after), seat.host.name, [rung], checked
        )
        self.on_event({"kind": "rung", "host": seat.host.name, "rung": rung})

    # --- keeping records -------------------------------------------------------------------

    def _ended(self, end: HostEnd) -> None:
        seat = self.seats[end.host]
        seat.entry["outcome"] = end.outcome
        seat.entry["seconds"] = round(seat.seconds or end.seconds, 3)
        if end.error is not None:
            seat.entry["error"] = end.error.to_json()
        self.on_event({"kind": "host_done", "host": end.host, "outcome": end.outcome})
        if self.history:
            self.history.record_host(self.run_info["id"], seat.entry)

    def _envelope(self) -> Envelope:
        entries = [seat.entry for seat in self.seats.values()]
        envelope = env.new_envelope(self.run_info, list(self.seats), entries)
        code = exit_code(
            envelope,
            plan_only=self.declined or (self.options.dry_run and self.options.detailed_exitcode),
            interrupted=errors.EXIT_SIGINT if self.interrupted else None,
        )
        env.finish(envelope, code)
        if self.history:
            self.history.finish(envelope)
            self.history.close()
        return envelope

    def _warn(self, text: str) -> None:
        self.on_event({"kind": "warning", "text": text})


def _names(readings: Any) -> dict[int, str]:
    """Who a pid is, for people: its name and number."""
    found = readings.get("processes.identity")
    rows = found["processes"] if found else ()
    return {row["pid"]: f"{row['comm']} {row['pid']}" for row in rows}
