"""Sockets of a network namespace, with ss as nobody's oracle: the kernel is asked directly."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from fleetmem.agent import sysroot
from fleetmem.agent.probes.sockets import Sockets


def inode(end: socket.socket) -> int:
    return os.fstat(end.fileno()).st_ino


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_SEQPACKET])
def test_a_pair_knows_its_other_end_and_when_it_is_closed(kind: socket.SocketKind) -> None:
    one, other = socket.socketpair(socket.AF_UNIX, kind)
    number = inode(other)
    seen = Sockets(os.getpid(), True)
    assert seen.unix_peers_known
    assert seen.unix[inode(one)].peer == number
    assert seen.unix[inode(one)].closed is False
    other.close()
    seen = Sockets(os.getpid(), True)
    assert seen.unix[inode(one)].peer == 0
    assert seen.unix[inode(one)].closed is True
    one.close()


def test_a_connection_that_waits_to_be_accepted_is_not_closed() -> None:
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind(b"\0fleetmem-sockets-%d" % os.getpid())
        server.listen()
        client.connect(server.getsockname())
        seen = Sockets(os.getpid(), True)
        assert seen.unix[inode(server)].listens
        assert seen.unix[inode(client)].peer == 0
        assert seen.unix[inode(client)].closed is False
        accepted, _ = server.accept()
        accepted.close()
        assert Sockets(os.getpid(), True).unix[inode(client)].closed is True


def test_connections_to_services_of_the_system_are_told_apart(tmp_path: Path) -> None:
    assert _of_system(b"\0fleetmem-sockets-x-%d" % os.getpid()) is False
    if os.access("/run", os.W_OK):
        place = Path(f"/run/fleetmem-test-{os.getpid()}")
        try:
            assert _of_system(str(place).encode()) is True
        finally:
            place.unlink()
    assert _of_system(str(tmp_path / "s").encode()) is False


def _of_system(name: bytes) -> bool:
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind(name)
        server.listen()
        client.connect(name)
        accepted, _ = server.accept()
        with accepted:
            seen = Sockets(os.getpid(), True)
            answers = {seen.of_system(inode(client)), seen.of_system(inode(accepted))}
    assert len(answers) == 1
    return answers.pop()


@pytest.mark.parametrize(
    ("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]
)
def test_tcp_listeners_and_both_ends_of_a_connection(
    family: socket.AddressFamily, address: str
) -> None:
    with socket.socket(family) as server:
        try:
            server.bind((address, 0))
        except OSError:
            assert family == socket.AF_INET6, "this machine has no loopback"
            return
        server.listen()
        with socket.create_connection(server.getsockname()[:2]) as client:
            accepted, _ = server.accept()
            with accepted:
                seen = Sockets(os.getpid(), True)
                assert seen.listening_ports[inode(server)] == server.getsockname()[1]
                assert seen.tcp_peer(inode(client)) == inode(accepted)
                assert seen.tcp_peer(inode(accepted)) == inode(client)
                assert seen.tcp_peer(inode(server)) == 0


def test_without_sock_diag_listeners_are_still_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fleetmem.agent.probes.sockets as module

    def refuse() -> None:
        raise OSError(93, "no such protocol")

    monkeypatch.setattr(module, "_channel", refuse)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(b"\0fleetmem-sockets-y-%d" % os.getpid())
        server.listen()
        one, other = socket.socketpair()
        with one, other:
            seen = Sockets(os.getpid(), True)
            assert not seen.unix_peers_known
            assert seen.unix[inode(server)].listens
            assert not seen.unix[inode(one)].listens


def test_torn_tables_are_read_as_far_as_they_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = tmp_path / "proc/5/net"
    net.mkdir(parents=True)
    (net / "tcp").write_text(
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout"
        " inode\n"
        "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0"
        " 111 1 0 100 0 0 10 0\n"
        "   1: 0100007F:1F\n"
    )
    monkeypatch.setattr(sysroot, "ROOT", str(tmp_path))
    seen = Sockets(5, True)
    assert seen.listening_ports == {111: 8080}
