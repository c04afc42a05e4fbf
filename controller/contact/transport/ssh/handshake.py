"""One handshake: from nothing to a logged-in connection, or to an error of the tree."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import asyncssh

from fleetmem.controller.contact.transport.ssh import keys as ssh_keys
from fleetmem.controller.contact.transport.ssh import trust as ssh_trust
from fleetmem.controller.contact.transport.ssh.dial import dial, reason_of
from fleetmem.controller.errors import (
    AuthFailed,
    ConnectFailed,
    ConnectRefused,
    ConnectTimeout,
    FleetError,
    GatewayUnreachable,
    HostCertificateInvalid,
    HostkeyUnknown,
    SshProtocol,
    Unreachable,
)

if TYPE_CHECKING:
    import socket

    from fleetmem.controller.contact.transport import ConnectSettings
    from fleetmem.controller.contact.transport.ssh.route import Route
    from fleetmem.controller.hosts.host import Host

KEX = "^curve25519-sha256,curve25519-sha256@libssh.org"
CIPHERS = "^aes128-gcm@openssh.com,chacha20-poly1305@openssh.com"
_CLOSE_SECONDS = 1.0
_NO_MORE_AUTH = asyncssh.DISC_NO_MORE_AUTH_METHODS_AVAILABLE


class Dropped(ConnectFailed):
    """sshd closed the connection during the handshake: MaxStartups, most often."""


class _Client(asyncssh.SSHClient):
    """Remembers what the server showed; accepts a key only where that was asked for."""

    def __init__(self, accept: bool, tunnelled: bool) -> None:
        self._accept = accept
        self._tunnelled = tunnelled
        self.connection: asyncssh.SSHClientConnection | None = None
        self.key: asyncssh.SSHKey | None = None

    def connection_made(self, conn: asyncssh.SSHClientConnection) -> None:
        """The connection is there, nothing is checked yet."""
        self.connection = conn

    def validate_host_public_key(
        self, host: str, addr: str, port: int, key: asyncssh.SSHKey
    ) -> bool:
        """Asked for a key that is not trusted."""
        self.key = key
        return self._accept

    def validate_host_ca_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:
        """Asked for a certificate whose authority is not trusted."""
        return False

    @property
    def greeted(self) -> bool:
        """Whether an SSH server has spoken; in a tunnel, whether it has proved its key, since
        the version seen there may be the jump host's."""
        if self.connection is None:
            return False
        if self._tunnelled:
            return self.connection.get_server_host_key() is not None
        return bool(self.connection.get_extra_info("server_version"))


