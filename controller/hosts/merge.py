"""The layers of an inventory file, merged into one :class:`Host` each. Pure."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from fleetmem.controller.errors import UsageError
from fleetmem.controller.hosts.address import Address, parse_target
from fleetmem.controller.hosts.host import CONNECT_TIMEOUT_SECONDS, Host, Inventory
from fleetmem.controller.hosts.inventory_schema import MAX_HOPS, File, Keys
from fleetmem.controller.hosts.nodeset import MAX_HOSTS, expand
from fleetmem.controller.text.yaml_nodes import Document, Path

Settings = dict[str, Any]


def assemble(document: Document, model: File, directory: str) -> Inventory:
    """All hosts of *model*; mistakes between the lines go to *document*.

    Relative paths are taken from *directory*.
    """
    defaults = _settings(model.defaults, directory)
    layers: dict[str, Settings] = {}
    member_of: dict[str, list[str]] = {}
    place: dict[str, Path] = {}
    for group, keys in (model.groups or {}).items():
        settings = _settings(keys, directory)
        for name in expand(",".join(keys.hosts)):
            member_of.setdefault(name, []).append(group)
            place.setdefault(name, ("groups", group))
            layer = layers.setdefault(name, dict(defaults))
            _check_serves(document, name, group, layer.get("serves"), keys.serves)
            _merge(layer, settings)
    for key, names in _by_precision(model):
        settings = _settings((model.hosts or {})[key], directory)
        for name in names:
            place.setdefault(name, ("hosts", key))
            layer = layers.setdefault(name, dict(defaults))
            _merge(layer, settings)
            if "jump" in settings:
                layer["own_jump"] = True
    if len(layers) > MAX_HOSTS:
        document.add((), f"{len(layers)} hosts, at most {MAX_HOSTS} are taken")
    flat: dict[str, Host] = {}
    for name, layer in layers.items():
        if layer.get("transport") == "command" and not layer.get("command"):
            document.add(
                _nearest(model, name, place[name]),
                f"{name} has transport: command, but no command",
                'such as command: [my-exec, "{command}"]',
            )
        flat[name] = _host(name, layer, tuple(member_of.get(name, ())))
    template = _host("", defaults, ())
    hosts: dict[str, Host] = {}
    for name in sorted(flat, key=lambda one: document.place(place[one], at_key=True)):
        try:
            hosts[name] = replace(flat[name], jump=_hops(name, layers, flat, template, ()))
        except UsageError as error:
            document.add((*_nearest(model, name, place[name]), "jump"), error.message)
    if "jump" in defaults:
        try:
            template = replace(
                template, jump=_hops("", {**layers, "": defaults}, flat, template, ())
            )
        except UsageError as error:
            document.add(("defaults", "jump"), error.message)
    groups = {
        group: tuple(expand(",".join(keys.hosts))) for group, keys in (model.groups or {}).items()
    }
    return Inventory(hosts=hosts, groups=groups, template=template)


def _by_precision(model: File) -> list[tuple[str, list[str]]]:
    """The keys under ``hosts`` with their names: node sets first, single names last."""
    keyed = [(key, expand(key)) for key in model.hosts or {}]
    return sorted(keyed, key=lambda one: len(one[1]) == 1)


def _nearest(model: File, name: str, place: Path) -> Path:
    """The entry of *name* under ``hosts`` where it has one, else *place*."""
    return ("hosts", name) if name in (model.hosts or {}) else place


def _check_serves(
    document: Document, name: str, group: str, before: str | None, now: str | None
) -> None:
    if before and now and before != now:
        document.add(
            ("groups", group, "serves"),
            f'{name} already serves "{before}" in an earlier group',
            "the hosts that serve one model are one transaction",
        )


def _settings(keys: Keys | None, directory: str) -> Settings:
    """What *keys* sets, an explicit null included, under the names of :class:`Host`."""
    if keys is None:
        return {}
    settings: Settings = {}
    for key in keys.model_fields_set - {"hosts"}:
        value = getattr(keys, key)
        if key == "identity":
            settings["identities"] = tuple(_path(one, directory) for one in value or ())
        elif key == "known_hosts":
            settings[key] = _path(value, directory) if value else None
        elif key == "connect_timeout":
            settings["connect_timeout_seconds"] = value or CONNECT_TIMEOUT_SECONDS
        else:
            settings[key] = value
    return settings


def _path(text: str, directory: str) -> str:
    return os.path.normpath(os.path.join(directory, os.path.expanduser(text)))


def _merge(layer: Settings, settings: Settings) -> None:
    labels = settings.get("labels")
    before = layer.get("labels")
    layer.update(settings)
    if labels and before:
        layer["labels"] = {**before, **labels}


def _host(name: str, layer: Settings, groups: tuple[str, ...]) -> Host:
    return Host(
        name=name,
        address=layer.get("address") or name,
        port=layer.get("port"),
        user=layer.get("user"),
        identities=layer.get("identities") or (),
        known_hosts=layer.get("known_hosts"),
        python=layer.get("python"),
        sudo=bool(layer.get("sudo")),
        transport=layer.get("transport") or "ssh",
        command=tuple(layer.get("command") or ()),
        connect_timeout_seconds=layer.get("connect_timeout_seconds") or CONNECT_TIMEOUT_SECONDS,
        labels=tuple((layer.get("labels") or {}).items()),
        groups=groups,
        serves=layer.get("serves"),
    )


def _hops(
    name: str,
    layers: dict[str, Settings],
    flat: dict[str, Host],
    template: Host,
    seen: tuple[str, ...],
) -> tuple[Host, ...]:
    """The hosts on the way to *name*; UsageError where the way is too long or a circle.

    A jump host that gets its own name from defaults or a group is reached directly.
    """
    layer = layers[name]
    targets = [parse_target(text) for text in layer.get("jump") or ()]
    if not layer.get("own_jump") and any(target.host == name for target in targets):
        return ()
    way: list[Host] = []
    for place, target in enumerate(targets):
        if target.host == name or target.host in seen:
            raise UsageError(f"the way to {seen[0] if seen else name} runs in a circle")
        if place == 0 and target.host in flat:
            way.extend(_hops(target.host, layers, flat, template, (*seen, name)))
        way.append(_hop(target, flat.get(target.host), template))
    if len(way) > MAX_HOPS:
        names = " → ".join(hop.name for hop in way)
        raise UsageError(f"at most {MAX_HOPS} hops are possible, these are {len(way)}: {names}")
    return tuple(way)


def _hop(target: Address, listed: Host | None, template: Host) -> Host:
    if listed is None:
        return replace(
            template,
            name=str(target),
            address=target.host,
            user=target.user or template.user,
            port=target.port or template.port,
            transport="ssh",
            sudo=False,
        )
    return replace(listed, user=target.user or listed.user, port=target.port or listed.port)
