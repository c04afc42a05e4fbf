"""What container runtimes put around a line is taken off; pieces of one line are joined."""

from __future__ import annotations

from fleetmem.agent import wire
from fleetmem.agent.logs.stamps import microseconds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Tuple

    Part = Tuple[Optional[int], str, bytes, bool]
    Span = Tuple[Optional[int], Optional[int]]

HELD = 20_000
"""So many lines without a time are held back until one with a time is read."""
NOTHING: Dict[bytes, bytes] = {}


class Lines:
    """Takes raw lines, last first, and hands whole messages to *keep*."""

    __slots__ = ("_held", "_joining", "_keep", "_span", "dated", "early", "scanned")

    def __init__(self, keep: Any, span: Optional[Span] = None) -> None:
        self._span = span
        self._held: List[Tuple[Optional[int], Dict[bytes, bytes], bytes]] = []
        self.dated = self.early = False
        self._keep = keep
        self._joining: Dict[str, Tuple[Optional[int], List[bytes]]] = {}
        self.scanned = 0

    def take(self, line: bytes) -> bool:
        """One line of the file; false where nothing more is wanted."""
        self.scanned += 1
        part = None
        if line.startswith(b'{"log":'):
            part = docker(line)
        elif line[:4].isdigit() and (b" stdout " in line[:60] or b" stderr " in line[:60]):
            part = cri(line)
        if part is None:
            if line.endswith(b"\r"):
                line = line[:-1]
            return self._hand(None, NOTHING, line)
        micro, stream, message, ends = part
        if not ends:
            held = self._joining.get(stream)
            if held is not None:
                held[1].append(message)
                self._joining[stream] = (micro, held[1])
                return True
        more = self._flush(stream)
        self._joining[stream] = (micro, [message])
        return more

    def close(self) -> None:
        """The oldest lines, whose beginning was awaited."""
        for stream in list(self._joining):
            self._flush(stream)
        if self._held and not self.dated:
            self._let_go()

    def _flush(self, stream: str) -> bool:
        held = self._joining.pop(stream, None)
        if held is None:
            return True
        message = b"".join(reversed(held[1]))
        entry = {b"SYSLOG_IDENTIFIER": stream.encode()}
        return self._hand(held[0], entry, message)

    def _hand(self, micro: Optional[int], entry: Dict[bytes, bytes], message: bytes) -> bool:
        """One whole message; false where nothing more is wanted.

        A line without a time goes with the line written before it, which is read after it.
        """
        if self._span is None:
            return bool(self._keep.take(micro, None, None, entry, 0, message))
        from fleetmem.agent.logs.moments import of_line

        moment = micro if micro is not None else of_line(message)
        self._held.append((micro, entry, message))
        if moment is None:
            return len(self._held) < HELD or self._let_go()
        self.dated = True
        since, until = self._span
        if since is not None and moment < since:
            self._held = []
            self.early = True
            return False
        if until is not None and moment > until:
            self._held = []
            return True
        return self._let_go()

    def _let_go(self) -> bool:
        held, self._held = self._held, []
        for micro, entry, message in held:
            if not self._keep.take(micro, None, None, entry, 0, message):
                return False
        return True


def docker(line: bytes) -> Optional[Part]:
    """A line of a json-file log; without a newline in ``log`` the message goes on."""
    try:
        row = wire.loads(line.decode("utf-8", "surrogateescape"))
        log, stream = row["log"], str(row.get("stream", ""))
        raw = log.encode("utf-8", "surrogatepass")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    micro = microseconds(str(row.get("time", "")))
    ends = raw.endswith(b"\n")
    return micro, stream, raw.rstrip(b"\r\n") if ends else raw, ends


def cri(line: bytes) -> Optional[Part]:
    """``TIME stdout F MESSAGE``; P says that the message goes on."""
    parts = line.split(b" ", 3)
    if len(parts) < 3 or parts[1] not in (b"stdout", b"stderr") or parts[2][:1] not in (b"F", b"P"):
        return None
    message = parts[3] if len(parts) == 4 else b""
    stamp = microseconds(parts[0].decode("ascii", "replace"))
    return stamp, parts[1].decode(), message, parts[2][:1] == b"F"
