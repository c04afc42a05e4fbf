"""The newest start of a unit out of a large journal, against journalctl itself.

The journal is made once and kept in ``$FLEETMEM_LAB_CACHE`` or ``/var/cache/fleetmem-lab``.
``FLEETMEM_BENCH_ENTRIES=10000000`` makes a larger one (3 GB, 5 minutes).
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from benchmarks import measure
from benchmarks.fanout import ratio
from fleetmem.controller.contact.launch import LaunchWay
from fleetmem.controller.contact.payload import payload
from fleetmem.controller.contact.session import Session
from fleetmem.controller.contact.transport import ConnectSettings
from fleetmem.controller.contact.transport.choose import connect
from fleetmem.controller.hosts.host import Host
from fleetmem.controller.logs.reading import Log, read_log
from tests.lab.making.image import CACHE

REMOTE = "/usr/lib/systemd/systemd-journal-remote"
ENTRIES = int(os.environ.get("FLEETMEM_BENCH_ENTRIES", "1000000"))
UNITS = 4
STARTS = 100
ROUNDS = 40
SLOW_ROUNDS = 3
UNIT = "sglang-0.service"
MACHINE = "5e" * 16
BOOT = "b0" * 16


def main() -> list[tuple[str, str]]:
    """The rows of the table."""
    folder = journal(ENTRIES)
    newest = ident(0, STARTS - 1)
    # As nice as the agent is: on a busy machine the two must wait alike.
    base = ["nice", "-n", "5", "journalctl", "--no-pager", "-D", str(folder)]
    query = [*base, f"_SYSTEMD_INVOCATION_ID={newest}", "-o", "export"]
    old = ["sh", "-c", f"{' '.join(base)} -u {UNIT} | grep -c 'running-req: 7,' >/dev/null"]
    grep = min(timed(old) for _ in range(SLOW_ROUNDS))
    read, walls, peak = asyncio.run(agent(folder, query))
    log = read[-1]
    # Medians: on few cores either side's best is luck of where its two processes ran.
    seconds, alone = median(map(spent, read)), median(walls)
    ids = {one["id"] for one in log.invocations}
    if ids != {newest}:
        raise RuntimeError(f"the newest start is {newest}, not {ids}")
    best = f"{1000 * min(map(spent, read)):.0f} and {1000 * min(walls):.0f}"
    label = f"newest start of {ENTRIES:,} entries".replace(",", " ")
    figures = f"{1000 * seconds:.0f} ms · journalctl by invocation {1000 * alone:.0f} ms"
    figures += f" (medians of {ROUNDS}; best {best})"
    return [
        (label, f"{figures} · -u | grep {1000 * grep:.0f} ms · {len(log.lines)} lines"),
        ratio("journal.read / journalctl _SYSTEMD_INVOCATION_ID=… -o export", seconds / alone, 1.5),
        ratio("journal.read / (journalctl -u U | grep)", seconds / grep, 0.2),
        ratio("agent memory, MB, its largest process", peak / 1000, 60),
    ]


def timed(words: list[str]) -> float:
    """The wall time of one run, seconds."""
    return measure.run(words).wall


def spent(log: Log) -> float:
    """The agent's own clock on one call, seconds."""
    return log.reading["seconds"] or 0.0


async def agent(folder: Path, query: list[str]) -> tuple[list[Log], list[float], int]:
    """Readings by an agent on this machine, the wall times of *query* run in turn with them, and
    the peak in kB of the agent's largest process."""
    connection = await connect(
        Host("localhost", "localhost", transport="command"), ConnectSettings()
    )
    session = await Session.open(connection, payload(), LaunchWay())
    peak = 0

    async def watch() -> None:
        nonlocal peak
        while True:
            peak = max(peak, largest())
            await asyncio.sleep(0.01)

    asked = {"unit": UNIT, "directory": str(folder)}
    read, walls = [], []
    for _ in range(ROUNDS):
        walls.append(timed(query))
        read.append(await read_log(session, asked, timeout_seconds=60))
    watching = asyncio.create_task(watch())  # apart from the rounds that are timed
    await read_log(session, asked, timeout_seconds=60)
    watching.cancel()
    await session.close()
    await connection.close()
    return read, walls, peak


def largest() -> int:
    """Peak resident kB of the largest process whose name begins with fleetmem-."""
    found = [0]
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            text = Path(f"/proc/{name}/status").read_text()
        except OSError:
            continue
        if text.startswith("Name:\tfleetmem-"):
            found += [int(row.split()[1]) for row in text.splitlines() if row[:6] == "VmHWM:"]
    return max(found)


def journal(entries: int) -> Path:
    """A directory with a journal of that many entries, made where it is missing."""
    cache = Path(os.environ.get("FLEETMEM_LAB_CACHE") or CACHE)
    folder = cache / f"journal-{entries}"
    if folder.exists():
        return folder
    if not os.path.exists(REMOTE):
        raise RuntimeError("systemd-journal-remote is missing: sh tests/lab_setup.sh installs it")
    cache.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=cache, prefix=".journal-"))
    try:
        running = subprocess.Popen(
            [REMOTE, "-o", str(scratch / "all.journal"), "-"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        assert running.stdin is not None
        with running.stdin as out:
            for part in portions(entries):
                out.write(part)
        if running.wait() != 0:
            raise RuntimeError(f"systemd-journal-remote ended with {running.returncode}")
        scratch.rename(folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return folder


def ident(unit: int, start: int) -> str:
    """The invocation id of one start."""
    return f"{unit + 1:016x}{start + 1:016x}"


def portions(entries: int) -> Iterator[bytes]:
    """Export format: units side by side, each start opened by systemd's own line."""
    each = entries // (UNITS * STARTS)
    begin = int(time.time() - 86_400) * 1_000_000
    at = 0
    for start in range(STARTS):
        for number in range(each):
            out = []
            for unit in range(UNITS):
                at += 1
                name, key = f"sglang-{unit}.service", ident(unit, start)
                head = (
                    f"__REALTIME_TIMESTAMP={begin + at * 50}\n__MONOTONIC_TIMESTAMP={at * 50}\n"
                    f"_BOOT_ID={BOOT}\n_MACHINE_ID={MACHINE}\n_HOSTNAME=bench\nPRIORITY=6\n"
                )
                if number == 0:
                    out.append(
                        f"{head}_PID=1\n_UID=0\nSYSLOG_IDENTIFIER=systemd\nUNIT={name}\n"
                        f"INVOCATION_ID={key}\n_SYSTEMD_UNIT=init.scope\n"
                        f"MESSAGE=Started {name}.\n\n"
                    )
                    continue
                out.append(
                    f"{head}_PID={1000 + start}\n_UID=0\n_GID=0\n_COMM=python3\n"
                    f"_TRANSPORT=stdout\nSYSLOG_IDENTIFIER=python3\n_SYSTEMD_UNIT={name}\n"
                    f"_SYSTEMD_CGROUP=/system.slice/{name}\n_SYSTEMD_INVOCATION_ID={key}\n"
                    f"MESSAGE=[2026-05-04 09:10:11 TP0] Decode batch. #running-req: {number % 64}"
                    f", #token: {at}, token usage: 0.{number % 97:02d}, gen: {at % 911}\n\n"
                )
            yield "".join(out).encode()
