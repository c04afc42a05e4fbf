"""Serve: reads frames, runs each call in a child process, sends what comes back.

Nothing that can hang runs here. NVML lives in one child of its own that keeps its session
for the whole connection; calls that name the same ``share`` have one child after another;
every other call gets a fresh child. The lock on the host is held
here and closed first in each child, so that it ends with this process and with no other.
"""

from __future__ import annotations

import os
import select
import time
from _signal import SIG_IGN, SIGPIPE, SIGTERM, signal

from fleetmem.agent import lifeline, wire
from fleetmem.agent.calls import Child, run_once, run_session
from fleetmem.agent.declare import CALLS
from fleetmem.agent.kernel import tasks  # noqa: F401  loaded once, not in each child
from fleetmem.agent.model import CODES, FAILED, OK, TIMED_OUT, UNSUPPORTED, Trouble

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Set

VERSION = "0.2.0"
_OUTPUT_LIMIT_BYTES = 64 * 1024 * 1024
_REAP_SECONDS = 1.0
_NVML = "nvml"


class _Bye(Exception):
    pass


def main(lease: int, cached: bool) -> int:
    """Serve one connection on fds 0 and 1; 0 after ``bye`` or end of input."""
    lifeline.become_subreaper()
    lifeline.name_process("fleetmem-serve")
    signal(SIGPIPE, SIG_IGN)  # a dead child or peer is an error of one write, not the end
    incoming, outgoing = _private(0), _private(1)
    null = os.open("/dev/null", os.O_RDWR)
    for number in (0, 1):
        os.dup2(null, number)
    server = _Server(incoming, outgoing, lease)
    status = 0
    try:
        signal(SIGTERM, _on_term)
        server.send(
            type="hello",
            protocol=wire.PROTOCOL,
            schema=wire.SCHEMA,
            version=VERSION,
            pid=os.getppid(),
            uid=os.geteuid(),
            cached=cached,
        )
        server.loop()
    except _Bye:
        pass
    except wire.WireError as error:
        os.write(2, ("fleetmem: the controller sent a malformed frame: %s\n" % error).encode())
        status = 65
    signal(SIGTERM, SIG_IGN)
    lifeline.end_children(lambda pid: lifeline.comm(pid) == "fleetmem-act")
    return status


def _on_term(_number: int, _frame: Any) -> None:
    raise _Bye


def _private(number: int) -> int:
    """A close-on-exec copy out of the way of 0, 1 and 2."""
    from fcntl import F_DUPFD_CLOEXEC, fcntl

    return int(fcntl(number, F_DUPFD_CLOEXEC, 10))