class Handshake:
    """From nothing to a logged-in connection, once."""

    def __init__(
        self,
        host: Host,
        route: Route,
        settings: ConnectSettings,
        known: ssh_trust.KnownHosts,
        login: ssh_keys.Login,
    ) -> None:
        self._host, self._route, self._settings = host, route, settings
        self._known, self._login = known, login

    async def run(self, tunnel: asyncssh.SSHClientConnection | None) -> Any:
        """The connection; an error of the tree otherwise."""
        try:
            return await self._once(tunnel, None)
        except HostCertificateInvalid as error:
            # A certificate may name the host as the inventory does, not by its address.
            if "principal" not in error.message or self._host.name == self._route.host:
                raise
        return await self._once(tunnel, self._host.name)

    async def _once(self, tunnel: asyncssh.SSHClientConnection | None, alias: str | None) -> Any:
        host, route = self._host, self._route
        timeout = host.connect_timeout_seconds
        loop = asyncio.get_running_loop()
        started = loop.time()
        sock: socket.socket | None = None
        if tunnel is None and not route.proxy_command:
            sock = await dial(host.name, route.host, route.port, timeout)
        address = sock.getpeername()[0].partition("%")[0] if sock else ""
        trust = self._known.lookup(self._names(), address, route.port)
        accept = self._settings.accept_new_host_key and not trust.keys
        client = _Client(accept, tunnelled=tunnel is not None)
        agent: asyncssh.SSHAgentClient | None = None
        task: asyncio.Future[Any] | None = None
        try:
            agent = await self._agent()
            options = self._options(trust, alias, await _agent_keys(agent, self._login))
            task = asyncio.ensure_future(
                asyncssh.connect(**options, client_factory=lambda: client, tunnel=tunnel, sock=sock)
            )
            left = max(0.0, timeout - (loop.time() - started))
            await asyncio.wait({task}, timeout=left)
            if not task.done() and client.greeted:
                await asyncio.wait({task}, timeout=self._settings.login_timeout_seconds)
            if not task.done():
                raise self._too_slow(client)
            raw = task.result()
        except (asyncssh.Error, OSError, ValueError) as error:
            if client.key is not None and isinstance(error, asyncssh.PermissionDenied):
                self._accepted(client.key)
            raise self._translated(error, client, trust) from None
        finally:
            if task is not None and not task.done():
                task.cancel()
                task.add_done_callback(_swallow)
                await asyncio.wait({task}, timeout=_CLOSE_SECONDS)
            if sock is not None and client.connection is None:
                sock.close()
            if agent is not None:
                agent.close()
        if client.key is not None:
            try:
                self._accepted(client.key)
            except FleetError:
                raw.abort()
                raise
        return raw

    def _names(self) -> list[str]:
        """The names under which known_hosts may list the host."""
        names = [self._route.alias] if self._route.alias else [self._route.host]
        return [*names, self._host.name] if "@" not in self._host.name else names

    async def _agent(self) -> asyncssh.SSHAgentClient | None:
        """ssh-agent, where its keys are to be offered and it answers."""
        if self._login.agent_path is None:
            return None
        try:
            return await asyncssh.connect_agent(self._login.agent_path)
        except OSError:
            return None

    def _options(
        self, trust: ssh_trust.Trust, alias: str | None, agent_keys: list[Any]
    ) -> dict[str, Any]:
        host, route = self._host, self._route
        options: dict[str, Any] = {
            "host": host.address if route.config else route.host,
            "port": route.port,
            "config": list(route.config) or None,
            "proxy_command": route.proxy_command or None,
            "known_hosts": trust.for_asyncssh(),
            "server_host_key_algs": trust.algorithms(),
            "host_key_alias": alias or route.alias or None,
            "client_keys": [*agent_keys, *self._login.keys] or None,
            "agent_path": None,
            "agent_forwarding": False,
            "preferred_auth": "publickey",
            "gss_host": None,
            "x11_forwarding": False,
            "env": None,
            "send_env": None,
            "command": None,
            "request_pty": False,
            "kex_algs": KEX,
            "encryption_algs": CIPHERS,
            "compression_algs": None,
            "connect_timeout": None,
            "login_timeout": self._settings.login_timeout_seconds,
            "keepalive_interval": 0,
            "utf8_decode_errors": "replace",
            "canonicalize_hostname": False,
            "x509_trusted_certs": None,
            "x509_trusted_cert_paths": [],
        }
        if route.user is not None:
            options["username"] = route.user
        return options

    def _accepted(self, key: asyncssh.SSHKey) -> None:
        """Write down a key that was accepted by flag, once the server proved that it has it."""
        route = self._route
        name = route.alias or route.host
        shown = ssh_trust.fingerprint(key)
        try:
            path = self._known.accept(name, route.port, key)
        except OSError as error:
            path = os.path.expanduser(self._known.files[0])
            raise HostkeyUnknown(
                f"{self._host.name}: {shown} was accepted, but {path} cannot be written: "
                f"{(error.strerror or str(error)).lower()}"
            ) from None
        if self._settings.on_new_host_key is not None:
            self._settings.on_new_host_key(self._host.name, shown, path)

    def _too_slow(self, client: _Client) -> Unreachable:
        who, where = self._host.name, self._where()
        if client.greeted:
            span = self._settings.login_timeout_seconds
            return ConnectTimeout(f"{who}: the login at {where} took longer than {span:g} s")
        span = self._host.connect_timeout_seconds
        return ConnectTimeout(f"{who}: no SSH server answered at {where} within {span:g} s")

    def _where(self) -> str:
        return ssh_trust.spelling(self._route.host, self._route.port)

    def _translated(
        self,
        error: Exception,
        client: _Client,
        trust: ssh_trust.Trust,
    ) -> FleetError:
        """The error of the tree for what asyncssh raised."""
        who, where = self._host.name, self._where()
        if isinstance(error, FleetError):
            return error
        if isinstance(error, asyncssh.HostKeyNotVerifiable):
            return self._untrusted(error, client, trust)
        if isinstance(error, asyncssh.PermissionDenied):
            return self._denied()
        if isinstance(error, asyncssh.ChannelOpenError):
            return self._not_forwarded(error)
        if isinstance(error, asyncssh.ConnectionLost | ConnectionError):
            return Dropped(f"{who}: {where} closed the connection during the handshake")
        if isinstance(error, asyncssh.DisconnectError):
            if (
                "uthentication" in error.reason
                or error.code == asyncssh.DISC_NO_MORE_AUTH_METHODS_AVAILABLE
            ):
                return self._denied(error.reason)
            return SshProtocol(f"{who}: {where}: {_line(error.reason)}")
        if isinstance(error, OSError):
            return ConnectFailed(reason_of(who, where, error).message)
        return SshProtocol(f"{who}: {where}: {_line(str(error))}")

    def _untrusted(
        self, error: asyncssh.HostKeyNotVerifiable, client: _Client, trust: ssh_trust.Trust
    ) -> FleetError:
        who, host, port = self._host.name, self._route.host, self._route.port
        reach = self._settings.reach
        if "revoked" in error.reason:
            key = client.key or (trust.revoked[0] if trust.revoked else None)
            if key is not None:
                revoked = replace(trust, revoked=(*trust.revoked, key))
                return ssh_trust.refusal(who, host, port, key, revoked, self._known, reach)
        if client.key is not None:
            name = self._route.alias or host
            return ssh_trust.refusal(who, name, port, client.key, trust, self._known, reach)
        reason = _line(error.reason.partition(" for host ")[0]).lower()
        return HostCertificateInvalid(f"{who}: the host certificate of {self._where()}: {reason}")

    def _denied(self, reason: str = "") -> AuthFailed:
        login, user = self._login, self._route.user or _local_user()
        if not login.keys and not login.agent_path:
            return AuthFailed(
                f"{self._host.name}: no key to log in with as {user}",
                "name one with identity: in the inventory, or use ssh-agent",
            )
        complaint = login.complaint(user) or _line(reason)
        return AuthFailed(
            f"{self._host.name}: {self._where()} refused every key for the user {user}"
            + (f" ({complaint})" if complaint else "")
        )

    def _not_forwarded(self, error: asyncssh.ChannelOpenError) -> FleetError:
        who, hop = self._host.name, self._route.way[-1].name if self._route.way else "the hop"
        reason = _line(error.reason)
        if error.code == asyncssh.OPEN_ADMINISTRATIVELY_PROHIBITED:
            return GatewayUnreachable(f"{who}: hop {hop} does not forward: {reason}")
        if "refused" in reason.lower():
            return ConnectRefused(f"{who}: seen from hop {hop}, {self._where()} refuses: {reason}")
        return ConnectFailed(f"{who}: hop {hop} does not reach {self._where()}: {reason}")


async def _agent_keys(agent: asyncssh.SSHAgentClient | None, login: ssh_keys.Login) -> list[Any]:
    if agent is None:
        return []
    try:
        return list(await agent.get_keys(login.agent_identities))
    except (ValueError, OSError):
        return []


def _swallow(task: asyncio.Future[Any]) -> None:
    if not task.cancelled():
        task.exception()


def _line(text: str) -> str:
    return " ".join(text.split())[:200]


def _local_user() -> str:
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())
