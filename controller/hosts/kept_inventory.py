"""An inventory as plain data and back, for the cache of what was parsed. Pure."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from fleetmem.controller.hosts.host import Host, Inventory

_DEFAULTS = {field.name: field.default for field in fields(Host)}
_TUPLES = ("identities", "command", "groups")


def to_plain(inventory: Inventory) -> dict[str, Any]:
    """*inventory* as JSON data, without its file and warnings: only what differs from defaults."""
    return {
        "hosts": [_row(host) for host in inventory.hosts.values()],
        "groups": {name: list(members) for name, members in inventory.groups.items()},
        "template": _row(inventory.template),
    }


def from_plain(data: dict[str, Any]) -> Inventory:
    """The inventory that :func:`to_plain` was given."""
    hosts = [_host(row) for row in data["hosts"]]
    return Inventory(
        hosts={host.name: host for host in hosts},
        groups={name: tuple(members) for name, members in data["groups"].items()},
        template=_host(data["template"]),
    )


def _row(host: Host) -> dict[str, Any]:
    row = {}
    for name, default in _DEFAULTS.items():
        value = getattr(host, name)
        if value != default:
            row[name] = [_row(hop) for hop in value] if name == "jump" else value
    return row


def _host(row: dict[str, Any]) -> Host:
    found = dict(row)
    for name in _TUPLES:
        if name in found:
            found[name] = tuple(found[name])
    if "labels" in found:
        found["labels"] = tuple((key, value) for key, value in found["labels"])
    if "jump" in found:
        found["jump"] = tuple(_host(hop) for hop in found["jump"])
    return Host(**found)
