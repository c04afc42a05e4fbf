"""``fleetmem diff``: what changed between two recorded looks at memory."""

from __future__ import annotations

import click

from fleetmem.controller.answer.envelope import Envelope
from fleetmem.controller.cli.kit.flags import Command, Common, common
from fleetmem.controller.cli.kit.screen import Screen
from fleetmem.controller.look.diff import diff
from fleetmem.controller.record.history import open_history
from fleetmem.controller.render.diff import diff_lines

_ABOUT = """Show what changed between two snapshots, by backing, owner and location.

Each RUN is a run id or its first characters (fleetmem runs list), or a phase: the newest snapshot
with that label. Does not connect to any host.
"""


@click.command("diff", cls=Command, help=_ABOUT)
@click.argument("first", metavar="RUN")
@click.argument("second", metavar="RUN")
@common(hosts=None)
def command(common: Common, first: str, second: str) -> int:
    """Load both, compare, show; the process status."""
    screen = Screen(common)
    try:
        history = open_history(warn=screen.note)
        try:
            envelope = diff(history, first, second)
        finally:
            history.close()
        screen.lines(diff_lines(envelope, first, second, screen.width))
        screen.rows(envelope, _rows(envelope))
        screen.close()
    finally:
        screen.discard()
    return 0


def _rows(envelope: Envelope) -> list[dict[str, object]]:
    return [
        {"host": entry["host"], **row}
        for entry in envelope["hosts"]
        if "diff" in entry
        for row in entry["diff"]["rows"]
    ]
