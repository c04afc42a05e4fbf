"""A whole reclaim as one screen, for a run that was not watched as it happened."""

from __future__ import annotations

from fleetmem.controller.answer.envelope import Envelope
from fleetmem.controller.reclaim.options import ReclaimOptions
from fleetmem.controller.render.kit.line import WIDTH, Line
from fleetmem.controller.render.reclaim.plan import plan_lines
from fleetmem.controller.render.reclaim.step_table import step_header, step_lines, steps_over
from fleetmem.controller.render.reclaim.verdicts import verdict_lines


def ladder_lines(envelope: Envelope, width: int = WIDTH) -> list[Line]:
    """The rungs that were climbed, in detail for one host, summed for several."""
    entries = envelope["hosts"]
    if len(entries) != 1:
        return steps_over(entries, width)
    rungs = entries[0]["reclaim"]["rungs"] if "reclaim" in entries[0] else []
    if not rungs:
        return []
    return [step_header(width), *(line for rung in rungs for line in step_lines(rung, width))]


def reclaim_lines(
    envelope: Envelope, options: ReclaimOptions | None = None, width: int = WIDTH
) -> list[Line]:
    """Plan, ladder and verdict, parted by blank lines where each has something to say."""
    blocks = [
        plan_lines(envelope["hosts"], options, width),
        ladder_lines(envelope, width),
        verdict_lines(envelope, width),
    ]
    lines: list[Line] = []
    for block in blocks:
        if block:
            lines += [(), *block] if lines else block
    return lines
