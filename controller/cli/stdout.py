"""Writing to stdout so that nothing is lost.

Python's buffered writer drops the rest of a large write that a stop (Ctrl-Z) cut short, and
gives up on a pipe that somebody made non-blocking. Here every byte is written or an error
is raised; BrokenPipeError where the reader has gone.
"""

from __future__ import annotations

import io
import os
import select
import sys


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
