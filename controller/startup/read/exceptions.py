"""Exceptions of a log, their messages whole: the lines after ``Traceback`` that a sieve skips.

A traceback is told by its own words, its exception by the first line that is not indented. What
follows belongs to the message until another record begins.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fleetmem.controller.startup.read.prefix import pieces, split_head
from fleetmem.controller.startup.starts import Head

SEEDS = ("Error", "Exception", "above exception", "Traceback (most recent")
_MARKS = tuple(word.encode() for word in SEEDS)
_NAME = re.compile(
    r"(?P<type>(?:[A-Za-z_]\w{0,60}\.){0,8}[A-Z]\w{0,60}(?:Error|Exception|Interrupt|Exit|Dead))"
    r"(?:: ?(?P<message>[^\n]{0,4000}))?$"
)
_LATER = re.compile(r"(?:During handling of the above|The above exception was the direct)")
_NO_MESSAGE = re.compile(
    r"Traceback \(most recent|During handling of|The above exception|\s{0,8}File \"|Process \w"
    r"|frame #\d|Exception raised from|terminate called|\[?W\d{4} |usage: |\+{0,4}-{5,}|\^{3,}"
)
MAX_LINES = 24
MAX_MESSAGE = 4000
MAX_PROCESSES = 512


@dataclass(slots=True)
class _Trace:
    chain: int = 0
    open: bool = False
    linked: bool = False


class Exceptions:
    """Reads lines in log order. ``concerns`` is the cheap first look at a line."""

    def __init__(self) -> None:
        self._traces: dict[str, _Trace] = {}
        self._chains = 0

    @staticmethod
    def concerns(line: bytes) -> bool:
        """Whether a line may begin, link or end a traceback."""
        return any(mark in line for mark in _MARKS)

    def take(
        self, line: bytes, rest: bytes, known: Head | None
    ) -> tuple[Head, dict[str, Any]] | None:
        """The exception that *line* ends a traceback with; *rest* is what follows it."""
        head = known
        for piece in pieces(line[:16_384].decode("utf-8", "replace")):
            head = split_head(piece, head)
        if head is None:
            return None
        text = head.text.rstrip()
        trace = self._trace(_process(head))
        if _LATER.match(text.lstrip()):
            trace.linked = True
            return None
        if "Traceback (most recent" in text:
            if not trace.linked:
                self._chains += 1
                trace.chain = self._chains
            trace.open, trace.linked = True, False
            return None
        found = _NAME.match(text)
        if found is None:
            return None
        bare = head.time is None and head.process is None and head.name is None
        if not (trace.open or bare or head.level in ("ERROR", "CRITICAL")):
            return None
        if not trace.open and not trace.linked:
            self._chains += 1
            trace.chain = self._chains
        trace.open = False
        message = [(found["message"] or "").strip(), *_more(head, rest)]
        return head, {
            "type": found["type"],
            "message": "\n".join(part for part in message if part)[:MAX_MESSAGE],
            "rank": head.rank,
            "process": _process(head),
            "time": head.time,
            "chain": trace.chain,
        }

    def _trace(self, process: str) -> _Trace:
        if process not in self._traces and len(self._traces) >= MAX_PROCESSES:
            self._traces.clear()
        return self._traces.setdefault(process, _Trace())


def _process(head: Head) -> str:
    """Who speaks, as far as a line tells."""
    who = head.process or head.rank or ""
    return f"{who}:{head.pid}" if head.pid is not None else who


def _more(head: Head, rest: bytes) -> Iterator[str]:
    """Further lines of the message: of the same record, or without a head of their own."""
    for raw in rest[: MAX_MESSAGE * 2].split(b"\n")[1 : MAX_LINES + 1]:
        line = split_head(raw.decode("utf-8", "replace"))
        text = line.text.strip()
        same = (line.time, _process(line), line.level) == (head.time, _process(head), head.level)
        plain = line.time is None and line.process is None and line.rank is None
        if not text or not (same or plain) or _NO_MESSAGE.match(line.text) or _NAME.match(text):
            return
        yield text
