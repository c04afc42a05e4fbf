"""What ending a process means for others: what lives on, what starts it again, what it serves.

Said beside a target that somebody may want, so that whoever agrees knows. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fleetmem.controller.reclaim.law.anchors import bound, name_of, remote_end
from fleetmem.controller.reclaim.law.known import DATA

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fleetmem.agent.shapes import OwnerState
    from fleetmem.controller.reclaim.law.family import Family
    from fleetmem.controller.reclaim.law.known import Known

_MOST = 6


def consequences(known: Known, served: tuple[str, ...], pid: int) -> tuple[str, ...]:
    """Sentences about *pid*, the weightiest first; *served* is what its family serves."""
    rows = (*_restarts(known, pid), *served, *_talks(known, pid))
    return tuple(dict.fromkeys((*rows, *_lives_on(known, pid))))[:_MOST]


def _restarts(known: Known, pid: int) -> Iterator[str]:
    for owner in known.owners(pid, cgroup_only=True):
        if owner["state"] != "live":
            continue
        name, main = _owner(owner), owner["main_pid"]
        if main != pid:
            yield f"{name} lives on" if main is not None else f"{name} is live"
        elif owner["restart"] not in (None, "no"):
            after = owner["restart_seconds"]
            pause = f" after {after:g} s" if after is not None else ""
            yield f"{name} starts it again{pause} ({owner['restart']})"
        else:
            yield f"{name} ends with it"


def serves(known: Known, family: Family) -> Iterator[str]:
    """What a family serves, a sentence each."""
    for pid in sorted(family.members):
        for place in known.listening.get(pid, ()):
            row = known.ties["listeners"][place]
            if row["kind"] == "tcp" and row["ephemeral"] is not True:
                yield f"{name_of(known, pid)} serves {bound(row)}"


def _talks(known: Known, pid: int) -> Iterator[str]:
    for link in known.links.get(pid, ()):
        if link["kind"] in DATA and link["where"] in ("elsewhere", "other_namespace"):
            yield f"it is connected with {remote_end(link)}, not of this host"


def _lives_on(known: Known, pid: int) -> Iterator[str]:
    launcher = known.launchers[pid]
    if launcher.state in ("alive", "login") and launcher.pid in known.tied:
        yield f"launcher {name_of(known, launcher.pid)} lives on and may start it again"


def _owner(owner: OwnerState) -> str:
    return f"{owner['kind'].replace('_', ' ')} {owner['name'] or owner['id']}"
