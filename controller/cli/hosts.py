"""``fleetmem hosts``: what a selector resolves to and, asked to, what each host can do."""

from __future__ import annotations

from typing import Any

import click

from fleetmem.controller.answer.envelope import HostEntry, finish, new_envelope, new_host, new_run
from fleetmem.controller.cli.kit import invoke as engine
from fleetmem.controller.cli.kit.flags import Command, Common, common, option
from fleetmem.controller.cli.kit.live import Live
from fleetmem.controller.cli.kit.screen import Screen
from fleetmem.controller.render.hosts import checked_lines, resolved_lines

_ABOUT = """Show which hosts a selector matches.

Does not connect, and does not show what ~/.ssh/config adds. With --check, connects to each host
and shows what works there.
"""


@click.command("hosts", cls=Command, help=_ABOUT)
@option("--check", is_flag=True, help="Connect to each host and show what works there.")
@common(hosts="optional")
def command(common: Common, check: bool) -> int:
    """Parse, run, show; the process status."""
    screen = Screen(common)
    try:
        fleet = engine.load_fleet(common)
        status = _check(fleet, common, screen) if check else _resolve(fleet, screen)
        screen.close()
    finally:
        screen.discard()
    return status


def _resolve(fleet: Any, screen: Screen) -> int:
    names = [host.name for host in fleet.hosts]
    rows = [_resolved(host) for host in fleet.hosts]
    envelope = finish(new_envelope(new_run("hosts"), names, rows), 0)
    screen.lines(resolved_lines(envelope, screen.width))
    screen.rows(
        envelope,
        [
            {
                "host": row["host"],
                **row["resolved"],
                "groups": " ".join(row["resolved"]["groups"]),
                "jump": " ".join(row["resolved"]["jump"]),
            }
            for row in rows
        ],
    )
    return 0


def _resolved(host: Any) -> HostEntry:
    entry = new_host(host.name, "not_attempted")
    entry["resolved"] = {
        "address": host.address,
        "port": host.port,
        "user": host.user,
        "transport": host.transport,
        "groups": list(host.groups),
        "jump": [hop.name for hop in host.jump],
    }
    return entry


def _check(fleet: Any, common: Common, screen: Screen) -> int:
    live = Live(screen, [host.name for host in fleet.hosts], common.quiet)
    envelope, status = engine.answered(lambda: fleet.check(live.on_event), live, common)
    screen.lines(checked_lines(envelope, screen.width))
    screen.data(envelope)
    return status
