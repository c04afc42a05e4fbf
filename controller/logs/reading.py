"""Log lines from a host: read through ``journal.read``, checked, handed on as records.

What a host sends is data: every row is checked, and no host can send more than was asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from fleetmem.controller.contact import gather

if TYPE_CHECKING:
    from fleetmem.controller.answer.envelope import Reading
    from fleetmem.controller.contact.session import Session
    from fleetmem.controller.startup.starts import Record, Startup

LIMIT_BYTES = 16 << 20
SLACK_SECONDS = 5.0
"""The agent gives up that much earlier than its call, so that what it has still arrives."""

OWN, MANAGER, KERNEL = 0, 1, 2
_KERNEL_AFTER_US = 10_000_000
_COLUMNS = 8


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line. ``message`` gives its bytes back with surrogateescape; ``kind`` is OWN,
    MANAGER (systemd about the unit) or KERNEL; ``hit`` is false for context around a match."""

    microseconds: int | None
    invocation: int | None
    pid: int | None
    name: str | None
    priority: int | None
    kind: int
    hit: bool
    message: str

    @property
    def raw(self) -> bytes:
        """The message's bytes as they were logged."""
        return self.message.encode("utf-8", "surrogateescape")

    @property
    def text(self) -> str:
        """The message as text that any JSON reader takes."""
        return self.raw.decode("utf-8", "replace")

    @property
    def time(self) -> str | None:
        """RFC 3339 in UTC, to the second."""
        return None if self.microseconds is None else clock(self.microseconds)


@dataclass(slots=True)
class Log:
    """One log of one host: what was asked for, how reading it went, its lines newest first."""

    asked: dict[str, Any]
    reading: Reading
    lines: list[LogLine] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The unit, file or container that was asked for."""
        for key in ("unit", "file", "container"):
            if self.asked.get(key):
                return str(self.asked[key])
        return "journal"

    @property
    def invocations(self) -> list[dict[str, Any]]:
        """What the reading says of systemd's invocations; lines name them by position."""
        found = self.reading["reading"]
        return list(found["invocations"]) if found else []


def clock(microseconds: int) -> str | None:
    """RFC 3339 in UTC, to the second; None for a moment that no calendar holds."""
    try:
        moment = datetime.fromtimestamp(microseconds / 1e6, UTC)
    except (OverflowError, OSError, ValueError):
        return None
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


async def read_log(
    session: Session, asked: dict[str, Any], *, timeout_seconds: float, **options: Any
) -> Log:
    """Read one log; *asked* says which, *options* are further arguments of ``journal.read``."""
    lines: list[LogLine] = []
    limit_lines = int(options.get("limit_lines", 10_000))
    limit_bytes = int(options.setdefault("limit_bytes", LIMIT_BYTES))
    wrong: list[str] = []
    taken = 0

    def take(chunk: Any) -> None:
        nonlocal taken
        if wrong:
            return
        try:
            for line in rows_of(chunk):
                taken += len(line.message)
                if len(lines) >= limit_lines or taken > limit_bytes:
                    raise ValueError("more than was asked for")
                lines.append(line)
        except ValueError as error:
            wrong.append(f"the agent's lines do not match their schema: {error}")

    span = max(2.0, timeout_seconds - SLACK_SECONDS)
    reading = await gather.ask(
        session,
        "journal.read",
        {**asked, **options, "span_seconds": span},
        timeout_seconds=timeout_seconds,
        on_chunk=take,
    )
    if wrong:
        reading = {**reading, "outcome": "failed", "reason": wrong[0], "reading": None}
        reading["code"] = gather.UNTRUSTED
        lines = []
    return Log(asked, reading, lines)


def rows_of(chunk: Any) -> Iterator[LogLine]:
    """The lines of one chunk; ValueError where a row is none."""
    rows = chunk.get("rows") if isinstance(chunk, dict) else None
    if not isinstance(rows, list):
        raise ValueError("a chunk without rows")
    for row in rows:
        if not isinstance(row, list) or len(row) != _COLUMNS:
            raise ValueError("a row of another length")
        micro, number, pid, name, priority, kind, hit, message = row
        for value in (micro, number, pid, priority):
            if value is not None and (type(value) is not int or not 0 <= value < 1 << 63):
                raise ValueError("not a number")
        if kind not in (OWN, MANAGER, KERNEL) or not isinstance(message, str):
            raise ValueError("a row without message")
        if name is not None and not isinstance(name, str):
            raise ValueError("not a name")
        try:
            message.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            raise ValueError("not a text message") from None
        yield LogLine(micro, number, pid, name, priority, kind, bool(hit), message)


def of_unit(log: Log, unit: str) -> Log:
    """The part of a log of several units that is *unit*'s; kernel lines belong to all."""
    keep = {at for at, one in enumerate(log.invocations) if one["unit"] == unit}
    lines = [line for line in log.lines if line.kind == KERNEL or line.invocation in keep]
    return Log({**log.asked, "unit": unit}, log.reading, lines)


def to_startup(log: Log, engine: str | None = None) -> Startup:
    """The start-ups that a log tells of."""
    from fleetmem.controller.startup.read.parse import Parser

    unit = log.name.removesuffix(".service") if log.asked.get("unit") else None
    source = "journal" if unit is not None else log.name
    parser = Parser(engine=engine, unit=unit, source=source)
    for record in records(log):
        parser.feed_record(record)
    return parser.finish()


def records(log: Log) -> Iterator[Record]:
    """Records oldest first; kernel lines only where they are about the unit or a GPU."""
    from fleetmem.controller.startup.starts import Record

    spans = log.invocations
    lines = list(reversed(log.lines))
    kernel = [line for line in lines if line.kind == KERNEL]
    if kernel:
        wanted = _about_unit(log, kernel)
        lines = [line for line in lines if line.kind != KERNEL or id(line) in wanted]
        lines.sort(key=lambda line: line.microseconds or 0)
    for line in lines:
        number = line.invocation
        if line.kind == KERNEL:
            number = _invocation_at(spans, line.microseconds)
            if number is None and spans:
                continue
        known = number is not None and number < len(spans)
        yield Record(
            message=line.raw,
            time=line.time,
            invocation=spans[number]["id"] if known and number is not None else None,
            pid=line.pid,
            name=line.name,
        )


def _invocation_at(spans: list[dict[str, Any]], moment: int | None) -> int | None:
    """The newest invocation that had begun then and had not ended long before."""
    for number, one in sorted(enumerate(spans), key=lambda pair: int(pair[1]["age"])):
        if moment is None or one["first_us"] is None or one["last_us"] is None:
            continue
        open_ended = one["age"] == 0
        if one["first_us"] <= moment and (
            open_ended or moment <= one["last_us"] + _KERNEL_AFTER_US
        ):
            return number
    return None


def _about_unit(log: Log, kernel: list[LogLine]) -> set[int]:
    """Kernel lines about this unit's processes, or about a GPU."""
    pids = {line.pid for line in log.lines if line.kind == OWN and line.pid}
    unit = f"/{log.name}," if log.name.endswith(".service") else f"/{log.name}.service,"
    wanted = set()
    for line in kernel:
        text = line.text
        if "NVRM" in text or "Xid" in text:
            wanted.add(id(line))
        elif "task_memcg=" in text:
            if unit in text.replace(" ", ",") or any(f"pid={pid}," in text for pid in pids):
                wanted.add(id(line))
                found = text.partition(",pid=")[2].partition(",")[0]
                if found.isdigit():
                    pids.add(int(found))
        elif any(f"process {pid} " in text for pid in pids):
            wanted.add(id(line))
    return wanted
