"""SSH against a real sshd: host keys, logins, ways through jump hosts, a busy server."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fleetmem.controller import errors
from fleetmem.controller.contact.transport import ConnectSettings, Exit
from fleetmem.controller.contact.transport.choose import connect
from fleetmem.controller.hosts.host import Host
from tests.contract import sshd
from tests.contract.sshd import Sshd, keygen, running

NO_CONFIG = ConnectSettings(config_files=())


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    with running(tmp_path_factory.mktemp("sshd")) as started:
        yield started


@pytest.fixture(autouse=True)
def _no_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)


def host_of(server: Sshd, name: str = "box") -> Host:
    return Host(
        name,
        server.address,
        server.port,
        sshd.USER,
        (str(server.key),),
        str(server.known_hosts),
        connect_timeout_seconds=60,
    )


def say(host: Host, settings: ConnectSettings | None = None, command: str = "echo hello") -> bytes:
    """What *command* prints on *host*."""
    settings = settings or ConnectSettings(config_files=())

    async def run() -> bytes:
        async with asyncio.timeout(180):
            connection = await connect(host, settings)
            try:
                channel = await connection.start(command)
                out = b""
                while data := await channel.read(65536):
                    out += data
                assert await channel.wait() == Exit(0)
                return out
            finally:
                await connection.close()

    return asyncio.run(run())


def refused(host: Host, settings: ConnectSettings | None = None) -> errors.FleetError:
    """The error that connecting to *host* ends in: one line, from the tree."""
    with pytest.raises(errors.FleetError) as caught:
        say(host, settings)
    error = caught.value
    assert "\n" not in error.message
    assert host.name in error.message
    return error


# Host keys.


def known(tmp_path: Path, text: str) -> str:
    path = tmp_path / "known_hosts"
    path.write_text(text)
    return str(path)


def test_an_unknown_host_key_is_final_and_says_how_to_accept(server: Sshd, tmp_path: Path) -> None:
    host = replace(host_of(server), known_hosts=str(tmp_path / "none"))
    error = refused(host)
    assert error.code == "hostkey_unknown"
    printed = subprocess.run(
        ["ssh-keygen", "-lf", str(server.directory / "host_ed25519.pub")],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()[1]
    assert printed in error.message
    assert "--accept-new-host-key" in error.hint
    assert not (tmp_path / "none").exists()


def test_accepting_a_new_key_writes_it_down_and_tells(server: Sshd, tmp_path: Path) -> None:
    path = tmp_path / "deep" / "known_hosts"
    told: list[tuple[str, str, str]] = []
    settings = ConnectSettings(
        config_files=(),
        accept_new_host_key=True,
        on_new_host_key=lambda *what: told.append(what),
    )
    host = replace(host_of(server), known_hosts=str(path))
    assert say(host, settings) == b"hello\n"
    assert path.read_text() == f"[{server.address}]:{server.port} {server.host_key()}\n"
    assert path.stat().st_mode & 0o777 == 0o600
    assert [what[0] for what in told] == ["box"]
    assert told[0][1].startswith("ED25519 SHA256:")
    assert say(host, NO_CONFIG) == b"hello\n"
    assert say(host, settings) == b"hello\n"
    assert len(told) == 1


def test_a_new_key_is_appended_after_a_broken_last_line(server: Sshd, tmp_path: Path) -> None:
    path = known(tmp_path, "other.example ssh-ed25519 AAAA broken\nnot a line")
    settings = ConnectSettings(config_files=(), accept_new_host_key=True)
    assert say(replace(host_of(server), known_hosts=path), settings) == b"hello\n"
    lines = Path(path).read_text().splitlines()
    assert lines[1] == "not a line"
    assert lines[2].startswith(f"[{server.address}]")


@pytest.mark.parametrize("accept", [False, True])
@pytest.mark.parametrize("kind", ["ed25519", "rsa"])
def test_a_changed_host_key_is_final_whatever_its_type(
    server: Sshd, tmp_path: Path, accept: bool, kind: str
) -> None:
    other = tmp_path / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", "", "-f", str(other)], check=True)
    key = " ".join((tmp_path / "other.pub").read_text().split()[:2])
    path = known(tmp_path, f"[{server.address}]:{server.port} {key}\n")
    settings = ConnectSettings(config_files=(), accept_new_host_key=accept)
    error = refused(replace(host_of(server), known_hosts=path), settings)
    assert error.code == "hostkey_changed"
    assert error.message.count("SHA256:") == 2
    assert f"ssh-keygen -R '[{server.address}]:{server.port}' -f '{path}'" in error.hint
    assert Path(path).read_text().count("\n") == 1


def test_a_revoked_host_key_is_refused_even_when_also_trusted(server: Sshd, tmp_path: Path) -> None:
    at = f"[{server.address}]:{server.port}"
    path = known(tmp_path, f"{at} {server.host_key()}\n@revoked * {server.host_key()}\n")
    settings = ConnectSettings(config_files=(), accept_new_host_key=True)
    error = refused(replace(host_of(server), known_hosts=path), settings)
    assert error.code == "hostkey_revoked"
    path = known(
        tmp_path, f"{at} {server.host_key()}\n@revoked {server.address} {server.host_key()}\n"
    )
    assert refused(replace(host_of(server), known_hosts=path)).code == "hostkey_revoked"


def test_hashed_plain_and_pattern_entries_are_honoured(server: Sshd, tmp_path: Path) -> None:
    path = known(tmp_path, f"[{server.address}]:{server.port} {server.host_key()}\n")
    subprocess.run(["ssh-keygen", "-H", "-f", path], check=True, capture_output=True)
    assert server.address not in Path(path).read_text()
    assert say(replace(host_of(server), known_hosts=path)) == b"hello\n"
    for entry in (server.address, "127.0.*", "box", f"[box]:{server.port}"):
        path = known(tmp_path, f"garbage\n{entry} {server.host_key()}\n\xff\n")
        assert say(replace(host_of(server), known_hosts=path)) == b"hello\n"


def sign_host(server: Sshd, authority: Path, principals: str, validity: str) -> None:
    subprocess.run(
        [
            "ssh-keygen",
            "-q",
            "-s",
            authority,
            "-I",
            "host",
            "-h",
            "-n",
            principals,
            "-V",
            validity,
            server.directory / "host_ed25519.pub",
        ],
        check=True,
    )


@pytest.mark.parametrize(
    ("principals", "validity", "code"),
    [
        ("127.0.0.1", "-1h:+1h", ""),
        ("box", "-1h:+1h", ""),
        ("elsewhere", "-1h:+1h", "hostcert_invalid"),
        ("127.0.0.1", "-2h:-1h", "hostcert_invalid"),
    ],
)
def test_host_certificates(tmp_path: Path, principals: str, validity: str, code: str) -> None:
    authority = keygen(tmp_path / "authority")
    directory = tmp_path / "sshd"
    directory.mkdir()
    keygen(directory / "host_ed25519")
    fake = Sshd(directory, "", 0, None, directory, directory)  # type: ignore[arg-type]
    sign_host(fake, authority, principals, validity)
    extra = f"HostCertificate {directory}/host_ed25519-cert.pub"
    with running(directory, extra=extra) as server:
        public = " ".join((tmp_path / "authority.pub").read_text().split()[:2])
        path = known(tmp_path, f"@cert-authority * {public}\n")
        host = replace(host_of(server), known_hosts=path)
        if code:
            assert refused(host).code == code
        else:
            assert say(host) == b"hello\n"
        # Without the authority the certificate is worth nothing and the plain key is asked for.
        assert say(host_of(server)) == b"hello\n"
        unknown = refused(replace(host, known_hosts=str(tmp_path / "none")))
        assert unknown.code == "hostkey_unknown"


def test_an_authority_does_not_lead_to_first_contact_trust(server: Sshd, tmp_path: Path) -> None:
    keygen(tmp_path / "authority")
    public = " ".join((tmp_path / "authority.pub").read_text().split()[:2])
    path = known(tmp_path, f"@cert-authority * {public}\n")
    assert refused(replace(host_of(server), known_hosts=path)).code == "hostkey_unknown"


def test_known_hosts_none_is_never_given_to_asyncssh() -> None:
    """asyncssh turns every check off for None."""
    sources = list((Path(__file__).parents[2] / "controller").rglob("*.py"))
    assert len(sources) > 10
    for path in sources:
        text = path.read_text().replace(" ", "")
        assert "known_hosts=None," not in text.replace('"', ""), path
        assert '"known_hosts":None' not in text, path


# Logging in.


def test_a_wrong_user_key_is_an_auth_failure_at_once(server: Sshd, tmp_path: Path) -> None:
    host = replace(host_of(server), identities=(str(keygen(tmp_path / "wrong")),))
    before = server.log.count("Connection from")
    error = refused(host)
    assert error.code == "auth_failed"
    assert sshd.USER in error.message
    assert server.log.count("Connection from") == before + 1


def test_a_missing_or_broken_identity_is_named(server: Sshd, tmp_path: Path) -> None:
    error = refused(replace(host_of(server), identities=(str(tmp_path / "gone"),)))
    assert error.code == "identity_invalid"
    assert f"{tmp_path}/gone: no such file" in error.message
    (tmp_path / "junk").write_text("no key\n")
    error = refused(replace(host_of(server), identities=(str(tmp_path / "junk"),)))
    assert error.code == "identity_invalid"


def locked_key(server: Sshd, tmp_path: Path) -> Path:
    """The server's key behind a passphrase."""
    path = tmp_path / "locked"
    path.write_bytes(server.key.read_bytes())
    path.chmod(0o600)
    subprocess.run(
        ["ssh-keygen", "-q", "-p", "-P", "", "-N", "secret", "-f", str(path)],
        check=True,
        capture_output=True,
    )
    (tmp_path / "locked.pub").write_text((server.directory / "id.pub").read_text())
    return path


