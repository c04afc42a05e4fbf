"""A table that cannot be read makes "does it listen" unknown, never no."""

from __future__ import annotations

import os
import socket
from typing import Any

import pytest

from fleetmem.agent import sysroot
from fleetmem.agent.probes import processes
from fleetmem.agent.probes.sockets import Sockets


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
