"""Envelopes for programs: json, jsonl, csv.

JSON is pure ASCII, so remote text cannot reach a terminal through it either.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

from fleetmem.controller.envelope import Envelope, Finding, HostEntry, hosts_of

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
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
    """One row a GPU in scope (a host without any has one row), with a heading; of a run that
    judged, the rows of :func:`flat_findings`.

    Absent is empty. Text that a spreadsheet would run as a formula gets a leading ``'``.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    if envelope["run"]["command"] in _JUDGED:
        writer.writerow(FINDING_COLUMNS)
        writer.writerows(row.values() for row in flat_findings(envelope))
        return out.getvalue()
    writer.writerow(COLUMNS)
    for entry in envelope["hosts"]:
        writer.writerows(map(_cells, _rows(envelope["run"]["id"], entry)))
    return out.getvalue()


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
            rows.append(dict(zip_longest(FINDING_COLUMNS, _cells([*head, *said]))))
    return rows


def _said(one: Finding) -> list[Any]:
    say, steps = one["evidence"].get("say"), "; ".join(one["next"])
    return [one["severity"], one["rule"], one["subject"], say, one["advice"], steps]


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


def _cells(row: list[Any]) -> list[Any]:
    return [
        "'" + cell if isinstance(cell, str) and cell.startswith(_FORMULA) else cell for cell in row
    ]
