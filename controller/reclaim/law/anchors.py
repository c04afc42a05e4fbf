"""Anchors: what shows that somebody may want a process of a family. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from fleetmem.controller.reclaim.law.known import DATA
from fleetmem.controller.text.process_name import display_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fleetmem.agent.shapes import Link, Listener
    from fleetmem.controller.reclaim.law.family import Family
    from fleetmem.controller.reclaim.law.known import Known

Code = Literal[
    "launcher",
    "login",
    "owner",
    "service",
    "connection",
    "debugger",
    "peer",
    "stopped",
    "unread",
]
ALIVE: tuple[Code, ...] = ("launcher", "login", "owner", "service", "connection", "debugger")
"""Anchors that live by themselves, the strongest first."""

LEADERS = ("session", "group")
_NEEDED = ("not_walked", "files", "status", "environment", "cgroup", "parent", "namespaces")
TIES = frozenset((*_NEEDED, "sockets", "unix_peers", "tcp"))
"""What a process's ties cannot be told without."""


@dataclass(frozen=True)
class Anchor:
    """``pid``: the member it belongs to; the end of a path to it."""

    code: Code
    pid: int
    text: str

    @property
    def alive(self) -> bool:
        return self.code in ALIVE


def anchors(known: Known, family: Family, abandoned: frozenset[int]) -> list[Anchor]:
    """All anchors of *family*; *abandoned* members have a certificate or are covered by one."""
    found: list[Anchor] = []
    for pid in sorted(family.members):
        found += _of_member(known, pid)
        if pid not in abandoned:
            found += _wanted(known, family, pid)
    found += _services(known, family)
    for pid, member in sorted(family.beside.items()):
        found += [Anchor(a.code, member, a.text) for a in _of_leader(known, pid)]
    return found


def _of_member(known: Known, pid: int) -> Iterator[Anchor]:
    row = known.tied[pid]
    if not row["alive"] or pid in known.trackers:
        return
    yield from _of_itself(known, pid)
    launcher = known.launchers[pid]
    if launcher.state == "login":
        yield Anchor("login", pid, f"started by the login {name_of(known, launcher.pid)}")
    if launcher.state == "unknown":
        yield Anchor("unread", pid, launcher.why)
    missing = sorted(TIES & set(row["unreadable"]))
    if missing:
        yield Anchor("unread", pid, f"not read: {', '.join(missing[:4])}")
    if row["environment"] is None and "environment" not in row["unreadable"]:
        yield Anchor("unread", pid, "not read: environment")
    for owner in known.owners(pid):
        if owner["state"] == "unknown" or owner["manager"] is None:
            what = f"{owner['kind'].replace('_', ' ')} {owner['name'] or owner['id']}"
            yield Anchor("unread", pid, f"nobody could say whether its {what} lives")
    for link in known.links[pid]:
        yield from _of_link(known, pid, link)


def _of_itself(known: Known, pid: int) -> Iterator[Anchor]:
    """What a process says of itself, in a family or beside it."""
    row = known.tied[pid]
    if row["tty"]:
        yield Anchor("login", pid, "on a terminal")
    if row["tracer_pid"]:
        yield Anchor("debugger", pid, f"traced by {name_of(known, row['tracer_pid'])}")
    elif row["tracer_pid"] is None:
        yield Anchor("unread", pid, "whether it is traced was not read")
    if row["state"] in ("T", "t"):
        yield Anchor("stopped", pid, "stopped")
    for owner in known.owners(pid, cgroup_only=True):
        if owner["state"] == "live" and owner["main_pid"] == pid:
            what = f"{owner['kind'].replace('_', ' ')} {owner['name'] or owner['id']}"
            yield Anchor("owner", pid, f"main process of {what}, which is live")


def _of_leader(known: Known, pid: int) -> Iterator[Anchor]:
    row = known.tied[pid]
    name = name_of(known, pid)
    if row["system"] == "login":
        yield Anchor("login", pid, f"in the session of {name}")
    for one in _of_itself(known, pid):
        yield Anchor(one.code, pid, f"its session's leader {name} is {one.text}")
    if "not_walked" in row["unreadable"]:
        yield Anchor("unread", pid, f"its session's leader {name} was not read")


