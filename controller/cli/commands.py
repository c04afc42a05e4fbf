"""The commands that exist. Their modules are imported when they are called."""

from __future__ import annotations

from importlib import import_module

import click

from fleetmem import __version__
from fleetmem.agent.wire import PROTOCOL, SCHEMA

COMMANDS = {
    "snapshot": ("snapshot", "Show where host and GPU memory is: what it holds and who owns it."),
    "reclaim": ("reclaim", "Get GPU memory back from leftover processes, with proof."),
    "logs": ("logs", "Show log lines from many hosts, newest start first, equal lines folded."),
    "audit": ("audit", "Judge memory or an engine's start-up: what is wrong, what limited it."),
    "diff": ("diff", "Show what changed between two recorded snapshots."),
    "run": ("run", "Run one playbook: take its readings on every host and judge them."),
    "playbooks": ("playbooks", "List playbooks, show one, or check playbook files."),
    "gate": ("gate", "Wait in front of a start until GPU memory is free, or name its holder."),
    "hosts": ("hosts", "Show which hosts a selector matches; --check connects to them."),
    "runs": ("runs", "List recorded runs, or show one again."),
    "config": ("config", "Show the effective settings and where each comes from."),
}
"""Name → (module here, one line of help)."""


class Commands(click.Group):
    """A group that knows its commands' names and help without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order people need them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command called *cmd_name*."""
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"fleetmem.controller.cli.{COMMANDS[cmd_name][0]}")
        command: click.Command = module.command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command of *args*; an unknown command gets the nearest name."""
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            from difflib import get_close_matches

            near = get_close_matches(args[0][:80], COMMANDS, n=1)
            ctx.fail(
                f"unknown command {args[0]!r}" + (f"; did you mean {near[0]}?" if near else "")
            )
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands, from the table above."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, about) for name, (_, about) in COMMANDS.items()])


@click.group(
    cls=Commands,
    name="fleetmem",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 ok, 2 usage, 3 some hosts failed, 4 none reached, 5 not recovered, "
    "6 plan only, 7 refused, 8 unknown.",
)
@click.version_option(
    __version__, message=f"%(prog)s %(version)s (protocol {PROTOCOL}, schema {SCHEMA})"
)
def fleetmem() -> None:
    """See where GPU and host memory went across a fleet, and get it back safely."""
