"""``fleetmem config``: the settings in force and where each comes from."""

from __future__ import annotations

import os
from typing import Any

import click

from fleetmem.controller.answer.envelope import finish, new_envelope, new_run
from fleetmem.controller.cli.kit.flags import Command, Common, common, option
from fleetmem.controller.cli.kit.screen import Screen
from fleetmem.controller.record.state_directory import state_directory
from fleetmem.controller.render.kit.line import Line, left
from fleetmem.controller.text.safe import safe


@click.group(
    "config", no_args_is_help=False, help="Show the effective settings and where each comes from."
)
def command() -> None:
    """A group: ``show``."""


@command.command("show", cls=Command, help="Show every setting and its value.")
@option("--origin", is_flag=True, help="Also show where each value comes from.")
@common(hosts=None)
def show(common: Common, origin: bool) -> int:
    """Show the settings."""
    screen = Screen(common)
    try:
        rows = settings()
        if not origin:
            rows = [{"name": row["name"], "value": row["value"]} for row in rows]
        envelope = new_envelope(new_run("config show"), [], [])
        envelope["settings"] = rows
        screen.lines([_line(row) for row in rows])
        screen.rows(finish(envelope, 0), rows)
        screen.close()
    finally:
        screen.discard()
    return 0


def settings() -> list[dict[str, Any]]:
    """Every setting: name, value, and the place that decided it.

    Options are read by the code that the commands use; click.BadParameter where one is wrong.
    """
    from fleetmem.controller.cli.hosts import command as hosts

    context = hosts.make_context("fleetmem config show", [])
    options = ("fanout", "timeout_seconds", "output")
    return [
        {"name": "inventory", **_inventory()},
        *({"name": name, **_option(context, name)} for name in options),
        {"name": "state_directory", **_state_directory()},
    ]


def _option(context: click.Context, name: str) -> dict[str, Any]:
    source = context.get_parameter_source(name)
    variable = next(
        parameter.envvar for parameter in context.command.params if parameter.name == name
    )
    given = source is not None and source.name == "ENVIRONMENT"
    return {
        "value": context.params[name],
        "origin": f"environment {variable}" if given else "default",
    }


def _inventory() -> dict[str, Any]:
    from fleetmem.controller.hosts.inventory import find

    path, warnings = find(None)
    if path is None:
        origin = "none; " + (warnings[0] if warnings else "only localhost and user@host")
    elif os.environ.get("FLEETMEM_INVENTORY"):
        origin = "environment FLEETMEM_INVENTORY"
    else:
        origin = "found there"
    return {"value": path, "origin": origin}


def _state_directory() -> dict[str, Any]:
    chosen = os.environ.get("XDG_STATE_HOME", "").startswith("/")
    origin = "environment XDG_STATE_HOME" if chosen else "default"
    return {"value": str(state_directory()), "origin": origin}


def _line(row: dict[str, Any]) -> Line:
    value = "–" if row["value"] is None else safe(row["value"])
    return (
        (left(row["name"], 16) + "  ", "dim"),
        (value, ""),
        (f"  ({safe(row['origin'])})" if "origin" in row else "", "dim"),
    )
