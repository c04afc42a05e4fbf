"""The rungs of a reclaim as they end: what was signalled, what went, what came back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fleetmem.controller.answer.envelope import HostEntry, Rung
from fleetmem.controller.render.kit.line import WIDTH, Line
from fleetmem.controller.render.kit.table import Column, Row, table_lines
from fleetmem.controller.text.safe import safe
from fleetmem.controller.text.sizes import NONE, count, gib, seconds

NAMES = {"term": "TERM", "kill": "KILL"}
_BAD = ("refused", "failed")


_COLUMNS = (
    Column("STEP", size=6),
    Column("SIGNALLED", right=True),
    Column("GONE", right=True, size=7),
    Column("GPUS HELD", right=True),
    Column("FREED GiB", right=True),
    Column("TIME", right=True, size=6),
    Column("", least=24, place="below"),
)
"""As wide in every call: rows appear one by one as they end."""


def step_header(width: int = WIDTH) -> Line:
    """The heading of the rows below."""
    return table_lines(_COLUMNS, [Row([""] * len(_COLUMNS))], width)[0]


def step_lines(rung: Rung, width: int = WIDTH) -> list[Line]:
    """One rung of one host."""
    note = rung.get("why") or ""
    bad = rung["outcome"] in _BAD
    if bad or (rung["outcome"] == "not_applicable" and not note):
        note = f"{rung['outcome'].replace('_', ' ')}{': ' if note else ''}{note}"
    skipped = rung["outcome"] == "not_applicable"
    return _row(
        NAMES.get(rung["rung"], rung["rung"]),
        NONE if skipped else str(len(rung["signalled"])),
        _of(rung.get("gone"), rung.get("targets")),
        _of(rung.get("held_gpus"), rung.get("gpus")),
        NONE if skipped else gib(rung["freed_bytes"]),
        seconds(rung["seconds"]),
        note,
        "bad" if bad else "",
        width,
    )


def steps_over(entries: Iterable[HostEntry], width: int = WIDTH) -> list[Line]:
    """The rungs of several hosts, summed: one row a rung, in the order climbed.

    TIME is that of the slowest host.
    """
    by_rung: dict[str, list[Rung]] = {}
    for entry in entries:
        for rung in entry["reclaim"]["rungs"] if "reclaim" in entry else ():
            if rung["outcome"] != "not_applicable":
                by_rung.setdefault(rung["rung"], []).append(rung)
    lines = [step_header(width)] if by_rung else []
    for name, rungs in by_rung.items():
        bad = sum(rung["outcome"] in _BAD for rung in rungs)
        note = f"on {count(len(rungs), 'host')}" + (f", not possible on {bad}" if bad else "")
        freed = [rung["freed_bytes"] for rung in rungs if rung["freed_bytes"] is not None]
        lines += _row(
            NAMES.get(name, name),
            str(sum(len(rung["signalled"]) for rung in rungs)),
            _of(_sum(rung.get("gone") for rung in rungs), _sum(r.get("targets") for r in rungs)),
            _of(_sum(rung.get("held_gpus") for rung in rungs), _sum(r.get("gpus") for r in rungs)),
            gib(sum(freed)) if freed else NONE,
            seconds(max((rung["seconds"] or 0 for rung in rungs), default=None)),
            note,
            "bad" if bad else "",
            width,
        )
    return lines


def _row(
    step: str,
    signalled: str,
    gone: str,
    held: str,
    freed: str,
    took: str,
    note: str,
    style: str,
    width: int,
) -> list[Line]:
    said: Line = ((safe(f"! {note}" if style else note), style),)
    row = Row([step, signalled, gone, held, freed, took, said])
    return table_lines(_COLUMNS, [row], width, heads=False)


def _of(part: int | None, whole: int | None) -> str:
    return NONE if part is None or whole is None else f"{part}/{whole}"


def _sum(values: Iterable[int | None]) -> int | None:
    known: Sequence[int] = [value for value in values if value is not None]
    return sum(known) if known else None
