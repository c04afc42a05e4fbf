"""What the kernel does with a signal: whether TERM can work, and whether one was ever sent.

``/proc/PID/status`` shows what is pending, blocked, ignored and caught (proc(5)); a blocked
signal may still be taken, by a thread in sigwaitinfo(2) or through a signalfd(2).
"""

from __future__ import annotations

import os
import time

from fleetmem.agent.kernel import identity

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Optional

NUMBERS = {"TERM": 15, "KILL": 9}
EXITING = 0x4  # PF_EXITING
ENDED = "ZXx"
_AGAIN_SECONDS = 0.05
"""A signal is often blocked for a moment only: that is looked at twice."""


class Masks:
    """The signals of one task as bits, and where it stands."""

    __slots__ = ("blocked", "caught", "ignored", "nspids", "pending", "shared", "state")

    def __init__(self, text: bytes) -> None:
        fields = {}
        for line in text.split(b"\n"):
            name, _, value = line.partition(b":")
            fields[name] = value.split()
        self.pending = int(fields[b"SigPnd"][0], 16)
        self.shared = int(fields[b"ShdPnd"][0], 16)
        self.blocked = int(fields[b"SigBlk"][0], 16)
        self.ignored = int(fields[b"SigIgn"][0], 16)
        self.caught = int(fields[b"SigCgt"][0], 16)
        self.state = fields[b"State"][0].decode()
        self.nspids = [int(number) for number in fields.get(b"NSpid", [])]


def _tasks(pid: int) -> Optional[List[Masks]]:
    """Every task that has not ended, None where one could not be read."""
    found = []
    try:
        for task in os.listdir("/proc/%d/task" % pid):
            try:
                with open("/proc/%d/task/%s/status" % (pid, task), "rb") as file:
                    masks = Masks(file.read())
            except (FileNotFoundError, ProcessLookupError):
                continue
            if masks.state not in ENDED:
                found.append(masks)
    except (OSError, KeyError, IndexError, ValueError):
        return None
    return found


def _leader(pid: int) -> Optional[Masks]:
    try:
        with open("/proc/%d/status" % pid, "rb") as file:
            return Masks(file.read())
    except (OSError, KeyError, IndexError, ValueError):
        return None


def deaf(pid: int, signal: str = "TERM") -> Optional[str]:
    """Why *signal* cannot end a process as it is now: ``stopped``, ``ignored``, ``blocked``, or
    ``init`` of a pid namespace without a handler; None where it can, or nobody can say."""
    reason = _deaf(pid, signal)
    if reason != "blocked":
        return reason
    time.sleep(_AGAIN_SECONDS)
    return reason if _deaf(pid, signal) == reason else None


def _deaf(pid: int, signal: str) -> Optional[str]:
    bit = 1 << (NUMBERS[signal] - 1)
    leader, tasks = _leader(pid), _tasks(pid)
    if leader is None or not tasks:
        return None
    if all(task.state == "T" for task in tasks):
        return "stopped"
    if not leader.blocked & bit:  # what the leader blocks is kept, whatever its disposition
        if leader.ignored & bit:
            return "ignored"
        if leader.nspids[1:] and leader.nspids[-1] == 1 and not leader.caught & bit:
            return "init"
    if all(task.blocked & bit for task in tasks) and _taken(pid, bit) is False:
        return "blocked"
    return None


def _taken(pid: int, bit: int) -> Optional[bool]:
    """Whether somebody in the process waits for the signals of *bit* that it blocks."""
    try:
        for name in os.listdir("/proc/%d/fd" % pid):
            try:
                if "signalfd" not in os.readlink("/proc/%d/fd/%s" % (pid, name)):
                    continue
                with open("/proc/%d/fdinfo/%s" % (pid, name), "rb") as file:
                    for line in file:
                        if line.startswith(b"sigmask:") and int(line.split()[1], 16) & bit:
                            return True
            except (FileNotFoundError, ProcessLookupError):
                continue
        for task in os.listdir("/proc/%d/task" % pid):
            try:
                with open("/proc/%d/task/%s/wchan" % (pid, task), "rb") as file:
                    where = file.read()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if b"sigtimedwait" in where:
                return True
            fields = identity.stat(pid, int(task))
            if where in (b"", b"0") and fields and fields[0] in "SD":
                return None  # this kernel does not say what it waits for
    except (OSError, ValueError):
        return None
    return False


def outcome(pid: int, start_time: int, signal: str) -> Optional[str]:
    """What became of a signal that somebody meant to send: ``gone``, ``sent`` (it is pending),
    ``not_sent``; None where the kernel does not show it."""
    bit = 1 << (NUMBERS.get(signal, 1) - 1)
    if identity.start_time(pid) != start_time or not identity.alive(pid):
        return "gone"
    leader, tasks = _leader(pid), _tasks(pid)
    if leader is None or not tasks or signal not in NUMBERS:
        return None
    if any((task.pending | task.shared) & bit for task in tasks):
        return "sent"
    if signal == "KILL":
        return None if _exits(pid) else "not_sent"
    works = not leader.blocked & bit and not (leader.ignored | leader.caught) & bit
    plain = len(leader.nspids) <= 1 or leader.nspids[-1] != 1
    if works and plain and not _exits(pid):
        return "not_sent"  # it would have ended
    return None


def _exits(pid: int) -> bool:
    """Whether a task of the process is on its way out."""
    try:
        names = os.listdir("/proc/%d/task" % pid)
    except OSError:
        return True
    rows = [identity.stat(pid, int(name)) for name in names]
    return any(row is None or int(row[6]) & EXITING for row in rows)
