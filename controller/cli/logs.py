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
from fleetmem.controller.render.logs.logs import log_lines, log_rows, troubles

_ABOUT = """Log lines of many hosts, newest first; of a unit only its newest start.

Filters run on the hosts. Equal lines of several hosts are folded: times, pids and addresses
make no difference. Without --unit, --file and --container the log of the processes that hold
the GPUs is read.
"""


@click.command("logs", cls=Command, help=_ABOUT)
@sources
@option(
    "-g",
    "--grep",
    metavar="REGEX",
    help="Lines that match this Python expression; without upper case in any case.",
)
@option("-C", "--context", type=click.IntRange(0, 100), default=0, help="Lines around a match.")
@option(
    "-B", "--before", type=click.IntRange(0, 100), place="advanced", help="Lines before a match."
)
@option("-A", "--after", type=click.IntRange(0, 100), place="advanced", help="Lines after a match.")
@option(
    "-n",
    "--limit",
    type=click.IntRange(1, 100_000),
    default=1000,
    show_default=True,
    help="At most so many lines of each log, the newest.",
)
@option("--raw/--fold", "raw", default=None, help="Every line, or equal ones folded.")
@option("--no-kernel", is_flag=True, place="advanced", help="Without the kernel's lines.")
@common(hosts="optional")
def command(common: Common, wanted: Sources, raw: bool | None, **values: Any) -> int:
    """Parse, run, show; the process status."""
    options = _options(wanted, **values)
    screen = Screen(common)
    try:
        fleet: Any = engine.load_fleet(common)
        live = Live(screen, [host.name for host in fleet.hosts], common.quiet)
        envelope, status = engine.answered(lambda: fleet.logs(options, live.on_event), live, common)
        every = len(envelope["hosts"]) == 1 or bool(options.before or options.after)
        screen.lines(log_lines(envelope, raw=every if raw is None else raw))
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
) -> LogOptions:
    if grep is not None:
        try:
            re.compile(grep)
        except (re.error, RecursionError, OverflowError) as error:
            raise UsageError(f"-g {grep!r} is no expression: {error}") from None
    return LogOptions(
        sources=wanted,
        grep=grep,
        before=context if before is None else before,
        after=context if after is None else after,
        limit=limit,
        kernel=not no_kernel,
    )
