"""host.facts, and host.operations through the ledger."""

from __future__ import annotations

import os
import platform
import socket
from pathlib import Path

import psutil
import pytest

from fleetmem.agent import ledger
from fleetmem.agent.kernel import tasks
from fleetmem.agent.probes import host


def test_facts_agree_with_independent_sources() -> None:
    reading = host.host_facts()
    assert reading["hostname"] == socket.gethostname()
    assert reading["boot_id"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert reading["kernel"] == platform.release()
    assert reading["machine"] == platform.machine()
    assert reading["python"] == platform.python_version()
    assert reading["total_bytes"] == psutil.virtual_memory().total
    assert reading["pid"] == os.getpid()
    assert reading["uid"] == os.geteuid()
    assert reading["user"] == psutil.Process().username()
    assert reading["clock_ticks"] == os.sysconf("SC_CLK_TCK")
    assert reading["page_size_bytes"] == os.sysconf("SC_PAGE_SIZE")
    assert (reading["state_dir"], reading["state_dir_reason"]) == ledger.state_dir()
    inside = os.readlink("/proc/self/ns/pid")
    assert inside == f"pid:[{reading['pid_namespace']}]"
    assert reading["init_pid_namespace"] is (reading["pid_namespace"] == 4026531836)
    assert reading["systemd"] is Path("/run/systemd/system").exists()


def test_the_agent_is_this_process_and_its_ancestors() -> None:
    line = [os.getpid()] + [parent.pid for parent in psutil.Process().parents()]
    assert host.host_facts()["agent_pids"] == line


def test_the_other_children_of_the_agent_belong_to_it() -> None:
    def stat(pid: int, comm: str, ppid: int) -> tasks.Stat:
        line = f"{pid} ({comm}) S {ppid} 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 7 0 0"
        return tasks.Stat(line.encode())

    me = os.getpid()
    rows = [
        stat(me, "fleetmem-call", 30),
        stat(30, "fleetmem-serve", 20),
        stat(20, "fleetmem-guard", 10),
        stat(10, "sshd", 1),
        stat(1, "systemd", 0),
        stat(31, "fleetmem-nvml", 30),
        stat(32, "systemctl", 31),
        stat(11, "bash", 10),
        stat(12, "fleetmem-nvml", 11),
    ]

    class Known(tasks.Table):
        def get(self, pid: int) -> tasks.Stat | None:
            return next((row for row in rows if row.pid == pid), None)

        def everyone(self) -> list[tasks.Stat]:
            return rows

    assert tasks.agent_pids(Known()) == [me, 30, 20, 10, 1, 31, 32]


def test_operations_are_the_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"epoch": 3, "locked_by": None, "signals": []}
    monkeypatch.setattr(ledger, "operations", lambda: told)
    assert host.host_operations() == told
