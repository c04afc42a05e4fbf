"""Which lines are kept, and how many: filters, context and budgets, in one pass."""

from __future__ import annotations

from fleetmem.agent.model import FAILED, Trouble

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Tuple

    Row = Tuple[Any, ...]

BLOCK_ROWS = 500
BLOCK_BYTES = 256 * 1024
SHAPES = 20_000
SHAPE_BYTES = 2048
LONGEST = 2 << 20
"""Bytes of one message that are sent: as text of escapes they must still fit a frame."""
DIGITS = b"0123456789"
MANAGER = 1


def text(raw: bytes) -> str:
    """Bytes as text that JSON carries and that gives the same bytes back."""
    return raw.decode("utf-8", "surrogateescape")


class Keep:
    """Takes lines in reading order (newest first) and emits those that are wanted."""

    def __init__(
        self,
        grep: Optional[str],
        words: Optional[Tuple[str, ...]],
        before: int,
        after: int,
        limit_lines: int,
        limit_bytes: int,
        emit: Optional[Callable[[Any], None]],
    ) -> None:
        self.rows = 0
        self.bytes = 0
        self.cut = 0
        self.middle = False
        self.full: Optional[str] = None
        self.filtered = grep is not None or words is not None
        self.limit_lines = limit_lines
        self.limit_bytes = limit_bytes
        self._emit = emit
        self._block: List[List[Any]] = []
        self._block_bytes = 0
        self._search: Any = None
        self._words: List[bytes] = []
        self._dull: Dict[bytes, bool] = {}
        self._name: Tuple[Optional[bytes], Optional[str]] = (None, None)
        self._lead_most = after  # read newest first, so what follows a line comes before it
        self._trail_most = before
        self._lead: List[Row] = []
        self._trail = 0
        if grep is not None:
            self._search = _expression(grep)
        if words is not None:
            raw = sorted({word.encode().translate(None, DIGITS) for word in words}, key=len)
            for word in raw:
                if word and not any(other in word for other in self._words):
                    self._words.append(word)

    def wanted(self, message: bytes) -> bool:
        """Whether the filters let a line pass."""
        if self._search is not None and self._search(text(message)) is None:
            return False
        if not self._words:
            return True
        shape = message.translate(None, DIGITS)
        if shape in self._dull:
            return False
        for word in self._words:
            if word in shape:
                return True
        if len(shape) <= SHAPE_BYTES:
            if len(self._dull) >= SHAPES:
                self._dull.clear()
            self._dull[shape] = True
        return False

    def take(
        self,
        micro: Optional[int],
        number: Optional[int],
        pid: Optional[bytes],
        entry: Dict[bytes, bytes],
        kind: int,
        message: bytes,
    ) -> bool:
        """One line; false where nothing more is wanted."""
        if not self.filtered or self.wanted(message) or (kind == MANAGER and not self._search):
            lead, self._lead = self._lead, []
            for row in lead:
                if not self._add(row, 0):
                    return False
            self._trail = self._trail_most
            return self._add((micro, number, pid, entry, kind, message), 1)
        if self._trail > 0:
            self._trail -= 1
            return self._add((micro, number, pid, entry, kind, message), 0)
        if self._lead_most:
            self._lead.append((micro, number, pid, entry, kind, message))
            if len(self._lead) > self._lead_most:
                del self._lead[0]
        return True

    def add(self, *row: Any) -> bool:
        """One line that no filter of words holds back; an expression does."""
        if self._search is not None and not self.wanted(row[-1]):
            return True
        return self._add(row, 1)

    def _add(self, row: Row, hit: int) -> bool:
        micro, number, pid, entry, kind, message = row
        size = len(message)
        if size > LONGEST:
            self.cut += 1
            size = LONGEST
            message = message[:LONGEST]
        if self.rows >= self.limit_lines:
            self.full = "lines"
            return False
        if self.bytes + size > self.limit_bytes:
            self.full = "bytes"
            return False
        name = entry.get(b"SYSLOG_IDENTIFIER")
        if name != self._name[0]:
            self._name = (name, None if name is None else text(name))
        priority = entry.get(b"PRIORITY")
        self.rows += 1
        self.bytes += size
        self._block.append(
            [
                micro,
                number,
                int(pid) if pid and pid.isdigit() else None,
                self._name[1],
                int(priority) if priority and priority.isdigit() else None,
                kind,
                hit,
                text(message),
            ]
        )
        self._block_bytes += size
        if len(self._block) >= BLOCK_ROWS or self._block_bytes >= BLOCK_BYTES:
            self.flush()
        return True

    def flush(self) -> None:
        """Send what is gathered."""
        if self._block and self._emit is not None:
            self._emit({"rows": self._block})
        self._block = []
        self._block_bytes = 0


def _expression(grep: str) -> Any:
    """journalctl's rule: a pattern without upper case matches any case."""
    import re

    plain = re.sub(r"\\.", "", grep)  # \S is no upper case letter of the text
    flags = 0 if any(char.isupper() for char in plain) else re.IGNORECASE
    try:
        return re.compile(grep, flags).search
    except (re.error, RecursionError, OverflowError) as error:
        raise Trouble(FAILED, "the host's Python does not take the pattern: %s" % error) from None
