"""The commands at the end of an answer: whole, copyable, each once, drawn and capped here. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fleetmem.controller.answer.envelope import Finding
from fleetmem.controller.answer.fold import fold_hosts
from fleetmem.controller.answer.step import Step, folded, read
from fleetmem.controller.render.kit.line import WIDTH, Line, cells
from fleetmem.controller.text.safe import safe

MAX_NEXT = 8
_LEAD = "  next   "


def next_lines(commands: Iterable[str | Step], width: int = WIDTH) -> list[Line]:
    """*commands*, each once; more than :data:`MAX_NEXT` are counted."""
    steps = list(dict.fromkeys(map(str, commands)))
    lines: list[Line] = []
    for text in steps[:MAX_NEXT]:
        lines += _drawn(text, "", not lines, width)
    return lines + _more(len(steps))


def next_of_hosts(rows: Sequence[tuple[str, str]], hosts: int, width: int = WIDTH) -> list[Line]:
    """(host, command) rows of *hosts* in all, equal commands folded into one over their hosts.

    A command that names no host says whom it is for.
    """
    steps = folded(rows)
    lines: list[Line] = []
    for text, names in steps[:MAX_NEXT]:
        found = read(text)
        where = "" if hosts == 1 or (found and found.hosts is not None) else fold_hosts(names)
        lines += _drawn(text, where, not lines, width)
    return lines + _more(len(steps))


def finding_steps(findings: Sequence[Finding], width: int = WIDTH) -> list[Line]:
    """The commands of *findings*."""
    return next_lines([step for one in findings for step in one["next"]], width)


def _more(number: int) -> list[Line]:
    if number <= MAX_NEXT:
        return []
    return [((f"{' ' * len(_LEAD)}… {number - MAX_NEXT} more; -o json lists all", "dim"),)]


def _drawn(text: str, where: str, first: bool, width: int) -> list[Line]:
    lead = _LEAD if first else " " * len(_LEAD)
    pieces = _pieces(safe(text), width - len(lead))
    note = f"    # {safe(where)}" if where else ""
    if len(pieces) > 1 or cells(pieces[0] + note) > width - len(lead):
        note = ""
    lines: list[Line] = [((lead, "dim"), (pieces[0], "next"), (note, "dim"))]
    return lines + [((" " * (len(lead) + 4), ""), (piece, "next")) for piece in pieces[1:]]


def _pieces(text: str, room: int) -> list[str]:
    r"""*text* over as many lines as it needs, broken between options with a ``\`` for the shell."""
    step = read(text)
    if cells(text) <= room or step is None:
        return [text]
    pieces: list[str] = []
    for part in map(" ".join, step.parts()):
        space = room - (4 if len(pieces) > 1 else 0) - 2
        if pieces and cells(f"{pieces[-1]} {part}") <= space:
            pieces[-1] += f" {part}"
        else:
            pieces.append(part)
    return [f"{piece} \\" for piece in pieces[:-1]] + pieces[-1:]
