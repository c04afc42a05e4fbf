"""The JSON envelope ``fleetmem/1``: its shapes, how one is begun, and its sums.

Every command answers with one envelope, on success and on an error of usage alike. Fields
are only ever added. ``None`` is "not known", never 0. Times are RFC 3339 in UTC.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, NotRequired, TypedDict, cast, get_args

from fleetmem.controller.errors.base import Error, HostOutcome
from fleetmem.controller.memory.snapshot_shapes import Diff, Follow, Snapshot

SCHEMA = "fleetmem/1"

HOST_OUTCOMES: tuple[HostOutcome, ...] = get_args(HostOutcome)

Verdict = Literal[
    "unknown",
    "driver_wedged",
    "unkillable",
    "kernel_pinned",
    "respawned",
    "held_by",
    "host_pages",
    "cannot_attribute",
    "not_permitted",
    "protected",
    "drain_refused",
    "releasing",
    "planned",
    "reclaimed",
    "nothing_to_do",
]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
"""Worst first: a host has the worst verdict of its GPUs."""


class Run(TypedDict):
    """One invocation of a command."""

    id: str
    command: str
    started: str
    finished: str | None
    exit_code: int | None


class Reading(TypedDict):
    """What one probe answered on one host. ``outcome`` is one of ``agent.model.OUTCOMES``; where
    it is not ok, ``code`` says why in a stable word and ``reason`` in text for people."""

    outcome: str
    code: NotRequired[str | None]
    reason: str | None
    reading: Any
    seconds: float | None


class PlanHead(TypedDict):
    """A reclaim plan as others refer to it; ``hash`` covers everything it would change."""

    id: str
    created: str
    expires: str
    hash: str
    boot_id: str


class GpuVerdict(TypedDict):
    """One GPU in scope, before and after. Bytes are NVML's used memory, and its free memory
    where the cache rung asks what capacity came back. ``managed_bytes``: managed memory that the
    targets may have there beside what NVML lists, at most. ``why_short`` says the same as ``why``
    where many stand side by side. ``starts_again``: who would start a reclaimed target again."""

    index: int
    uuid: str
    verdict: Verdict
    before_bytes: int | None
    after_bytes: int | None
    baseline_bytes: int | None
    baseline_source: Literal["recorded", "assumed"] | None
    managed_bytes: NotRequired[int]
    why: NotRequired[str | None]
    why_short: NotRequired[str | None]
    starts_again: NotRequired[list[str]]
    before_free_bytes: NotRequired[int | None]
    after_free_bytes: NotRequired[int | None]


Target = TypedDict(
    "Target",
    {
        "pid": int,
        "start_time": int,
        "name": str,
        "user": str | None,
        "unit": str | None,
        "container": str | None,
        "class": str,
        "gpus": list[int],
        "held_bytes": int | None,
        "conditional": bool,
        "evidence": list[str],
        "why": NotRequired[str | None],
        "owner": NotRequired[str | None],
        "age_seconds": NotRequired[float | None],
        "consequences": NotRequired[list[str]],
    },
)
"""A process that the plan would signal. ``conditional`` ones only in the ``heirs`` rung."""

Spared = TypedDict(
    "Spared",
    {
        "pid": int,
        "start_time": int,
        "name": str,
        "class": str,
        "gpus": list[int],
        "held_bytes": int | None,
        "why": str,
        "user": NotRequired[str | None],
    },
)
"""A process that touches a GPU in scope and is left alone, with the reason."""


class Signalled(TypedDict):
    """One signal sent to one identity; ``signal`` is a name without SIG."""

    pid: int
    start_time: int
    signal: str


class Rung(TypedDict):
    """One step of the ladder that ended. ``gone`` of ``targets`` identities have ended and
    ``held_gpus`` of ``gpus`` in scope are still above their bound after it."""

    rung: Literal["drain", "owner", "term", "kill", "heirs", "cache", "shm"]
    outcome: Literal["ok", "not_applicable", "partial", "refused", "failed"]
    seconds: float | None
    signalled: list[Signalled]
    freed_bytes: int | None
    why: NotRequired[str | None]
    gone: NotRequired[int | None]
    targets: NotRequired[int | None]
    held_gpus: NotRequired[int | None]
    gpus: NotRequired[int | None]


class Reclaim(TypedDict):
    """The ``reclaim`` section of one host. ``expect_seconds``: predicted time to release."""

    plan: PlanHead | None
    verdict: Verdict
    gpus: list[GpuVerdict]
    numa_nodes: list[dict[str, Any]]
    targets: list[Target]
    spared: list[Spared]
    rungs: list[Rung]
    advice: str | None
    next: list[str]
    expect_seconds: NotRequired[float | None]
    cache: NotRequired[dict[str, Any]]


class Resolved(TypedDict):
    """What a selector resolved to, without contacting it. ``jump``: the hops of the inventory on
    the way there, the first one first."""

    address: str | None
    port: int | None
    user: str | None
    transport: str
    groups: list[str]
    jump: NotRequired[list[str]]


class HostEntry(TypedDict):
    """One host of a run; sections are there where the command fills them."""

    host: str
    outcome: HostOutcome
    error: Error | None
    seconds: float | None
    readings: dict[str, Reading]
    reclaim: NotRequired[Reclaim]
    snapshot: NotRequired[Snapshot]
    diff: NotRequired[Diff]
    follow: NotRequired[Follow]
    resolved: NotRequired[Resolved]
    startup: NotRequired[list[dict[str, Any]]]
    logs: NotRequired[list[dict[str, Any]]]


class Finding(TypedDict):
    """One judgement over a node set. ``rule`` is ``playbook/rule``."""

    rule: str
    severity: Literal["info", "warn", "critical"]
    hosts: str
    subject: str
    evidence: dict[str, Any]
    advice: str | None
    next: list[str]


class Summary(TypedDict):
    """How the targets ended: the outcomes add up to ``targeted``."""

    targeted: int
    ok: int
    partial: int
    failed: int
    unreachable: int
    timed_out: int
    not_attempted: int
    unknown: int


class Envelope(TypedDict):
    """What every command answers with. ``error`` is there where the run ended before any host
    was tried; ``runs``, ``settings`` and ``playbooks`` are answers of the commands of that name."""

    schema: str
    run: Run
    targeted: list[str]
    hosts: list[HostEntry]
    findings: list[Finding]
    summary: Summary
    error: NotRequired[Error]
    runs: NotRequired[list[dict[str, Any]]]
    settings: NotRequired[list[dict[str, Any]]]
    playbooks: NotRequired[list[dict[str, Any]]]


class EnvelopeError(ValueError):
    """An envelope whose parts contradict each other; a defect of ours, never of a host."""


def now() -> str:
    """This moment as RFC 3339 in UTC, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def new_run(command: str) -> Run:
    """Begin a run of *command* with an id of its own."""
    return {
        "id": secrets.token_hex(4),
        "command": command,
        "started": now(),
        "finished": None,
        "exit_code": None,
    }


