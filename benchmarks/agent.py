"""What the agent costs a host: CPU against a do-nothing Python, memory, bytes on the wire."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import tempfile
from pathlib import Path

from benchmarks import measure
from benchmarks.fanout import ratio
from fleetmem.controller.contact import gather
from fleetmem.controller.contact.launch import LaunchWay
from fleetmem.controller.contact.payload import payload
from fleetmem.controller.contact.session import Session
from fleetmem.controller.contact.transport import ConnectSettings
from fleetmem.controller.contact.transport.choose import connect
from fleetmem.controller.hosts.host import Host
from fleetmem.controller.hosts.inventory import load
from fleetmem.controller.reclaim.join import to_survey
from tests.lab import api

PROCESSES = 60
ROUNDS = 5


def main() -> list[tuple[str, str]]:
    """The rows of the table."""
    with tempfile.TemporaryDirectory(prefix="fleetmem-bench-") as name:
        lab = api.up(Path(name) / "lab", n=1, while_pid=os.getpid())
        try:
            host = next(iter(lab.hosts))
            lab.hog(host, "orphan", mib=5000)
            sleeper = "for i in $(seq 60); do setsid sleep 600 & done >/dev/null 2>&1"
            lab.ssh(host, sleeper)
            return [*costs(lab, host), *wire_bytes(lab, host)]
        finally:
            lab.down()


def costs(lab: api.Lab, host: str) -> list[tuple[str, str]]:
    """CPU and peak memory on second contact, through nsenter so that it can be counted."""
    entry = [*lab.entry(host), "--"]
    inside = Host(host, host, transport="command", command=(*entry, "/bin/sh", "-c", "{command}"))
    nothing = measure.best(
        [measure.run([*entry, "python3", "-I", "-S", "-c", "pass"]) for _ in range(ROUNDS)]
    )
    asyncio.run(survey(inside))
    spent, peak = [], 0
    for _ in range(ROUNDS):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        peak = max(peak, asyncio.run(survey(inside)))
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return [
        (
            "agent, second contact, GPU + holders + identities, 75 processes",
            f"{1000 * min(spent):.0f} ms CPU · pass {1000 * nothing.client:.1f} ms",
        ),
        ratio("agent CPU / python3 -I -S -c pass", min(spent) / nothing.client, 6),
        ratio("agent memory, MB, all its processes (PSS)", peak / 1e6, 25),
    ]


async def survey(host: Host) -> int:
    """One contact with all readings; the agent's PSS in bytes while it is up."""
    connection = await connect(host, ConnectSettings())
    try:
        session = await Session.open(connection, payload(), LaunchWay())
        rows = await gather.readings(session)
        to_survey(rows)
        size = pss()
        await session.close()
        return size
    finally:
        await connection.close()


def pss() -> int:
    """Proportional memory of all processes whose name begins with fleetmem-."""
    total = 0
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if not Path(f"/proc/{name}/comm").read_text().startswith("fleetmem-"):
                continue
            for line in Path(f"/proc/{name}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
        except OSError:
            continue
    return total


def wire_bytes(lab: api.Lab, host: str) -> list[tuple[str, str]]:
    """Bytes both ways through a counting relay, SSH's own included."""
    lab.exec(host, "rm", "-rf", "/root/.cache/fleetmem")
    first, second, bare = (asyncio.run(counted(lab, host, what)) for what in (True, True, False))
    return [
        ratio("KB on the wire, first contact", first / 1000, 130),
        ("KB on the wire, second contact", f"{second / 1000:.1f} (SSH alone {bare / 1000:.1f})"),
        ratio("KB on the wire, second contact, without SSH's own", (second - bare) / 1000, 8),
    ]


async def counted(lab: api.Lab, host: str, agent: bool) -> int:
    """Bytes of one contact: a survey, or just ``true``."""
    total = 0
    at = lab.hosts[host]

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal total
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                total += len(data)
                writer.write(data)
                await writer.drain()
        writer.close()

    def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def both() -> None:
            inward, outward = await asyncio.open_connection(at.address, at.port)
            await asyncio.gather(pump(reader, outward), pump(inward, writer))

        relays.append(asyncio.ensure_future(both()))

    relays: list[asyncio.Future[None]] = []
    server = await asyncio.start_server(relay, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    known = lab.directory / "known_relay"
    text = (lab.directory / "known_hosts").read_text()
    line = next(row for row in text.splitlines() if at.address in row.split(" ")[0])
    known.write_text(f"[127.0.0.1]:{port} {line.split(' ', 1)[1]}\n")
    listed = load(str(lab.inventory)).hosts[host]
    relayed = Host(
        host, "127.0.0.1", port, "root", identities=listed.identities, known_hosts=str(known)
    )
    async with server:
        if agent:
            await survey(relayed)
        else:
            connection = await connect(relayed, ConnectSettings())
            channel = await connection.start("true")
            await channel.wait()
            await connection.close()
        await asyncio.wait(relays, timeout=5)
    return total
