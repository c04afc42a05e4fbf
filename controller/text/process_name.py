"""The name of a process that a person reads. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fleetmem.agent import shapes


def display_name(process: shapes.Identity | shapes.Tied | shapes.Unplaced) -> str:
    """The name to show: the title's first word where a title was set, else comm.

    comm is cut at 15 characters, so a first word that continues it is the fuller name.
    """
    comm, title = process["comm"], process["title"].strip()
    word = title.split(" ", 1)[0]
    base = word.rpartition("/")[2]
    if base.startswith(comm):
        return base
    if "::" in title or (word and "/" not in word and not word.startswith("-") and comm in title):
        return title.split(" ", 1)[0]
    return comm or base or "?"
