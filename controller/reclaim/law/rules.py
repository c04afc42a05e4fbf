"""The protect list and the workers' names, read from ``playbooks/`` once a process."""

from __future__ import annotations

import fnmatch
import os
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from fleetmem.controller import errors
from fleetmem.controller import rules as checks
from fleetmem.controller.rules.playbook import FOLDER, user_workers
from fleetmem.controller.text import kept
from fleetmem.controller.text.titles import Form, form, matches

if TYPE_CHECKING:
    from fleetmem.agent.shapes import Identity, Tied

_COMM_LENGTH = 15


@dataclass(frozen=True)
class Protected:
    """One line of the protect list."""

    what: str
    comm: tuple[str, ...]
    unit: tuple[str, ...]


@dataclass(frozen=True)
class Rules:
    """What the playbooks say about names; names alone never condemn a process."""

    protect: tuple[Protected, ...]
    workers: tuple[tuple[str, Form], ...]


@cache
def rules() -> Rules:
    """The rules that come with fleetmem, and the user's own titles of workers.

    UsageError where that file has a mistake: a title that fits everything would be one.
    """
    protect = _lines(f"{FOLDER}/protect.yaml", "protect")
    workers = _lines(f"{FOLDER}/workers.yaml", "workers")
    for path in user_workers():
        workers = workers + _lines(path, "workers")
    return Rules(
        tuple(
            Protected(line["what"], tuple(line.get("comm", ())), tuple(line.get("unit", ())))
            for line in protect
        ),
        tuple((line["engine"], form(title)) for line in workers for title in line["titles"]),
    )


def _lines(path: str, name: str) -> list[dict[str, Any]]:
    """The list *name* in the file at *path*; UsageError where that has a mistake."""
    data = kept.content(path) or b""
    code = kept.code_stamp(os.path.dirname(checks.__file__), os.path.dirname(kept.__file__))

    def parse() -> Any:
        import yaml

        from fleetmem.controller.rules.playbook_files import problems_of

        problems = problems_of(path)
        if problems:
            raise errors.UsageError(f"{path}: {problems[0]}", f"fleetmem playbooks check {path}")
        return yaml.safe_load(data)[name]

    lines: list[dict[str, Any]] = kept.kept(name, (data, os.fsencode(path), code), parse)
    return lines


def protection(process: Identity, agent_pids: frozenset[int], found: Rules) -> str | None:
    """Why *process* must not be signalled, or None."""
    if process["pid"] in (0, 1):
        return "process 1"
    if process["kernel_thread"]:
        return "a kernel thread"
    if process["pid"] in agent_pids:
        return "fleetmem's own agent or an ancestor of it"
    unit = process["owner"]["name"] if process["owner"]["kind"] == "unit" else None
    for line in found.protect:
        if any(_is(process["comm"], pattern) for pattern in line.comm):
            return line.what
        if unit and any(fnmatch.fnmatchcase(unit, pattern) for pattern in line.unit):
            return line.what
    return None


def engine(process: Identity | Tied, found: Rules) -> str | None:
    """The engine whose worker *process* is by its title or comm, or None."""
    for name, one in found.workers:
        if matches(one, process["title"], process["comm"]):
            return name
    return None


def _is(comm: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(comm, pattern if "*" in pattern else pattern[:_COMM_LENGTH])
