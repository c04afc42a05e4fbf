"""The moments that an engine's log tells of: which line marks which phase of a start. Pure.

Which lines are marks stands in ``playbooks/engines/*.yaml``, as ``phase:`` of a pattern:
before-load (a rank is about to load its weights), after-load (a rank has them), kv-pool (a rank
makes its pool), after-init (the engine answers), failed, stopped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fleetmem.controller.startup.fold.steps import ended_cleanly
from fleetmem.controller.startup.read.prefix import pieces, split_head
from fleetmem.controller.startup.starts import Event, Head

if TYPE_CHECKING:
    from fleetmem.controller.logs.reading import LogLine
    from fleetmem.controller.startup.read.patterns import Pattern, Patterns

PHASES = ("before-load", "after-load", "after-init")
"""The phases of a start that goes well, in their order."""

READY = "after-init"
FAILED = "failed"
ALONE = "_"
"""The rank of lines that name none."""

_OWN, _MANAGER = 0, 1
_MAX_TEXT = 16_384


@dataclass(frozen=True, slots=True)
class Mark:
    """A line that marks a phase. ``microseconds`` is the host's clock, as the journal has it;
    ``pattern`` is ``engine/id``, None for the unit's own start."""

    phase: str
    microseconds: int
    text: str | None
    rank: str | None = None
    pattern: str | None = None


@dataclass(frozen=True, slots=True)
class Told:
    """What the lines of one start tell so far.

    ``marks`` has a phase once it is reached; ``closed_us`` is when what must not be in its
    snapshot any more began: weights after before-load, the pool after after-load. ``loading``
    are the ranks that began to load and have not said that they are done.
    """

    marks: dict[str, Mark] = field(default_factory=dict)
    closed_us: dict[str, int] = field(default_factory=dict)
    loading: tuple[str, ...] = ()

    @property
    def over(self) -> str | None:
        """How the start ended: after-init, failed or stopped, whichever came first."""
        ends = [self.marks[name] for name in (READY, FAILED, "stopped") if name in self.marks]
        return min(ends, key=lambda mark: mark.microseconds).phase if ends else None


def marking(patterns: Patterns) -> tuple[Pattern, ...]:
    """The patterns that mark a phase."""
    return tuple(one for one in patterns.all if one.phase is not None)


def words(rows: Sequence[Pattern]) -> list[str]:
    """What a line must hold one of, to be worth sending."""
    return sorted({word for row in rows for word in row.find})


def told(lines: Iterable[LogLine], rows: Sequence[Pattern], started_us: int) -> Told:
    """The marks of the start whose lines these are, in any order.

    before-load is the unit's start: its manager's first line, else *started_us*. after-load is
    reached when every rank that began to load has said that it is done, and rests on the last
    one's line. failed rests on the first error whose kind is known, else on the first line that
    says that something ended. A web server's line (``engine.uvicorn``) is no after-init where
    the engine has a line of its own for it: the web server may be up before the model is.
    """
    ordered = sorted(lines, key=lambda line: line.microseconds or 0)
    found = [one for line in ordered for one in _of(line, rows)]
    speaking = {event.engine for event, _ in found if event.engine is not None}
    answering = {row.engine for row in rows if row.phase == "after-init"} & speaking
    begun: dict[str, int] = {}
    failing: list[tuple[bool, int, Mark]] = []
    done: dict[str, Mark] = {}
    marks = {"before-load": _start(ordered, started_us)}
    for event, mark in found:
        if event.values.get("engine.uvicorn") and answering - {event.engine}:
            continue
        rank = mark.rank or ALONE
        if mark.phase == "before-load":
            begun.setdefault(rank, mark.microseconds)
        elif mark.phase == "after-load":
            done.setdefault(rank, mark)
        elif mark.phase == FAILED:
            failing.append((event.step != "error", mark.microseconds, mark))
        else:
            marks.setdefault(mark.phase, mark)
    if failing:
        marks[FAILED] = min(failing, key=lambda one: one[:2])[2]
    unsaid = {ALONE} if done else set()  # a line of no rank may be any rank's
    loading = tuple(rank for rank in begun if rank not in {*done, *unsaid})
    if done and not loading:
        marks["after-load"] = max(done.values(), key=lambda mark: mark.microseconds)
    closed = {"before-load": min(begun.values())} if begun else {}
    pool = marks.pop("kv-pool", None)
    if pool is not None:
        closed["after-load"] = pool.microseconds
    return Told(marks, closed, loading)


def due(told: Told, taken: Iterable[str]) -> str | None:
    """The phase to look at now: the newest that is reached and not taken, None for none.

    What lies before it and was not taken is missed: its moment is over.
    """
    have = set(taken)
    if told.over == FAILED:
        return None if FAILED in have else FAILED
    if told.over == "stopped":
        return None
    reached = [name for name in PHASES if name in told.marks]
    return reached[-1] if reached and reached[-1] not in have else None


def _start(lines: Sequence[LogLine], started_us: int) -> Mark:
    first = next((line for line in lines if line.kind == _MANAGER), None)
    if first is None or first.microseconds is None:
        return Mark("before-load", started_us, None)
    return Mark("before-load", first.microseconds, first.text.strip()[:600])


def _of(line: LogLine, rows: Sequence[Pattern]) -> Iterator[tuple[Event, Mark]]:
    """The marks of one line; systemd's words count only where systemd says them."""
    if line.microseconds is None or line.kind not in (_OWN, _MANAGER):
        return
    text = line.text
    if not any(word in text for row in rows for word in row.find):
        return
    for said, head in _heads(text):
        for row in rows:
            if bool(dict(row.constants).get("systemd")) != (line.kind == _MANAGER):
                continue
            event = row.apply(head)
            if event is None or row.phase is None:
                continue
            phase = row.phase
            if event.step == "exit" and ended_cleanly(str(event.values.get("exit_status", ""))):
                phase = "stopped"
            name = f"{row.engine or 'common'}/{row.id}"
            yield event, Mark(phase, line.microseconds, said.strip()[:600], head.rank, name)


def _heads(text: str) -> Iterator[tuple[str, Head]]:
    """Each part of a message, as it was logged and taken apart."""
    for part in text[:_MAX_TEXT].replace("\r", "\n").split("\n"):
        head: Head | None = None
        for piece in pieces(part):
            head = split_head(piece, head)
            yield piece, head
