"""``fleetmem reclaim --cache``: file pages instead of processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fleetmem.controller.answer.envelope import HostEntry
from fleetmem.controller.cli.kit import ask
from fleetmem.controller.cli.kit import invoke as engine
from fleetmem.controller.cli.kit.flags import Common
from fleetmem.controller.cli.kit.live import Live
from fleetmem.controller.cli.kit.screen import Screen
from fleetmem.controller.errors import UsageError
from fleetmem.controller.reclaim.options import ReclaimOptions
from fleetmem.controller.render.reclaim.cache import (
    cache_plan_lines,
    cache_result_lines,
    describe_cache,
)
from fleetmem.controller.run.settings import Event
from fleetmem.controller.text.sizes import count


def check_options(options: ReclaimOptions, stored: bool) -> None:
    """UsageError where ``--cache`` stands beside what reaches processes."""
    if options.scoped or options.override_protected or options.override_protected_on:
        raise UsageError(
            "--cache only reclaims file pages: it cannot be combined with --gpu or another scope",
            "reclaim processes first, then run it again with --cache",
        )
    if stored:
        raise UsageError("--cache plans are not stored: remove --apply and --plan-out")
    if options.post_check is not None:
        check_url(options.post_check)


def check_url(url: str) -> None:
    """UsageError unless *url* is http to a loopback address; the agent checks it again."""
    import ipaddress
    from urllib.parse import urlsplit

    hint = "write it as the host sees it: http://127.0.0.1:PORT/v1/completions or .../health"
    try:
        parts = urlsplit(url)
        name, port = parts.hostname or "", parts.port
    except ValueError:
        raise UsageError(f"--post-check {url}: is not a URL", hint) from None
    plain = all("!" <= char <= "~" for char in url)
    if not plain or parts.scheme != "http" or parts.username is not None or port == 0:
        raise UsageError(f"--post-check {url}: an http URL without a user is expected", hint)
    try:
        address = ipaddress.ip_address(name)
        loopback = address.is_loopback and (address.version == 4 or name == "::1")
    except ValueError:
        loopback = name == "localhost"
    if not loopback:
        raise UsageError(f"--post-check {url}: a host queries only itself, at a loopback address",
                         hint)  # fmt: skip


def reclaim_cache(fleet: Any, options: ReclaimOptions, common: Common, screen: Screen) -> int:
    """Plan, show, ask, apply, verify; the process status."""
    live = Live(screen, [host.name for host in fleet.hosts], common.quiet)
    shown = False

    def on_event(event: Event) -> None:
        if event["kind"] != "rung":  # its figures are in the answer below
            live.on_event(event)

    async def approve(entries: Sequence[HostEntry]) -> bool:
        nonlocal shown
        with live.asking():
            shown = True
            return await _approve(entries, options, screen)

    envelope, status = engine.answered(
        lambda: fleet.reclaim(options, approve, on_event),
        live,
        common,
    )
    if not screen.table:
        screen.data(envelope)
        return status
    lines = [] if shown else cache_plan_lines(envelope["hosts"], screen.width)
    result = cache_result_lines(envelope["hosts"], screen.width)
    screen.lines([*lines, (), *result] if lines or shown else result)
    return status


async def _approve(entries: Sequence[HostEntry], options: ReclaimOptions, screen: Screen) -> bool:
    """Show the plan and find out whether it may be applied."""
    lines = cache_plan_lines(entries, screen.width)
    asking = not options.yes and ask.can_ask()
    screen.lines(lines)
    if (asking and not screen.watched) or not (options.yes or screen.on_stdout):
        screen.aside(lines)
    if options.yes:
        return True
    if not asking:
        text = "nothing was changed: no terminal to confirm at; add --yes to apply"
        screen.aside([((text, "warn"),)])
        return False
    what, hosts = describe_cache(entries)
    how = "[y/N] " if hosts == 1 else "Type the number of hosts to continue, Enter to stop: "
    question = f"Evict {what} on {count(hosts, 'host')}? {how}"
    return await ask.confirm_text(question, hosts)
