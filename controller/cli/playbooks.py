"""``fleetmem playbooks``: what judges readings, and whether a playbook file is sound."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import click

from fleetmem.controller.answer.envelope import Envelope, finish, new_envelope, new_run
from fleetmem.controller.cli.kit.flags import Command, Common, common
from fleetmem.controller.cli.kit.screen import Screen
from fleetmem.controller.errors import EXIT_USAGE
from fleetmem.controller.render.kit.line import Line
from fleetmem.controller.render.playbooks import checked_lines, listed_lines, shown_lines
from fleetmem.controller.rules import playbook as books
from fleetmem.controller.rules.playbook_files import loaded_files, problems_of


@click.group(
    "playbooks", no_args_is_help=False, help="List playbooks, show one, or check playbook files."
)
def command() -> None:
    """A group: ``list``, ``show`` and ``check``."""


@command.command("list", cls=Command, help="List the playbooks that come with fleetmem.")
@common(hosts=None)
def list_playbooks(common: Common) -> int:
    """Name, size and subject of each."""
    found = books.listed()
    rows = [
        {
            "name": one.name,
            "over": one.over,
            "rules": one.rules,
            "about": " ".join(one.about.split()),
        }
        for one in found
    ]
    return _answer(common, "playbooks list", partial(listed_lines, found), rows)


@command.command(
    "show", cls=Command, help="Show one playbook: what it reads and what its rules say."
)
@click.argument("name")
@common(hosts=None)
def show_playbook(common: Common, name: str) -> int:
    """The rules of one playbook."""
    path = books.path_of(name)
    if os.path.basename(path) == f"{books.LOGS}.yaml":
        with open(path, encoding="utf-8") as file:
            text = file.read()
        lines: list[Line] = [((line, ""),) for line in text.splitlines()]
        return _answer(common, "playbooks show", lambda _: lines, [{"name": name, "text": text}])
    found = books.load(name)
    rows = [
        {"rule": rule.name, "severity": rule.severity, "each": rule.each, "say": rule.say}
        for rule in found.rules
    ]
    return _answer(common, "playbooks show", partial(shown_lines, found), rows)


@command.command(
    "check",
    cls=Command,
    help="Check playbook files and report every mistake as file:line:column. Without FILE, "
    "check all that come with fleetmem, the engine log patterns and your own in "
    "~/.config/fleetmem/engines.",
)
@click.argument("files", nargs=-1, metavar="[FILE]...")
@common(hosts=None)
def check_playbooks(common: Common, files: tuple[str, ...]) -> int:
    """Read each file as what it says it is; exit 2 where one is not sound."""
    paths = [books.path_of(name) for name in files] or loaded_files()
    found = {path: problems_of(path) for path in paths}
    rows: list[dict[str, Any]] = [
        {
            "file": one.file,
            "line": one.line,
            "column": one.column,
            "path": one.path,
            "message": one.message,
            "hint": one.hint,
        }
        for problems in found.values()
        for one in problems
    ]
    status = EXIT_USAGE if rows else 0
    return _answer(common, "playbooks check", partial(checked_lines, found), rows, status)


def _answer(
    common: Common,
    name: str,
    lines: Callable[[int], list[Line]],
    rows: list[dict[str, Any]],
    status: int = 0,
) -> int:
    screen = Screen(common)
    try:
        envelope: Envelope = finish(new_envelope(new_run(name), [], []), status)
        envelope["playbooks"] = rows
        screen.lines(lines(screen.width))
        screen.rows(envelope, rows)
        screen.close()
    finally:
        screen.discard()
    return status
