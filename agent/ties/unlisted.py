"""Sockets that stand in no table that was read: what the kernel says of the socket itself."""

from __future__ import annotations

import os

from fleetmem.agent.kernel import sysroot

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

    from fleetmem.agent.ties.walk import Walk

PIDFD_GETFD, ENOTCONN = 438, 107
"""The call has the same number on every architecture (Linux 5.6)."""


def protocol(walk: Walk, pid: int, link: str) -> Optional[str]:
    """The kernel's name of a socket's protocol; ``""``: it is gone, ``None``: not told."""
    for other, tid, number in walk.held.get(link, ()):
        if other != pid:
            continue
        name = "/proc/%d/task/%d/fd/%d" % (pid, tid, number)
        try:
            if sysroot.link(name) != link:
                return ""
            told = os.getxattr(sysroot.path(name), "system.sockprotoname")
            return told.rstrip(b"\0").decode("ascii", "replace")
        except FileNotFoundError:
            return ""
        except OSError:
            return None
    return ""


def unconnected(pid: int, number: int) -> bool:
    """Whether a socket of *pid* is certainly not connected: asked of a copy of it, as root."""
    import _socket

    from fleetmem.agent.kernel import clib, identity

    try:
        process = identity.open_pidfd(pid)
    except OSError:
        return False
    try:
        own = int(clib.function("syscall")(PIDFD_GETFD, process, number, 0))
    finally:
        os.close(process)
    if own < 0:
        return False
    try:
        copy = _socket.socket(fileno=own)
    except OSError:
        os.close(own)
        return False
    try:
        copy.getpeername()
    except OSError as error:
        return error.errno == ENOTCONN
    finally:
        copy.close()
    return False
