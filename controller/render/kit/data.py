"""Envelopes for programs: json, jsonl, csv.

JSON is pure ASCII, so remote text cannot reach a terminal through it either.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

from fleetmem.controller.answer.envelope import Envelope, Finding, HostEntry, hosts_of, reading_of
from fleetmem.controller.render.kit.csv_text import csv_text
from fleetmem.controller.render.kit.table_rows import COLUMNS as TABLE_COLUMNS
from fleetmem.controller.render.kit.table_rows import table_rows

COLUMNS = (
    "run",
    "host",
    "outcome",
    "error",
    "seconds",
    "verdict",
    "gpu",
    "uuid",
    "gpu_verdict",
    "before_bytes",
    "after_bytes",
    "baseline_bytes",
    "baseline_source",
)
FINDING_COLUMNS = (
    "run",
    "host",
    "outcome",
    "error",
    "severity",
    "rule",
    "subject",
    "say",
    "advice",
    "next",
)
_JUDGED = ("run", "audit")
"""Commands whose answer is findings."""


def to_json(envelope: Envelope) -> str:
    """The envelope as one indented document."""
    return json.dumps(envelope, indent=1, allow_nan=False) + "\n"


def to_jsonl(envelope: Envelope) -> str:
    """One host a line, then one line with everything else of the envelope (``summary``)."""
    run = envelope["run"]["id"]
    rest = {key: value for key, value in envelope.items() if key != "hosts"}
    lines: list[Any] = [{"run": run, **entry} for entry in envelope["hosts"]]
    return "".join(json.dumps(line, allow_nan=False) + "\n" for line in [*lines, rest])


def to_csv(envelope: Envelope) -> str:
    """One row a GPU in scope (a host without any has one row), with a heading.

    A run that judged has the rows of :func:`flat_findings`, a snapshot those of its table,
    ``hosts --check`` one a host.
    """
    run, command = envelope["run"]["id"], envelope["run"]["command"]
    if command in _JUDGED:
        return csv_text(flat_findings(envelope), FINDING_COLUMNS)
    if command == "hosts":
        return csv_text([_checked(run, entry) for entry in envelope["hosts"]])
    if any("snapshot" in entry for entry in envelope["hosts"]):
        return csv_text(table_rows(envelope), TABLE_COLUMNS)
    rows = [row for entry in envelope["hosts"] for row in _rows(run, entry)]
    return csv_text([dict(zip(COLUMNS, row, strict=True)) for row in rows], COLUMNS)


def flat_findings(envelope: Envelope) -> list[dict[str, Any]]:
    """One flat row for each finding of each host, for csv; a host without any has one row."""
    found: dict[str, list[Finding]] = {}
    for one in envelope["findings"]:
        for host in hosts_of(one, envelope):
            found.setdefault(host, []).append(one)
    rows = []
    for entry in envelope["hosts"]:
        error = entry["error"]["code"] if entry["error"] else None
        head = [envelope["run"]["id"], entry["host"], entry["outcome"], error]
        judged = [_said(one) for one in found.get(entry["host"], ())]
        for said in judged or [[]]:
            rows.append(dict(zip_longest(FINDING_COLUMNS, [*head, *said])))
    return rows


def _said(one: Finding) -> list[Any]:
    say = one["evidence"].get("say")
    return [one["severity"], one["rule"], one["subject"], say, one["advice"], one["next"]]


def _checked(run: str, entry: HostEntry) -> dict[str, Any]:
    """What ``hosts --check`` found on one host; absent where it was not read."""
    error, readings = entry["error"], entry["readings"]
    facts, devices = reading_of(entry, "host.facts") or {}, reading_of(entry, "gpu.devices") or {}
    problems = [f"{error['code']}: {error['message']}"] if error else []
    problems += [
        f"{probe}: {row['outcome']}: {row['reason'] or 'no reason given'}"
        for probe, row in readings.items()
        if row["outcome"] != "ok"
    ]
    gpus = devices.get("gpus")
    return {
        "run": run,
        "host": entry["host"],
        "outcome": entry["outcome"],
        "error": error["code"] if error else None,
        "seconds": entry["seconds"],
        **{name: facts.get(name) for name in _FACTS},
        "gpus": None if gpus is None else len(gpus),
        "gpu_names": list(dict.fromkeys(gpu["name"] or "GPU" for gpu in gpus or ())),
        "driver_version": devices.get("driver_version"),
        "problems": problems,
    }


_FACTS = (
    "user", "python", "kernel", "machine", "total_bytes", "page_size_bytes", "state_dir",
    "state_dir_reason",
)  # fmt: skip


def _rows(run: str, entry: HostEntry) -> Iterator[list[Any]]:
    error = entry["error"]["code"] if entry["error"] else None
    head = [run, entry["host"], entry["outcome"], error, entry["seconds"]]
    section = entry.get("reclaim")
    if section is None or not section["gpus"]:
        yield [*head, section["verdict"] if section else None, *[None] * 7]
        return
    for gpu in section["gpus"]:
        yield [
            *head,
            section["verdict"],
            gpu["index"],
            gpu["uuid"],
            gpu["verdict"],
            gpu["before_bytes"],
            gpu["after_bytes"],
            gpu["baseline_bytes"],
            gpu["baseline_source"],
        ]
