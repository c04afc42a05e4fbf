"""What ties a process of the agent to its parent, and ends descendants for certain.

Everything here works by process relations, never by name: a direct child that has not
been waited for cannot have its number reused, and a child subreaper inherits whatever a
dying child leaves behind.
"""

from __future__ import annotations

import os
import time

from fleetmem.agent.kernel import clib, sysroot

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Dict, List, Optional

SIGKILL, SIGTERM = 9, 15
_PR_SET_PDEATHSIG, _PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 1, 15, 36

_prctl = clib.function("prctl")


def become_subreaper() -> None:
    """Orphaned descendants become children of this process (prctl(2), Linux 3.4)."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent(parent: int, signal: int) -> None:
    """Ask for *signal* when the parent ends; end now if *parent* has ended already."""
    _prctl(_PR_SET_PDEATHSIG, signal, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(75)


def name_process(name: str) -> None:
    """Set comm, at most 15 bytes."""
    _prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


def children() -> List[int]:
    """Pids of this process's children, zombies included."""
    me = os.getpid()
    try:
        return [int(pid) for pid in sysroot.read("/proc/self/task/%d/children" % me).split()]
    except OSError:
        return [pid for pid in _all_pids() if _parent_of(pid) == me]


def has_children() -> bool:
    """Whether this process has any child, ended ones included; none is waited for."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _all_pids() -> List[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _parent_of(pid: int) -> int:
    try:
        return int(sysroot.read("/proc/%d/stat" % pid).rpartition(b")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return -1


def comm(pid: int) -> str:
    """Name of *pid*, "" where it is gone."""
    try:
        return sysroot.read("/proc/%d/comm" % pid).strip().decode("utf-8", "replace")
    except OSError:
        return ""


def end_children(
    grace: Callable[[int], bool], grace_seconds: float = 2.0, bound_seconds: float = 5.0
) -> Dict[int, str]:
    """SIGKILL every child, and what they leave behind, until none is left.

    Children for which *grace* is true get *grace_seconds* first. Returns what is still
    there after *bound_seconds* (pid to comm): the kernel could not end it.
    """
    begin = time.monotonic()
    while True:
        if not _reap():
            return {}
        passed = time.monotonic() - begin
        left = children()
        if passed > bound_seconds:
            return {pid: comm(pid) for pid in left}
        for pid in left:
            if passed < grace_seconds and grace(pid):
                continue
            try:
                os.kill(pid, SIGKILL)
            except OSError:
                pass
        time.sleep(0.002 if passed < 0.1 else 0.02)


def _reap() -> bool:
    """Collect what has ended; False where no child is left."""
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return False
        if pid == 0:
            return True


def stuck_nvml() -> Optional[str]:
    """Why NVML must not be asked now: a child of an earlier run is still inside the kernel.

    Only one that does not leave it: a child of a run that goes on beside this one may be
    found there, too, for the moment of a disk access.
    """
    left = _inside_kernel([int(name) for name in os.listdir("/proc") if name.isdigit()])
    for _ in range(10):
        if not left:
            return None
        time.sleep(0.05)
        left = _inside_kernel(left)
    if not left:
        return None
    return "process %d of an earlier run is still stuck in the driver" % left[0]


def _inside_kernel(pids: List[int]) -> List[int]:
    """Those of *pids* that are NVML children in uninterruptible sleep."""
    found = []
    for pid in pids:
        if comm(pid) != "fleetmem-nvml":
            continue
        try:
            with open("/proc/%d/stat" % pid, "rb") as file:
                state = file.read().rpartition(b")")[2].split()[0]
        except (OSError, IndexError):
            continue
        if state == b"D":
            found.append(pid)
    return found