def _of_link(known: Known, pid: int, link: Link) -> Iterator[Anchor]:
    if link["kind"] in LEADERS:
        if link["where"] == "unreadable" or (
            link["where"] == "here" and link["other"] not in known.tied
        ):
            yield Anchor("unread", pid, f"the leader of its {link['kind']} was not read")
        return
    if link["kind"] not in DATA and link["kind"] != "fork":
        return
    if link["kind"] == "pipe" and known.is_mere_output(link):
        return
    other, where = link["other"], link["where"]
    if where == "elsewhere":
        ended = ", which has ended its sending" if link["closed"] else ""
        yield Anchor("connection", pid, f"<- TCP {remote_end(link)}, not on this host{ended}")
    elif where == "other_namespace":
        whom = f" ({name_of(known, other)})" if other is not None else ""
        yield Anchor(
            "connection", pid, f"<- TCP {remote_end(link)}{whom}, in another network namespace"
        )
    elif where == "unreadable":
        yield Anchor("unread", pid, f"<- {link['kind']}, whose other end was not read")
    elif where == "here":
        row = known.tied.get(other) if other is not None else None
        if row is None:
            yield Anchor("unread", pid, f"<- {link['kind']} <- {other}, which was not read")
        elif row["system"] == "login":
            yield Anchor("login", pid, f"<- {link['kind']} <- {name_of(known, other)}")


def _wanted(known: Known, family: Family, pid: int) -> Iterator[Anchor]:
    """A member without a certificate: it may want what it is tied to."""
    if pid in known.trackers | known.forkservers or not known.tied[pid]["alive"]:
        return
    if any(kind == "launcher of" for _, kind in family.edges[pid]):
        yield Anchor("launcher", pid, "alive")
    elif len(family.members) > 1:
        yield Anchor("peer", pid, "alive")


def _services(known: Known, family: Family) -> Iterator[Anchor]:
    """Listeners outside the kernel's port range, and any that an outsider came in through.

    An engine's own rendezvous and ipc sockets have kernel-chosen ports or names, and only the
    family is connected to them.
    """
    guests = {
        link["listener"]
        for pid in family.members
        for link in known.links[pid]
        if link["listener"] is not None
        and link["where"] not in ("nobody", "unreadable")
        and link["other"] not in family.members
    }
    for pid in sorted(family.members):
        for place in known.listening.get(pid, ()):
            row = known.ties["listeners"][place]
            open_to_all = row["kind"] == "tcp" and row["ephemeral"] is not True
            open_to_all = open_to_all and not _of_nccl(row)
            if known.tied[pid]["alive"] and (open_to_all or place in guests):
                yield Anchor("service", pid, f"listens on {bound(row)}")


NCCL_RAS_PORT = 28028
"""Where every NCCL 2.24 and newer answers ``ncclras`` about itself, on loopback (NCCL_RAS_ADDR)."""


def _of_nccl(row: Listener) -> bool:
    return row["port"] == NCCL_RAS_PORT and row["address"] in ("127.0.0.1", "::1")


def bound(row: Listener) -> str:
    """Where a listener is bound."""
    if row["kind"] == "unix":
        return row["path"] or "a Unix socket"
    address = row["address"] or "*"
    return f"[{address}]:{row['port']}" if ":" in address else f"{address}:{row['port']}"


def remote_end(link: Link) -> str:
    """The other end of a connection."""
    address = link["address"] or "?"
    return f"[{address}]:{link['port']}" if ":" in address else f"{address}:{link['port']}"


def name_of(known: Known, pid: int | None) -> str:
    """Name and number of a process, the number alone of one that was not read."""
    row = known.tied.get(pid) if pid is not None else None
    return f"{display_name(row)} {pid}" if row is not None else str(pid)
