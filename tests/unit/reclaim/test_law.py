"""Rows of the ties reading that say "not known": none of them ever makes a leftover."""

from __future__ import annotations

from typing import Any

import pytest

from fleetmem.controller.reclaim.classify import classify
from fleetmem.controller.reclaim.law.rules import rules
from fleetmem.controller.reclaim.survey import Survey
from tests.unit.reclaim.reclaim_world import GIB, holder, identity, listed, owner, survey, ties_of

WORKER = {"title": "VLLM::Worker_TP0", "orphaned_pipes": 2}


def host(ties: Any = None, **more: Any) -> Survey:
    people = (identity(50, **more),)
    made = ties_of(people)
    if ties is not None:
        ties(made)
    return survey(*people, holders=(holder(50),), lists={0: [listed(50, 9 * GIB)]}, ties=made)


def kind(seen: Survey) -> str | None:
    return classify(seen, rules()).members[50].kind


def link(ties: Any, **row: Any) -> None:
    ties["links"].append({**ties["links"][0], "other": None, "where": "unreadable", **row})


def test_what_all_these_differ_from_is_left_over() -> None:
    assert kind(host(**WORKER)) == "leftover"
    assert kind(host(owner=owner("unit", "a.service", "gone"))) == "leftover"


@pytest.mark.parametrize(
    "unknown",
    [
        lambda t: link(t, kind="session"),
        lambda t: link(t, kind="group"),
        lambda t: link(t, kind="session", where="here", other=77),  # beyond a bound
        lambda t: link(t, kind="pipe"),
        lambda t: link(t, kind="unix"),
        lambda t: link(t, kind="tcp"),
        lambda t: link(t, kind="pipe", where="here", other=77),
        lambda t: link(t, kind="fork"),
        lambda t: t["processes"][0].update(unreadable=["not_walked"]),
        lambda t: t["processes"][0].update(unreadable=["unix_peers"]),
        lambda t: t["processes"][0].update(environment=None),
        lambda t: t["processes"][0].update(tracer_pid=None),
        lambda t: t["links"].pop(0),  # its parent
        lambda t: t["links"][0].update(where="unreadable"),
        lambda t: t["processes"].clear(),
    ],
)
def test_what_was_not_read_never_makes_a_leftover(unknown: Any) -> None:
    assert kind(host(unknown, **WORKER)) == "detached"


@pytest.mark.parametrize(
    "more",
    [
        {"manager": None},
        {"state": "unknown"},
        {"kill_mode": None},
        {"kill_mode": "process"},
        {"kill_mode": "none"},
        {"send_sigkill": None},
        {"send_sigkill": False},
        {"state": "live"},
    ],
)
def test_a_unit_that_may_have_left_it_on_purpose_proves_nothing(more: dict[str, Any]) -> None:
    seen = host(lambda t: t["owners"][0].update(more), owner=owner("unit", "a.service", "gone"))
    assert kind(seen) == "detached"


def with_parent(ties: Any, kind: str | None) -> None:
    """A living parent of which nobody can say whether it merely adopts, tied by *kind* as well."""
    parent = {**ties["processes"][0], "pid": 40, "adopter": None, "title": "python3 train.py"}
    ties["processes"].append({**parent, "comm": "python3", "asked": False, "ppid": 1})
    ties["links"][0].update(where="here", other=40)
    if kind is not None:
        link(ties, kind=kind, where="here", other=40)


def test_a_parent_that_forked_it_or_has_a_pipe_to_it_launched_it() -> None:
    """By its children it may be a subreaper; it did not merely take this one in."""
    assert kind(host(lambda t: with_parent(t, "fork"))) == "in_use"
    assert kind(host(lambda t: with_parent(t, "pipe"))) == "in_use"
    assert kind(host(lambda t: with_parent(t, None))) == "detached"


@pytest.mark.parametrize(
    ("address", "port", "found"),
    [
        ("127.0.0.1", 28028, "leftover"),  # NCCL's own, for ncclras
        ("::1", 28028, "leftover"),
        ("0.0.0.0", 28028, "in_use"),
        ("127.0.0.1", 28029, "in_use"),
        (None, 28028, "in_use"),
    ],
)
def test_what_nccl_itself_listens_on_is_no_service(
    address: str | None, port: int, found: str
) -> None:
    row = {"kind": "tcp", "pids": [50], "path": None, "ephemeral": False}

    def listens(ties: Any) -> None:
        ties["listeners"].append({**row, "address": address, "port": port})

    assert kind(host(listens, **WORKER)) == found
