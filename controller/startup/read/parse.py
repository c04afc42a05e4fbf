"""Log text or journal records to a ``Startup``: the front of this package.

Pure and total: any input gives an answer, never an exception; time is linear in its length.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from fleetmem.controller.startup.fold.reduce import Reducer
from fleetmem.controller.startup.read.exceptions import SEEDS, Exceptions
from fleetmem.controller.startup.read.frame import CUT, Frame, docker_lines
from fleetmem.controller.startup.read.patterns import Pattern, Patterns, builtin
from fleetmem.controller.startup.read.prefix import pieces, split_head
from fleetmem.controller.startup.read.sieve import Sieve, any_of
from fleetmem.controller.startup.starts import Event, Head, Line, Record, Startup

_MEMORY = re.compile(r"\d ?[KMGT]i?B(?![A-Za-z/])|out of memory", re.IGNORECASE)
_MAX_TEXT = 16_384
MAX_LINE = 8 << 20
_CUT = CUT.decode()
_BATCH = 4000
_ZEROS = bytes(48 if 48 <= one <= 57 else one for one in range(256))
READ_OF_EACH = 64
MAX_QUIET = 20_000
MAX_UNMATCHED = 200


@dataclass(slots=True)
class _Quiet:
    """A shape of line that says nothing new: what it counts, how many were passed over."""

    event: Event | None
    unmatched: int
    seen: int = 0
    more: int = 0


class Parser:
    """Reads one log, in any portions. ``feed`` bytes or ``feed_record``, then ``finish``."""

    def __init__(
        self,
        *,
        engine: str | None = None,
        unit: str | None = None,
        source: str | None = None,
        patterns: Patterns | None = None,
    ) -> None:
        chosen = (patterns or builtin()).only(engine)
        self._engine = engine
        self._unit = unit
        self._source = source
        self._words: dict[str, list[int]] = {}
        self._patterns = chosen.all
        for number, pattern in enumerate(chosen.all):
            for word in pattern.find:
                self._words.setdefault(word, []).append(number)
        self._any = re.compile(any_of(self._words))
        self._sieve = Sieve((*chosen.seeds, *SEEDS))
        self._exceptions = Exceptions()
        self._frame = Frame(self._block, self._whole_record, self._docker)
        self._reducer = Reducer()
        self._quiet: dict[bytes, _Quiet] = {}
        self._settled: dict[bytes, _Quiet] = {}
        self._unmatched: list[str] = []
        self._unmatched_count = 0

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the log."""
        self._frame.feed(data)

    def feed_record(self, record: Record) -> None:
        """Take one journal record."""
        self._frame.flush()
        self._whole_record(record)

    def finish(self) -> Startup:
        """The answer."""
        self._frame.close()
        self._settle()
        engine, invocations = self._reducer.finish(self._engine)
        return Startup(
            engine=engine,
            unit=self._unit or self._reducer.unit,
            source=self._source,
            invocations=invocations,
            unmatched_count=self._unmatched_count,
            unmatched=tuple(self._unmatched),
        )

    def _block(self, block: bytes) -> None:
        self._hits(block, None)

    def _docker(self, block: bytes, view: bytes) -> None:
        for entry in self._sieve.hits(block, view):
            for line in docker_lines(entry):
                self._hits(line, None)

    def _whole_record(self, record: Record) -> None:
        known = Head(
            text="",
            time=record.time,
            name=record.name,
            name_pid=record.pid,
            invocation=record.invocation,
        )
        if record.invocation is not None:
            self._reducer.see(record.invocation, record.time)
        message = record.message
        raw = message.encode("utf-8", "replace") if isinstance(message, str) else message
        self._hits(raw.replace(b"\r", b"\n"), known)

    def _hits(self, block: bytes, known: Head | None) -> None:
        """The lines of *block* that may say something; of exceptions also what follows them.

        A running engine prints lines that look like memory for ever. A line that differs only in
        its digits from some that said nothing new is counted and not read again.
        """
        at = 0
        settled = self._settled
        for line in self._sieve.hits(block):
            shape = line.translate(_ZEROS)
            quiet = settled.get(shape)
            if quiet is not None:
                quiet.more += 1
                continue
            before = self._reducer.taken, self._unmatched_count, self._reducer.starts
            event = self._line(line[:MAX_LINE].decode("utf-8", "replace"), known)
            if self._reducer.starts != before[2]:
                self._settle()
            elif event is not None or self._reducer.taken == before[0]:
                self._learn(shape, event, self._unmatched_count - before[1])
            if self._exceptions.concerns(line):
                at = max(at, block.find(line, at))
                after = block[at + len(line) : at + len(line) + 8192]
                found = self._exceptions.take(line.removesuffix(CUT), after, known)
                if found is not None:
                    self._reducer.take_exception(*found)

    def _learn(self, shape: bytes, event: Event | None, unmatched: int) -> None:
        """Remember a line that said nothing new; some of each shape are read all the same."""
        quiet = self._quiet.get(shape)
        if quiet is None:
            if len(self._quiet) >= MAX_QUIET:
                self._settle()
                self._quiet.clear()
            quiet = self._quiet[shape] = _Quiet(event, unmatched)
        quiet.seen += 1
        if quiet.seen >= READ_OF_EACH:
            self._settled[shape] = quiet

    def _settle(self) -> None:
        """Count what was passed over; a new start is read from its first line on again."""
        for quiet in self._settled.values():
            self._unmatched_count += quiet.unmatched * quiet.more
            if quiet.event is not None and quiet.more:
                self._reducer.take_again(quiet.event, quiet.more)
        self._settled.clear()
        self._quiet.clear()

    def _line(self, line: str, known: Head | None) -> Event | None:
        """Take one line; its event where that only counts or says nothing."""
        cut = line.endswith(_CUT)
        line = line.removesuffix(_CUT).rstrip("\0")
        if "_CMDLINE" in line[:24]:  # a journal field that names an engine's command, no log line
            return None
        numbers: set[int] = set()
        if self._any.search(line) is not None:
            for word, where in self._words.items():
                if word in line:
                    numbers.update(where)
        if not numbers:
            if _MEMORY.search(line):
                self._not_matched(line)
            return None
        chosen = [self._patterns[number] for number in sorted(numbers)]
        head = known
        quiet: Event | None = None
        parts = pieces(line)
        for number, piece in enumerate(parts, 1):
            head = split_head(piece, head)
            if "\n" in head.text:  # the message of a structured log line
                for part in head.text.split("\n"):
                    self._message(split_head(part, head) if part else head, chosen)
            else:
                quiet = self._message(head, chosen, cut and number == len(parts))
        return quiet if len(parts) == 1 else None

    def _not_matched(self, text: str) -> None:
        self._unmatched_count += 1
        if len(self._unmatched) < MAX_UNMATCHED:
            self._unmatched.append(split_head(text[:2000]).text.strip()[:500])

    def _message(self, head: Head, chosen: list[Pattern], cut: bool = False) -> Event | None:
        if len(head.text) > _MAX_TEXT:
            head = _around(head, chosen)
        events = []
        for pattern in chosen:
            event = pattern.apply(head, cut)
            if event is not None:
                events.append(event)
                self._reducer.take(event)
        if not events and _MEMORY.search(head.text):
            self._not_matched(head.text)
        return events[0] if len(events) == 1 and events[0].step in ("ignore", "count") else None


