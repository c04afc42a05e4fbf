"""Options that say whose log is meant: the same on ``logs`` and ``audit``."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import click

from fleetmem.controller.answer.step import Option
from fleetmem.controller.cli.kit.flags import option
from fleetmem.controller.errors import UsageError
from fleetmem.controller.logs.sources import Sources

_INVOCATION = re.compile(r"all\Z|[0-9]{1,4}\Z|[0-9a-f]{32}\Z")


def invocation(value: str) -> str:
    """``0`` (newest), ``1`` or ``-1`` (the one before) …, ``all``, or systemd's id."""
    word = value.strip().lower().replace("-", "")
    if not _INVOCATION.match(word):
        raise click.BadParameter(
            f"{value!r} is not a start: use 0, 1 …, all or an id of 32 hex digits"
        )
    return word


def only_units(wanted: Sources) -> None:
    """UsageError where an option would say nothing of the files and containers it stands beside."""
    named = scope_options(wanted)
    if wanted.invocation is not None and "--invocation" not in named:
        named.append("--invocation")
    for option_name in named:
        if (wanted.files or wanted.containers) and not wanted.units:
            raise UsageError(f"{option_name} needs --unit: files and containers have no journal")


def scope_options(wanted: Sources) -> list[str]:
    """The options given that choose among a unit's starts and journal."""
    given = {
        "--invocation": wanted.invocation not in (None, "0", "all"),
        "--since": wanted.since is not None and not (wanted.files or wanted.containers),
        "--until": wanted.until is not None and not (wanted.files or wanted.containers),
        "--boot": wanted.boot is not None,
        "--user-unit-of": wanted.user is not None,
        "--directory": wanted.directory is not None,
    }
    return [name for name, there in given.items() if there]


def log_options(wanted: Sources) -> tuple[Option, ...]:
    """What a later command must repeat to see the same journal; not which start or unit of it."""
    given = (
        ("--user-unit-of", wanted.user),
        ("--boot", wanted.boot),
        ("--since", wanted.since),
        ("--directory", wanted.directory),
    )
    return tuple((name, value) for name, value in given if value is not None)


def sources(function: Callable[..., int]) -> Any:
    """Give a command the options of a log's source as one :class:`Sources`, ``wanted``."""

    @functools.wraps(function)
    def call(**values: Any) -> int:
        wanted = Sources(
            units=values.pop("units"),
            files=values.pop("files"),
            containers=values.pop("containers"),
            user=values.pop("unit_user"),
            invocation=values.pop("invocation"),
            boot=values.pop("boot"),
            since=values.pop("since"),
            until=values.pop("until"),
            directory=values.pop("directory"),
        )
        only_units(wanted)
        return function(wanted=wanted, **values)

    decorated: Any = call
    for add in reversed(_options()):
        decorated = add(decorated)
    return decorated


def _options() -> list[Callable[[Any], Any]]:
    return [
        option(
            "-u",
            "--unit",
            "units",
            metavar="UNIT",
            multiple=True,
            help="Read the log of this systemd unit or pattern, such as 'vllm@*'; repeatable.",
        ),
        option(
            "--file",
            "files",
            metavar="FILE",
            multiple=True,
            help="Read this log file on the host, including rotated and .gz siblings; repeatable.",
        ),
        option(
            "--container",
            "containers",
            metavar="NAME",
            multiple=True,
            help="Read the log of this container (name or id) or pod (NAMESPACE/POD); repeatable.",
        ),
        option(
            "--invocation",
            type=invocation,
            metavar="N|ID|all",
            default=None,
            help="Choose a start of the unit: 0 is the newest, 1 the one before.",
        ),
        option(
            "--user-unit-of",
            "unit_user",
            metavar="USER",
            place="advanced",
            help="Look for user units of USER instead of system units.",
        ),
        option(
            "--boot",
            metavar="N|ID",
            place="advanced",
            help="Read only this boot: 0 is the current one, -1 the one before.",
        ),
        option(
            "--since",
            metavar="TIME",
            place="advanced",
            help="Show only lines from then on: -2h, today, '2026-03-01 11:50'.",
        ),
        option(
            "--until",
            metavar="TIME",
            place="advanced",
            help="Show only lines up to then: -1h, '2026-03-01 12:30'.",
        ),
        option(
            "--directory",
            metavar="DIR",
            place="advanced",
            help="Read journal files from DIR (of another machine, say) instead of the host's own.",
        ),
    ]
