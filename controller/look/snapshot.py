"""``snapshot``: read every host's memory, make its table, judge it, record it."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fleetmem.controller import errors
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
from fleetmem.controller.run.life import RunPart, begin, looked

if TYPE_CHECKING:
    from fleetmem.controller.answer.envelope import Envelope, Finding, HostEntry
    from fleetmem.controller.contact.session import Session
    from fleetmem.controller.errors.base import HostOutcome
    from fleetmem.controller.hosts.host import Host
    from fleetmem.controller.record.history import History
    from fleetmem.controller.rules.book import Playbook
    from fleetmem.controller.run.fanout import Phase
    from fleetmem.controller.run.life import Life
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
class MemoryLook:
    """One look at hosts' memory within a run: which calls, judged by which playbooks."""

    life: Life
    calls: Mapping[str, Mapping[str, Any]]
    playbooks: Sequence[Playbook]
    phase: str | None = None
    sections: bool = True
    looks: dict[str, Look] = field(default_factory=dict)
    _earlier: dict[str, dict[str, Any]] = field(init=False)

    def __post_init__(self) -> None:
        self._earlier = self._before(self.life.history)

    @property
    def part(self) -> RunPart:
        """The look as one reading of its run."""
        return RunPart(self._read, self.findings)

    async def _read(self, entry: HostEntry, session: Session, phase: Phase) -> HostOutcome:
        host = entry["host"]
        rows = await memory_readings(
            session, self.calls, lambda rows: self._nodes(host, rows, phase)
        )
        self.fill(host, rows)
        return "partial" if partial(rows) else "ok"

    def findings(self) -> list[Finding]:
        """What the playbooks find in what was read."""
        return judge(self.playbooks, self._cases(self._earlier))

    def _nodes(self, host: str, rows: Rows, phase: Any) -> None:
        """The places are known: they are kept, and said, before the files are.

        A host whose files take longer than its deadline is then timed out with what it gave.
        """
        if FILES not in self.calls:
            return
        self.fill(host, dict(rows))
        entry = self.life.entries[host]
        if "snapshot" in entry:
            section = entry["snapshot"]
            event = {"kind": "places", "host": host, "section": section}
            self.life.on_event({**event, "entry": dict(entry), "run": self.life.id})
        phase("page cache")

    def fill(self, host: str, rows: Rows) -> None:
        """Keep *rows* and what is made of them; ProbeFailed where they make no sense."""
        entry = self.life.entries[host]
        entry["readings"] |= rows
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
        for name, entry in self.life.entries.items():
            now = plain(entry["readings"])
            if name not in self.looks:
                continue
            old = before.get(name)
            earlier = None
            with contextlib.suppress(errors.ProbeFailed), judging(name):
                earlier = self._look(old) if old and comparable(old, now) else None
            cases.append(Case(name, self.looks[name], earlier))
        return cases

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
                if entry["host"] in self.life.entries and entry["readings"]:
                    found.setdefault(entry["host"], plain(entry["readings"]))
            if len(found) == len(self.life.entries):
                break
        return found


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

    playbooks = [load(name) for name in PLAYBOOKS]
    life = begin("snapshot", hosts, settings, on_event)
    look = MemoryLook(life, calls_of(settings, options), playbooks, options.phase)
    return await looked(life, [look.part])
