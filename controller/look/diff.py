"""Two recorded looks at the same hosts: what changed, by backing, owner and location."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fleetmem.controller.answer import envelope as env
from fleetmem.controller.contact.gather import judging
from fleetmem.controller.contact.memory_gather import plain
from fleetmem.controller.errors import ProbeFailed, UsageError
from fleetmem.controller.memory.account import snapshot
from fleetmem.controller.memory.snapshot_shapes import Diff, Snapshot, SnapshotChange
from fleetmem.controller.rules.judge import Case, judge
from fleetmem.controller.rules.views import Look, comparable

if TYPE_CHECKING:
    from fleetmem.controller.answer.envelope import Envelope, Finding, HostEntry
    from fleetmem.controller.memory.snapshot_shapes import SnapshotRow
    from fleetmem.controller.record.history import History
    from fleetmem.controller.rules.book import Playbook, Rule

NOISE_BYTES = 1 << 20
"""Smaller changes are left out: the counters themselves lag by that much."""

AGENT = "fleetmem-"
"""Names of the agent's own processes: looking at a host is no change of it."""

_PID = re.compile(r" [0-9]{1,10}\Z")
_SEVERAL = re.compile(r"[0-9]{1,10} owners\Z")
_SEARCHED_RUNS = 500


def changes(before: Snapshot, after: Snapshot) -> Diff:
    """What *after* has more or less than *before*. Pure.

    A process is found again by its name: its pid may have changed. What several owners share is
    one row, however many they are: the agent at work is among those of a library. A row that
    one side did not know has no ``change_bytes``; rows of one side only count as 0 on the other.
    """
    old, new = _sums(before), _sums(after)
    rows: list[SnapshotChange] = []
    for key in sorted({*old, *new}, key=str):
        backing, owner, location, lifetime = key
        was, now = old.get(key, 0), new.get(key, 0)
        change = None if was is None or now is None else now - was
        if change is None and was is None and now is None:
            continue
        if change is not None and abs(change) < NOISE_BYTES:
            continue
        rows.append(
            {
                "backing": backing,
                "owner": owner,
                "location": location,
                "place": _place(location, after, before),
                "lifetime": lifetime,
                "before_bytes": was,
                "after_bytes": now,
                "change_bytes": change,
            }
        )
    rows.sort(key=lambda row: -abs(row["change_bytes"] or 0))
    known = before["boot_id"] is not None and after["boot_id"] is not None
    return {
        "same_boot": before["boot_id"] == after["boot_id"] if known else None,
        "before_phase": before["phase"],
        "after_phase": after["phase"],
        "rows": rows,
    }


def _sums(section: Snapshot) -> dict[tuple[Any, ...], int | None]:
    found: dict[tuple[Any, ...], int | None] = {}
    for row in section["table"]:
        if (row["owner"] or "").startswith(AGENT):
            continue
        key = _key(row)
        have, size = found.get(key, 0), row["bytes"]
        found[key] = None if have is None or size is None else have + size
    return found


def _key(row: SnapshotRow) -> tuple[Any, ...]:
    owner = None if row["owner"] is None else _PID.sub("", row["owner"])
    if owner is not None and _SEVERAL.match(owner):
        owner = "several owners"
    return (row["backing"], owner, row["location"], row["lifetime"])


def _place(location: str, *sections: Snapshot) -> str:
    """``GPU 0`` for a uuid, which differs from host to host; ``NUMA 2``; ``swap``."""
    kind, _, name = location.partition(":")
    if kind == "numa":
        return f"NUMA {name}"
    for section in sections:
        for gpu in section["gpus"]:
            if gpu["uuid"] == name:
                return f"GPU {gpu['index']}"
    return location


# --- runs of the history -------------------------------------------------------------------


def find(history: History, text: str) -> str:
    """The run that *text* means: the newest snapshot of that phase, else the start of an id.

    A whole id is that run, also where a phase has the same name.
    """
    runs = history.runs_like(text)
    run = runs[0] if len(runs) == 1 else None
    found = run if run == text else history.newest_of_phase(text, _SEARCHED_RUNS) or run
    if found is not None:
        return found
    if runs:
        return history.find_run(text)  # several: it says which
    raise UsageError(f"{text!r} is not a recorded run or phase", "list them: fleetmem runs list")


