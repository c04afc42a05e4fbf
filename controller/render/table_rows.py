"""The table as flat rows for csv and JSON lines. Pure."""

from __future__ import annotations

from typing import Any

from fleetmem.controller.envelope import Envelope

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
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


def table_rows(envelope: Envelope, for_csv: bool) -> list[dict[str, Any]]:
    """One row a row of a host's table; a host without one has a row of its own.

    In csv absent is empty, evidence is one text, and text that a spreadsheet would run as a
    formula gets a leading ``'``.
    """
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
    return [_flat(row) for row in rows] if for_csv else rows


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    evidence = "; ".join(row["evidence"] or ())
    return {name: _cell(value) for name, value in {**row, "evidence": evidence}.items()}


def _cell(value: Any) -> Any:
    return "'" + value if isinstance(value, str) and value.startswith(_FORMULA) else value
