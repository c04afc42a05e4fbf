"""Whether the one that started a process still lives, or an init merely adopted it (pure)."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Optional, Sequence

    from fleetmem.agent.kernel.tasks import Stat

REAPERS = frozenset(
    (
        "systemd",
        "init",
        "tini",
        "tini-static",
        "dumb-init",
        "catatonit",
        "docker-init",
        "podman-init",
        "conmon",
        "conmonrs",
        "runsvdir",
        "s6-svscan",
        "my_init",
        "openrc-init",
        "procd",
    )
)
"""Names of processes that adopt orphans; comm holds 15 characters."""

SHIMS = ("containerd-shim", "conmon")
"""Subreapers that start a container's first process, and adopt what it leaves."""

AGENT = "fleetmem-"


def adopts(parent: Stat, parent_nspids: Sequence[int]) -> bool:
    """Whether a process is an init or reaper, which gets children that it did not start."""
    return (
        parent.pid == 1
        or (len(parent_nspids) > 0 and parent_nspids[-1] == 1)
        or parent.comm in REAPERS
        or parent.comm.startswith((*SHIMS, AGENT))
    )


def launcher_alive(
    child: Stat,
    parent: Optional[Stat],
    *,
    parent_alive: bool,
    parent_nspids: Sequence[int],
    child_nspids: Sequence[int],
    starts_units: Callable[[], Optional[bool]],
) -> bool:
    """Whether the process that started *child* still lives.

    *parent* is ``None`` where it is outside this pid namespace (then nothing is known, and
    the launcher counts as alive) or has just gone. *starts_units* tells whether an init that
    is the parent started this very process as a unit's main process, ``None`` if unknown.
    """
    if child.pid == 1 or (child.ppid == 0 and parent is None):
        return True
    if parent is None or not parent_alive or parent.start_time > child.start_time:
        return False
    if not adopts(parent, parent_nspids):
        return True
    together = child.pgid == parent.pgid and child.pgid != 0
    if together or (child.sid == parent.sid and child.sid != 0):
        return True
    if parent.comm.startswith(SHIMS):
        # A shim starts the first process of a container, and those of an exec into one,
        # in the container's pid namespace; orphans there go to that namespace's init.
        return len(child_nspids) > len(parent_nspids)
    if parent.comm == "systemd":
        started = starts_units()
        # Unknown: a service's main process leads a session of its own.
        return child.pid == child.sid if started is None else started
    return False
