"""The rungs of a reclaim as they end: what was signalled, what went, what came back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fleetmem.controller.answer.envelope import HostEntry, Rung
from fleetmem.controller.render.kit.line import WIDTH, Line, right, wrap
from fleetmem.controller.text.safe import safe
from fleetmem.controller.text.sizes import NONE, count, gib, seconds

NAMES = {"term": "TERM", "kill": "KILL"}
_INDENT = 58
_BAD = ("refused", "failed")


def step_header() -> Line:
    """The heading of the rows below."""
    text = f"{'STEP':<10} {'SIGNALLED':>9} {'GONE':>7} {'GPUS HELD':>10} {'FREED GiB':>12}"
    return ((f"{text} {'TIME':>7}", "dim"),)


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
    lines = [step_header()] if by_rung else []
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
    head = (
        f"{step:<10} {right(signalled, 9)} {right(gone, 7)} {right(held, 10)} "
        f"{right(freed, 12)} {right(took, 7)}"
    )
    if not note:
        return [((head, ""),)]
    mark = "! " if style else ""
    first, *more = wrap(safe(mark + note), width - _INDENT - 4)
    lines: list[Line] = [((head + "  ", ""), (first, style))]
    lines += [((" " * (_INDENT + 4) + piece, style),) for piece in more]
    return lines


def _of(part: int | None, whole: int | None) -> str:
    return NONE if part is None or whole is None else f"{part}/{whole}"


def _sum(values: Iterable[int | None]) -> int | None:
    known: Sequence[int] = [value for value in values if value is not None]
    return sum(known) if known else None
