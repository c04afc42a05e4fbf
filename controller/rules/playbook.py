"""Playbooks: found, and read once for each state of their text.

A playbook names probes and rules over their readings. There are no expressions and no
templates: when a rule needs an if, a probe is written. What :mod:`checking` made of a file is
kept, so that a run does not check again what has not changed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from fleetmem import agent
from fleetmem.controller.errors import PlaybookInvalid, UsageError
from fleetmem.controller.rules.book import Condition, Playbook, Rule
from fleetmem.controller.text import kept

FOLDER = os.path.normpath(os.path.join(os.path.dirname(__file__), "..", "..", "playbooks"))
NOT_PLAYBOOKS = ("protect.yaml", "workers.yaml")
LOGS = "startup"
"""The playbook whose rules name checks over engine logs; it has a room of its own."""


@dataclass(frozen=True)
class Listed:
    """One line of ``playbooks list``; ``over`` is ``readings`` or ``logs``."""

    name: str
    about: str
    file: str
    rules: int
    over: str


def listed() -> list[Listed]:
    """The playbooks that come with fleetmem, by name."""
    from fleetmem.controller.text import yaml_nodes

    found = []
    for file in sorted(os.listdir(FOLDER)):
        path = os.path.join(FOLDER, file)
        if not file.endswith(".yaml"):
            continue
        document = yaml_nodes.read(path)
        value = document.value if isinstance(document.value, dict) else {}
        if "playbook" in value:
            rules = value.get("rules")
            over = "logs" if value["playbook"] == LOGS else "readings"
            count = len(rules) if isinstance(rules, list) else 0
            found.append(
                Listed(str(value["playbook"]), str(value.get("about", "")), path, count, over)
            )
    return sorted(found, key=lambda one: one.name)


def user_workers() -> list[str]:
    """The user's own list of workers' titles, where there is one."""
    config = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    path = os.path.join(config, "fleetmem", "workers.yaml")
    return [path] if os.path.isfile(path) else []


def path_of(name: str) -> str:
    """The file of the playbook called *name*, or *name* itself where it is a path.

    UsageError for an unknown name.
    """
    if os.sep in name or name.endswith((".yaml", ".yml")):
        return name
    file = f"{name}.yaml"
    if file in os.listdir(FOLDER) and file not in NOT_PLAYBOOKS:
        return os.path.join(FOLDER, file)
    from fleetmem.controller.text import yaml_nodes

    known = [one.name for one in listed()]
    near = yaml_nodes.did_you_mean(name, known)
    hint = near or "list them: fleetmem playbooks list; hosts are named with -H"
    raise UsageError(f"there is no playbook {name!r}", hint)


def load(name: str) -> Playbook:
    """The playbook called *name* (or at that path). UsageError, PlaybookInvalid."""
    path = path_of(name)
    data = kept.content(path)
    if data is None:
        return _checked(path)
    code = kept.code_stamp(os.path.dirname(__file__), kept.YAML, os.path.dirname(agent.__file__))
    inputs = (data, os.fsencode(path), code)
    return _from_plain(kept.kept("playbook", inputs, lambda: asdict(_checked(path, data))))


def _checked(path: str, data: bytes | None = None) -> Playbook:
    from fleetmem.controller.rules import checking

    document, playbook = checking.read(path) if data is None else checking.check(data, path)
    if playbook is None:
        raise PlaybookInvalid("\n".join(str(one) for one in document.sorted_problems()))
    return playbook


def _from_plain(data: dict[str, Any]) -> Playbook:
    """The playbook that ``asdict`` made *data* of."""
    rules = [
        Rule(
            **{
                **row,
                "where": tuple(_condition(one) for one in row["where"]),
                "condition": _condition(row["condition"]),
                "next": tuple(row["next"]),
            }
        )
        for row in data["rules"]
    ]
    return Playbook(**{**data, "rules": tuple(rules)})


def _condition(row: dict[str, Any]) -> Condition:
    pair = row["comparator"] == "share_above"
    return Condition(row["field"], row["comparator"], tuple(row["limit"]) if pair else row["limit"])


def call_arguments(playbooks: Iterable[Playbook]) -> dict[str, dict[str, Any]]:
    """What all of *playbooks* call, each probe once; lists of one argument are joined."""
    calls: dict[str, dict[str, Any]] = {}
    for playbook in playbooks:
        for probe, arguments in playbook.probes.items():
            have = calls.setdefault(probe, {})
            for key, value in arguments.items():
                if isinstance(value, list) and isinstance(have.get(key), list):
                    have[key] = list(dict.fromkeys([*have[key], *value]))
                else:
                    have[key] = value
    return calls
