"""What every transport promises, asked of each: local, a command template, ssh."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from fleetmem.controller.contact.transport import (
    STDERR_BYTES,
    Channel,
    Connection,
    ConnectSettings,
    Exit,
)
from fleetmem.controller.contact.transport.choose import connect
from fleetmem.controller.errors import CommandFailed, SessionLost
from fleetmem.controller.hosts.host import Host
from tests.contract import sshd

Work = Callable[[Connection], Awaitable[None]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sshd.Sshd]:
    with sshd.running(tmp_path_factory.mktemp("sshd")) as running:
        yield running


@pytest.fixture(params=["local", "template", "ssh"])
def host(request: pytest.FixtureRequest) -> Host:
    if request.param == "local":
        return Host("here", "here", transport="local")
    if request.param == "template":
        command = ("env", "WRAPPED=yes", "sh", "-c", "{command}")
        return Host("wrapped", "wrapped", transport="command", command=command)
    server: sshd.Sshd = request.getfixturevalue("server")
    return Host(
        "there",
        server.address,
        server.port,
        sshd.USER,
        (str(server.key),),
        str(server.known_hosts),
    )


def with_connection(host: Host, work: Work) -> None:
    """Run *work* over one connection, within 180 s."""

    async def run() -> None:
        async with asyncio.timeout(180):
            connection = await connect(host, ConnectSettings(config_files=()))
            try:
                await work(connection)
            finally:
                await connection.close()

    asyncio.run(run())


async def read_all(channel: Channel, at_once: int = 65536) -> bytes:
    parts = []
    while data := await channel.read(at_once):
        parts.append(data)
    return b"".join(parts)


def test_input_output_errors_and_status(host: Host) -> None:
    async def work(connection: Connection) -> None:
        channel = await connection.start("cat; echo trouble >&2; exit 7")
        channel.write(b"\x00\xff\xfe not text \r\n")
        channel.write_eof()
        channel.write_eof()
        assert await read_all(channel) == b"\x00\xff\xfe not text \r\n"
        assert await channel.read(10) == b""
        assert await channel.wait() == Exit(7, None)
        assert await channel.wait() == Exit(7, None)
        assert channel.stderr() == b"trouble\n"
        await channel.close()
        await channel.close()

    with_connection(host, work)


def test_output_comes_as_it_is_written(host: Host) -> None:
    async def work(connection: Connection) -> None:
        channel = await connection.start("while read line; do echo got $line; done")
        for word in (b"one", b"two"):
            channel.write(word + b"\n")
            assert await channel.read(4096) == b"got " + word + b"\n"
        channel.write_eof()
        assert await channel.read(4096) == b""
        assert await channel.wait() == Exit(0)

    with_connection(host, work)


def test_read_gives_at_most_what_is_asked(host: Host) -> None:
    async def work(connection: Connection) -> None:
        channel = await connection.start("printf abcdefgh")
        assert await channel.wait() == Exit(0)
        assert await channel.read(3) == b"abc"
        assert await channel.read(3) == b"def"
        assert await channel.read(3) == b"gh"
        assert await channel.read(3) == b""

    with_connection(host, work)


def test_a_signal_is_told_from_a_status(host: Host) -> None:
    async def work(connection: Connection) -> None:
        channel = await connection.start("kill -TERM $$; sleep 5")
        assert await channel.wait() == Exit(None, "TERM")

    with_connection(host, work)


def test_a_slow_reader_loses_nothing(host: Host) -> None:
    """The command is done long before its output is read."""
    size = 12_000_000

    async def work(connection: Connection) -> None:
        channel = await connection.start(f"head -c {size} /dev/zero | tr '\\0' x; printf end")
        await asyncio.sleep(0.3)
        data = bytearray()
        while part := await channel.read(100_000):
            data += part
            if len(data) < 2_000_000:
                await asyncio.sleep(0.005)
        assert len(data) == size + 3
        assert data.endswith(b"xend")
        assert await channel.wait() == Exit(0)

    with_connection(host, work)


def test_much_input_goes_through_drain(host: Host) -> None:
    block = bytes(range(256)) * 256
    count = 64

    async def work(connection: Connection) -> None:
        channel = await connection.start("sleep 0.2; sha256sum")
        for _ in range(count):
            channel.write(block)
            await channel.drain()
        channel.write_eof()
        expected = hashlib.sha256(block * count).hexdigest().encode()
        assert (await read_all(channel)).startswith(expected)

    with_connection(host, work)


def test_stderr_never_blocks_and_is_capped(host: Host) -> None:
    async def work(connection: Connection) -> None:
        channel = await connection.start("head -c 3000000 /dev/zero >&2; echo done")
        assert await read_all(channel) == b"done\n"
        assert await channel.wait() == Exit(0)
        assert channel.stderr() == bytes(STDERR_BYTES)

    with_connection(host, work)


def test_commands_run_side_by_side(host: Host) -> None:
    async def work(connection: Connection) -> None:
        first = await connection.start("read word; echo first $word")
        second = await connection.start("read word; echo second $word")
        second.write(b"b\n")
        assert await read_all(second) == b"second b\n"
        first.write(b"a\n")
        assert await read_all(first) == b"first a\n"

    with_connection(host, work)


def test_close_ends_a_command_that_waits_for_input(host: Host) -> None:
    async def work(connection: Connection) -> None:
        channel = await connection.start("echo started; cat")
        assert await channel.read(100) == b"started\n"
        waiting = asyncio.create_task(channel.read(100))
        await asyncio.sleep(0)
        await asyncio.gather(channel.close(), channel.close())
        assert await waiting == b""
        assert await channel.read(100) == b""

    with_connection(host, work)


def test_close_does_not_wait_for_a_deaf_command(host: Host) -> None:
    async def work(connection: Connection) -> None:
        channel = await connection.start("trap '' TERM HUP; echo on; sleep 90 >/dev/null 2>&1")
        assert await channel.read(100) == b"on\n"
        begin = time.monotonic()
        await channel.close()
        assert time.monotonic() - begin < 60

    with_connection(host, work)


def test_connection_close_ends_its_channels(host: Host) -> None:
    async def work(connection: Connection) -> None:
        channel = await connection.start("echo on; cat")
        assert await channel.read(100) == b"on\n"
        await connection.close()
        await connection.close()
        assert await channel.read(100) == b""
        await channel.close()

    with_connection(host, work)


def test_writing_to_an_ended_command_is_a_lost_session(host: Host) -> None:
    async def work(connection: Connection) -> None:
        channel = await connection.start("exit 0")
        assert await channel.wait() == Exit(0)

        async def write_on() -> None:
            for _ in range(200):
                channel.write(b"x" * 65536)
                await channel.drain()
                await asyncio.sleep(0.01)

        with pytest.raises(SessionLost):
            await write_on()

    with_connection(host, work)


def test_peer_and_attempts_are_told(host: Host) -> None:
    async def work(connection: Connection) -> None:
        assert connection.peer == host.name
        assert connection.attempts == 1

    with_connection(host, work)


def test_the_template_wraps_the_command(tmp_path: Path) -> None:
    template = ("env", "WRAPPED=a b", "sh", "-c", "{command}")
    host = Host("x", "x", transport="command", command=template)

    async def work(connection: Connection) -> None:
        channel = await connection.start('printf "%s|" "$WRAPPED" "$0"')
        assert (await read_all(channel)).startswith(b"a b|")

    with_connection(host, work)


def test_a_missing_program_is_named() -> None:
    host = Host("x", "x", transport="command", command=("/no/such/program", "{command}"))

    async def work(connection: Connection) -> None:
        with pytest.raises(CommandFailed, match="/no/such/program: No such file"):
            await connection.start("true")

    with_connection(host, work)


def test_a_local_command_has_a_session_of_its_own() -> None:
    async def work(connection: Connection) -> None:
        channel = await connection.start("ps -o sid= -p $$; echo $$")
        session, pid = (await read_all(channel)).split()
        assert session == pid

    with_connection(Host("here", "here", transport="local"), work)
