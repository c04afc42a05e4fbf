"""``fleetmem reclaim``: plan, show, ask, apply, verify."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from fleetmem.controller.answer.envelope import Envelope, HostEntry
from fleetmem.controller.answer.step import Reach, complete, next_step
from fleetmem.controller.cli.kit import ask
from fleetmem.controller.cli.kit import invoke as engine
from fleetmem.controller.cli.kit.flags import (
    Command,
    Common,
    common,
    joined,
    option,
    word_too_many,
)
from fleetmem.controller.cli.kit.live import Live
from fleetmem.controller.cli.kit.screen import Screen
from fleetmem.controller.cli.kit.values import host_paths, max_fail, names, span
from fleetmem.controller.cli.kit.values import pids as pid_list
from fleetmem.controller.cli.reclaim_cache import check_options, reclaim_cache
from fleetmem.controller.errors import PlanInvalid, UsageError
from fleetmem.controller.hosts.gpu_scope import parse as parse_gpus
from fleetmem.controller.reclaim.options import (
    CACHE_MODES,
    POST_CHECK_SECONDS,
    UP_TO,
    ReclaimOptions,
)
from fleetmem.controller.render.kit.line import Line
from fleetmem.controller.render.kit.next_steps import next_lines
from fleetmem.controller.render.reclaim.plan import plan_lines
from fleetmem.controller.render.reclaim.question import describe, plan_hashes
from fleetmem.controller.render.reclaim.reclaim import ladder_lines
from fleetmem.controller.render.reclaim.verdicts import verdict_lines

if TYPE_CHECKING:
    from fleetmem.controller.reclaim.plan import Plan

_ALL = "\0"
"""``--cache`` without a path: no word of a command line can be this."""

_ABOUT = """Get GPU memory back from leftover processes and verify that it came back.

