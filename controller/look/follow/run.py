"""``snapshot --follow-start``: one snapshot at each mark of an engine's start, on many hosts.

Each phase is a run of its own in the history, over all hosts, so that ``diff`` finds them by
their names. The follow itself is a run too: every host's last snapshot, and what changed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from fleetmem.controller import errors
from fleetmem.controller.answer import envelope as env
from fleetmem.controller.answer.exit_codes import exit_code
from fleetmem.controller.answer.fold import fold_hosts
from fleetmem.controller.answer.step import Step, next_step
from fleetmem.controller.contact import link
from fleetmem.controller.contact.memory_gather import memory_readings, partial
from fleetmem.controller.hosts.nodeset import expand
from fleetmem.controller.look.diff import changes
from fleetmem.controller.look.follow.host import Follower, new_follow
from fleetmem.controller.look.follow.marks import FAILED, PHASES, marking, words
from fleetmem.controller.look.follow.watch import Watch
from fleetmem.controller.look.snapshot import PLAYBOOKS, MemoryRun, SnapshotOptions, calls_of
from fleetmem.controller.run.fanout import HostEnd, run_hosts

if TYPE_CHECKING:
    from fleetmem.controller.answer.envelope import Envelope, Finding, HostEntry
    from fleetmem.controller.contact.session import Session
    from fleetmem.controller.hosts.host import Host
    from fleetmem.controller.memory.parts import Follow, PhaseMark
    from fleetmem.controller.rules.playbook import Playbook
    from fleetmem.controller.run.settings import FleetSettings, OnEvent

COMMAND = "follow"
TIMEOUT_SECONDS = 1800.0

_LARGE_BYTES = 8 << 20
"""A process that grows is asked for its owner from the start: it has one name in all phases."""


@dataclass(frozen=True)
class FollowOptions:
    """``unit`` is a systemd unit of the hosts; its start may take ``timeout_seconds``, waiting
    for it included. ``look`` is each snapshot, without a phase of its own; it scans no files
    unless it says so, since that may take longer than the moment lasts."""

    unit: str
    timeout_seconds: float = TIMEOUT_SECONDS
    look: SnapshotOptions = field(default_factory=lambda: SnapshotOptions(scan_files=False))


async def follow_start(
    hosts: tuple[Host, ...], settings: FleetSettings, options: FollowOptions, on_event: OnEvent
) -> Envelope:
    """Every host's last snapshot and its ``follow`` section; what was taken is recorded."""
    from fleetmem.controller.rules.playbook import load
    from fleetmem.controller.startup.read.patterns import builtin

    run = _FollowRun(hosts, settings, options, on_event, [load(name) for name in PLAYBOOKS])
    run.rows = marking(builtin())
    return await run.run()