def _around(head: Head, chosen: list[Pattern]) -> Head:
    """A very long message, cut to where the first known words stand."""
    places = [head.text.find(word) for pattern in chosen for word in pattern.find]
    first = min((place for place in places if place >= 0), default=0)
    start = max(0, first - 512)
    return Head(
        text=head.text[start : start + _MAX_TEXT],
        time=head.time, rank=head.rank, process=head.process, pid=head.pid, ip=head.ip,
        repeated=head.repeated, name=head.name, name_pid=head.name_pid, level=head.level,
        invocation=head.invocation,
    )  # fmt: skip


def parse(
    lines: Iterable[Record | str],
    *,
    engine: str | None = None,
    patterns: Patterns | None = None,
    unit: str | None = None,
    source: str | None = None,
) -> Startup:
    """The start-ups in *lines* (text lines with or without newline, or journal records).

    ``engine`` forces one engine's patterns; ``patterns`` replaces the built-in ones.
    """
    parser = Parser(engine=engine, patterns=patterns, unit=unit, source=source)
    batch: list[str] = []
    for one in lines:
        if isinstance(one, Record):
            if batch:
                parser.feed("".join(batch).encode("utf-8", "replace"))
                batch = []
            parser.feed_record(one)
            continue
        batch.append(one if one.endswith("\n") else one + "\n")
        if len(batch) >= _BATCH:
            parser.feed("".join(batch).encode("utf-8", "replace"))
            batch = []
    if batch:
        parser.feed("".join(batch).encode("utf-8", "replace"))
    return parser.finish()


__all__ = ["Line", "Parser", "Record", "Startup", "parse"]
