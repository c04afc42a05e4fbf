"""The law with one rule taken away or loosened: each must be noticed by the histories."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fleetmem.controller.reclaim import classify as classify_module
from fleetmem.controller.reclaim.law import (
    anchors,
    certificates,
    classes,
    family,
    heirs,
    known,
)
from fleetmem.controller.reclaim.law.known import Known, Launcher

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    Patch = pytest.MonkeyPatch
    Mutant = Callable[[Patch], None]

ANCHORS = (
    *("launcher", "login", "owner", "service", "connection", "debugger"),
    *("peer", "stopped", "unread"),
)


def without_anchor(code: str) -> Mutant:
    """Anchors of *code* are not seen."""

    def mutate(patch: Patch) -> None:
        real = anchors.anchors
        for module in (classes, heirs):
            patch.setattr(
                module, "anchors", lambda *args: [row for row in real(*args) if row.code != code]
            )

    return mutate


def _nothing(patch: Patch, where: Any, name: str, value: Any = None) -> None:
    patch.setattr(where, name, lambda *_args, **_more: value)


def _property(patch: Patch, name: str, value: Callable[[Known], Any]) -> None:
    patch.setattr(Known, name, property(value))


def no_heirs(patch: Patch) -> None:
    _nothing(patch, classify_module, "heirs", heirs.Heirs({}, (), {}))


def kill_mode_not_asked(patch: Patch) -> None:
    _nothing(patch, certificates, "_would_have_ended", True)


def sigkill_not_asked(patch: Patch) -> None:
    patch.setattr(
        certificates, "_would_have_ended", lambda o: o["kill_mode"] in certificates.KILLS_ALL
    )


def any_title_is_a_workers(patch: Patch) -> None:
    _property(patch, "workers", lambda self: dict.fromkeys(self.tied, "any"))


def worker_0_is_a_workers(patch: Patch) -> None:
    def workers(self: Known) -> dict[int, str]:
        rows = self.ties["processes"]
        more = {r["pid"]: "vLLM" for r in rows if r["title"].startswith(("Worker", "trtllm"))}
        return {**more, **{r["pid"]: w for r in rows if (w := self.engine(r)) is not None}}

    _property(patch, "workers", workers)


def pipes_not_asked(patch: Patch) -> None:
    _nothing(patch, Known, "orphaned_pipes", 1)


def output_counts_as_orphaned(patch: Patch) -> None:
    patch.setattr(
        Known,
        "orphaned_pipes",
        lambda self, pid: sum(row["where"] == "nobody" for row in self.links.get(pid, ())),
    )


def invocations_not_compared(patch: Patch) -> None:
    real = Known.owners

    def owners(self: Known, pid: int, *, cgroup_only: bool = False) -> Any:
        rows = real(self, pid, cgroup_only=cgroup_only)
        return [{**row, "invocation_id": "another"} for row in rows]

    patch.setattr(Known, "owners", owners)
    _environment(patch, "mine")


def _environment(patch: Patch, value: str) -> None:
    real = certificates._unit

    def unit(self: Known, pid: int) -> Any:
        row = self.tied[pid]
        marks = {**(row["environment"] or {}), "invocation_id": value}
        tied = {**self.tied, pid: {**row, "environment": marks}}
        other = replace(self)
        for name in ("links", "workers", "launchers"):
            other.__dict__[name] = getattr(self, name)
        other.__dict__["tied"] = tied
        return real(other, pid)

    patch.setattr(certificates, "_unit", unit)


def starts_not_compared(patch: Patch) -> None:
    real = Known.owners

    def owners(self: Known, pid: int, *, cgroup_only: bool = False) -> Any:
        rows = real(self, pid, cgroup_only=cgroup_only)
        return [{**row, "invocation_started": 1 << 60} for row in rows]

    patch.setattr(Known, "owners", owners)


def restarts_prove_for_anybody(patch: Patch) -> None:
    real = certificates._unit

    def unit(self: Known, pid: int) -> Any:
        other = replace(self)
        for name in ("tied", "links", "launchers"):
            other.__dict__[name] = getattr(self, name)
        other.__dict__["workers"] = dict.fromkeys(self.tied, "any")
        return real(other, pid)

    patch.setattr(certificates, "_unit", unit)


def environment_proves_for_anybody(patch: Patch) -> None:
    real = Known.owners
    patch.setattr(Known, "owners", lambda self, pid, **_more: real(self, pid))


def no_worker(patch: Patch) -> None:
    _nothing(patch, certificates, "_worker")


def no_unit(patch: Patch) -> None:
    _nothing(patch, certificates, "_unit")


def no_end(patch: Patch) -> None:
    _nothing(patch, certificates, "_ended")


def kin_not_asked(patch: Patch) -> None:
    _nothing(patch, heirs, "_kin", {})


def untold_kin_does_not_matter(patch: Patch) -> None:
    _nothing(patch, heirs, "_untold", set())


def strangers_are_one_family(patch: Patch) -> None:
    _nothing(patch, heirs, "one_family", True)


def a_shared_cgroup_is_a_family(patch: Patch) -> None:
    real = heirs.one_family
    patch.setattr(
        heirs,
        "one_family",
        lambda survey, seen, pids: (
            real(survey, seen, pids) or len({survey.processes[p]["cgroup"] for p in pids}) == 1
        ),
    )


def one_program_is_a_family(patch: Patch) -> None:
    real = heirs.one_family
    patch.setattr(
        heirs,
        "one_family",
        lambda survey, seen, pids: (
            real(survey, seen, pids)
            or len({(survey.processes[p]["uid"], survey.processes[p]["exe"]) for p in pids}) == 1
        ),
    )


def anchored_heirs_count(patch: Patch) -> None:
    _nothing(patch, heirs, "_anchored", [])


def orphans_of_the_dead_count_as_peers(patch: Patch) -> None:
    """What a dead trainer left is not seen as one estate."""
    _nothing(patch, family, "joins", False)


def output_is_a_tie(patch: Patch) -> None:
    _nothing(patch, Known, "is_mere_output", False)


def trackers_are_people(patch: Patch) -> None:
    _property(patch, "trackers", lambda _self: frozenset())


def fork_servers_are_people(patch: Patch) -> None:
    _property(patch, "forkservers", lambda _self: frozenset())


def subreapers_launched_all(patch: Patch) -> None:
    _nothing(patch, Known, "_adopted", False)


def subreapers_launched_none(patch: Patch) -> None:
    patch.setattr(Known, "_adopted", lambda self, pid, _parent: pid in self.workers)


def adopters_launched_all(patch: Patch) -> None:
    real = known.Known._launcher

    def launcher(self: Known, pid: int) -> Launcher:
        found = real(self, pid)
        return Launcher("alive", self.tied[pid]["ppid"]) if found.state == "dead" else found

    patch.setattr(Known, "_launcher", launcher)


def children_are_not_covered(patch: Patch) -> None:
    patch.setattr(classes, "covered", lambda _seen, pids: frozenset(pids))


def leaders_say_nothing(patch: Patch) -> None:
    _nothing(patch, family, "_beside", {})


def guests_say_nothing(patch: Patch) -> None:
    """Only the port of a listener counts, not who came in through it."""
    real = anchors._services

    def services(seen: Known, one: Any) -> Any:
        bare = replace(seen)
        bare.__dict__.update(seen.__dict__)
        bare.__dict__["links"] = {
            pid: [{**row, "listener": None} for row in rows] for pid, rows in seen.links.items()
        }
        return real(bare, one)

    patch.setattr(anchors, "_services", services)


def one_file_only(patch: Patch) -> None:
    """Peers over Unix sockets are not looked for."""
    patch.setattr(known, "DATA", frozenset(("pipe", "tcp")))
    for module in (family, anchors):
        patch.setattr(module, "DATA", frozenset(("pipe", "tcp")))


MUTANTS: tuple[Mutant, ...] = (
    no_heirs,
    kill_mode_not_asked,
    sigkill_not_asked,
    any_title_is_a_workers,
    worker_0_is_a_workers,
    pipes_not_asked,
    output_counts_as_orphaned,
    invocations_not_compared,
    starts_not_compared,
    restarts_prove_for_anybody,
    environment_proves_for_anybody,
    no_worker,
    no_unit,
    no_end,
    kin_not_asked,
    untold_kin_does_not_matter,
    strangers_are_one_family,
    a_shared_cgroup_is_a_family,
    one_program_is_a_family,
    anchored_heirs_count,
    orphans_of_the_dead_count_as_peers,
    output_is_a_tie,
    trackers_are_people,
    fork_servers_are_people,
    subreapers_launched_all,
    subreapers_launched_none,
    adopters_launched_all,
    children_are_not_covered,
    leaders_say_nothing,
    guests_say_nothing,
    one_file_only,
)
