"""The transport that a host asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fleetmem.controller.contact.transport import Connection, ConnectSettings
    from fleetmem.controller.hosts.host import Host


async def connect(host: Host, settings: ConnectSettings) -> Connection:
    """A connection to *host* by its own transport; errors of the FleetError tree only."""
    if host.transport == "ssh":
        from fleetmem.controller.contact.transport.ssh.connect import connect as connect_ssh

        return await connect_ssh(host, settings)
    from fleetmem.controller.contact.transport.command import connect as connect_command

    return await connect_command(host, settings)