class _FollowRun:
    """The state of one follow over many hosts."""

    def __init__(
        self,
        hosts: Sequence[Host],
        settings: FleetSettings,
        options: FollowOptions,
        on_event: OnEvent,
        playbooks: Sequence[Playbook],
    ) -> None:
        self.rows: Sequence[Any] = ()
        self._hosts = hosts
        self._settings = settings
        self._options = options
        self._on_event = on_event
        self._playbooks = playbooks
        self._calls = calls_of(settings, options.look)
        self._entries = {host.name: env.new_host(host.name, "not_attempted") for host in hosts}
        self._phases: dict[str, MemoryRun] = {}

    async def run(self) -> Envelope:
        """Follow every host at once; what was taken before an interrupt is kept."""
        from fleetmem.controller.record.history import open_or_warn

        run = env.new_run(COMMAND)
        history = open_or_warn(self._warn, self._settings.history_dir)
        if history:
            history.begin(run, list(self._entries))
        linker = link.Linker(self._settings, self._on_event)

        async def work(host: Host, phase: Callable[[str], Any]) -> HostEnd:
            begin = time.monotonic()
            held = await linker.open(host, phase)
            try:
                await self._follow(host.name, held.session, phase)
            finally:
                self._entries[host.name]["seconds"] = round(time.monotonic() - begin, 3)
                await held.close()
            whole = not partial(self._entries[host.name]["readings"])
            return HostEnd(host.name, "ok" if whole else "partial")

        interrupted = None
        around = 2 * self._settings.host_timeout_seconds  # to connect, and for the last reading
        try:
            await run_hosts(
                self._hosts,
                work,
                fanout=max(self._settings.fanout, len(self._hosts)),
                deadline_seconds=self._options.timeout_seconds + around,
                on_end=self._ended,
                on_phase=lambda host, text: self._on_event(
                    {"kind": "phase", "host": host, "text": text}
                ),
                on_warning=self._warn,
            )
        except asyncio.CancelledError:
            interrupted = errors.EXIT_SIGINT
        done = {name: one.finish(interrupted) for name, one in self._phases.items()}
        envelope = env.new_envelope(run, list(self._entries), list(self._entries.values()))
        self._compare()
        envelope["findings"] = [*_failed_starts(envelope), *_newest_findings(done, envelope)]
        env.finish(envelope, exit_code(envelope, interrupted=interrupted))
        if history:
            for entry in envelope["hosts"]:
                history.record_host(run["id"], entry)
            history.finish(envelope)
            history.close()
        return envelope

    async def _follow(self, host: str, session: Session, phase: Callable[[str], Any]) -> None:
        section = self._entries[host]["follow"] = new_follow(self._options.unit)

        async def look(name: str, mark: PhaseMark, stamp: Callable[[], int]) -> str:
            return await self._look(host, session, name, mark, stamp)

        await Follower(
            host=host,
            watch=Watch(session, self._options.unit, words(self.rows)),
            rows=self.rows,
            section=section,
            look=look,
            amend=lambda name: self._phases[name].record(host),
            say=lambda text: self._on_event({"kind": "follow", "host": host, "text": text}),
            phase=phase,
            reach=self._settings.reach,
            timeout_seconds=self._options.timeout_seconds,
        ).run()

    async def _look(
        self, host: str, session: Session, name: str, mark: PhaseMark, stamp: Callable[[], int]
    ) -> str:
        """One snapshot, recorded in the run of its phase."""
        run = self._phases.get(name)
        if run is None:
            run = self._phases[name] = MemoryRun(
                hosts=self._hosts,
                settings=self._settings,
                on_event=self._on_event,
                command="snapshot",
                calls=self._calls,
                playbooks=self._playbooks,
                phase=name,
            )
            run.begin()
        begin = time.monotonic()
        rows = await memory_readings(session, self._calls, large_bytes=_LARGE_BYTES)
        stamp()
        run.fill(host, rows)
        entry = run.entries[host]
        entry["outcome"] = "partial" if partial(rows) else "ok"
        entry["seconds"] = round(time.monotonic() - begin, 3)
        if "snapshot" in entry:
            entry["snapshot"]["mark"] = mark
        run.record(host)
        mine = self._entries[host]
        mine["readings"] = entry["readings"]
        if "snapshot" in entry:
            mine["snapshot"] = entry["snapshot"]
        return run.run_id

    def _ended(self, end: HostEnd) -> None:
        entry = self._entries[end.host]
        entry["outcome"] = end.outcome
        if end.error is not None:
            entry["error"] = end.error.to_json()
        self._on_event({"kind": "host_done", "host": end.host, "outcome": end.outcome})

    def _compare(self) -> None:
        """Fill in what changed from phase to phase, and what to do next."""
        for host, entry in self._entries.items():
            if "follow" not in entry:
                continue
            section = entry["follow"]
            taken = [
                (one["phase"], self._phases[one["phase"]].entries[host])
                for one in section["phases"]
            ]
            known = [one for _, one in taken if "snapshot" in one]
            section["changes"] = [
                changes(old["snapshot"], new["snapshot"]) for old, new in pairwise(known)
            ]
            section["next"] = _steps(host, section)

    def _warn(self, text: str) -> None:
        self._on_event({"kind": "warning", "text": text})


def _steps(host: str, section: Follow) -> list[str]:
    """Commands that go on from here."""
    if section["invocation"] is None:
        return []
    taken = [one["phase"] for one in section["phases"]]
    steps = []
    if len(taken) > 2:
        steps.append(Step(("diff", taken[0], taken[-1])))
    steps.append(next_step("audit startup", host, unit=section["unit"]))
    if section["status"] != "ready":
        steps.append(next_step("logs", host, unit=section["unit"]))
    return list(map(str, steps))


def _failed_starts(envelope: Envelope) -> list[Finding]:
    """A finding for each failing line, over the hosts that have it."""
    groups: dict[str, list[HostEntry]] = {}
    for entry in envelope["hosts"]:
        if "follow" in entry and entry["follow"]["status"] == "failed":
            groups.setdefault(_failing_line(entry["follow"]), []).append(entry)
    found: list[Finding] = []
    for text, entries in groups.items():
        section = entries[0]["follow"]
        hosts = fold_hosts(entry["host"] for entry in entries)
        restarts = max(entry["follow"]["restarts"] for entry in entries)
        say = f"{section['unit']} did not start: {text}"
        if restarts:
            say += f" (started again {'once' if restarts == 1 else f'{restarts} times'} meanwhile)"
        found.append(
            {
                "rule": "follow/start-failed",
                "severity": "critical",
                "hosts": hosts,
                "subject": section["unit"],
                "evidence": {"say": say, "text": text, "restarts": restarts},
                "advice": None,
                "next": [
                    str(next_step(verb, hosts, unit=section["unit"]))
                    for verb in ("audit startup", "logs")
                ],
            }
        )
    return found


def _failing_line(section: Follow) -> str:
    """The line of the newest start's failure, else of the one before."""
    for one in section["phases"]:
        if one["phase"] == FAILED:
            return one["mark"]["text"] or "no line says why"
    return next((one["text"] for one in reversed(section["failed"]) if one["text"]), None) or (
        "no line says why"
    )


def _newest_findings(done: dict[str, Envelope], envelope: Envelope) -> list[Finding]:
    """What the playbooks found in each host's last snapshot."""
    last: dict[str, str] = {}
    for entry in envelope["hosts"]:
        if "snapshot" in entry:
            last[entry["host"]] = entry["snapshot"]["phase"] or ""
    found: list[Finding] = []
    for name in (*PHASES, FAILED):
        if name in done:
            found += [
                one
                for one in done[name]["findings"]
                if any(last.get(host) == name for host in expand(one["hosts"]))
            ]
    return found