def diff(history: History, first: str, second: str) -> Envelope:
    """The envelope of ``diff``: a row for each host of either run, worst findings first.

    UsageError where a run is not known or the two have no host in common with memory in it.
    """
    from fleetmem.controller.rules.playbook import load

    runs = [history.load(find(history, text)) for text in (first, second)]
    if runs[0]["run"]["id"] == runs[1]["run"]["id"]:
        raise UsageError(
            "both are the same run; name two different ones", "list them: fleetmem runs list"
        )
    olds, news = ({entry["host"]: entry for entry in run["hosts"]} for run in runs)
    names = list(dict.fromkeys([*olds, *news]))
    entries = [_entry(name, olds.get(name), news.get(name)) for name in names]
    if not any("diff" in entry for entry in entries):
        ids = " and ".join(run["run"]["id"] for run in runs)
        raise UsageError(
            f"runs {ids} have no snapshot of a common host",
            "record one with: fleetmem snapshot -H HOSTS --phase NAME",
        )
    envelope = env.new_envelope(env.new_run("diff"), names, entries)
    envelope["findings"] = _grown(load("memory"), olds, news)
    return env.finish(envelope, 0)


def _entry(name: str, old: HostEntry | None, new: HostEntry | None) -> HostEntry:
    was, now = _alike(old, new)
    before, after = _section(old, was), _section(new, now)
    if before is None or after is None:
        entry = env.new_host(name, "not_attempted")
        which = (
            "neither run has a"
            if not before and not after
            else f"the {'first' if not before else 'second'} run has no"
        )
        entry["error"] = {
            "code": "not_recorded",
            "message": f"{which} snapshot of it",
            "hint": None,
        }
        return entry
    entry = env.new_host(name, "ok")
    entry["diff"] = changes(before, after)
    return entry


Readings = dict[str, Any]


def _section(entry: HostEntry | None, readings: Readings) -> Snapshot | None:
    """What a run recorded, made again from its readings: an older version saw less in them, and
    that is no change of the host."""
    if entry is None:
        return None
    recorded = entry.get("snapshot")
    if readings.get("numa.nodes"):
        with contextlib.suppress(ProbeFailed), judging(entry["host"]):
            return snapshot(readings, recorded["phase"] if recorded else None)
    return recorded


def _alike(old: HostEntry | None, new: HostEntry | None) -> tuple[Readings, Readings]:
    """The readings of both. Where one could not see what vmalloc took (only root may), the
    other's counts as unaccounted, too."""
    both = [plain(entry["readings"]) if entry else {} for entry in (old, new)]
    nodes = [(found.get("numa.nodes") or {}).get("nodes", []) for found in both]
    if all(map(_all_known, nodes)) or not any(map(_all_known, nodes)):
        return both[0], both[1]
    for found, rows in zip(both, nodes, strict=True):
        if _all_known(rows):
            told = {**found["numa.nodes"], "nodes": [_without_vmalloc(row) for row in rows]}
            found["numa.nodes"] = told
    return both[0], both[1]


def _all_known(nodes: Sequence[Mapping[str, Any]]) -> bool:
    return bool(nodes) and all(row.get("vmalloc_bytes") is not None for row in nodes)


def _without_vmalloc(node: Mapping[str, Any]) -> dict[str, Any]:
    more = max(0, node["vmalloc_bytes"] - node["kernel_stack_bytes"])
    return {
        **node,
        "vmalloc_bytes": None,
        "kernel_bytes": node["kernel_bytes"] - more,
        "unaccounted_bytes": node["unaccounted_bytes"] + more,
    }


def _grown(
    playbook: Playbook, olds: Mapping[str, HostEntry], news: Mapping[str, HostEntry]
) -> list[Finding]:
    """The findings of rules that compare, over hosts of which that says something."""
    rules = [rule for rule in playbook.rules if rule.condition.comparator == "grows"]
    cases = []
    for name, new in news.items():
        old = olds.get(name)
        if old is None or not old["readings"] or not new["readings"]:
            continue
        was, now = _alike(old, new)
        if comparable(was, now):
            with contextlib.suppress(ProbeFailed), judging(name):
                cases.append(Case(name, _look(now, rules), _look(was, rules)))
    names = {rule.name for rule in rules}
    return [one for one in judge([playbook], cases) if one["rule"] in names]


def _look(readings: Readings, rules: Sequence[Rule]) -> Look:
    """The rows that *rules* need, made now: what an older version recorded may lack some."""
    look = Look(readings)
    for rule in rules:
        look.rows(rule.each)
    return look
