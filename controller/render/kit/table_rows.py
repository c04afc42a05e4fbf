"""The table as flat rows for csv and JSON lines. Pure."""

from __future__ import annotations

from typing import Any

from fleetmem.controller.answer.envelope import Envelope

COLUMNS = (
    "run",
    "host",
    "outcome",
    "phase",
    "backing",
    "owner",
    "location",
    "lifetime",
    "bytes",
    "evidence",
)


def table_rows(envelope: Envelope) -> list[dict[str, Any]]:
    """One row a row of a host's table; a host without one has a row of its own."""
    rows: list[dict[str, Any]] = []
    run = envelope["run"]["id"]
    for entry in envelope["hosts"]:
        head = {"run": run, "host": entry["host"], "outcome": entry["outcome"]}
        section = entry.get("snapshot")
        if section is None:
            rows.append({**dict.fromkeys(COLUMNS), **head})
            continue
        for row in section["table"]:
            rows.append({**head, "phase": section["phase"], **row})
    return rows
