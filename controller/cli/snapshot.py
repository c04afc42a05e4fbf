"""``fleetmem snapshot``: where every byte is now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from fleetmem.controller.cli.follow import follow
from fleetmem.controller.cli.kit import invoke as engine
from fleetmem.controller.cli.kit.flags import Command, Common, common, option, word_too_many
from fleetmem.controller.cli.kit.live import Live
from fleetmem.controller.cli.kit.screen import Screen
from fleetmem.controller.cli.kit.values import host_paths, span
from fleetmem.controller.errors import UsageError
from fleetmem.controller.look.snapshot import NUMA_MAPS, SnapshotOptions
from fleetmem.controller.render.kit.table_rows import table_rows
from fleetmem.controller.render.snapshot.snapshot import host_lines, snapshot_lines
from fleetmem.controller.render.snapshot.snapshot_svg import snapshot_svg

_ABOUT = """Show where host and GPU memory is, by backing, owner, location and lifetime.

Changes nothing. File pages are traced to files; --files adds paths to measure.

--follow-start takes a snapshot at each milestone in a unit's log while it starts: before-load,
after-load, after-init or failed. It skips the page cache unless --files names paths.
"""


def _phase(value: str) -> str:
    """One word that names a moment, such as before-load."""
    if not value or len(value) > 40 or not all(c.isalnum() or c in "-_." for c in value):
        raise click.BadParameter(f"{value!r} is not a phase name; use letters, digits and dashes")
    return value


def _unit(value: str) -> str:
    """One systemd unit; a pattern could mean several."""
    if not value or value.startswith("-") or set(value) & set("*?[/ \t\n"):
        raise click.BadParameter(f"{value!r} is not a unit name, such as vllm or vllm@0.service")
    return value


@click.command("snapshot", cls=Command, help=_ABOUT)
@click.argument("more", nargs=-1, metavar="[PATH]...")
@option(
    "--phase",
    type=_phase,
    metavar="NAME",
    help="Label this snapshot: before-load, after-load, after-init, after-action or any word.",
)
@option(
    "--files",
    multiple=True,
    metavar="PATH",
    help="Also measure these files, directories or globs; repeatable, takes several paths.",
)
@option("--no-files", is_flag=True, place="advanced", help="Skip the page cache.")
@option(
    "--numa-maps",
    type=click.IntRange(0, 200),
    default=NUMA_MAPS,
    show_default=True,
    metavar="N",
    place="advanced",
    help="Locate the pages of the N largest processes by NUMA node.",
)
@option(
    "--follow-start",
    type=_unit,
    metavar="UNIT",
    help="Wait for UNIT to start, or join a start in progress, and take a snapshot at each phase.",
)
@option(
    "--follow-timeout",
    type=span,
    metavar="SPAN",
    place="advanced",
    help="Limit for the whole start, including the wait for it, such as 90s or 2h.  [default: 30m]",
)
@common(hosts="required", picture=True)
def command(
    common: Common,
    more: tuple[str, ...],
    phase: str | None,
    files: tuple[str, ...],
    no_files: bool,
    numa_maps: int,
    follow_start: str | None,
    follow_timeout: float | None,
) -> int:
    """Parse, run, show; the process status."""
    if more and not files:
        if "/" in more[0]:
            raise UsageError(f"{more[0]!r}: write --files before paths")
        raise word_too_many(click.get_current_context(), more, common.hosts)
    paths = host_paths("--files", (*files, *more))
    if paths and no_files:
        raise click.UsageError("--files and --no-files cannot be combined")
    if follow_start is not None and phase is not None:
        raise click.UsageError("--follow-start sets the phases itself; remove --phase")
    if follow_start is None and follow_timeout is not None:
        raise click.UsageError("--follow-timeout needs --follow-start")
    scan = bool(paths) if follow_start is not None else not no_files
    options = SnapshotOptions(phase=phase, files=paths, scan_files=scan, numa_maps=numa_maps)
    screen = Screen(common)
    try:
        fleet = engine.load_fleet(common)
        if follow_start is not None:
            status = follow(fleet, follow_start, follow_timeout, options, common, screen)
        else:
            status = _snapshot(fleet, options, common, screen)
        screen.close()
    finally:
        screen.discard()
    return status


def _snapshot(fleet: Any, options: SnapshotOptions, common: Common, screen: Screen) -> int:
    live = Live(screen, [host.name for host in fleet.hosts], common.quiet)
    shown = False

    def on_event(event: Mapping[str, Any]) -> None:
        nonlocal shown
        live.on_event(event)
        if event["kind"] == "places" and len(fleet.hosts) == 1 and screen.table:
            shown = True
            live.show(host_lines(event["entry"], event["section"], event["run"], screen.width))

    envelope, status = engine.answered(lambda: fleet.snapshot(options, on_event), live, common)
    asked = bool(options.files)
    lines = snapshot_lines(envelope, asked, screen.width, places_shown=shown, reach=common.reach)
    screen.lines(lines)
    if screen.picture:
        screen.drawn(snapshot_svg(envelope))
    screen.rows(envelope, table_rows(envelope))
    return status
