"""The host's trail: one line for each change, in the journal, else in ``audit.jsonl``.

Nothing here waits: a journal whose reader stands still is passed over for the file, and a line
that the file has no room for is taken back, so that what is on record is whole.
"""

from __future__ import annotations

import os
import time
from errno import ENOSPC

from fleetmem.agent import ledger, wire
from fleetmem.agent.model import FAILED, Trouble

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Optional

JOURNAL = "/run/systemd/journal/socket"


class Trail:
    """A way to the trail that was open when it was asked for; close it after use."""

    def __init__(self) -> None:
        """Trouble where there is neither a journal that reads nor a file to write."""
        self._journal = _open_journal() if os.geteuid() == 0 else None
        self._file = -1 if self._journal is not None else _open_file()

    def write(self, event: Dict[str, Any]) -> None:
        """Put *event* on record; Trouble where that failed, and then nothing of it is there.

        It says what happens by action, signal, pid, comm and operation, or by ``message``.
        """
        if self._journal is not None and _send(self._journal, event):
            return
        if self._file < 0:
            self._file = _open_file()
        line = wire.dumps(dict(event, time=round(time.time(), 3))) + "\n"
        try:
            _append(self._file, line.encode())
        except OSError as error:
            raise _no_trail(error) from None

    def close(self) -> None:
        """Let go of it."""
        if self._journal is not None:
            self._journal.close()
        if self._file >= 0:
            os.close(self._file)


def trail(event: Dict[str, Any]) -> None:
    """Put one event on record: see :meth:`Trail.write`."""
    way = Trail()
    try:
        way.write(event)
    finally:
        way.close()


def _path() -> str:
    return os.path.join(ledger.open_dir(), "audit.jsonl")


def _no_trail(error: OSError) -> Trouble:
    full = error.errno in ledger.NO_ROOM
    path = os.path.join(ledger.state_dir()[0] or "", "audit.jsonl")
    code = "remote_disk_full" if full else "no_trail"
    return Trouble(FAILED, "%s: %s" % (path, error.strerror), code=code)


def _open_file() -> int:
    try:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        return os.open(_path(), flags, 0o600)
    except OSError as error:
        raise _no_trail(error) from None


def _append(number: int, line: bytes) -> None:
    """Add a whole line or nothing; the rest of one that was cut short before gets its own."""
    end = os.fstat(number).st_size
    if end and os.pread(number, 1, end - 1) != b"\n":
        line = b"\n" + line
    try:
        if os.write(number, line) != len(line):
            raise OSError(ENOSPC, os.strerror(ENOSPC))
        os.fsync(number)
    except OSError:
        os.ftruncate(number, end)
        raise


def _open_journal() -> Optional[Any]:
    """A socket to the journal, None where there is none or its queue is full."""
    if not os.path.exists(JOURNAL):
        return None
    import _socket
    import select

    kind = _socket.SOCK_DGRAM | _socket.SOCK_NONBLOCK | _socket.SOCK_CLOEXEC
    channel = _socket.socket(_socket.AF_UNIX, kind)
    try:
        channel.connect(JOURNAL)
        asked = select.poll()
        asked.register(channel.fileno(), select.POLLOUT)
        if any(events & select.POLLOUT for _, events in asked.poll(0)):
            return channel
    except OSError:
        pass
    channel.close()
    return None


def _send(channel: Any, event: Dict[str, Any]) -> bool:
    """The native protocol of systemd-journald (``systemd.io/JOURNAL_NATIVE_PROTOCOL``)."""
    if "message" in event:
        text = "fleetmem: %s" % event["message"]
    else:
        form = "fleetmem: %(action)s %(signal)s to %(pid)d (%(comm)s), operation %(operation)s"
        text = form % event
    fields = {"MESSAGE": text, "SYSLOG_IDENTIFIER": "fleetmem", "PRIORITY": "5"}
    for key, value in event.items():
        if key != "message":
            fields["FLEETMEM_" + key.upper()] = str(value)
    data = "".join("%s=%s\n" % (k, v.replace("\n", " ")) for k, v in fields.items()).encode()
    try:
        return bool(channel.send(data) == len(data))
    except OSError:  # its queue is full, or it has gone
        return False
