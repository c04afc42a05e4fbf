"""Sockets that serve nobody outside: the one of CUDA itself, and those of NCCL's ranks."""

from __future__ import annotations

import socket
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from fleetmem.agent.model import Trouble
from fleetmem.agent.probes import processes
from tests.unit.agent.probe_actors import actor, state_of, until

# A stand-in for an init; two ranks without a launcher, the second connected to the first.
RANKS = """
import socket
rename("tini")
libc.prctl(36, 1, 0, 0, 0)                       # PR_SET_CHILD_SUBREAPER
server = socket.socket(); BIND(server); server.listen()
idle = socket.socket(); idle.bind(("127.0.0.1", 0)); idle.listen()
client = socket.create_connection(server.getsockname())
accepted, _ = server.accept()
def rank(number, *kept):
    back, told = os.pipe()
    launcher = os.fork()
    if launcher == 0:
        os.setsid()
        if os.fork() == 0:
            os.setsid()
            mark = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            if MARKED:
                mark.bind(b"\\0tmp/nccl-socket-%d-%d" % (number, os.getpid()))
            keep = {told, *(one.fileno() for one in (mark, *kept))}
            while os.getppid() != top:
                time.sleep(0.01)
            for fd in map(int, os.listdir("/proc/self/fd")):
                if fd > 2 and fd not in keep:
                    try:
                        os.close(fd)
                    except OSError:
                        pass
            os.write(told, b"%d" % os.getpid())
            os.close(told)                       # the end of all: nothing is to be closed any more
            rest()
        os._exit(0)
    os.waitpid(launcher, 0)
    os.close(told)
    with os.fdopen(back) as file:
        return int(file.read())
top = os.getpid()
pids = [rank(0, server, accepted, idle), rank(1, client)]
port = server.getsockname()[1]
for one in (server, idle, client, accepted):
    one.close()
say(*pids, "p%d" % port); rest()
"""

# A port that the kernel would not choose by itself; bound at once, so it is nobody else's.
LOW = """
import random, socket
def low(server):
    for port in random.sample(range(21000, 32000), 1000):
        try:
            return server.bind(("127.0.0.1", port))
        except OSError:
            pass
    raise SystemExit("no port is free")
def chosen(server):
    server.bind(("127.0.0.1", 0))
"""


def rows_of(*pids: int) -> dict[int, dict[str, Any]]:
    try:
        reading: Any = processes.processes_identity(pids=list(pids))
    except Trouble as trouble:  # others of this machine may be unreadable
        reading = trouble.reading
    return {row["pid"]: dict(row) for row in reading["processes"]}


@contextmanager
def ranks(bind: str, *, marked: bool = True) -> Iterator[tuple[list[int], int]]:
    """(pids of the ranks, port of the first), *bind* is ``low`` or ``chosen``."""
    script = LOW + RANKS.replace("BIND", bind).replace("MARKED", str(marked))
    with actor(script) as one:
        *pids, port = one.words
        yield [int(word) for word in pids], int(port[1:])


@pytest.mark.parametrize(
    ("name", "counts"),
    [("cuda-uvmfd-4026531836-%d", False), ("other-4026531836-%d", True)],
)
def test_the_socket_that_every_cuda_process_has_is_no_server(name: str, counts: bool) -> None:
    script = f"""
    import socket
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    s.bind(b"\\0{name}" % os.getpid()); s.listen()
    say("ready"); rest()
    """
    with actor(script) as one:
        assert rows_of(one.pid)[one.pid]["listening"] is counts


@pytest.mark.parametrize("bind", ["chosen", "low"])
def test_ranks_without_launchers_serve_only_each_other(bind: str) -> None:
    with ranks(bind) as (pids, _):
        rows = rows_of(*pids)
    for pid in pids:
        assert rows[pid]["launcher_alive"] is False
        assert rows[pid]["listening"] is False
        assert rows[pid]["listening_ports"] == []
        assert rows[pid]["live_peers"] == []


def test_the_same_without_the_marks_of_ranks_is_a_server_and_its_client() -> None:
    with ranks("chosen", marked=False) as (pids, _):
        rows = rows_of(*pids)
    assert rows[pids[0]]["listening"] is True
    assert rows[pids[0]]["live_peers"] == [pids[1]]
    assert rows[pids[1]]["live_peers"] == [pids[0]]


def test_a_rank_that_nobody_has_connected_to_serves_on_a_port_it_chose() -> None:
    script = """
    import socket
    mark = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    mark.bind(b"\\0tmp/nccl-socket-0-%d" % os.getpid())
    s = socket.socket(); low(s); s.listen()
    say("p%d" % s.getsockname()[1]); rest()
    """
    with actor(LOW + textwrap.dedent(script)) as one:
        assert rows_of(one.pid)[one.pid]["listening_ports"] == [int(one.words[0][1:])]


def test_an_outsider_at_a_ranks_port_makes_it_a_server() -> None:
    with ranks("low") as (pids, port), socket.create_connection(("127.0.0.1", port)):
        rows = rows_of(*pids)
    assert rows[pids[0]]["listening_ports"] == [port]


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_a_client_of_a_server_for_both_kinds_of_addresses_is_a_peer(
    family: socket.AddressFamily,
) -> None:
    server = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    address = {socket.AF_INET: "127.0.0.1", socket.AF_INET6: "::1"}[family]
    with server, socket.create_connection((address, server.getsockname()[1])) as client:
        accepted, _ = server.accept()
        script = f"import socket; s = socket.socket(fileno={client.fileno()}); say('ready'); rest()"
        with accepted, actor(script, pass_fds=(client.fileno(),)) as one:
            client.close()
            assert len(rows_of(one.pid)[one.pid]["live_peers"]) == 1


def test_a_server_whose_main_thread_has_ended_still_listens() -> None:
    script = """
    import socket
    s = socket.socket(); s.bind(("127.0.0.1", 0)); s.listen()
    threading.Thread(target=rest).start()
    say("port", "p%d" % s.getsockname()[1])
    libc.syscall(EXIT, 0)
    """
    with actor(script) as one:
        until(lambda: state_of(one.pid) == "Z")
        row = rows_of(one.pid)[one.pid]
    assert row["listening_ports"] == [int(one.words[1][1:])]
