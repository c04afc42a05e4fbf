"""What somebody would write instead: asyncssh, connect to all, run a do-nothing Python."""

from __future__ import annotations

import asyncio
import sys

import asyncssh


async def one(address: str, key: str, known: object) -> None:
    """One host."""
    async with asyncssh.connect(
        address, 2222, username="root", client_keys=[key], known_hosts=known, config=None
    ) as connection:
        done = await connection.run("python3 -I -S -c pass")
        assert done.exit_status == 0


async def main(key: str, known_hosts: str, addresses: list[str]) -> None:
    """All at once."""
    known = asyncssh.read_known_hosts(known_hosts)
    await asyncio.gather(*(one(address, key, known) for address in addresses))


asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
