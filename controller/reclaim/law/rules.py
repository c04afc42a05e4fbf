"""The protect list and the workers' names, read from ``playbooks/`` once a process."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from fleetmem.controller import errors
from fleetmem.controller.rules.playbook_files import problems_of, user_workers
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
    import yaml

    folder = resources.files("fleetmem.playbooks")
    protect = yaml.safe_load((folder / "protect.yaml").read_text("utf-8"))["protect"]
    workers = yaml.safe_load((folder / "workers.yaml").read_text("utf-8"))["workers"]
    for path in user_workers():
        problems = problems_of(path)
        if problems:
            raise errors.UsageError(f"{path}: {problems[0]}", f"fleetmem playbooks check {path}")
        workers = workers + yaml.safe_load(Path(path).read_text("utf-8"))["workers"]
    return Rules(
        tuple(
            Protected(line["what"], tuple(line.get("comm", ())), tuple(line.get("unit", ())))
            for line in protect
        ),
        tuple((line["engine"], form(title)) for line in workers for title in line["titles"]),
    )


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
