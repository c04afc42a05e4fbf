"""``fleetmem audit``: judge what hosts say, or what saved logs say; never changes a host."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import click

from fleetmem.controller.answer.envelope import Envelope, finish, new_envelope, new_run
from fleetmem.controller.answer.exit_codes import exit_code
from fleetmem.controller.answer.step import Reach
from fleetmem.controller.cli.kit import invoke as engine
from fleetmem.controller.cli.kit.flags import WIDE, Command, Common, common, option
from fleetmem.controller.cli.kit.live import Live
from fleetmem.controller.cli.kit.screen import Screen
from fleetmem.controller.cli.kit.source import log_options, scope_options, sources
from fleetmem.controller.errors import UsageError
from fleetmem.controller.logs.audit import AuditOptions
from fleetmem.controller.logs.sources import Sources
from fleetmem.controller.render.audit.audit import audit_lines, audit_rows
from fleetmem.controller.render.kit.findings import folded_lines

if TYPE_CHECKING:
    from fleetmem.controller.answer.envelope import Finding, HostEntry

STARTUP = "startup"

_ABOUT = """Judge hosts or saved logs by playbooks. Never changes a host.

PLAYBOOK is a name (fleetmem playbooks list) or a file. The playbook startup rebuilds an engine's
memory budget from its log, for each start and rank: what limited the KV pool, what changed, and
what another setting would give. Without --unit, --file or --container, the engine is found from
the processes that hold the GPUs.
"""


@click.command("audit", cls=Command, help=_ABOUT)
@click.argument("playbooks", metavar="PLAYBOOK...", nargs=-1, required=True)
@option(
    "--log",
    "logs",
    metavar="FILE",
    multiple=True,
    place="first",
    help="Judge a saved log instead of hosts; - is stdin; repeatable.",
)
@sources
@option("--engine", "engine_name", metavar="NAME", help="Treat the log as this engine's.")
@option("--lines", is_flag=True, help="Show the log line behind every figure.")
@option("--unmatched", is_flag=True, help="Show lines about memory that no pattern matched.")
@option("--ranks", "each_rank", is_flag=True, help="Show every rank in a row of its own.")
@common(hosts="optional", wide=True)
def command(
    common: Common,
    playbooks: tuple[str, ...],
    logs: tuple[str, ...],
    wanted: Sources,
    engine_name: str | None,
    lines: bool,
    unmatched: bool,
    each_rank: bool,
) -> int:
    """Parse, run, show; the process status."""
    others = tuple(name for name in dict.fromkeys(playbooks) if name != STARTUP)
    if STARTUP not in playbooks and (logs or wanted.named or engine_name):
        raise UsageError("only the startup playbook reads logs", "use: fleetmem audit startup")
    if logs and others:
        raise UsageError(f"{others[0]} needs hosts, not saved logs")
    _check_engine(engine_name)
    _check_mix(logs, wanted)
    screen = Screen(common)
    try:
        begin = time.monotonic()
        reach = replace(common.reach, logs=log_options(wanted), engine=engine_name)
        if logs:
            envelope, status = _offline(common, logs, engine_name, lines, unmatched)
        else:
            options = AuditOptions(wanted, engine_name, lines, unmatched)
            envelope, status = _online(common, screen, playbooks, options, reach)
        if STARTUP not in playbooks:
            screen.lines(folded_lines(envelope, len(others), common.reach, screen.width))
        else:
            screen.lines(
                audit_lines(
                    envelope,
                    evidence=lines,
                    unmatched=unmatched,
                    each_rank=each_rank,
                    wide=common.output == WIDE,
                    every=wanted.invocation == "all",
                    seconds=time.monotonic() - begin,
                    reach=reach,
                    width=screen.width,
                )
            )
        if common.output == "csv":
            screen.rows(envelope, audit_rows(envelope))
        else:
            screen.data(envelope)
        screen.close()
    finally:
        screen.discard()
    return status


def _check_engine(name: str | None) -> None:
    from fleetmem.controller.startup.read.patterns import builtin

    known = builtin().engines()
    if name is not None and name not in known:
        raise UsageError(f"unknown --engine {name!r}", f"known: {', '.join(known)}")


def _check_mix(logs: tuple[str, ...], wanted: Sources) -> None:
    source = click.get_current_context().get_parameter_source("hosts")
    if logs and source is not None and source.name == "COMMANDLINE":
        raise UsageError("--log reads saved logs and -H contacts hosts: give one of them")
    if logs and wanted.named:
        raise UsageError("--log reads saved logs: --unit, --file and --container need hosts")
    if logs and (scope := scope_options(wanted)):
        raise UsageError(f"--log reads whole saved logs: {scope[0]} needs a journal")
    if logs.count("-") > 1:
        raise UsageError("--log - can be given only once")


def _offline(
    common: Common,
    logs: tuple[str, ...],
    engine_name: str | None,
    lines: bool,
    unmatched: bool,
) -> tuple[Envelope, int]:
    from fleetmem.controller.startup.offline import audit_logs

    run = new_run("audit")
    found = audit_logs(
        list(dict.fromkeys(logs)), engine=engine_name, lines=lines, unmatched=unmatched
    )
    hosts = cast("list[HostEntry]", found["hosts"])
    envelope = new_envelope(run, [entry["host"] for entry in hosts], hosts)
    envelope["findings"] = cast("list[Finding]", found["findings"])
    status = exit_code(envelope, fail_on=None if common.fail_on == "never" else common.fail_on)
    return finish(envelope, status), status


def _online(
    common: Common,
    screen: Screen,
    playbooks: tuple[str, ...],
    options: AuditOptions,
    reach: Reach,
) -> tuple[Envelope, int]:
    fleet: Any = engine.load_fleet(common)
    live = Live(screen, [host.name for host in fleet.hosts], common.quiet)
    return engine.answered(
        lambda: fleet.run_playbooks(playbooks, live.on_event, "audit", options),
        live,
        common,
        reach,
    )
