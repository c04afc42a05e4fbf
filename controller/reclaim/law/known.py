"""One reading of ``processes.ties`` by pid, with what follows from single rows. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fleetmem.agent.shapes import Link, OwnerState, Tied, Ties

DATA = frozenset(("pipe", "unix", "tcp"))
OWNED = frozenset(("unit", "user_unit", "container", "pod", "job"))
"""Owners that somebody manages; a session or scope lives as long as what is in it."""

_TRACKER, _FORKSERVER = "multiprocessing.resource_tracker", "multiprocessing.forkserver"


class Launcher(NamedTuple):
    """Who started a process. ``pid`` is the live one's; for ``unknown`` the code says why."""

    state: Literal["alive", "dead", "unknown", "login"]
    pid: int | None = None
    why: str = ""


@dataclass(frozen=True)
class Known:
    """The reading, and which engine a process is a worker of by its title."""

    ties: Ties
    engine: Callable[[Tied], str | None]

    @cached_property
    def tied(self) -> Mapping[int, Tied]:
        """Every process of the reading by pid."""
        return {row["pid"]: row for row in self.ties["processes"]}

    @cached_property
    def links(self) -> Mapping[int, list[Link]]:
        """Links as each process sees them."""
        found: dict[int, list[Link]] = {pid: [] for pid in self.tied}
        for link in self.ties["links"]:
            if link["pid"] in found:
                found[link["pid"]].append(link)
        return found

    @cached_property
    def listening(self) -> Mapping[int, list[int]]:
        """Places in ``listeners`` by the pids that have them open."""
        found: dict[int, list[int]] = {}
        for place, row in enumerate(self.ties["listeners"]):
            for pid in row["pids"]:
                found.setdefault(pid, []).append(place)
        return found

    @cached_property
    def workers(self) -> Mapping[int, str]:
        """Engines by the pid of their workers, by title."""
        rows = ((row["pid"], self.engine(row)) for row in self.ties["processes"])
        return {pid: what for pid, what in rows if what is not None}

    @cached_property
    def trackers(self) -> frozenset[int]:
        """Resource trackers: they launched nobody, and end when nobody needs them."""
        return frozenset(r["pid"] for r in self.ties["processes"] if _TRACKER in r["title"])

    @cached_property
    def forkservers(self) -> frozenset[int]:
        """Fork servers: what they launch is launched for whoever launched them."""
        return frozenset(r["pid"] for r in self.ties["processes"] if _FORKSERVER in r["title"])

    @cached_property
    def related(self) -> frozenset[tuple[int, int]]:
        """Pairs with any pipe, socket or fork between them, also a standard one."""
        kinds = DATA | {"fork"}
        pairs = [
            (link["pid"], link["other"])
            for link in self.ties["links"]
            if link["kind"] in kinds and link["other"] is not None
        ]
        return frozenset((*pairs, *((b, a) for a, b in pairs)))

    @cached_property
    def _written_standard(self) -> frozenset[tuple[int, int]]:
        """(writer, reader) of pipes that the writer has as standard output or error only."""
        return frozenset(
            (link["pid"], link["other"])
            for link in self.ties["links"]
            if link["other"] is not None and _is_output(link)
        )

    @cached_property
    def _tied_otherwise(self) -> frozenset[tuple[int, int]]:
        """(pid, other) with a data link that is more than *pid*'s output."""
        return frozenset(
            (link["pid"], link["other"])
            for link in self.ties["links"]
            if link["other"] is not None and link["kind"] in DATA and not _is_output(link)
        )

    def is_mere_output(self, link: Link) -> bool:
        """Whether one side only reads what the other prints: tee, a collector, a shim."""
        other = link["other"]
        if _is_output(link):
            return True
        if other is None or link["kind"] != "pipe" or link["writes"]:
            return False
        return (other, link["pid"]) in self._written_standard and (
            other,
            link["pid"],
        ) not in self._tied_otherwise

    def orphaned_pipes(self, pid: int) -> int:
        """Pipes and socket pairs of *pid*, beyond 0-2, whose other end nobody on the host has."""
        return sum(
            link["count"]
            for link in self.links.get(pid, ())
            if link["where"] == "nobody"
            and not link["standard"]
            and (link["kind"] == "pipe" or (link["kind"] == "unix" and link["path"] is None))
        )

    @cached_property
    def launchers(self) -> Mapping[int, Launcher]:
        """Who started each process, as far as its parent shows."""
        return {pid: self._launcher(pid) for pid in self.tied}

    def launcher(self, pid: int) -> Launcher:
        """Who started *pid*; a fork server stands for whoever started that."""
        seen = set()
        found = self.launchers[pid]
        while found.pid in self.forkservers and found.pid not in seen:
            seen.add(found.pid)
            found = self.launchers[found.pid]
        return found

    def _launcher(self, pid: int) -> Launcher:
        row = self.tied[pid]
        link = next((link for link in self.links[pid] if link["kind"] == "parent"), None)
        if link is None:
            if row["system"] == "init" or row["pid"] == 1:
                return Launcher("alive", 0)
            return Launcher("unknown", None, "its parent could not be read")
        if link["where"] == "nobody":
            return Launcher("dead")
        parent = self.tied.get(link["other"]) if link["other"] is not None else None
        if link["where"] != "here" or parent is None:
            return Launcher("unknown", link["other"], "its parent could not be read")
        if parent["adopter"]:
            return Launcher("dead")
        if parent["system"] == "login":
            return Launcher("login", parent["pid"])
        if self._adopted(pid, parent):
            return Launcher("dead")
        if parent["adopter"] is None and (pid, parent["pid"]) not in self.related:
            return Launcher(
                "unknown", parent["pid"], f"whether {parent['pid']} started it cannot be told"
            )
        return Launcher("alive", parent["pid"])

    def _adopted(self, pid: int, parent: Tied) -> bool:
        """Whether a live parent took *pid* over as a subreaper.

        An engine's worker always has a pipe to whoever launched it. One that has none to its
        parent, and others that nobody has the other end of, was launched by somebody dead.
        """
        return (
            (pid in self.workers or pid in self.forkservers)
            and parent["pid"] not in self.workers
            and parent["pid"] not in self.forkservers
            and (pid, parent["pid"]) not in self.related
            and not _unread(self.tied[pid])
            and not _unread(parent)
            and self.orphaned_pipes(pid) > 0
        )

    def owners(self, pid: int, *, cgroup_only: bool = False) -> list[OwnerState]:
        """Managed owners of *pid*."""
        rows = [
            self.ties["owners"][ref["owner"]]
            for ref in self.tied[pid]["owners"]
            if 0 <= ref["owner"] < len(self.ties["owners"])
            and not (cgroup_only and ref["source"] != "cgroup")
        ]
        return [row for row in rows if row["kind"] in OWNED]


def _is_output(link: Link) -> bool:
    """A standard pipe that the process itself only writes."""
    return link["kind"] == "pipe" and link["standard"] and link["writes"] and not link["reads"]


def _unread(row: Tied) -> bool:
    return bool({"not_walked", "files", "sockets", "unix_peers"} & set(row["unreadable"]))