def test_a_locked_identity_without_agent_is_named(server: Sshd, tmp_path: Path) -> None:
    path = locked_key(server, tmp_path)
    error = refused(replace(host_of(server), identities=(str(path),)))
    assert error.code == "identity_invalid"
    assert "locked by a passphrase" in error.message


@pytest.fixture
def agent(
    server: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, _no_agent: None
) -> Iterator[str]:
    """An ssh-agent that holds the server's key behind some others."""
    place = f"/tmp/fleetmem-agent-{os.getpid()}"
    process = subprocess.Popen(["ssh-agent", "-D", "-a", place], stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while not os.path.exists(place) and time.monotonic() < deadline:
            time.sleep(0.01)
        monkeypatch.setenv("SSH_AUTH_SOCK", place)
        keys = [keygen(tmp_path / f"other{n}") for n in range(2)] + [server.key]
        for key in keys:
            subprocess.run(["ssh-add", "-q", str(key)], check=True, capture_output=True)
        yield place
    finally:
        process.terminate()
        process.wait()


def test_the_agent_signs_for_a_locked_identity(server: Sshd, tmp_path: Path, agent: str) -> None:
    path = locked_key(server, tmp_path)
    assert say(replace(host_of(server), identities=(str(path),))) == b"hello\n"


def test_without_identities_the_agents_keys_are_offered(server: Sshd, agent: str) -> None:
    assert say(replace(host_of(server), identities=())) == b"hello\n"


def test_nothing_of_the_desk_is_forwarded(
    server: Sshd, agent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISPLAY", ":7")
    out = say(host_of(server), command='echo "$SSH_AUTH_SOCK|$DISPLAY|$SSH_TTY"')
    assert out == b"||\n"


@pytest.mark.parametrize(("validity", "works"), [("-1h:+1h", True), ("-2h:-1h", False)])
def test_user_certificates(tmp_path: Path, validity: str, works: bool) -> None:
    authority, key = keygen(tmp_path / "authority"), keygen(tmp_path / "user")
    subprocess.run(
        [
            "ssh-keygen",
            "-q",
            "-s",
            authority,
            "-I",
            "me",
            "-n",
            sshd.USER,
            "-V",
            validity,
            f"{key}.pub",
        ],
        check=True,
    )
    with running(tmp_path / "sshd", extra=f"TrustedUserCAKeys {authority}.pub") as server:
        host = replace(host_of(server), identities=(str(key),))
        if works:
            assert say(host) == b"hello\n"
        else:
            error = refused(host)
            assert error.code == "auth_failed"
            assert "user-cert.pub: certificate expired" in error.message


def test_a_banner_that_is_not_utf8_does_no_harm(tmp_path: Path) -> None:
    banner = tmp_path / "banner"
    banner.write_bytes(b"W\xe4re \xff\xfe {noise}\n\x1b[31m")
    with running(tmp_path / "sshd", extra=f"Banner {banner}") as server:
        assert say(host_of(server)) == b"hello\n"


# Networks.


def test_ipv6(tmp_path: Path) -> None:
    with running(tmp_path, address="::1") as server:
        assert say(host_of(server)) == b"hello\n"


def test_a_refused_port() -> None:
    with sshd.closed_port("127.0.0.1") as port:
        error = refused(Host("box", "127.0.0.1", port, "u", known_hosts="/dev/null"))
    assert error.code == "connect_refused"
    assert str(port) in error.message


def test_a_name_without_address() -> None:
    host = Host("box", "no-such-host.invalid", known_hosts="/dev/null", connect_timeout_seconds=60)
    error = refused(host)
    assert error.code == "dns_failed"
    assert "no-such-host.invalid" in error.message


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield sock


def at(listener: socket.socket, seconds: float) -> Host:
    port = listener.getsockname()[1]
    return Host(
        "box", "127.0.0.1", port, "u", known_hosts="/dev/null", connect_timeout_seconds=seconds
    )


def test_a_mute_port_ends_with_the_connect_timeout(listener: socket.socket) -> None:
    begin = time.monotonic()
    error = refused(at(listener, 1.0))
    assert error.code == "connect_timeout"
    assert time.monotonic() - begin > 0.9


def answering(listener: socket.socket, data: bytes) -> None:
    """Answer every connection with *data* and close it."""

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.sendall(data)

    threading.Thread(target=serve, daemon=True).start()


def test_what_is_no_ssh_server_is_said(listener: socket.socket) -> None:
    answering(listener, b"SSH-1.5-old\r\n")
    assert refused(at(listener, 60)).code == "ssh_protocol"


def test_a_port_that_hangs_up_is_tried_again_but_not_for_ever(listener: socket.socket) -> None:
    answering(listener, b"")
    settings = ConnectSettings(config_files=(), retry_seconds=2.0)
    error = refused(at(listener, 60), settings)
    assert error.code == "connect_failed"
    tries = re.search(r", (\d+) tries$", error.message)
    assert tries is not None
    assert int(tries[1]) > 1


def test_a_session_that_is_cut_is_lost_never_ok(server: Sshd) -> None:
    async def run() -> None:
        connection = await connect(host_of(server), NO_CONFIG)
        channel = await connection.start("echo $PPID; sleep 60")
        parent = int(await channel.read(100))
        os.kill(parent, signal.SIGKILL)
        while await channel.read(100):
            pass
        with pytest.raises(errors.SessionLost):
            await channel.wait()
        await channel.close()
        with pytest.raises(errors.SessionLost):
            await connection.start("true")
        await connection.close()

    asyncio.run(run())


def test_max_startups_with_twenty_aliases(tmp_path: Path) -> None:
    """sshd drops every connection over two that have not logged in; all get through."""
    with running(tmp_path, extra="MaxStartups 2:100:3") as server:
        settings = ConnectSettings(config_files=())

        async def one(name: str) -> int:
            connection = await connect(replace(host_of(server), name=name), settings)
            channel = await connection.start("true")
            assert await channel.wait() == Exit(0)
            await connection.close()
            return connection.attempts

        async def run() -> list[int]:
            async with asyncio.timeout(180):
                return await asyncio.gather(*(one(f"alias{n}") for n in range(20)))

        attempts = asyncio.run(run())
        assert len(attempts) == 20
        assert max(attempts) > 1  # some were dropped, and tried again


# Ways through jump hosts.


@pytest.fixture(scope="module")
def hops(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Sshd]]:
    """Two jump hosts on addresses of their own."""
    with (
        running(tmp_path_factory.mktemp("hop1"), address="127.0.0.2") as first,
        running(tmp_path_factory.mktemp("hop2"), address="127.0.0.3") as second,
    ):
        yield [first, second]


def behind(host: Host, *hops: Host) -> Host:
    return replace(host, jump=hops)


def test_two_hops(server: Sshd, hops: list[Sshd]) -> None:
    first, second = host_of(hops[0], "hop1"), host_of(hops[1], "hop2")
    host = behind(host_of(server), first, second)
    out = say(host, command="echo $SSH_CLIENT")
    assert out.split()[0] == b"127.0.0.1"
    assert "127.0.0.3" in hops[1].log


def test_many_hosts_share_the_way(server: Sshd, hops: list[Sshd]) -> None:
    hop = host_of(hops[0], "hop1")
    settings = ConnectSettings(config_files=())
    before = hops[0].log.count("Accepted publickey")

    async def one(name: str) -> None:
        connection = await connect(behind(host_of(server, name), hop), settings)
        channel = await connection.start("true")
        assert await channel.wait() == Exit(0)
        await connection.close()

    async def run() -> None:
        await asyncio.gather(*(one(f"b{n}") for n in range(12)))

    asyncio.run(run())
    assert hops[0].log.count("Accepted publickey") - before <= 2


def test_a_dead_hop_is_named_within_the_connect_timeout(
    server: Sshd, hops: list[Sshd], listener: socket.socket
) -> None:
    first = host_of(hops[0], "hop1")
    mute = replace(at(listener, 1.0), name="hop2")
    error = refused(behind(host_of(server), first, mute))
    assert error.code == "gateway_unreachable"
    assert "hop2" in error.message
    assert "hop1" not in error.message
    with sshd.closed_port("127.0.0.2") as port:
        gone = replace(first, name="hop1", port=port)
        error = refused(behind(host_of(server), gone, host_of(hops[1], "hop2")))
    assert error.code == "gateway_unreachable"
    assert "hop1" in error.message


def test_an_untrusted_hop_keeps_its_own_code(server: Sshd, hops: list[Sshd]) -> None:
    hop = replace(host_of(hops[0], "hop1"), known_hosts="/dev/null")
    error = refused(behind(host_of(server), hop))
    assert error.code == "hostkey_unknown"
    assert "hop1" in error.message


def test_a_target_that_the_hop_cannot_reach(server: Sshd, hops: list[Sshd]) -> None:
    with sshd.closed_port("127.0.0.1") as port:
        host = replace(host_of(server), port=port)
        error = refused(behind(host, host_of(hops[0], "hop1")))
    assert error.code == "connect_refused"
    assert "hop1" in error.message


def test_a_hop_that_forbids_forwarding(server: Sshd, tmp_path: Path) -> None:
    with running(tmp_path, address="127.0.0.4", extra="AllowTcpForwarding no") as hop:
        error = refused(behind(host_of(server), host_of(hop, "hop1")))
        assert error.code == "gateway_unreachable"
        assert "hop1" in error.message


# ~/.ssh/config.


def test_ssh_config_fills_in_what_the_inventory_leaves_open(
    server: Sshd, hops: list[Sshd], tmp_path: Path
) -> None:
    hop = hops[0]
    trusted = tmp_path / "trusted"
    trusted.write_text(server.known_hosts.read_text() + hop.known_hosts.read_text())
    authorized = hop.directory / "authorized_keys"
    authorized.write_text(authorized.read_text() + (server.directory / "id.pub").read_text())
    config = tmp_path / "config"
    config.write_text(
        f"Host *\n  UserKnownHostsFile {trusted}\n  User {sshd.USER}\n"
        f"  IdentityFile {server.key}\n  ForwardAgent yes\n  StrictHostKeyChecking no\n"
        f"Host target\n  HostName 127.0.0.1\n  Port {server.port}\n  ProxyJump way\n"
        f"Host way\n  HostName {hop.address}\n  Port {hop.port}\n"
    )
    settings = ConnectSettings(config_files=(str(config),))
    before = hop.log.count("Accepted publickey")
    assert say(Host("target", "target"), settings) == b"hello\n"
    assert hop.log.count("Accepted publickey") == before + 1
    trusted.write_text(hop.known_hosts.read_text())
    settings = ConnectSettings(config_files=(str(config),))
    assert refused(Host("target", "target"), settings).code == "hostkey_unknown"


def test_a_broken_ssh_config_is_named(server: Sshd, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("Port many\n")
    settings = ConnectSettings(config_files=(str(config),))
    with pytest.raises(errors.InventoryInvalid, match="config"):
        say(host_of(server), settings)
