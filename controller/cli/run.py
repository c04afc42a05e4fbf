"""``fleetmem run PLAYBOOK``: one playbook over hosts; changes nothing."""

from __future__ import annotations

from typing import Any

import click

from fleetmem.controller.answer.step import complete, next_step
from fleetmem.controller.cli.kit import invoke as engine
from fleetmem.controller.cli.kit.flags import Command, Common, common
from fleetmem.controller.cli.kit.live import Live
from fleetmem.controller.cli.kit.screen import Screen
from fleetmem.controller.errors import UsageError
from fleetmem.controller.render.kit.findings import folded_lines
from fleetmem.controller.rules.playbook import LOGS

_ABOUT = """Run one playbook: take its readings on every host and judge them. Changes nothing.

PLAYBOOK is a name (fleetmem playbooks list) or a file.
"""


@click.command("run", cls=Command, help=_ABOUT)
@click.argument("playbook")
@common(hosts="required")
def command(common: Common, playbook: str) -> int:
    """Parse, run, show; the process status."""
    if playbook == LOGS:
        raise UsageError(
            "the startup playbook reads logs, not readings",
            f"use: {complete(next_step(f'audit {LOGS}', common.hosts), common.reach)}",
        )
    screen = Screen(common)
    try:
        fleet = engine.load_fleet(common)
        status = _run(fleet, playbook, common, screen)
        screen.close()
    finally:
        screen.discard()
    return status


def _run(fleet: Any, playbook: str, common: Common, screen: Screen) -> int:
    live = Live(screen, [host.name for host in fleet.hosts], common.quiet)

    envelope, status = engine.answered(
        lambda: fleet.run_playbooks([playbook], live.on_event, "run"), live, common
    )
    screen.lines(folded_lines(envelope, 1, common.reach, screen.width))
    screen.data(envelope)
    return status
