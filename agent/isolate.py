"""Work that may hang or die, in a child of its own: one item after another, with a timeout.

A dead file server leaves whoever asks it in the kernel for ever; a file that shrinks while
it is mapped ends the reader with SIGBUS. The child is named after the file system it works
on (``fleetmem@MAJOR:MINOR``), so that a later run can tell which ones to leave alone.
"""

from __future__ import annotations

import marshal
import os
import select
import time
from _signal import SIG_DFL, SIGBUS, SIGTERM, signal

from fleetmem.agent import lifeline

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Iterator, List, Optional, Sequence, Set, Tuple

    Work = Callable[[Any], Iterator[Any]]
    Answer = Tuple[int, Any, Optional[str]]

NAME = "fleetmem@"
STOPPED = "the time for the scan was over"
SHRANK = "it shrank while it was read"
SILENT = "its file system does not answer"
LOOKS = 4
_END = "end"


def stuck() -> Set[str]:
    """File systems (MAJOR:MINOR) in which a child of an earlier run still waits.

    Only one that was killed and does not end: a child of a run that goes on beside this one
    has no signal waiting for it, and one that is about to end does not stay.
    """
    left = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    for look in range(LOOKS):
        left = [pid for pid in left if lifeline.comm(pid).startswith(NAME) and _outlives_kill(pid)]
        if not left or look == LOOKS - 1:
            break
        time.sleep(0.05)
    titles = map(lifeline.comm, left)
    return {title[len(NAME) :] for title in titles if title.startswith(NAME)}


def _outlives_kill(pid: int) -> bool:
    """Whether a SIGKILL waits for a process that is inside the kernel."""
    try:
        with open("/proc/%d/status" % pid, "rb") as file:
            lines = file.read().splitlines()
    except OSError:
        return False
    fields = dict(line.split(b":\t", 1) for line in lines if b":\t" in line)
    if not fields.get(b"State", b"").startswith(b"D"):
        return False
    waiting = int(fields.get(b"SigPnd", b"0"), 16) | int(fields.get(b"ShdPnd", b"0"), 16)
    return bool(waiting & 1 << (lifeline.SIGKILL - 1))


def run(
    items: Sequence[Any],
    work: Work,
    key: Callable[[Any], str],
    item_seconds: float,
    deadline: float,
    silent: Set[str],
) -> Iterator[Answer]:
    """(index, value, problem) for whatever *work* yields for each item, in order.

    *work* yields marshallable values, ``None`` as a sign of life. An item without a sign for
    *item_seconds* is given up (SILENT), with all later ones of the same *key*, which is added
    to *silent*. Past *deadline* (monotonic) the rest ends with one STOPPED.
    """
    left = [at for at in range(len(items)) if key(items[at]) not in silent]
    for at in sorted(set(range(len(items))).difference(left)):
        yield at, None, SILENT
    while left:
        child = _Child(items, left, work, key)
        problem: Optional[str] = None
        try:
            for at, value in child.answers(item_seconds, deadline):
                if value == _END:
                    left.pop(0)
                else:
                    yield at, value, None
        finally:
            problem = child.end()
        if not left:
            return
        if time.monotonic() >= deadline:
            yield left[0], None, STOPPED
            return
        lost = left.pop(0)
        yield lost, None, problem
        if problem == SILENT:
            dead = key(items[lost])
            silent.add(dead)
            for at in [at for at in left if key(items[at]) == dead]:
                left.remove(at)
                yield at, None, SILENT


class _Child:
    def __init__(
        self, items: Sequence[Any], left: List[int], work: Work, key: Callable[[Any], str]
    ) -> None:
        self.late = False
        self.output, writer = os.pipe()
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.output)
            try:
                lifeline.die_with_parent(parent, lifeline.SIGKILL)
                signal(SIGTERM, SIG_DFL)
                signal(SIGBUS, SIG_DFL)
                _work(writer, items, left, work, key)
                os._exit(0)
            except BaseException:  # noqa: BLE001  nothing of the parent may run on in a child
                os._exit(70)
        os.close(writer)

    def answers(self, item_seconds: float, deadline: float) -> Iterator[Tuple[int, Any]]:
        """What the child says, until it ends or is late."""
        poll = select.poll()
        poll.register(self.output, select.POLLIN)
        buffer = bytearray()
        while True:
            pause = min(item_seconds, deadline - time.monotonic())
            if not poll.poll(max(0.0, pause) * 1000):
                self.late = True
                return
            data = os.read(self.output, 1 << 16)
            if not data:
                return
            buffer += data
            while len(buffer) >= 4:
                size = 4 + int.from_bytes(buffer[:4], "little")
                if len(buffer) < size:
                    break
                if size > 4:
                    yield marshal.loads(buffer[4:size])
                del buffer[:size]

    def end(self) -> str:
        """End the child if it has not ended; why it gave no more answers."""
        os.close(self.output)
        try:
            os.kill(self.pid, lifeline.SIGKILL if self.late else 0)
            for wait in (0.0, 0.001, 0.01, 0.05, 0.2, 0.5):
                time.sleep(wait)
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    break
                os.kill(self.pid, lifeline.SIGKILL)
            else:
                return SILENT  # the kernel cannot end it: the guard names it
        except OSError:
            return "the scan's process was lost"
        if self.late:
            return SILENT
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == SIGBUS:
            return SHRANK
        how = "signal %d" % os.WTERMSIG(status) if os.WIFSIGNALED(status) else ""
        return "the scan's process ended with " + (how or "status %d" % os.WEXITSTATUS(status))


def _work(
    output: int, items: Sequence[Any], left: List[int], work: Work, key: Callable[[Any], str]
) -> None:
    named = ""
    for at in left:
        where = key(items[at])
        if where != named:
            lifeline.name_process(NAME + where)
            named = where
        for value in work(items[at]):
            _say(output, b"" if value is None else marshal.dumps((at, value)))
        _say(output, marshal.dumps((at, _END)))


def _say(output: int, data: bytes) -> None:
    view = memoryview(len(data).to_bytes(4, "little") + data)
    while view:
        view = view[os.write(output, view) :]
