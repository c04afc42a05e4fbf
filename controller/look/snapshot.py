"""``snapshot``: read every host's memory, make its table, judge it, record it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fleetmem.controller import errors
from fleetmem.controller.answer import envelope as env
from fleetmem.controller.answer.exit_codes import exit_code
from fleetmem.controller.contact import link
from fleetmem.controller.contact.gather import judging
from fleetmem.controller.contact.memory_gather import (
    FILES,
    NODES,
    Rows,
    memory_readings,
    partial,
    plain,
)
from fleetmem.controller.memory.account import snapshot as make_section
from fleetmem.controller.rules.judge import Case, judge
from fleetmem.controller.rules.views import Look, comparable
from fleetmem.controller.run.fanout import HostEnd, run_hosts

if TYPE_CHECKING:
    from fleetmem.controller.answer.envelope import Envelope, HostEntry, Run
    from fleetmem.controller.hosts.host import Host
    from fleetmem.controller.record.history import History
    from fleetmem.controller.rules.playbook import Playbook
    from fleetmem.controller.run.settings import FleetSettings, OnEvent

PLAYBOOKS = ("hbm-page-cache", "memory")
"""What judges every snapshot."""

NUMA_MAPS = 8
"""So many of the largest processes say on which NUMA nodes their pages are."""

_LARGEST = 32
"""So many tell their proportional sizes."""

_FILES = 500
_SCAN_SECONDS = 30.0
_EARLIER_RUNS = 5
_LISTED_RUNS = 200


@dataclass(frozen=True)
class SnapshotOptions:
    """``phase`` names the moment; ``files`` are paths to measure besides those found.

    ``scan_files`` false leaves the page cache out: places only, in tenths of a second.
    ``numa_maps`` of the largest processes say on which NUMA nodes their pages are.
    """

    phase: str | None = None
    files: tuple[str, ...] = ()
    scan_files: bool = True
    numa_maps: int = NUMA_MAPS


@dataclass
class MemoryRun:
    """One look at many hosts: which calls, judged by which playbooks, called what."""

    hosts: Sequence[Host]
    settings: FleetSettings
    on_event: OnEvent
    command: str
    calls: Mapping[str, Mapping[str, Any]]
    playbooks: Sequence[Playbook]
    phase: str | None = None
    sections: bool = True
    entries: dict[str, HostEntry] = field(default_factory=dict)
    looks: dict[str, Look] = field(default_factory=dict)
    run_id: str = ""
    _run: Run = field(init=False)
    _history: History | None = None
    _earlier: dict[str, dict[str, Any]] = field(default_factory=dict)

    async def run(self) -> Envelope:
        """The envelope; what was finished before an interrupt is kept."""
        self.begin()
        linker = link.Linker(self.settings, self.on_event)

        async def work(host: Host, phase: Any) -> HostEnd:
            begin = time.monotonic()
            held = await linker.open(host, phase)
            try:
                phase("reading")
                rows = await memory_readings(
                    held.session, self.calls, lambda rows: self._nodes(host.name, rows, phase)
                )
            finally:
                await held.close()
            self.fill(host.name, rows)
            self.entries[host.name]["seconds"] = round(time.monotonic() - begin, 3)
            return HostEnd(host.name, "partial" if partial(rows) else "ok")

        interrupted = None
        try:
            await run_hosts(
                self.hosts,
                work,
                fanout=self.settings.fanout,
                deadline_seconds=self.settings.host_timeout_seconds,
                on_end=self._ended,
                on_phase=lambda host, text: self.on_event(
                    {"kind": "phase", "host": host, "text": text}
                ),
                on_warning=self._warn,
            )
        except asyncio.CancelledError:
            interrupted = errors.EXIT_SIGINT  # what is finished is kept
        return self.finish(interrupted)

    def begin(self) -> None:
        """Open the run in the history; every host is a row from now on."""
        self._run = env.new_run(self.command)
        self.run_id = self._run["id"]
        self.entries = {host.name: env.new_host(host.name, "not_attempted") for host in self.hosts}
        self._history = self._open_history()
        self._earlier = self._before(self._history)
        if self._history:
            self._history.begin(self._run, list(self.entries))

    def record(self, host: str) -> None:
        """Keep the row of *host* as it is now."""
        if self._history:
            self._history.record_host(self.run_id, self.entries[host])

    def finish(self, interrupted: int | None = None) -> Envelope:
        """Judge what there is and close the run."""
        envelope = env.new_envelope(self._run, list(self.entries), list(self.entries.values()))
        envelope["findings"] = judge(self.playbooks, self._cases(self._earlier))
        env.finish(envelope, exit_code(envelope, interrupted=interrupted))
        if self._history:
            self._history.finish(envelope)
            self._history.close()
        return envelope

    def _ended(self, end: HostEnd) -> None:
        entry = self.entries[end.host]
        entry["outcome"] = end.outcome
        if end.error is not None:
            entry["error"] = end.error.to_json()
        self.on_event({"kind": "host_done", "host": end.host, "outcome": end.outcome})
        self.record(end.host)

    def _nodes(self, host: str, rows: Rows, phase: Any) -> None:
        """The places are known: they are kept, and said, before the files are.

        A host whose files take longer than its deadline is then timed out with what it gave.
        """
        if FILES not in self.calls:
            return
        self.fill(host, dict(rows))
        entry = self.entries[host]
        if "snapshot" in entry:
            section = entry["snapshot"]
            event = {"kind": "places", "host": host, "section": section}
            self.on_event({**event, "entry": dict(entry), "run": self.run_id})
        phase("page cache")

    def fill(self, host: str, rows: Rows) -> None:
        """Keep *rows* and what is made of them; ProbeFailed where they make no sense."""
        entry = self.entries[host]
        entry["readings"] = rows
        self.looks.pop(host, None)
        with judging(host):
            if self.sections and plain(rows).get("numa.nodes") is not None:
                entry["snapshot"] = make_section(plain(rows), self.phase)
            self.looks[host] = self._look(plain(rows))

    def _look(self, readings: Mapping[str, Any]) -> Look:
        """The rows that the rules need, made now: here they can spoil this host only."""
        look = Look(readings)
        for rule in (rule for book in self.playbooks for rule in book.rules):
            look.rows(rule.each)
        return look

    def _cases(self, before: Mapping[str, Mapping[str, Any]]) -> list[Case]:
        cases = []
        for name, entry in self.entries.items():
            now = plain(entry["readings"])
            if not now or name not in self.looks:
                continue
            old = before.get(name)
            earlier = None
            with contextlib.suppress(errors.ProbeFailed), judging(name):
                earlier = self._look(old) if old and comparable(old, now) else None
            cases.append(Case(name, self.looks[name], earlier))
        return cases

    # --- history ---------------------------------------------------------------------------

    def _open_history(self) -> History | None:
        from fleetmem.controller.record.history import open_or_warn

        return open_or_warn(self._warn, self.settings.history_dir)

    def _before(self, history: History | None) -> dict[str, dict[str, Any]]:
        """Each host's readings in its last recorded snapshot, for rules that compare."""
        grows = any(
            rule.condition.comparator == "grows" for book in self.playbooks for rule in book.rules
        )
        if history is None or not grows:
            return {}
        found: dict[str, dict[str, Any]] = {}
        runs = [row for row in history.runs(_LISTED_RUNS) if row.command == "snapshot"]
        for row in runs[:_EARLIER_RUNS]:
            for entry in history.load(row.id)["hosts"]:
                if entry["host"] in self.entries and entry["readings"]:
                    found.setdefault(entry["host"], plain(entry["readings"]))
            if len(found) == len(self.entries):
                break
        return found

    def _warn(self, text: str) -> None:
        self.on_event({"kind": "warning", "text": text})


def calls_of(settings: FleetSettings, options: SnapshotOptions) -> dict[str, dict[str, Any]]:
    """The probes of one look, with their arguments."""
    calls: dict[str, dict[str, Any]] = {name: {} for name in NODES}
    most = max(_LARGEST, options.numa_maps)
    calls["processes.memory"] = {"numa": options.numa_maps, "largest": most}
    if options.scan_files:
        budget = min(_SCAN_SECONDS, settings.host_timeout_seconds / 2)
        calls[FILES] = {"paths": list(options.files), "largest": _FILES, "seconds": budget}
    return calls


async def snapshot(
    hosts: tuple[Host, ...],
    settings: FleetSettings,
    options: SnapshotOptions,
    on_event: OnEvent,
) -> Envelope:
    """One ``snapshot`` section a host, and the findings over all of them."""
    from fleetmem.controller.rules.playbook import load

    run = MemoryRun(
        hosts=hosts,
        settings=settings,
        on_event=on_event,
        command="snapshot",
        calls=calls_of(settings, options),
        playbooks=[load(name) for name in PLAYBOOKS],
        phase=options.phase,
    )
    return await run.run()
