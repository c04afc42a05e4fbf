"""``fleetmem logs``: grep for a fleet, from the newest start of a unit backwards."""

from __future__ import annotations

import re
from typing import Any

import click

from fleetmem.controller.cli.kit import invoke as engine
from fleetmem.controller.cli.kit.flags import Command, Common, common, option
from fleetmem.controller.cli.kit.live import Live
from fleetmem.controller.cli.kit.screen import Screen
from fleetmem.controller.cli.kit.source import sources
from fleetmem.controller.errors import UsageError
from fleetmem.controller.logs.run import LogOptions
from fleetmem.controller.logs.sources import Sources
from fleetmem.controller.render.logs.logs import Shown, log_lines, log_rows, troubles

_ABOUT = """Show log lines from many hosts, newest first; for a unit, only its newest start.

Filters run on the hosts. Equal lines from several hosts are folded: times, PIDs and addresses are
ignored. Without --unit, --file or --container, reads the log of the processes that hold the GPUs.
"""

_AROUND = click.IntRange(0, 100)


@click.command("logs", cls=Command, help=_ABOUT)
@sources
@option(
    "-g",
    "--grep",
    metavar="REGEX",
    help="Show only lines that match this Python regex (any case unless it has upper case).",
)
@option(
    "-C", "--context", type=click.IntRange(0, 100), default=0, help="Show N lines around a match."
)
@option("-B", "--before", type=_AROUND, place="advanced", help="Show N lines before a match.")
@option("-A", "--after", type=_AROUND, place="advanced", help="Show N lines after a match.")
@option(
    "-n",
    "--limit",
    type=click.IntRange(1, 100_000),
    default=1000,
    show_default=True,
    help="Show at most N newest lines per log.",
)
@option(
    "--raw/--fold",
    "raw",
    default=None,
    help="Show every event, or fold equal ones (default: fold several hosts).",
)
@option("--kernel", "kernel_only", is_flag=True, help="Read kernel lines instead of a unit's.")
@option("--oldest-first", is_flag=True, place="advanced", help="Show the oldest event first.")
@option("--full", is_flag=True, place="advanced", help="Show long lines whole.")
@option("--no-kernel", is_flag=True, place="advanced", help="Exclude kernel lines.")
@common(hosts="optional")
def command(
    common: Common,
    wanted: Sources,
    raw: bool | None,
    oldest_first: bool,
    full: bool,
    **values: Any,
) -> int:
    """Parse, run, show; the process status."""
    options = _options(wanted, **values)
    screen = Screen(common)
    try:
        fleet: Any = engine.load_fleet(common)
        live = Live(screen, [host.name for host in fleet.hosts], common.quiet)
        envelope, status = engine.answered(lambda: fleet.logs(options, live.on_event), live, common)
        every = len(envelope["hosts"]) == 1 or bool(options.before or options.after)
        shown = Shown(every if raw is None else raw, oldest_first, full, options.grep)
        screen.lines(log_lines(envelope, shown))
        if common.output == "json":
            screen.data(envelope)
        else:
            screen.rows(envelope, log_rows(envelope))
        if common.output in ("jsonl", "csv"):  # a row is a line: what was not read has none
            screen.aside(troubles(envelope["hosts"]))
        screen.close()
    finally:
        screen.discard()
    return status


def _options(
    wanted: Sources,
    grep: str | None,
    context: int,
    before: int | None,
    after: int | None,
    limit: int,
    no_kernel: bool,
    kernel_only: bool,
) -> LogOptions:
    if kernel_only and (wanted.named or no_kernel):
        raise UsageError("--kernel reads the kernel's lines: leave out --unit, --file, --container")
    if grep is not None:
        try:
            re.compile(grep)
        except (re.error, RecursionError, OverflowError) as error:
            raise UsageError(f"-g {grep!r} is not a valid regex: {error}") from None
    return LogOptions(
        sources=wanted,
        grep=grep,
        before=context if before is None else before,
        after=context if after is None else after,
        limit=limit,
        kernel=not no_kernel,
        kernel_only=kernel_only,
    )
