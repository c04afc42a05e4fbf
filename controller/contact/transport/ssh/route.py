"""Where a host really is: the inventory's word first, then ``~/.ssh/config``, then defaults."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import asyncssh

from fleetmem.controller.contact.transport.ssh.trust import DEFAULT_FILES
from fleetmem.controller.errors import InventoryInvalid
from fleetmem.controller.hosts.address import parse_target
from fleetmem.controller.hosts.host import Host

if TYPE_CHECKING:
    from fleetmem.controller.contact.transport import ConnectSettings

MAX_HOPS = 2


@dataclass(frozen=True)
class Route:
    """Everything about one endpoint that does not change between attempts.

    ``config`` are the ssh_config files that asyncssh reads for the rest; ``alias`` is
    HostKeyAlias; ``user`` None means asyncssh's own choice.
    """

    host: str
    port: int
    user: str | None
    way: tuple[Host, ...]
    identities: tuple[str, ...]
    identities_only: bool
    known_hosts: tuple[str, ...]
    config: tuple[str, ...] = ()
    alias: str = ""
    proxy_command: tuple[str, ...] = ()


def find_route(host: Host, settings: ConnectSettings, cache: dict[Any, Route]) -> Route:
    """The route to *host*; InventoryInvalid where a configuration file cannot be used."""
    if host not in cache:
        cache[host] = _find(host, _config_files(settings))
    return cache[host]


def _config_files(settings: ConnectSettings) -> tuple[str, ...]:
    if settings.config_files is not None:
        return settings.config_files
    own = os.path.expanduser("~/.ssh/config")
    return (own,) if os.access(own, os.R_OK) else ()


def _find(host: Host, files: tuple[str, ...]) -> Route:
    known: tuple[str, ...] = (host.known_hosts,) if host.known_hosts else DEFAULT_FILES
    if not files:
        return Route(
            host=host.address,
            port=host.port or 22,
            user=host.user,
            way=host.jump,
            identities=host.identities,
            identities_only=bool(host.identities),
            known_hosts=known,
        )
    options = _read(host, files)
    listed = options.config.get("UserKnownHostsFile", None)
    if not host.known_hosts and listed is not None:
        known = (*_texts(listed), *_texts(options.config.get("GlobalKnownHostsFile", None)))
        known = known or (os.devnull,)
    identities = host.identities or tuple(
        path
        for path in _texts(options.config.get("IdentityFile", None))
        if os.path.exists(os.path.expanduser(path))
    )
    way = host.jump or _way_of(options, host, files, MAX_HOPS)
    command = options.proxy_command if not way else None
    return Route(
        host=options.host,
        port=options.port,
        user=options.username,
        way=way,
        identities=identities,
        identities_only=bool(host.identities)
        or bool(identities and options.config.get("IdentitiesOnly", False)),
        known_hosts=known,
        config=files,
        alias=options.host_key_alias or "",
        proxy_command=tuple(command or ()),
    )


def _texts(value: object) -> tuple[str, ...]:
    return tuple(str(one) for one in value) if isinstance(value, list | tuple) else ()


def _read(host: Host, files: tuple[str, ...]) -> asyncssh.SSHClientConnectionOptions:
    given: dict[str, Any] = {}
    if host.port is not None:
        given["port"] = host.port
    if host.user is not None:
        given["username"] = host.user
    try:
        return asyncssh.SSHClientConnectionOptions(
            host=host.address, config=list(files), known_hosts=b"", client_keys=None, **given
        )
    except (asyncssh.ConfigParseError, ValueError, OSError) as error:
        raise InventoryInvalid(f"{', '.join(files)}: {' '.join(str(error).split())}") from None


def _way_of(
    options: asyncssh.SSHClientConnectionOptions, host: Host, files: tuple[str, ...], left: int
) -> tuple[Host, ...]:
    """The hops that ProxyJump names; a first hop's own ProxyJump comes before it."""
    text = options.tunnel
    if not isinstance(text, str) or not text or text.lower() == "none":
        return ()
    way: list[Host] = []
    for place, part in enumerate(text.split(",")):
        target = parse_target(part.strip())
        hop = Host(
            name=part.strip(),
            address=target.host,
            port=target.port,
            user=target.user,
            known_hosts=host.known_hosts,
            connect_timeout_seconds=host.connect_timeout_seconds,
        )
        if place == 0 and left > 0:
            way.extend(_way_of(_read(hop, files), hop, files, left - 1))
        way.append(hop)
    if len(way) > MAX_HOPS:
        raise InventoryInvalid(
            f"{host.name}: ProxyJump has {len(way)} hops, at most {MAX_HOPS} are possible"
        )
    return tuple(way)
