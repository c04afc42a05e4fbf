"""``snapshot --follow-start``: one snapshot at each mark of an engine's start, on many hosts.

Each phase is a run of its own in the history, over all hosts, so that ``diff`` finds them by
their names. The follow itself is a run too: every host's last snapshot, and what changed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from fleetmem.controller.answer.fold import fold_hosts
from fleetmem.controller.answer.step import Step, next_step
from fleetmem.controller.contact.memory_gather import memory_readings, partial
from fleetmem.controller.hosts.nodeset import expand
from fleetmem.controller.look.diff import changes
from fleetmem.controller.look.follow.marks import FAILED, PHASES, marking, words
from fleetmem.controller.look.follow.one_host import Follower, new_follow
from fleetmem.controller.look.follow.watch import Watch
from fleetmem.controller.look.snapshot import PLAYBOOKS, MemoryLook, SnapshotOptions, calls_of
from fleetmem.controller.run.life import RunPart, begin, looked

if TYPE_CHECKING:
    from fleetmem.controller.answer.envelope import Envelope, Finding, HostEntry
    from fleetmem.controller.contact.session import Session
    from fleetmem.controller.errors.base import HostOutcome
    from fleetmem.controller.hosts.host import Host
    from fleetmem.controller.memory.snapshot_shapes import Follow, PhaseMark
    from fleetmem.controller.rules.book import Playbook
    from fleetmem.controller.run.fanout import Phase
    from fleetmem.controller.run.life import Life
    from fleetmem.controller.run.settings import FleetSettings, OnEvent
    from fleetmem.controller.startup.read.patterns import Pattern

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

    playbooks = [load(name) for name in PLAYBOOKS]
    life = begin(COMMAND, hosts, settings, on_event)
    follow = _Follow(life, options, playbooks, marking(builtin()))
    around = 2 * settings.host_timeout_seconds  # to connect, and for the last reading
    return await looked(
        life,
        [RunPart(follow.read, follow.judge)],
        fanout=max(settings.fanout, len(hosts)),
        deadline_seconds=options.timeout_seconds + around,
    )


@dataclass
class _Follow:
    """The state of one follow over many hosts. Each phase is a run of its own."""

    life: Life
    options: FollowOptions
    playbooks: Sequence[Playbook]
    rows: Sequence[Pattern]
    phases: dict[str, MemoryLook] = field(default_factory=dict)

    async def read(self, entry: HostEntry, session: Session, phase: Phase) -> HostOutcome:
        """Follow one host's unit until its start is over."""
        await self._follow(entry["host"], session, phase)
        return "partial" if partial(entry["readings"]) else "ok"

    def judge(self) -> list[Finding]:
        """Close the runs of the phases and compare them; what was found in each host's last."""
        done = {}
        for name, look in self.phases.items():
            look.life.interrupted = self.life.interrupted
            done[name] = look.life.finish(look.findings())
        self._compare()
        for host in self.life.entries:
            self.life.record(host)
        entries = list(self.life.entries.values())
        return [*_failed_starts(entries), *_newest_findings(done, entries)]

    async def _follow(self, host: str, session: Session, phase: Phase) -> None:
        options, entry = self.options, self.life.entries[host]
        section = entry["follow"] = new_follow(options.unit)

        async def look(name: str, mark: PhaseMark, stamp: Callable[[], int]) -> str:
            return await self._look(host, session, name, mark, stamp)

        await Follower(
            host=host,
            watch=Watch(session, options.unit, words(self.rows)),
            rows=self.rows,
            section=section,
            look=look,
            amend=lambda name: self.phases[name].life.record(host),
            say=lambda text: self.life.on_event({"kind": "follow", "host": host, "text": text}),
            phase=phase,
            reach=self.life.settings.reach,
            timeout_seconds=options.timeout_seconds,
        ).run()

    async def _look(
        self, host: str, session: Session, name: str, mark: PhaseMark, stamp: Callable[[], int]
    ) -> str:
        """One snapshot, recorded in the run of its phase."""
        taken = self.phases.get(name)
        if taken is None:
            life = begin("snapshot", self.life.hosts, self.life.settings, self.life.on_event)
            calls = calls_of(self.life.settings, self.options.look)
            taken = self.phases[name] = MemoryLook(life, calls, self.playbooks, name)
        begun = time.monotonic()
        rows = await memory_readings(session, taken.calls, large_bytes=_LARGE_BYTES)
        stamp()
        taken.fill(host, rows)
        entry = taken.life.entries[host]
        entry["outcome"] = "partial" if partial(rows) else "ok"
        entry["seconds"] = round(time.monotonic() - begun, 3)
        if "snapshot" in entry:
            entry["snapshot"]["mark"] = mark
        taken.life.record(host)
        mine = self.life.entries[host]
        mine["readings"] = entry["readings"]
        if "snapshot" in entry:
            mine["snapshot"] = entry["snapshot"]
        return taken.life.id

    def _compare(self) -> None:
        """Fill in what changed from phase to phase, and what to do next."""
        for host, entry in self.life.entries.items():
            if "follow" not in entry:
                continue
            section = entry["follow"]
            taken = [self.phases[one["phase"]].life.entries[host] for one in section["phases"]]
            known = [one for one in taken if "snapshot" in one]
            section["changes"] = [
                changes(old["snapshot"], new["snapshot"]) for old, new in pairwise(known)
            ]
            section["next"] = _steps(host, section)


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


def _failed_starts(rows: Sequence[HostEntry]) -> list[Finding]:
    """A finding for each failing line, over the hosts that have it."""
    groups: dict[str, list[HostEntry]] = {}
    for entry in rows:
        if "follow" in entry and entry["follow"]["status"] == "failed":
            groups.setdefault(_failing_line(entry["follow"]), []).append(entry)
    found: list[Finding] = []
    for text, entries in groups.items():
        section = entries[0]["follow"]
        hosts = fold_hosts(entry["host"] for entry in entries)
        restarts = max(entry["follow"]["restarts"] for entry in entries)
        say = f"{section['unit']} did not start: {text}"
        if restarts:
            say += f" (restarted {'once' if restarts == 1 else f'{restarts} times'} meanwhile)"
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
            return one["mark"]["text"] or "the log does not say why"
    return next((one["text"] for one in reversed(section["failed"]) if one["text"]), None) or (
        "the log does not say why"
    )


def _newest_findings(done: dict[str, Envelope], rows: Sequence[HostEntry]) -> list[Finding]:
    """What the playbooks found in each host's last snapshot."""
    last: dict[str, str] = {}
    for entry in rows:
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
