"""SSH through asyncssh: strict host keys, keys only, jump hosts, gentle with a busy sshd."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import asyncssh

from fleetmem.controller.contact.transport.ssh import keys as ssh_keys
from fleetmem.controller.contact.transport.ssh import trust as ssh_trust
from fleetmem.controller.contact.transport.ssh.channel import SshConnection
from fleetmem.controller.contact.transport.ssh.connection_cap import Gate, Jump, Jumps
from fleetmem.controller.contact.transport.ssh.handshake import Dropped, Handshake
from fleetmem.controller.contact.transport.ssh.route import Route, find_route
from fleetmem.controller.errors import (
    AuthFailed,
    ConnectFailed,
    FleetError,
    GatewayUnreachable,
    HostCertificateInvalid,
    HostkeyChanged,
    HostkeyRevoked,
    HostkeyUnknown,
    IdentityInvalid,
    UsageError,
)
from fleetmem.controller.hosts.host import Host

if TYPE_CHECKING:
    from fleetmem.controller.contact.transport import Connection, ConnectSettings

RETRY_ATTEMPTS = 10


@dataclass
class Shared:
    """What the connections of one run share."""

    known_hosts: dict[tuple[str, ...], ssh_trust.KnownHosts] = field(default_factory=dict)
    identities: dict[str, Any] = field(default_factory=dict)
    routes: dict[Any, Route] = field(default_factory=dict)
    gates: dict[Any, Gate] = field(default_factory=dict)
    jumps: Jumps = field(default_factory=Jumps)

    def trust(self, route: Route) -> ssh_trust.KnownHosts:
        """The known_hosts files of *route*, read once."""
        files = route.known_hosts
        if files not in self.known_hosts:
            self.known_hosts[files] = ssh_trust.load(files)
        return self.known_hosts[files]

    def login(self, host: Host, route: Route) -> ssh_keys.Login:
        """What to log in with at *host*; IdentityInvalid."""
        paths, only = route.identities, route.identities_only
        return ssh_keys.login(paths, only, host.name, self.identities)


async def connect(host: Host, settings: ConnectSettings) -> Connection:
    """A connection to *host*, over its jump hosts; see the contract."""
    shared = settings.shared.setdefault("ssh", Shared())
    try:
        return await _open(host, settings, shared)
    except Dropped as error:
        raise ConnectFailed(error.message, error.hint) from None


async def _open(
    host: Host, settings: ConnectSettings, shared: Shared, hop: bool = False
) -> SshConnection:
    """Connect with retries; a *hop* that is not reached is the gateway's fault."""
    route = find_route(host, settings, shared.routes)
    try:
        return await _with_retries(host, route, settings, shared, hop)
    except FleetError as error:
        if not hop or error.at_hop:
            raise  # the hop that failed is named, not those behind it
        kind = type(error) if isinstance(error, _OWN_AT_HOP) else GatewayUnreachable
        told = kind(f"hop {error.message}", error.hint)
        told.at_hop = True
        raise told from None


_OWN_AT_HOP = (
    HostkeyUnknown,
    HostkeyChanged,
    HostkeyRevoked,
    HostCertificateInvalid,
    AuthFailed,
    IdentityInvalid,
    UsageError,
)
"""What keeps its own code at a hop, since its remedy is another than a gateway's."""


async def _with_retries(
    host: Host, route: Route, settings: ConnectSettings, shared: Shared, hop: bool
) -> SshConnection:
    import tenacity

    tries = 0
    try:
        async for attempt in tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception_type(Dropped),
            wait=tenacity.wait_random_exponential(multiplier=0.2, max=5),
            stop=tenacity.stop_any(
                tenacity.stop_after_delay(settings.retry_seconds),
                tenacity.stop_after_attempt(RETRY_ATTEMPTS),
            ),
            reraise=True,
        ):
            with attempt:
                tries = attempt.retry_state.attempt_number
                connection = await _attempt(host, route, settings, shared, hop)
                connection.attempts = tries
                return connection
    except Dropped as error:
        raise Dropped(f"{error.message}, {tries} tries", error.hint) from None
    raise AssertionError("unreachable: the loop returns or raises")


async def _attempt(
    host: Host, route: Route, settings: ConnectSettings, shared: Shared, hop: bool
) -> SshConnection:
    """One connection: a turn at the gate, a way, a handshake."""
    key = (route.host, route.port, route.way)
    gate = shared.gates.setdefault(key, Gate(settings.endpoint_limit))
    try:
        async with gate:
            jump: Jump | None = None
            if route.way:
                jump, tunnel = await _lease(host, route, settings, shared, hop)
            try:
                known, login = shared.trust(route), shared.login(host, route)
                handshake = Handshake(host, route, settings, known, login)
                raw = await handshake.run(tunnel if jump else None)
            except BaseException:
                if jump is not None:
                    await shared.jumps.release(jump)
                raise
    except Dropped:
        gate.dropped()
        raise
    release = functools.partial(shared.jumps.release, jump) if jump is not None else None
    return SshConnection(raw, host.name, 1, release)


async def _lease(
    host: Host, route: Route, settings: ConnectSettings, shared: Shared, hop: bool
) -> tuple[Jump, asyncssh.SSHClientConnection]:
    last = replace(route.way[-1], jump=route.way[:-1])
    try:
        return await shared.jumps.lease(route.way, lambda: _open(last, settings, shared, hop=True))
    except FleetError as error:
        if hop:
            raise
        raise type(error)(f"{host.name}: {error.message}", error.hint) from None
