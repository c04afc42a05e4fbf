"""Shapes of ``processes.identity``."""

from __future__ import annotations

from typing_extensions import TypedDict


class Owner(TypedDict):
    """Who is responsible for a process, read from its cgroup (and its init system).

    ``state``: ``live``, ``gone`` or ``None`` where the host cannot say.
    ``kind``: unit user_unit container pod job session none.
    """

    kind: str
    name: str | None
    runtime: str | None
    state: str | None
    stop_command: str | None


class Ancestor(TypedDict):
    """One step towards pid 1."""

    pid: int
    start_time: int
    comm: str


class Identity(TypedDict):
    """One process, with all that is needed to classify it and to find it again.

    The identity proper is (boot id, pid namespace, pid, start_time); ``start_time`` is
    field 22 of /proc/PID/stat, in clock ticks since boot.

    ``alive`` is true while any task is neither Z nor X. ``launcher_alive`` is false when
    the process was reparented to an init or subreaper. ``group_leader_alive`` looks at the
    process group's leader when that is another process, else ``None``.
    ``listening`` is true with a listening socket, other than CUDA's own (every CUDA process
    has one) and those that serve only ranks of a collective library; ``listening_ports`` are
    the TCP ports among them. ``orphaned_pipes`` counts pipe and unix
    socket ends beyond 0-2 whose other end no process outside its family holds, and
    ``live_peers`` lists pids outside the family that do hold such an other end; ``None`` =
    could not be read.
    """

    pid: int
    start_time: int
    alive: bool
    state: str
    tasks: int
    age_seconds: float
    ppid: int
    pgid: int
    sid: int
    uid: int
    user: str | None
    comm: str
    title: str
    exe: str | None
    kernel_thread: bool
    nspids: list[int]
    pid_namespace: int | None
    cgroup: str | None
    owner: Owner
    ancestors: list[Ancestor]
    launcher_alive: bool
    group_leader_alive: bool | None
    listening: bool | None
    listening_ports: list[int]
    orphaned_pipes: int | None
    live_peers: list[int] | None
    resident_bytes: int | None
    pinned_bytes: int | None


class Identities(TypedDict):
    """Reading of ``processes.identity``; ``gone`` are pids that do not exist (any more)."""

    processes: list[Identity]
    gone: list[int]
    denied: int
