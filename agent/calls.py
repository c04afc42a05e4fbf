"""One child process for one call (or for all NVML calls), and the pipes to it.

A child sees /dev/null on 0-2 and holds none of serve's descriptors, so that an abandoned
one never keeps the SSH channel open. It sends ``R`` (final) or ``C`` (chunk) before each
frame; serve passes the frames on without looking inside.

Each child is a subreaper: what its call detaches stays below it while it runs, and comes to
serve only when it ends. So serve need not tell whose an orphan is.
"""

from __future__ import annotations

import os
import time
from _signal import SIG_DFL, SIG_IGN, SIGPIPE, SIGTERM, signal

from fleetmem.agent import lifeline, wire
from fleetmem.agent.declare import find
from fleetmem.agent.model import CODES, DENIED, FAILED, OK, Trouble

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Set, Tuple

_DATA_LIMIT_BYTES = 1 << 30
_LEFT_SECONDS = 1.0


class Child:
    """A running child: its pid, its pipes and the call it works on."""

    def __init__(self, name: str, pid: int, output: int, input_: int) -> None:
        self.name = name
        self.pid = pid
        self.output = output
        self.input = input_
        self.call: Optional[Dict[str, Any]] = None
        self.deadline: Optional[float] = None
        self._buffer = bytearray()

    @classmethod
    def start(cls, name: str, closed: List[int], body: Callable[..., None], *args: Any) -> Child:
        """Fork a child that runs ``body(input, output, *args)`` and ends; OSError where there is
        no room for one more process or pipe, and then nothing was started."""
        output, output_child = os.pipe()
        pipes = [output, output_child]
        parent = os.getpid()
        try:
            input_child, input_ = os.pipe()
            pipes += [input_child, input_]
            pid = os.fork()
        except OSError:
            for number in pipes:
                os.close(number)
            raise
        if pid == 0:
            try:
                for number in [*closed, output, input_]:
                    os.close(number)
                null = os.open("/dev/null", os.O_RDWR)
                os.dup2(null, 2)
                _settle(name, parent)
                body(input_child, output_child, *args)
                os._exit(0)
            except BaseException:  # noqa: BLE001  nothing of serve may run on in a child
                os._exit(70)
        os.close(output_child)
        os.close(input_child)
        return cls(name, pid, output, input_)

    def fds(self) -> List[int]:
        """Serve's ends of the pipes."""
        return [self.output, self.input]

    def take(self, call: Optional[Dict[str, Any]]) -> None:
        """Note the call that the child works on from now, or none."""
        self.call = call
        self.deadline = None if call is None else time.monotonic() + call["timeout_seconds"]

    def request(self, call: Dict[str, Any]) -> None:
        """Hand a call to a child that takes several."""
        try:
            os.write(self.input, wire.encode(dict(call, type="call")))
        except OSError:
            pass  # its death is seen on the other pipe

    def read(self) -> Tuple[List[Tuple[bool, bytes]], bool]:
        """Whole frames that arrived as (final, frame), and whether the pipe has ended."""
        data = os.read(self.output, 1 << 18)
        buffer = self._buffer
        buffer += data
        frames, at = [], 0
        while len(buffer) - at >= 5:
            size = 5 + int.from_bytes(buffer[at + 1 : at + 5], "big")
            if len(buffer) - at < size:
                break
            frames.append((buffer[at : at + 1] == b"R", bytes(buffer[at + 1 : at + size])))
            at += size
        del buffer[:at]
        return frames, not data

    def collect(self, seconds: float) -> Optional[str]:
        """Wait for the end up to *seconds*: how it ended, or None while it has not."""
        for number in self.fds():
            try:
                os.close(number)
            except OSError:
                pass
        until = time.monotonic() + seconds
        while True:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                return "has ended"
            if pid:
                if os.WIFSIGNALED(status):
                    return "was ended by signal %d" % os.WTERMSIG(status)
                return "ended with status %d" % os.WEXITSTATUS(status)
            if time.monotonic() > until:
                return None
            time.sleep(0.002)

    def end(self, seconds: float) -> Optional[str]:
        """SIGKILL the child; None where the kernel has not ended it in *seconds*."""
        os.kill(self.pid, lifeline.SIGKILL)
        return self.collect(seconds)


