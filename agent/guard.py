"""The guard: forks serve, outlives it, and leaves nothing behind.

What a login's start-up files or a wrapper left running before it is not its to end: where its
process has such children, the guard works in a child of its own, so that all its descendants
are the agent's.

It owns the lease. Serve writes a byte for each frame it receives; when none came for 20 s,
when stdin hangs up, when serve ends or when somebody ends the guard, every descendant is
ended, detached ones too. An action's child has 2 s to write that it is done.
"""

from __future__ import annotations

import os
import select
from _signal import SIG_DFL, SIG_IGN, SIGHUP, SIGINT, SIGPIPE, SIGTERM, alarm, signal

from fleetmem.agent import lifeline, serve  # before the fork: after it each import copies pages
from fleetmem.agent.wire import LEASE_SECONDS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional

_POLLRDHUP = 0x2000
ACTION_NAME = "fleetmem-act"


class _Stop(Exception):
    pass


def _stop(_number: int, _frame: Any) -> None:
    raise _Stop


def main(cached: bool) -> int:
    """Run serve to its end; the exit status is 0 only after an orderly goodbye."""
    if lifeline.has_children():
        status = _stand_aside()
        if status is not None:
            return status
    lifeline.become_subreaper()
    lifeline.name_process("fleetmem-guard")
    _be_small()
    me = os.getpid()
    lease_read, lease_write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(lease_read)
        lifeline.die_with_parent(me, SIGTERM)
        alarm(0)
        os._exit(serve.main(lease_write, cached))
    alarm(0)
    os.close(lease_write)
    for number in (SIGTERM, SIGHUP, SIGINT):
        signal(number, _stop)
    try:
        status = _watch(lease_read, child)
    except _Stop:
        status = 143
    _undisturbed()
    left = lifeline.end_children(lambda pid: lifeline.comm(pid) == ACTION_NAME)
    for pid, name in left.items():
        _tell("fleetmem: the kernel cannot end process %d (%s)" % (pid, name))
    return status


def _stand_aside() -> Optional[int]:
    """Fork the guard proper, where this returns ``None``; here wait for it, and do no more.

    Not a subreaper: what the children that were here before leave behind goes where it
    would have gone without an agent.
    """
    me = os.getpid()
    child = os.fork()
    if child == 0:
        lifeline.die_with_parent(me, SIGTERM)
        return None
    alarm(0)
    for number in (SIGTERM, SIGHUP, SIGINT):
        signal(number, lambda number, _frame: os.kill(child, number))
    _, status = os.waitpid(child, 0)
    return _exit_status(status)


def _exit_status(status: int) -> int:
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)


def _undisturbed() -> None:
    """From here on nobody's second signal may leave a descendant behind."""
    while True:
        try:
            for number in (SIGTERM, SIGHUP, SIGINT):
                signal(number, SIG_IGN)
            return
        except _Stop:
            continue


def _be_small() -> None:
    """Be nice, and the first for the OOM killer."""
    signal(SIGPIPE, SIG_DFL)
    try:
        os.nice(5)
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("800")
    except OSError:
        pass


def _watch(lease: int, child: int) -> int:
    poll = select.poll()
    poll.register(0, _POLLRDHUP)
    poll.register(lease, select.POLLIN)
    while True:
        events = dict(poll.poll(LEASE_SECONDS * 1000))
        if not events:
            _tell("fleetmem: no message for %d s" % LEASE_SECONDS)
            return 75
        if lease in events and not os.read(lease, 4096):
            _, status = os.waitpid(child, 0)
            return _exit_status(status)
        if events.get(0, 0) & (_POLLRDHUP | select.POLLHUP | select.POLLERR | select.POLLNVAL):
            return 0


def _tell(text: str) -> None:
    try:
        os.write(2, (text + "\n").encode())
    except OSError:
        pass