def new_host(host: str, outcome: HostOutcome, error: Error | None = None) -> HostEntry:
    """The row of one host, without readings yet."""
    return {"host": host, "outcome": outcome, "error": error, "seconds": None, "readings": {}}


def summarise(targeted: Sequence[str], hosts: Iterable[Mapping[str, Any]]) -> Summary:
    """Count the outcomes; EnvelopeError unless every target has exactly one row."""
    counts: dict[str, int] = dict.fromkeys(HOST_OUTCOMES, 0)
    left = set(targeted)
    if len(left) != len(targeted):
        raise EnvelopeError("a host is targeted twice")
    for entry in hosts:
        if entry["host"] not in left:
            raise EnvelopeError(f"{entry['host']!r} has two rows or was not targeted")
        if entry["outcome"] not in counts:
            raise EnvelopeError(f"{entry['host']!r} ended as {entry['outcome']!r}")
        left.remove(entry["host"])
        counts[entry["outcome"]] += 1
    if left:
        raise EnvelopeError(f"no row for {len(left)} targets, such as {min(left)!r}")
    return cast(Summary, {"targeted": len(targeted), **counts})


def new_envelope(run: Run, targeted: Sequence[str], hosts: Sequence[HostEntry]) -> Envelope:
    """An envelope over *hosts*, with its sums checked."""
    return {
        "schema": SCHEMA,
        "run": run,
        "targeted": list(targeted),
        "hosts": list(hosts),
        "findings": [],
        "summary": summarise(targeted, hosts),
    }


def error_envelope(run: Run, exit_code: int, error: Error) -> Envelope:
    """The envelope of a run that ended in an error of its own."""
    envelope = new_envelope(run, [], [])
    envelope["error"] = error
    return envelope if run["finished"] else finish(envelope, exit_code)


def finish(envelope: Envelope, exit_code: int) -> Envelope:
    """Close the run: its end and its exit code. Changes and returns *envelope*."""
    envelope["run"]["finished"] = now()
    envelope["run"]["exit_code"] = exit_code
    return envelope


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """The worst of *verdicts*; ``nothing_to_do`` where there is none."""
    return min(verdicts, key=VERDICTS.index, default="nothing_to_do")


def hosts_of(finding: Mapping[str, Any], envelope: Envelope) -> list[str]:
    """The hosts of a finding, which names them as a node set."""
    from fleetmem.controller.hosts.nodeset import expand

    if finding["hosts"] in envelope["targeted"]:
        return [finding["hosts"]]
    return expand(finding["hosts"])


def reading_of(entry: HostEntry, probe: str) -> Any:
    """What *probe* measured on that host; ``None`` where it gave no reading."""
    answer = entry["readings"].get(probe)
    return answer["reading"] if answer else None


def absent(probe: str, row: Reading) -> bool:
    """Whether a host has nothing of the kind that *probe* reads: no GPUs, no control groups."""
    return probe.startswith(("gpu.", "cgroups.")) and row["outcome"] == "unsupported"
