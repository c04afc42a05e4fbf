"""``journalctl -o export`` to journal rows: fields by line, binary ones by their length."""

from __future__ import annotations

from typing import Any

FIRST = (b"__CURSOR=", b"__REALTIME_TIMESTAMP=")
WANTED = frozenset(
    (
        "MESSAGE", "__REALTIME_TIMESTAMP", "_PID", "SYSLOG_PID", "SYSLOG_IDENTIFIER", "_COMM",
        "_SYSTEMD_INVOCATION_ID", "INVOCATION_ID",
    )
)  # fmt: skip
MAX_FIELD_BYTES = 64 << 20


class Export:
    """Takes bytes in any portions; ``feed`` gives the rows that became complete.

    A row is a dict of the wanted fields: text, or bytes where the field was binary. Damaged
    input gives what can be read.
    """

    def __init__(self) -> None:
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._need = 0
        self._row: dict[str, Any] = {}

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """Take the next bytes."""
        self._held.append(data)
        self._held_bytes += len(data)
        if self._held_bytes < self._need:  # inside a binary field
            return []
        return self._read(b"".join(self._held))

    def close(self) -> list[dict[str, Any]]:
        """Take the end: a last entry without its empty line counts, a field that is cut not."""
        rows = self._read(b"".join(self._held))
        if self._row:
            rows.append(self._row)
        self._row = {}
        return rows

    def _read(self, data: bytes) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        at, self._need = 0, 0
        while at < len(data):
            cut = data.find(b"\n", at)
            if cut < 0:
                at = at if len(data) - at < MAX_FIELD_BYTES else len(data)
                self._need = 2 * (len(data) - at)  # a long line is joined seldom
                break
            name, equals, value = data[at:cut].partition(b"=")
            if not equals and cut > at:  # a binary field: its length, its bytes, a newline
                start = cut + 9
                size = int.from_bytes(data[cut + 1 : start], "little")
                if size > MAX_FIELD_BYTES:  # no export field: skip the line
                    at = cut + 1
                    continue
                if start + size + 1 > len(data):
                    self._need = len(data) - at if start > len(data) else start - at + size + 1
                    break
                value, cut = data[start : start + size], start + size
            if cut == at:
                if self._row:
                    rows.append(self._row)
                self._row = {}
            elif (key := name.decode("ascii", "replace")) in WANTED and key not in self._row:
                self._row[key] = value if key == "MESSAGE" else value.decode("utf-8", "replace")
            at = cut + 1
        self._held, self._held_bytes = [data[at:]], len(data) - at
        return rows
