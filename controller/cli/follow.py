"""``fleetmem snapshot --follow-start``: run it, tell of each mark, show how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fleetmem.controller.cli.kit import invoke as engine
from fleetmem.controller.cli.kit.flags import Common
from fleetmem.controller.cli.kit.live import Live
from fleetmem.controller.cli.kit.screen import Screen
from fleetmem.controller.look.snapshot import SnapshotOptions
from fleetmem.controller.render.follow import follow_lines
from fleetmem.controller.render.kit.table_rows import table_rows
from fleetmem.controller.render.snapshot.snapshot_svg import snapshot_svg


def follow(
    fleet: Any,
    unit: str,
    timeout_seconds: float | None,
    look: SnapshotOptions,
    common: Common,
    screen: Screen,
) -> int:
    """Follow *unit* on the fleet's hosts, each time with *look*; the process status."""
    from fleetmem.controller.look.follow.run import TIMEOUT_SECONDS, FollowOptions

    options = FollowOptions(unit, timeout_seconds or TIMEOUT_SECONDS, look)
    live = Live(screen, [host.name for host in fleet.hosts], common.quiet)

    def on_event(event: Mapping[str, Any]) -> None:
        live.on_event(event)
        if event["kind"] == "follow":
            live.note(f"{event['host']}: {event['text']}")

    envelope, status = engine.answered(lambda: fleet.follow_start(options, on_event), live, common)
    screen.lines(follow_lines(envelope, bool(look.files), screen.width))
    if screen.picture:
        screen.drawn(snapshot_svg(envelope))
    screen.rows(envelope, table_rows(envelope))
    return status
