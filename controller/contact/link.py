"""A connection and the agent on it, opened and closed together."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fleetmem.controller.contact.launch import Way
from fleetmem.controller.contact.payload import payload
from fleetmem.controller.contact.session import Session
from fleetmem.controller.contact.transport import ConnectSettings
from fleetmem.controller.contact.transport.choose import connect

if TYPE_CHECKING:
    from fleetmem.controller.contact.transport import Connection
    from fleetmem.controller.hosts.host import Host
    from fleetmem.controller.run.settings import FleetSettings, OnEvent


@dataclass
class Link:
    """One host's connection with a running agent."""

    connection: Connection
    session: Session

    async def close(self) -> None:
        """End the agent and the connection. Never raises."""
        await self.session.close()
        await self.connection.close()


class Linker:
    """Opens links with what all connections of a run share."""

    def __init__(self, settings: FleetSettings, on_event: OnEvent) -> None:
        self._settings = settings
        self._on_event = on_event
        self._connect = ConnectSettings(
            accept_new_host_key=settings.accept_new_host_key,
            on_new_host_key=self._accepted,
            reach=settings.reach,
        )

    async def open(self, host: Host, phase: Callable[[str], Any]) -> Link:
        """Connect to *host* and start the agent; FleetError where that fails."""
        phase("connecting")
        connection = await connect(host, self._connect)
        try:
            phase("starting the agent")
            way = Way(
                python=host.python,
                sudo=host.sudo,
                sudo_password=self._settings.sudo_password,
                cache=self._settings.agent_cache,
            )
            session = await Session.open(connection, payload(), way)
        except BaseException:
            await connection.close()
            raise
        return Link(connection, session)

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
