"""The commands at the end of an answer: whole, copyable, equal ones of several hosts folded."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from fleetmem.controller.answer.envelope import VERDICTS, HostEntry
from fleetmem.controller.answer.fold import fold_hosts
from fleetmem.controller.render.kit.line import WIDTH, Line, cells
from fleetmem.controller.text.safe import safe

_MAX_NEXT = 8


def next_lines(entries: Sequence[HostEntry], width: int = WIDTH) -> list[Line]:
    """Whole commands to copy, equal ones of several hosts folded into one."""
    commands: dict[str, list[str]] = {}
    single = len(entries) == 1
    for entry in sorted(entries, key=_rank):
        for command in entry["reclaim"]["next"] if "reclaim" in entry else ():
            commands.setdefault(_without_host(command, entry["host"]), []).append(entry["host"])
    lines: list[Line] = []
    for command, hosts in list(commands.items())[:_MAX_NEXT]:
        text = safe(command.replace("\0", shlex.quote(fold_hosts(hosts))))
        where = "" if "\0" in command or single else f"    # {safe(fold_hosts(hosts))}"
        if cells(text + where) > width - 14:
            where = ""
        lines.append(
            (("  next        " if not lines else " " * 14, "dim"), (text, "next"), (where, "dim"))
        )
    if len(commands) > _MAX_NEXT:
        lines.append(((f"{' ' * 14}… {len(commands) - _MAX_NEXT} more; -o json lists all", "dim"),))
    return lines


def _rank(entry: HostEntry) -> int:
    return VERDICTS.index(entry["reclaim"]["verdict"]) if "reclaim" in entry else 0


def _without_host(command: str, host: str) -> str:
    """*command* with the host's name as one whole word replaced by a mark."""
    words = command.split(" ")
    return " ".join("\0" if word in (host, shlex.quote(host)) else word for word in words)