Without a scope (--gpu, --pid, --user, --unit, --container) only leftovers are touched: processes
whose owner is gone.
The plan is shown first; nothing is changed before you agree (or gave --yes).
"""


@click.command("reclaim", cls=Command, help=_ABOUT)
@option(
    "--gpu",
    metavar="GPUS",
    multiple=True,
    callback=joined,
    help="Include every process on these GPUs: all, 0, 0-3, a uuid, a PCI address; repeatable.",
)
@option(
    "--pid",
    "pids",
    type=pid_list,
    multiple=True,
    metavar="PID",
    help="Include this process, over several hosts as HOST:PID; repeatable.",
)
@option(
    "--user",
    metavar="USER",
    multiple=True,
    callback=joined,
    help="Include every process of this user; repeatable.",
)
@option(
    "--unit",
    "units",
    metavar="UNIT",
    multiple=True,
    place="advanced",
    help="Include every process of this systemd unit; repeatable.",
)
@option(
    "--container",
    "containers",
    metavar="NAME",
    multiple=True,
    place="advanced",
    help="Include every process of this container or pod; repeatable.",
)
@option("--dry-run", is_flag=True, help="Show the plan and change nothing.")
@option("--yes", is_flag=True, help="Apply without asking.")
@option(
    "--up-to",
    type=click.Choice(UP_TO),
    default="heirs",
    place="advanced",
    show_default=True,
    help="Last escalation step allowed.",
)
@option("--no-drain", is_flag=True, place="advanced", help="Do not wait for requests to finish.")
@option(
    "--grace-period",
    "grace_period_seconds",
    type=span,
    default=10.0,
    metavar="SPAN",
    place="advanced",
    help="Wait this long between TERM and KILL.  [default: 10s]",
)
@option(
    "--release-timeout",
    "release_timeout_seconds",
    type=span,
    metavar="SPAN",
    place="advanced",
    help="Wait this long for memory to come back.  [default: as predicted]",
)
@option(
    "--max-fail",
    type=max_fail,
    metavar="N|N%",
    place="advanced",
    help="Stop starting hosts after N (or N%) of the targets failed.",
)
@option(
    "--canary",
    type=click.IntRange(0),
    default=0,
    metavar="N",
    place="advanced",
    help="Start with N hosts; continue only if they all recovered.",
)
@option("--reason", metavar="TEXT", place="advanced", help="Reason, recorded in the audit trail.")
@option(
    "--override-protected",
    type=pid_list,
    multiple=True,
    metavar="PID",
    place="advanced",
    help="Allow this protected process to be stopped (HOST:PID over several hosts); repeatable.",
)
@option(
    "--detailed-exitcode",
    is_flag=True,
    place="advanced",
    help="With --dry-run, exit with 6 if anything would be stopped.",
)
@option("--plan-out", metavar="FILE", place="advanced", help="Save the plans to FILE for --apply.")
@option(
    "--apply",
    metavar="PLAN",
    place="advanced",
    help="Apply this plan (a file, or the id of a plan or run) instead of making one.",
)
@option(
    "--cache",
    is_flag=False,
    flag_value=_ALL,
    multiple=True,
    metavar="[PATH]",
    help="Reclaim file cache instead of processes: of PATHs, or all on GPU NUMA nodes.",
)
@option(
    "--cache-mode",
    type=click.Choice(CACHE_MODES),
    default="auto",
    show_default=True,
    place="advanced",
    help="Migrate to a CPU node, drop, or choose per file (auto).",
)
@option(
    "--post-check",
    metavar="URL",
    place="advanced",
    help="With --cache, let each host query its engine (http://127.0.0.1:8000/health) afterwards "
    "and show how much was read from disk again.",
)
@option(
    "--post-check-timeout",
    "post_check_seconds",
    type=span,
    default=POST_CHECK_SECONDS,
    metavar="SPAN",
    place="advanced",
    help="Limit for the post-check.  [default: 1m]",
)
@click.argument("more", nargs=-1, metavar="")
@common(hosts="named")
def command(
    common: Common,
    pids: Any,
    cache: tuple[str, ...],
    more: tuple[str, ...],
    override_protected: Any,
    plan_out: str | None,
    apply: str | None,
    units: tuple[str, ...],
    containers: tuple[str, ...],
    **values: Any,
) -> int:
    """Parse, run, show; the process status."""
    here, elsewhere = _pids(pids)
    allowed_here, allowed_elsewhere = _pids(override_protected)
    options = ReclaimOptions(
        pids=here,
        host_pids=elsewhere,
        units=names("--unit", units),
        containers=names("--container", containers),
        override_protected=allowed_here,
        override_protected_on=allowed_elsewhere,
        cache=host_paths("--cache", (path for path in (*cache, *more) if path != _ALL))
        if cache
        else None,
        **values,
    )
    if more and not cache:
        if "/" in more[0]:
            raise UsageError(f"{more[0]!r}: write --cache before paths")
        raise word_too_many(click.get_current_context(), more, common.hosts)
    if options.cache is not None:
        check_options(options, stored=bool(apply or plan_out))
    elif options.post_check is not None:
        raise UsageError("--post-check goes with --cache: it shows what dropping pages cost")
    elif options.cache_mode != CACHE_MODES[0]:
        raise UsageError("--cache-mode goes with --cache: without it processes are reclaimed")
    if options.post_check is None and options.post_check_seconds != POST_CHECK_SECONDS:
        raise UsageError("--post-check-timeout goes with --post-check")
    if options.gpu is not None:
        parse_gpus(options.gpu)
    screen = Screen(common)
    try:
        stored = _stored(apply, common, options)
        if stored is not None:
            common = replace(common, hosts=",".join(stored))
        fleet = engine.load_fleet(common)
        if options.cache is not None:
            status = reclaim_cache(fleet, options, common, screen)
        else:
            status = _reclaim(fleet, options, common, screen, plan_out, stored)
        screen.close()
    finally:
        screen.discard()
    return status


def _pids(groups: Any) -> tuple[tuple[int, ...], tuple[tuple[str, int], ...]]:
    """The values of ``--pid``, each once: those without a host, and those with one."""
    pairs = dict.fromkeys(pair for group in groups for pair in group)
    return tuple(pid for host, pid in pairs if not host), tuple(pair for pair in pairs if pair[0])


def _stored(
    apply: str | None, common: Common, options: ReclaimOptions
) -> Mapping[str, Plan] | None:
    """The plans that ``--apply`` names, by host; UsageError, PlanInvalid."""
    if apply is None:
        if not common.hosts:
            raise UsageError("--hosts is missing", "name hosts with -H, or a plan with --apply")
        return None
    if common.hosts or common.exclude or options.scoped:
        raise UsageError(
            "--apply takes hosts and scope from the plan: leave out -H, -x and every scope option"
        )
    from pathlib import Path

    from fleetmem.controller.reclaim import plan_file

    path = Path(apply)
    if path.is_file() or "/" in apply or path.suffix:
        return plan_file.read(path).plans
    from fleetmem.controller.record.history import open_history

    history = open_history()
    try:
        found = history.plans(apply)
    finally:
        history.close()
    if not found:
        raise PlanInvalid(f"no plan and no run with plans begins with {apply!r}")
    return {host: plan_file.restore(row, digest, host) for host, (digest, row) in found.items()}


def _reclaim(
    fleet: Any,
    options: ReclaimOptions,
    common: Common,
    screen: Screen,
    plan_out: str | None,
    stored: Mapping[str, Plan] | None,
) -> int:
    plans: dict[str, Plan] = {}
    run = ""
    live = Live(screen, [host.name for host in fleet.hosts], common.quiet)
    shown = False

    def on_event(event: Any) -> None:
        nonlocal run
        if event["kind"] == "run":
            run = event["run"]
        if event["kind"] == "plan":
            plans[event["host"]] = event["plan"]
        live.on_event(event)

    async def approve(entries: Sequence[HostEntry]) -> bool:
        nonlocal shown
        with live.asking():
            shown = True
            return await _approve(entries, options, screen, run, common.reach)

    envelope, status = engine.answered(
        lambda: fleet.reclaim(options, approve, on_event, stored),
        live,
        common,
    )
    if plan_out is not None:
        _write_plans(plan_out, envelope["run"]["id"], options, plans)
    _answer(envelope, options, screen, plan_shown=shown, rungs_shown=live.rows > 0)
    return status


def _write_plans(path: str, run: str, options: ReclaimOptions, plans: Mapping[str, Plan]) -> None:
    from pathlib import Path

    from fleetmem.controller.reclaim import plan_file

    try:
        plan_file.keep(Path(path), plan_file.write(run, options, plans))
    except OSError as error:
        raise UsageError(f"--plan-out: {path}: {error.strerror}") from None


async def _approve(
    entries: Sequence[HostEntry], options: ReclaimOptions, screen: Screen, run: str, reach: Reach
) -> bool:
    """Show the plan and find out whether it may be applied."""
    lines = plan_lines(entries, options, screen.width)
    asking = not options.yes and ask.can_ask()
    screen.lines(lines)
    if (asking and not screen.watched) or not (options.yes or screen.on_stdout):
        screen.aside(lines)
    if options.yes:
        return True
    if not asking:
        screen.aside([((line, ""),) for line in plan_hashes(entries)])
        plans = [
            entry["reclaim"]["plan"] for entry in entries if entry.get("reclaim", {}).get("targets")
        ]
        ids = plans[0]["id"] if len(plans) == 1 and plans[0] else run
        apply = complete(next_step("reclaim", apply=ids, yes=True), reach)
        note: Line = (("nothing was changed: no terminal to confirm at", "warn"),)
        screen.aside([note, *next_lines([apply])])
        return False
    return await ask.confirm(*describe(entries))


def _answer(
    envelope: Envelope,
    options: ReclaimOptions,
    screen: Screen,
    *,
    plan_shown: bool,
    rungs_shown: bool,
) -> None:
    """What has not been on the screen yet."""
    if not screen.table:
        screen.data(envelope)
        return
    blocks = [
        [] if plan_shown else plan_lines(envelope["hosts"], options, screen.width),
        [] if rungs_shown else ladder_lines(envelope, screen.width),
        verdict_lines(envelope, screen.width),
    ]
    first = not plan_shown and not rungs_shown
    for block in blocks:
        if block:
            screen.lines(block if first else [(), *block])
            first = False
