"""A table that cannot be read makes "does it listen" unknown, never no."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from fleetmem.agent.kernel import sysroot
from fleetmem.agent.kernel.sockets import Sockets
from fleetmem.agent.probes import processes


def refuse(monkeypatch: pytest.MonkeyPatch, ending: str) -> None:
    """Reads of that file fail from now on, as they do for a main thread that has just ended."""
    read = sysroot.read

    def refusing(name: str, *more: Any) -> bytes:
        if name.endswith(ending):
            raise OSError(22, "Invalid argument")
        return read(name, *more)

    monkeypatch.setattr(sysroot, "read", refusing)


def test_all_tables_of_this_process_are_read() -> None:
    assert Sockets(str(os.getpid()), True).complete


@pytest.mark.parametrize("ending", ["/net/tcp", "/net/tcp6"])
def test_an_unreadable_table_is_not_complete(monkeypatch: pytest.MonkeyPatch, ending: str) -> None:
    refuse(monkeypatch, ending)
    assert not Sockets(str(os.getpid()), True).complete


def test_listening_is_unknown_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a socket that may be a listener, and without the table that says so."""
    me = os.getpid()
    with socket.create_server(("127.0.0.1", 0)) as server:
        (row,) = processes.processes_identity(pids=[me])["processes"]
        assert server.getsockname()[1] in row["listening_ports"]
        assert row["listening"] is True
        refuse(monkeypatch, "/net/tcp")
        (row,) = processes.processes_identity(pids=[me])["processes"]
        assert row["listening"] is None


TABLE = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 0100007F:A001 01 00000000:00000000 00:00000000 00000000     0        0 71 1 0
   1: 0100007F:A001 0100007F:1F90 01 00000000:00000000 00:00000000 00000000     0        0 72 1 0
   2: 0100007F:1F90 0100007F:A002 01 00000000:00000000 00:00000000 00000000     0        0 0 1 0
   3: 0100007F:A002 0100007F:1F90 01 00000000:00000000 00:00000000 00000000     0        0 73 1 0
   4: 0100007F:1F91 0100007F:A003 01 00000000:00000000 00:00000000 00000000     0        0 0 1 0
   5: 0100007F:A003 0100007F:1F91 01 00000000:00000000 00:00000000 00000000     0        0 74 1 0
   6: 0100007F:1F90 0A00000A:A004 01 00000000:00000000 00:00000000 00000000     0        0 0 1 0
"""


def test_who_was_not_accepted_yet_is_connected_all_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Such connections have no inode: several of them are still several."""
    net = tmp_path / "proc/7/net"
    net.mkdir(parents=True)
    (net / "tcp").write_text(TABLE)
    monkeypatch.setattr(sysroot, "ROOT", str(tmp_path))
    seen = Sockets("7", True)
    assert sorted(seen.connected_to(0x1F90)) == [0, 72, 73]
    assert seen.connected_to(0x1F91) == [74]
    assert (seen.tcp_peer(71), seen.tcp_peer(73)) == (72, 0)
