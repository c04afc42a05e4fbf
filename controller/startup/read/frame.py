"""Bytes in any portions to whole lines: joins chunks, container lines and partial lines."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from fleetmem.controller.startup.read.journal_export import FIRST, Export
from fleetmem.controller.startup.starts import Record

_ANSI = re.compile(rb"(?:\x1b|#033)\[[0-9;?]{0,32}[A-Za-z]|\x1b[_\]][^\x07\x1b\n]{0,200}\x07")
_CRI = re.compile(
    rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d))"
    rb" (stdout|stderr) ([PF])(?::\w+)? ?"
)
_CRI_FULL = re.compile(
    rb"(?m)^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d)) std(?:out|err) F "
)
_QUOTED_ANSI = re.compile(rb"\\u001b\[[0-9;?]{0,32}[A-Za-z]")
_FULL_ENTRY = b'\\n","'
CUT = b"\0\x17"
"""Ends a last line that may be cut."""
BLOCK_BYTES = 1 << 18
MAX_LINE_BYTES = 64 << 20
_EXPORT_FIRST = max(len(one) for one in FIRST)
_DOCKER_KEYS = frozenset(("log", "stream", "time", "attrs"))


class Frame:
    """Cuts a byte stream into blocks of whole lines.

    ``feed`` and ``close`` return what became complete: a block of lines, or journal records
    where the stream is ``journalctl -o json``. The same bytes in other portions give the
    same lines.
    """

    def __init__(
        self,
        block: Callable[[bytes], None],
        record: Callable[[Record], None],
        docker: Callable[[bytes, bytes], None],
    ) -> None:
        self._block = block
        self._docker = docker
        self._record = record
        self._rest: list[bytes] = []
        self._rest_bytes = 0
        self._partial: dict[str, tuple[bytes, list[bytes]]] = {}
        self._export: Export | None = None
        self._first = True

    def feed(self, data: bytes) -> None:
        """Take the next bytes."""
        if self._first:
            if self._rest_bytes + len(data) < _EXPORT_FIRST:  # too little to tell
                self._rest.append(data)
                self._rest_bytes += len(data)
                return
            self._first = False
            begin = b"".join([*self._rest, data[:_EXPORT_FIRST]])
            if begin.startswith(FIRST):
                self._export = Export()
                data = b"".join([*self._rest, data])
                self._rest, self._rest_bytes = [], 0
        if self._export is not None:
            self._rows(self._export.feed(data))
            return
        cut = data.rfind(b"\n")
        if cut < 0 and self._rest_bytes + len(data) < MAX_LINE_BYTES:
            self._rest.append(data)
            self._rest_bytes += len(data)
            return
        if self._rest_bytes + cut < BLOCK_BYTES <= MAX_LINE_BYTES and len(self._rest) < 256:
            # Small portions are gathered: judging them one by one would cost time, not answers.
            self._rest.append(data)
            self._rest_bytes += len(data)
            return
        whole = b"".join([*self._rest, data])
        cut = whole.rfind(b"\n")
        self._rest = [whole[cut + 1 :]] if cut >= 0 else []
        self._rest_bytes = len(self._rest[0]) if self._rest else 0
        self._lines(whole[:cut] if cut >= 0 else whole)

    def close(self) -> None:
        """Take the end: a last line without a newline counts, but its last number may be cut."""
        whole = b"".join(self._rest).rstrip(b" \t\0")  # a crash leaves zeros
        if whole and not whole.endswith((b"\n", b"}")):
            self._rest = [whole, CUT]
        self.flush()
        if self._export is not None:
            self._rows(self._export.close())
        for stamp, parts in self._partial.values():
            self._block(stamp + b" " + b"".join(parts))
        self._partial = {}

    def flush(self) -> None:
        """Judge everything held back so far as whole lines."""
        whole = b"".join(self._rest)
        self._rest, self._rest_bytes = [], 0
        if whole:
            self._lines(whole)

    def _rows(self, rows: list[dict[str, Any]]) -> None:
        for row in rows:
            self._record(_journal_record(row))

    def _lines(self, block: bytes) -> None:
        if b'"__REALTIME_TIMESTAMP"' in block:
            self._json(block)
            return
        if b'{"log":' in block:
            if self._partial or block.count(b'{"log":') != block.count(_FULL_ENTRY):
                self._json(block)
            else:  # every entry is a whole line: only those that matter are decoded
                view = block.replace(b'\\"', b'"')
                if b"\\u001b" in view:
                    view = _QUOTED_ANSI.sub(b"", view)
                self._docker(block, view)
            return
        if b" stdout " in block or b" stderr " in block:
            if b" stdout P" in block or b" stderr P" in block or self._partial:
                block = self._cri(block)
            else:
                block = _CRI_FULL.sub(rb"\1 ", block)
        self._plain(block)

    def _plain(self, block: bytes) -> None:
        if block.startswith(b"\xef\xbb\xbf"):
            block = block[3:]
        if b"\r" in block:
            block = block.replace(b"\r", b"\n")
        if b"\x1b" in block or b"#033[" in block:
            block = _ANSI.sub(b"", block)
        self._block(block)

    def _cri(self, block: bytes) -> bytes:
        out: list[bytes] = []
        for line in block.split(b"\n"):
            found = _CRI.match(line)
            if found is None:
                out.append(line)
                continue
            text = self._joined(found[2].decode(), found[1], line[found.end() :], found[3] == b"F")
            if text is not None:
                out.append(text)
        return b"\n".join(out)

    def _joined(self, stream: str, stamp: bytes, text: bytes, full: bool) -> bytes | None:
        first, parts = self._partial.pop(stream, (stamp, []))
        parts.append(text)
        if full:
            return first + b" " + b"".join(parts)
        self._partial[stream] = (first, parts)
        return None

    def _json(self, block: bytes) -> None:
        plain: list[bytes] = []
        for line in block.split(b"\n"):
            row = _row(line) if line.lstrip()[:1] == b"{" else None
            if row is not None and "__REALTIME_TIMESTAMP" in row:
                if plain:
                    self._plain(b"\n".join(plain))
                    plain = []
                self._record(_journal_record(row))
            elif row is not None and isinstance(row.get("log"), str):
                log, stamp = _docker_text(row)
                # Other shippers put a whole line there, without its newline.
                full = log.endswith(b"\n") or not _DOCKER_KEYS.issuperset(row)
                text = self._joined(str(row.get("stream")), stamp, log.rstrip(b"\r\n"), full)
                if text is not None:
                    plain.append(text)
            else:
                plain.append(line)
        if plain:
            self._plain(b"\n".join(plain))


def _docker_text(row: dict[str, Any]) -> tuple[bytes, bytes]:
    log = row["log"].encode("utf-8", "surrogatepass")
    return log, str(row.get("time") or "").encode("utf-8", "replace")


def docker_lines(line: bytes) -> list[bytes]:
    """The text lines of one whole docker entry, each with its time before it."""
    row = _row(line)
    if row is None or not isinstance(row.get("log"), str):
        return [line]
    log, stamp = _docker_text(row)
    log = _ANSI.sub(b"", log)
    parts = [part for part in log.replace(b"\r", b"\n").split(b"\n") if part]
    return [stamp + b" " + part for part in parts]


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def _journal_record(row: dict[str, Any]) -> Record:
    message = row.get("MESSAGE")
    if isinstance(message, list):
        if message and isinstance(message[0], str):
            text: str | bytes = "\n".join(str(one) for one in message)
        else:
            text = bytes(one & 255 for one in message if isinstance(one, int))
    else:
        text = message if isinstance(message, str | bytes) else ""
    pid = row.get("_PID") or row.get("SYSLOG_PID")
    name = row.get("SYSLOG_IDENTIFIER") or row.get("_COMM")
    invocation = row.get("_SYSTEMD_INVOCATION_ID") or row.get("INVOCATION_ID")
    if row.get("_PID") == "1" and row.get("INVOCATION_ID"):
        invocation = row["INVOCATION_ID"]
    stamp = row.get("__REALTIME_TIMESTAMP")
    return Record(
        message=text,
        time=_clock(stamp),
        invocation=invocation if isinstance(invocation, str) else None,
        pid=int(pid) if isinstance(pid, str) and pid.isdigit() and len(pid) < 11 else None,
        name=name if isinstance(name, str) else None,
    )


def _clock(stamp: object) -> str | None:
    if not isinstance(stamp, str) or not stamp.isdigit() or len(stamp) > 18:
        return None
    from datetime import UTC, datetime

    try:
        return datetime.fromtimestamp(int(stamp) / 1e6, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (OverflowError, OSError, ValueError):
        return None
