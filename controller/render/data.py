"""Envelopes for programs: json, jsonl, csv.

JSON is pure ASCII, so remote text cannot reach a terminal through it either.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from typing import Any

from fleetmem.controller.envelope import Envelope, HostEntry

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

    Absent is empty. Text that a spreadsheet would run as a formula gets a leading ``'``.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for entry in envelope["hosts"]:
        writer.writerows(map(_cells, _rows(envelope["run"]["id"], entry)))
    return out.getvalue()


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
