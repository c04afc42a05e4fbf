"""Whether a playbook's call of a probe is one that the agent knows."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

from fleetmem.agent import declare
from fleetmem.controller.text.yaml_nodes import did_you_mean


@dataclass(frozen=True)
class Mistake:
    """What is wrong with a call; *key* is the argument meant, if it is one."""

    message: str
    hint: str = ""
    key: str | None = None


def mistake(probe: str, arguments: dict[str, Any]) -> Mistake | None:
    """The first mistake in calling *probe* with *arguments*, or None."""
    probes = [name for name, row in declare.CALLS.items() if not row.action]
    if probe not in probes:
        if probe in declare.CALLS:
            return Mistake(f"{probe} changes hosts: playbooks call probes only")
        return Mistake(f'there is no probe "{probe[:60]}"', did_you_mean(probe, probes))
    known = {
        name: one.default
        for name, one in inspect.signature(declare.find(probe).func).parameters.items()
        if name != "emit"
    }
    for key, value in arguments.items():
        if key not in known:
            hint = did_you_mean(key, known) or "it takes: " + (", ".join(known) or "nothing")
            return Mistake(f"{probe} takes no {key}", hint, key)
        wanted = known[key]
        if wanted is not None and not _fits(value, wanted):
            return Mistake(f"{key}: {_kind(wanted)} is expected", "", key)
    return None


def _fits(value: Any, default: Any) -> bool:
    if isinstance(default, bool) or isinstance(value, bool):
        return isinstance(value, bool) and isinstance(default, bool)
    if isinstance(default, (int, float)):
        return isinstance(value, (int, float))
    if isinstance(default, (list, tuple)):
        return isinstance(value, list)
    return isinstance(value, type(default))


def _kind(default: Any) -> str:
    for kind, words in (
        (bool, "true or false"),
        ((int, float), "a number"),
        ((list, tuple), "a list"),
        (dict, "keys and values"),
    ):
        if isinstance(default, kind):
            return words
    return "text"
