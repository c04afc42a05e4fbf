"""Any file of ``playbooks/``, or a user's own, checked as what it says it is."""

from __future__ import annotations

import os

from pydantic import BaseModel, ConfigDict

from fleetmem.controller.rules import checking, playbook
from fleetmem.controller.text import yaml_nodes
from fleetmem.controller.text.yaml_nodes import Document, Problem


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Protected(_Model):
    what: str
    comm: list[str] = []
    unit: list[str] = []


class _ProtectFile(_Model):
    protect: list[_Protected]


class _Worker(_Model):
    engine: str
    titles: list[str]
    tests: list[str]
    others: list[str] = []


class _WorkersFile(_Model):
    workers: list[_Worker]


def loaded_files() -> list[str]:
    """Every file that a command may read: what comes with fleetmem, and the user's engines."""
    from fleetmem.controller.startup.read.patterns import engine_files, yaml_files

    return yaml_files(playbook.FOLDER) + engine_files() + playbook.user_workers()


def problems_of(path: str) -> list[Problem]:
    """The mistakes in the file at *path*, in its order; none for a sound one."""
    from fleetmem.controller.startup.read.patterns import engine_files, read_file

    document = yaml_nodes.read(path)
    value = document.value if isinstance(document.value, dict) else {}
    if document.problems:
        return document.sorted_problems()
    if value.get("playbook") == playbook.LOGS:
        from fleetmem.controller.startup.judge.rule_schema import RuleFile

        yaml_nodes.check(document, RuleFile)
    elif ("engine" in value and "patterns" in value) or os.path.abspath(path) in engine_files():
        return read_file(path)[1]
    elif "protect" in value and "playbook" not in value:
        yaml_nodes.check(document, _ProtectFile)
    elif "workers" in value and "playbook" not in value:
        _check_workers(document)
    elif "kernel" in value and "playbook" not in value:
        from fleetmem.controller.rules.kernel_words import check

        check(document)
    else:
        document, _ = checking.read(path)
    return document.sorted_problems()


def _check_workers(document: Document) -> None:
    """Titles are forms that fit their own tests, and none of the others."""
    from fleetmem.controller.text.titles import form, matches

    found: _WorkersFile | None = yaml_nodes.check(document, _WorkersFile)
    for number, one in enumerate(found.workers if found is not None else ()):
        forms = []
        for n, written in enumerate(one.titles):
            try:
                forms.append(form(written))
            except ValueError as error:
                document.add(("workers", number, "titles", n), f"cannot be used: {error}")
        for n, text in enumerate(one.tests):
            if not any(matches(title, text, text[:15]) for title in forms):
                document.add(("workers", number, "tests", n), "no title fits it")
        for n, text in enumerate(one.others):
            if any(matches(title, text, text[:15]) for title in forms):
                document.add(("workers", number, "others", n), "a title fits it")
