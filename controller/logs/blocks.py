"""Lines to events: a traceback, a table, a dump or a call trace is one block (pure).

Lines come newest first, as a log is read; a block's lines stand oldest first, as they were
written. Blocks of several processes that write at once are told apart by who wrote a line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fleetmem.controller.startup.read.prefix import split_head
from fleetmem.controller.startup.starts import Head

Row = Mapping[str, Any]
MOST_LINES = 400
APART_SECONDS = 2.0
_TRACEBACK = "Traceback (most recent call last)"
_LINK = re.compile(r"\s*(?:During handling of the above|The above exception was the direct)")
_INSIDE = re.compile(
    r"[ \t|]|\+-{2,}|[-=]{4,}$|frame #\d|Call Trace:|RIP: |RSP: |Code: |R[A-D]X: |R\d\d: |CR\d: "
    r"|\[<[0-9a-f]|Modules linked in|Hardware name:|CPU: \d|Workqueue:|Tainted:"
    r"|(?:0x)?[0-9a-f]{4,16}(?::|  )[ ]?(?:[0-9a-f]{2,4} ){2,}|\^+$|\.\.\. \d+ more"
)
_EXCEPTION = re.compile(r"(?:[A-Za-z_]\w{0,60}\.){0,8}[A-Z]\w{0,80}(?::|$)")


@dataclass(slots=True)
class Block:
    """One event; ``rows`` oldest first, ``hit`` where one of them matched what was asked for."""

    rows: list[Row] = field(default_factory=list)
    hit: bool = False

    @property
    def newest(self) -> Row:
        """Its last line."""
        return self.rows[-1]


@dataclass(slots=True)
class _Open:
    block: Block
    head: Head
    prefix: str
    moment: float | None
    trace: bool = False
    ended: bool = False
    linked: bool = False


def blocks(rows: Sequence[Row]) -> list[Block]:
    """The events of one log, the newest first. *rows* are newest first."""
    found: list[Block] = []
    open_: dict[tuple[Any, ...], _Open] = {}
    for row in reversed(rows):
        who = (row.get("from"), row.get("name"), row.get("pid"))
        text = str(row["message"])
        head = split_head(text)
        prefix = text[: len(text) - len(head.text)] if head.text else text
        moment = _moment(row)
        now = open_.get(who)
        if now is None or not _goes_on(now, text, head, prefix, moment):
            now = open_[who] = _Open(Block(), head, prefix, moment)
            found.append(now.block)
        _note(now, head)
        now.block.rows.append(row)
        now.block.hit = now.block.hit or bool(row.get("hit"))
        now.moment = moment
    for one in found:
        while len(one.rows) > 1 and not str(one.newest["message"]).strip():
            one.rows.pop()
    found.sort(key=lambda one: str(one.newest["time"] or ""))
    return found[::-1]


def _note(now: _Open, head: Head) -> None:
    """What *head*'s text says about where a traceback stands."""
    body = head.text
    if _TRACEBACK in body:
        now.trace, now.ended, now.linked = True, False, False
    elif _LINK.match(body):
        now.linked, now.ended = True, False
    elif now.trace and body[:1] not in ("", " ", "\t", "|") and _EXCEPTION.match(body):
        now.trace, now.ended = False, True


def _goes_on(now: _Open, text: str, head: Head, prefix: str, moment: float | None) -> bool:
    body = head.text
    if len(now.block.rows) >= MOST_LINES:
        return False
    if moment is not None and now.moment is not None and moment - now.moment > APART_SECONDS:
        return False
    own = head.time is not None or head.level is not None
    same = own and prefix == now.prefix and "]" in prefix
    bare = not own and head.rank == now.head.rank
    if _TRACEBACK in body:
        return now.linked or (not now.trace and not now.ended and same)
    if now.trace or now.linked:
        return same or bare or not own
    if _LINK.match(body):
        return now.ended and (same or not own)
    if same or not text.strip():
        return same or now.ended
    last = str(now.block.newest["message"]).rstrip()
    if now.ended and not own and last.endswith((":", "(", ",")):  # the message goes on
        return True
    return not own and bool(_INSIDE.match(text))


def _moment(row: Row) -> float | None:
    stamp = row.get("time")
    if not isinstance(stamp, str):
        return None
    from datetime import datetime

    try:
        return datetime.fromisoformat(stamp.replace("Z", "+00:00")).timestamp()
    except ValueError:
        return None
