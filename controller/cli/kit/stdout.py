"""Writing to stdout so that nothing is lost.

Python's buffered writer drops the rest of a large write that a stop (Ctrl-Z) cut short, and
gives up on a pipe that somebody made non-blocking. Here every byte is written or an error
is raised; BrokenPipeError where the reader has gone.
"""

from __future__ import annotations

import contextlib
import io
import os
import select
import sys

_lost: list[str] = []


def lose(error: OSError) -> None:
    """Say once that stdout takes no more, and send what would follow nowhere."""
    if not _lost:
        _lost.append(error.strerror or type(error).__name__)
        with contextlib.suppress(OSError):
            sys.stderr.write(f"fleetmem: stdout: {_lost[0]}\n")
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def lost() -> bool:
    """Whether a part of the answer could not be written."""
    return bool(_lost)


def open_standard() -> None:
    """Open what was closed (``>&-``) on /dev/null: no other file may get these numbers."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number: this one
        if getattr(sys, name) is None:
            mode = "r" if number == 0 else "w"
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))


def put(text: str) -> None:
    """Write *text* whole."""
    stream = sys.stdout
    stream.flush()
    try:
        number = stream.fileno()
    except (OSError, io.UnsupportedOperation, AttributeError):  # not a real file: a test's
        stream.write(text)
        return
    data = memoryview(text.encode(stream.encoding or "utf-8", "backslashreplace"))
    while data:
        try:
            data = data[os.write(number, data) :]
        except BlockingIOError:
            select.select([], [number], [])