class _Shared:
    """Calls that share one child, one after another. NVML's are never given a second child
    after the first one hung."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.child: Optional[Child] = None
        self.queue: List[Dict[str, Any]] = []
        self.stuck: Optional[str] = None


class _Server:
    def __init__(self, incoming: int, outgoing: int, lease: int) -> None:
        self.incoming = incoming
        self.outgoing = outgoing
        self.lease = lease
        self.decoder = wire.Decoder()
        self.children: Dict[int, Child] = {}
        self.abandoned: Set[int] = set()
        self.shared: Dict[str, _Shared] = {}
        self.lock: Optional[int] = None
        self.sent_bytes = 0
        self.poll = select.poll()
        self.poll.register(incoming, select.POLLIN)
        self.next_beat = time.monotonic() + wire.BEAT_SECONDS

    # --- sending ---------------------------------------------------------------------------

    def send(self, **message: Any) -> None:
        self.send_bytes(wire.encode(message))

    def send_bytes(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self.outgoing, view) :]
        except OSError:
            raise _Bye from None

    def answer(
        self,
        call: Dict[str, Any],
        outcome: str,
        code: Optional[str],
        reason: Optional[str],
        reading: Any = None,
    ) -> None:
        seconds = time.monotonic() - call["began"]
        self.send(
            type="result",
            id=call["id"],
            outcome=outcome,
            code=code,
            reason=reason,
            reading=reading,
            seconds=round(seconds, 6),
        )

    # --- the loop --------------------------------------------------------------------------

    def loop(self) -> None:
        while True:
            for number, _event in self.poll.poll(self._pause_ms()):
                if number == self.incoming:
                    self._hear()
                else:
                    self._relay(number)
            now = time.monotonic()
            if now >= self.next_beat:
                self.next_beat = now + wire.BEAT_SECONDS
                self.send(type="beat")
            for child in list(self.children.values()):
                if child.deadline is not None and now >= child.deadline:
                    self._overdue(child)

    def _pause_ms(self) -> float:
        due = [self.next_beat]
        due += [child.deadline for child in self.children.values() if child.deadline is not None]
        return max(0.0, min(due) - time.monotonic()) * 1000 + 1

    def _hear(self) -> None:
        data = os.read(self.incoming, 65536)
        if not data:
            raise _Bye
        os.write(self.lease, b".")
        for message in self.decoder.feed(data):
            kind = message["type"]
            if kind == "call":
                self._call(message)
            elif kind == "cancel":
                self._cancel(message.get("id"))
            elif kind == "lock":
                self._take_lock(message)
            elif kind == "unlock":
                self._release_lock(message)
            elif kind == "bye":
                raise _Bye

    def _relay(self, number: int) -> None:
        child = self.children[number]
        frames, ended = child.read()
        for final, frame in frames:
            self.sent_bytes += len(frame)
            if not final and self.sent_bytes > _OUTPUT_LIMIT_BYTES:
                continue
            self.send_bytes(frame)
            if final:
                self._finished(child)
        if ended:
            self._gone(child)

    # --- calls -----------------------------------------------------------------------------

    def _call(self, message: Dict[str, Any]) -> None:
        message["began"] = time.monotonic()
        name = message.get("name")
        row = CALLS.get(name) if isinstance(name, str) else None
        if row is None:
            self.answer(message, UNSUPPORTED, "no_such_call", "this agent has no call %r" % (name,))
            return
        message.setdefault("timeout_seconds", row.span_seconds)
        share = _NVML if row.nvml else message.get("share")
        if isinstance(share, str) and not row.action:
            self.shared.setdefault(share, _Shared(share)).queue.append(message)
            self._next(self.shared[share])
            return
        title = "fleetmem-act" if row.action else "fleetmem-call"
        try:
            child = Child.start(title, self._closed_in_children(), run_once, message)
        except OSError as error:
            self._not_started(message, error)
            return
        self._adopt(child, message)

    def _not_started(self, call: Dict[str, Any], error: OSError) -> None:
        """This host has no room for one more process: nothing of the call was begun."""
        self.answer(
            call, FAILED, "no_processes", "no process could be started: %s" % error.strerror
        )

    def _closed_in_children(self) -> List[int]:
        lock = [] if self.lock is None else [self.lock]
        pipes = [n for child in self.children.values() for n in child.fds()]
        return [*lock, self.lease, self.incoming, self.outgoing, *pipes]

    def _adopt(self, child: Child, call: Optional[Dict[str, Any]]) -> None:
        self.children[child.output] = child
        child.take(call)
        self.poll.register(child.output, select.POLLIN)

    def _next(self, shared: _Shared) -> None:
        """Give the shared child its next call; start it where there is none."""
        while shared.queue and (shared.child is None or shared.child.call is None):
            if shared.child is None and shared.name == _NVML and shared.stuck is None:
                shared.stuck = lifeline.stuck_nvml()
            call = shared.queue.pop(0)
            if shared.stuck is not None:
                self.answer(call, FAILED, "nvml_hung", shared.stuck)
                continue
            if shared.child is None:
                name = "fleetmem-nvml" if shared.name == _NVML else "fleetmem-call"
                try:
                    shared.child = Child.start(name, self._closed_in_children(), run_session)
                except OSError as error:
                    self._not_started(call, error)
                    continue
                self._adopt(shared.child, call)
            else:
                shared.child.take(call)
            shared.child.request(call)

    def _sharing(self, child: Child) -> Optional[_Shared]:
        for shared in self.shared.values():
            if shared.child is child:
                return shared
        return None

    def _finished(self, child: Child) -> None:
        child.take(None)
        shared = self._sharing(child)
        if shared is not None:
            self._next(shared)

    def _gone(self, child: Child) -> None:
        """The child closed its pipe: collect it; a call it left open has failed."""
        self.poll.unregister(child.output)
        del self.children[child.output]
        ending = child.collect(_REAP_SECONDS)
        if ending is None:
            self.abandoned.add(child.pid)
        self._sweep()
        if child.call is not None:
            self.answer(
                child.call, FAILED, "call_ended", "the call's process %s" % (ending or "hangs")
            )
            child.call = None
        self._replace(child)

    def _replace(self, child: Child, stuck: Optional[str] = None) -> None:
        """A child is gone: what it shared goes on in another, or is answered with *stuck*."""
        shared = self._sharing(child)
        if shared is not None:
            shared.child = None
            if shared.name == _NVML:
                shared.stuck = stuck
            self._next(shared)

    def _overdue(self, child: Child) -> None:
        call = child.call
        span = call["timeout_seconds"] if call else 0
        code, reason = CODES[TIMED_OUT], "no answer in %g s" % span
        self.poll.unregister(child.output)
        del self.children[child.output]
        ending = child.end(_REAP_SECONDS)
        if ending is None:
            self.abandoned.add(child.pid)
        self._sweep()
        if ending is None:
            reason += "; process %d (%s) cannot be ended" % (child.pid, child.name)
        shared = self._sharing(child)
        if shared is not None and shared.name == _NVML:
            code, reason = "nvml_hung", "NVML gave " + reason
        if call is not None:
            self.answer(call, TIMED_OUT, code, reason)
        self._replace(child, reason)

    def _sweep(self) -> None:
        """End what an ended call left behind: as a subreaper, serve has inherited it.

        What a running call has detached is not here: its own child keeps it (calls.py).
        """
        mine = {child.pid for child in self.children.values()} | self.abandoned
        until = time.monotonic() + _REAP_SECONDS
        while True:
            left = [pid for pid in lifeline.children() if pid not in mine]
            if not left or time.monotonic() > until:
                self.abandoned.update(left)
                return
            for pid in left:
                os.kill(pid, lifeline.SIGKILL)
                os.waitpid(pid, os.WNOHANG)
            time.sleep(0.001)

    def _cancel(self, wanted: Any) -> None:
        for shared in self.shared.values():
            for call in [c for c in shared.queue if c["id"] == wanted]:
                shared.queue.remove(call)
                self.answer(call, FAILED, "cancelled", "cancelled")
        for child in list(self.children.values()):
            if child.call is not None and child.call["id"] == wanted:
                call, child.call = child.call, None
                self.poll.unregister(child.output)
                del self.children[child.output]
                if child.end(_REAP_SECONDS) is None:
                    self.abandoned.add(child.pid)
                self._sweep()
                self.answer(call, FAILED, "cancelled", "cancelled")
                self._replace(child)

    # --- the lock --------------------------------------------------------------------------

    def _take_lock(self, message: Dict[str, Any]) -> None:
        from fleetmem.agent import ledger

        message["began"] = time.monotonic()
        try:
            if self.lock is not None:
                ledger.unlock(self.lock)
                self.lock = None
            self.lock, epoch = ledger.lock(message.get("operation", ""))
        except Trouble as trouble:
            self.answer(message, trouble.outcome, trouble.code, trouble.reason)
            return
        self.answer(message, OK, None, None, {"epoch": epoch})

    def _release_lock(self, message: Dict[str, Any]) -> None:
        from fleetmem.agent import ledger

        message["began"] = time.monotonic()
        if self.lock is not None:
            ledger.unlock(self.lock)
            self.lock = None
        self.answer(message, OK, None, None)
