"""``host.facts`` and ``host.operations``: what the host is, and what runs did to it."""

from __future__ import annotations

import os
import sys

from fleetmem.agent import ledger
from fleetmem.agent.declare import probe
from fleetmem.agent.kernel import sysroot, tasks
from fleetmem.agent.kernel.tasks import namespace, user_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

    from fleetmem.agent.shapes import HostFacts, HostOperations


def uptime_seconds() -> float:
    """Seconds since boot, sleep included."""
    return float(sysroot.read("/proc/uptime").split()[0])


def _total_bytes() -> Optional[int]:
    try:
        for line in sysroot.text("/proc/meminfo").splitlines():
            if line.startswith("MemTotal:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return None


@probe("host.facts")
def host_facts() -> HostFacts:
    """Boot, kernel, user, pid namespace, the agent's own processes and where its records lie."""
    kernel = os.uname()
    uid = os.geteuid()
    inside = namespace("self", "pid")
    folder, reason = ledger.state_dir()
    return {
        "hostname": kernel.nodename,
        "boot_id": sysroot.text("/proc/sys/kernel/random/boot_id").strip(),
        "kernel": kernel.release,
        "machine": kernel.machine,
        "python": "%d.%d.%d" % sys.version_info[:3],
        "page_size_bytes": os.sysconf("SC_PAGE_SIZE"),
        "clock_ticks": os.sysconf("SC_CLK_TCK"),
        "uptime_seconds": uptime_seconds(),
        "uid": uid,
        "user": user_name(uid),
        "pid": os.getpid(),
        "pid_namespace": inside,
        "init_pid_namespace": tasks.initial_pid_namespace() is True,
        "agent_pids": tasks.agent_pids(tasks.Table()),
        "systemd": sysroot.exists("/run/systemd/system"),
        "total_bytes": _total_bytes(),
        "state_dir": folder,
        "state_dir_reason": reason,
    }


@probe("host.operations")
def host_operations() -> HostOperations:
    """The host's ledger: epoch, who holds the lock, and each signal that a run intended."""
    return ledger.operations()