def _settle(name: str, parent: int) -> None:
    lifeline.become_subreaper()
    lifeline.name_process(name)
    signal(SIGPIPE, SIG_DFL)
    if name == "fleetmem-act":
        signal(SIGTERM, SIG_IGN)  # it finishes what it wrote down; the guard bounds it
    else:
        signal(SIGTERM, SIG_DFL)
        lifeline.die_with_parent(parent, lifeline.SIGKILL)
    import resource

    resource.setrlimit(resource.RLIMIT_DATA, (_DATA_LIMIT_BYTES, _DATA_LIMIT_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def run_once(_input: int, output: int, call: Dict[str, Any]) -> None:
    """Body of a child for one call."""
    perform(output, call)


def run_session(input_: int, output: int) -> None:
    """Body of a child for several calls: they come in one after another until the pipe ends.

    What a call left is ended before the next one; what the kernel cannot end is waited for once.
    """
    decoder = wire.Decoder()
    stuck: Set[int] = set()
    while True:
        data = os.read(input_, 65536)
        if not data:
            return
        for call in decoder.feed(data):
            perform(output, call)
            if lifeline.has_children() and not stuck.issuperset(lifeline.children()):
                stuck = set(lifeline.end_children(_no_grace, bound_seconds=_LEFT_SECONDS))


def _no_grace(_pid: int) -> bool:
    return False


def perform(output: int, call: Dict[str, Any]) -> None:
    """Run one call and write its result; every difficulty becomes an outcome."""

    def emit(data: Any) -> None:
        _write(output, b"C", wire.encode({"type": "chunk", "id": call["id"], "data": data}))

    began = time.monotonic()
    outcome, code, reason, reading = OK, None, None, None
    try:
        func = find(call["name"]).func
        args = dict(call.get("args") or {})
        made = func.__code__
        if "emit" in made.co_varnames[: made.co_argcount + made.co_kwonlyargcount]:
            args["emit"] = emit
        reading = func(**args)
    except Trouble as trouble:
        outcome, code = trouble.outcome, trouble.code
        reason, reading = trouble.reason, trouble.reading
    except PermissionError as error:
        outcome, code, reason = DENIED, CODES[DENIED], str(error)
    except MemoryError:
        outcome, code = FAILED, "out_of_memory"
        reason = "the call needed more memory than it may use"
    except Exception as error:  # noqa: BLE001  a probe's defect is its own row, not the run's
        outcome, code, reason = FAILED, "defect", _where(error)
    message = {
        "type": "result",
        "id": call["id"],
        "outcome": outcome,
        "code": code,
        "reason": reason,
        "reading": reading,
        "seconds": round(time.monotonic() - began, 6),
    }
    try:
        frame = wire.encode(message)
    except (wire.WireError, TypeError, ValueError) as error:
        message.update(
            outcome=FAILED, code="too_large", reason="the reading cannot be sent: %s" % error
        )
        message["reading"] = None
        frame = wire.encode(message)
    _write(output, b"R", frame)


def _where(error: BaseException) -> str:
    """``Type: text (file:line)`` of the innermost frame."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = ""
    if trace is not None:
        name = trace.tb_frame.f_code.co_filename.rpartition("/")[2]
        place = " (%s:%d)" % (name, trace.tb_lineno)
    return "%s: %s%s" % (type(error).__name__, error, place)


def _write(output: int, kind: bytes, frame: bytes) -> None:
    view = memoryview(kind + frame)
    while view:
        view = view[os.write(output, view) :]
