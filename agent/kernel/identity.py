"""The identity of a process: its number and the moment it started, read from the kernel."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional, Tuple

_PIDFD_OPEN, _PIDFD_SEND_SIGNAL = 434, 424  # the same numbers on every architecture


def stat(pid: int, task: Optional[int] = None) -> Optional[Tuple[str, ...]]:
    """Fields 3… of /proc/PID/stat (proc(5)), state first; None where it is gone."""
    path = "/proc/%d/stat" % pid if task is None else "/proc/%d/task/%d/stat" % (pid, task)
    try:
        with open(path, "rb") as file:
            return tuple(file.read().rpartition(b")")[2].decode().split())
    except (OSError, ValueError):
        return None


def comm(pid: int) -> Optional[str]:
    """The name that the kernel has for the process now; None where it is gone."""
    try:
        with open("/proc/%d/comm" % pid, "rb") as file:
            return file.read().rstrip(b"\n").decode("utf-8", "replace")
    except OSError:
        return None


def start_time(pid: int) -> Optional[int]:
    """Field 22 of /proc/PID/stat: clock ticks since boot; None where there is no such pid."""
    fields = stat(pid)
    return int(fields[19]) if fields and len(fields) > 19 else None


def alive(pid: int) -> bool:
    """True while any task of the process is neither a zombie nor dead."""
    try:
        tasks = os.listdir("/proc/%d/task" % pid)
    except OSError:
        return False
    for task in tasks:
        fields = stat(pid, int(task))
        if fields and fields[0] not in ("Z", "X", "x"):
            return True
    return False


def open_pidfd(pid: int) -> int:
    """A descriptor that stays with this very process (pidfd_open(2), Linux 5.3)."""
    from fleetmem.agent.kernel import clib

    number = int(clib.function("syscall")(_PIDFD_OPEN, pid, 0))
    if number < 0:
        code = clib.get_errno()
        raise OSError(code, os.strerror(code))
    return number


def send_signal(pidfd: int, number: int) -> None:
    """Send through the descriptor (pidfd_send_signal(2), Linux 5.1)."""
    from fleetmem.agent.kernel import clib

    if int(clib.function("syscall")(_PIDFD_SEND_SIGNAL, pidfd, number, None, 0)) < 0:
        code = clib.get_errno()
        raise OSError(code, os.strerror(code))
