"""A connection and the agent on it, opened and closed together."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fleetmem.controller.answer.fold import fold_hosts
from fleetmem.controller.contact.launch import LaunchWay
from fleetmem.controller.contact.payload import payload
from fleetmem.controller.contact.session import Session
from fleetmem.controller.contact.transport import ConnectSettings
from fleetmem.controller.contact.transport.choose import connect

if TYPE_CHECKING:
    from fleetmem.controller.contact.transport import Connection
    from fleetmem.controller.hosts.host import Host
    from fleetmem.controller.run.settings import FleetSettings, OnEvent


_TEXTS = 3


@dataclass
class HostLink:
    """One host's connection with a running agent."""

    connection: Connection
    session: Session
    heard: Callable[[str], None]

    async def close(self) -> None:
        """End the agent and the connection. Never raises."""
        await self.session.close()
        self.heard(self.session.said)
        await self.connection.close()


class Linker:
    """Opens links with what all connections of a run share."""

    def __init__(self, settings: FleetSettings, on_event: OnEvent) -> None:
        self._settings = settings
        self._on_event = on_event
        self._said: dict[str, list[str]] = {}
        self._connect = ConnectSettings(
            accept_new_host_key=settings.accept_new_host_key,
            on_new_host_key=self._accepted,
            reach=settings.reach,
        )

    async def open(self, host: Host, phase: Callable[[str], Any]) -> HostLink:
        """Connect to *host* and start the agent; FleetError where that fails."""
        phase("connecting")
        connection = await connect(host, self._connect)
        try:
            phase("starting the agent")
            way = LaunchWay(
                python=host.python,
                sudo=host.sudo,
                sudo_password=self._settings.sudo_password,
                cache=self._settings.agent_cache,
            )
            session = await Session.open(connection, payload(), way)
        except BaseException:
            await connection.close()
            raise
        return HostLink(connection, session, lambda text: self._heard(host.name, text))

    def _heard(self, host: str, text: str) -> None:
        hosts = self._said.setdefault(text, []) if text else []
        if host not in hosts:
            hosts.append(host)

    def said(self) -> list[str]:
        """What hosts printed beside their agents, each text once with the hosts that said it; a
        few texts, those of most hosts first."""
        rows = sorted(self._said.items(), key=lambda row: -len(row[1]))
        found = [f"{fold_hosts(hosts)} printed: {text}" for text, hosts in rows[:_TEXTS]]
        if more := {host for _, hosts in rows[_TEXTS:] for host in hosts}:
            found.append(f"{fold_hosts(sorted(more))} printed something else")
        return found

    def _accepted(self, host: str, fingerprint: str, path: str) -> None:
        """Tell, and keep it in the trail: from now on that key is trusted."""
        from fleetmem.controller.record.history import open_or_warn

        def warn(text: str) -> None:
            self._on_event({"kind": "warning", "text": text})

        warn(f"{host}: accepted host key {fingerprint}, added to {path}")
        history = open_or_warn(warn, self._settings.history_dir)
        if history is not None:
            event = {"action": "accept_host_key", "fingerprint": fingerprint, "file": path}
            history.trail("host_keys", host, {**event, "desk": desk()})
            history.close()


def desk() -> str:
    """Who acts, for the trails: user@machine of this desk, and the process."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()} (pid {os.getpid()})"
