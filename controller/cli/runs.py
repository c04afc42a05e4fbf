"""``fleetmem runs``: what was done before, from the history."""

from __future__ import annotations

import click

from fleetmem.controller.answer.envelope import Envelope, finish, new_envelope, new_run
from fleetmem.controller.cli.kit.flags import Command, Common, common, option
from fleetmem.controller.cli.kit.screen import Screen
from fleetmem.controller.errors import UsageError
from fleetmem.controller.record.history import open_history
from fleetmem.controller.render.runs import recorded_lines, run_rows, runs_data


@click.group("runs", no_args_is_help=False, help="List recorded runs, or show one again.")
def command() -> None:
    """A group: ``list`` and ``show``."""


@command.command("list", cls=Command, help="List runs, newest first.")
@option(
    "-n",
    "--limit",
    type=click.IntRange(1, 10_000),
    default=20,
    show_default=True,
    help="Show at most N runs.",
)
@common(hosts=None)
def list_runs(common: Common, limit: int) -> int:
    """Show the newest runs."""
    screen = Screen(common)
    try:
        history = open_history(warn=screen.note)
        rows = history.runs(limit)
        history.close()
        envelope = new_envelope(new_run("runs list"), [], [])
        envelope["runs"] = runs_data(rows)
        screen.lines(run_rows(rows, screen.width))
        screen.rows(finish(envelope, 0), envelope["runs"])
        screen.close()
    finally:
        screen.discard()
    return 0


@command.command(
    "show", cls=Command, help="Show one recorded run; the first characters of its id are enough."
)
@click.argument("run")
@common(hosts=None, picture=True)
def show_run(common: Common, run: str) -> int:
    """Show a run as its command did; the envelope is the recorded one."""
    screen = Screen(common)
    try:
        history = open_history(warn=screen.note)
        envelope = history.load(run)
        history.close()
        if screen.picture:
            screen.drawn(_picture(envelope))
        else:
            screen.lines(recorded_lines(envelope, screen.width))
            screen.data(envelope)
        screen.close()
    finally:
        screen.discard()
    return 0


def _picture(envelope: Envelope) -> str:
    """The table of a recorded snapshot; UsageError where the run has none."""
    from fleetmem.controller.render.snapshot.snapshot_svg import snapshot_svg

    run = envelope["run"]
    if run["command"] != "snapshot" and not any("snapshot" in row for row in envelope["hosts"]):
        raise UsageError(
            f"run {run['id']} ({run['command']}) has no memory table to draw",
            "-o svg draws snapshot runs; find one with: fleetmem runs list",
        )
    return snapshot_svg(envelope)
