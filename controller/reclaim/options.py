"""What a person asks of ``reclaim``, as one value."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from fleetmem.controller.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fleetmem.controller.hosts.host import Host
    from fleetmem.controller.text.cap import Cap

UpTo = Literal["drain", "owner", "term", "kill", "heirs"]
UP_TO: tuple[UpTo, ...] = ("drain", "owner", "term", "kill", "heirs")
"""The rungs in the order they are climbed."""

HostPid = tuple[str, int]
"""A host's name, and the number of a process there."""

CacheMode = Literal["auto", "migrate", "drop"]
POST_CHECK_SECONDS = 60.0
CACHE_MODES: tuple[CacheMode, ...] = ("auto", "migrate", "drop")


@dataclass(frozen=True, slots=True)
class ReclaimOptions:
    """Scope, ladder and caution of one reclaim; the defaults touch leftovers only.

    ``gpu`` is the text of ``--gpu`` (see :mod:`fleetmem.controller.hosts.gpu_scope`), ``user``
    names or numbers of users joined by commas. ``units`` and ``containers`` are names as typed;
    what they match on a host is for the plan to find. ``pids`` mean the one host there is;
    ``host_pids`` are pairs of a host and a pid, for several hosts (the same for protected pids).
    ``release_timeout_seconds`` ``None``: as long as predicted. ``max_fail`` is a count
    (``"3"``) or a share of the targeted hosts (``"10%"``). ``canary`` hosts go first, alone;
    0 means no canary. ``override_protected`` names the protected pids that may be touched.
    ``cache`` asks for file pages instead of processes: paths, or none for what lies on
    NUMA nodes of GPUs; ``cache_mode`` auto migrates where a CPU node has room, else drops.
    ``post_check`` is a loopback URL that each host asks itself after that, once.
    """

    gpu: str | None = None
    pids: tuple[int, ...] = ()
    user: str | None = None
    units: tuple[str, ...] = ()
    containers: tuple[str, ...] = ()
    host_pids: tuple[HostPid, ...] = ()
    dry_run: bool = False
    yes: bool = False
    up_to: UpTo = "heirs"
    no_drain: bool = False
    grace_period_seconds: float = 10.0
    release_timeout_seconds: float | None = None
    max_fail: Cap | int | str | None = None
    canary: int = 0
    reason: str | None = None
    override_protected: tuple[int, ...] = ()
    override_protected_on: tuple[HostPid, ...] = ()
    detailed_exitcode: bool = False
    cache: tuple[str, ...] | None = None
    cache_mode: CacheMode = "auto"
    post_check: str | None = None
    post_check_seconds: float = POST_CHECK_SECONDS

    @property
    def scoped(self) -> bool:
        """Whether a scope option widens the reach beyond leftovers."""
        return bool(self.gpu) or self.names_processes

    @property
    def names_processes(self) -> bool:
        """Whether a scope option names processes, not only GPUs."""
        return bool(self.named_by)

    @property
    def named_by(self) -> str:
        """The options given that name processes, for a sentence; "" for none."""
        given = {
            "--pid": self.pids or self.host_pids,
            "--user": self.user is not None,
            "--unit": self.units,
            "--container": self.containers,
        }
        return " or ".join(option for option, value in given.items() if value)

    @property
    def scope_text(self) -> str:
        """The scope on one host as it was asked for, for the trail."""
        parts = [
            ("--gpu", self.gpu or ""),
            ("--pid", ",".join(map(str, self.pids))),
            ("--user", self.user or ""),
            *(("--unit", name) for name in self.units),
            *(("--container", name) for name in self.containers),
            ("--override-protected", ",".join(map(str, self.override_protected))),
        ]
        return " ".join(f"{option} {value}" for option, value in parts if value) or "leftovers"

    @property
    def users(self) -> frozenset[str]:
        """The names and numbers in ``user``."""
        return frozenset(filter(None, (self.user or "").split(",")))

    def on_host(self, name: str) -> ReclaimOptions:
        """The same options as one host has them: ``pids`` are its own. Where other hosts' pids
        were named and none of its own, the scope reaches nobody there."""
        own = tuple(pid for host, pid in self.host_pids if host == name)
        allowed = tuple(pid for host, pid in self.override_protected_on if host == name)
        return replace(
            self,
            pids=tuple(dict.fromkeys((*self.pids, *own))),
            override_protected=tuple(dict.fromkeys((*self.override_protected, *allowed))),
        )

    @property
    def rungs(self) -> tuple[UpTo, ...]:
        """The rungs this reclaim may climb, gentlest first."""
        allowed = UP_TO[: UP_TO.index(self.up_to) + 1]
        return tuple(rung for rung in allowed if not (rung == "drain" and self.no_drain))


def for_hosts(options: ReclaimOptions, hosts: Sequence[Host]) -> ReclaimOptions:
    """*options* with every pid tied to one of *hosts*, by its name there.

    UsageError for a bare pid over several hosts (it is another process on each) and for a pid on
    a host that is not among them.
    """
    for option, pids in (
        ("--pid", options.pids),
        ("--override-protected", options.override_protected),
    ):
        if pids and len(hosts) > 1:
            raise UsageError(
                f"{option} {pids[0]}: that number is another process on each of {len(hosts)} hosts",
                f"name the host too: {option} {hosts[0].name}:{pids[0]}",
            )
    return replace(
        options,
        host_pids=tuple(_tied("--pid", pair, hosts) for pair in options.host_pids),
        override_protected_on=tuple(
            _tied("--override-protected", pair, hosts) for pair in options.override_protected_on
        ),
    )


def _tied(option: str, pair: HostPid, hosts: Sequence[Host]) -> HostPid:
    named, pid = pair
    found = [host.name for host in hosts if host.name == named]
    found = found or [host.name for host in hosts if host.address == named.strip("[]")]
    if len(found) == 1:
        return found[0], pid
    trouble = "is not among the hosts" if not found else f"may be any of {', '.join(found[:5])}"
    raise UsageError(f"{option} {named}:{pid}: {named} {trouble}")
