"""The shape of ``processes.ties``: who a process is tied to, and who answers for it.

Three rules hold for every field:

- ``nobody`` is a positive finding: the whole host was looked through (or the kernel said so
  of this very pipe or socket) and no other end was there. Where anything that could hold
  the other end was not looked at, it is ``unreadable``, and never ``nobody``.
- ``None`` is "could not be read"; the process's ``unreadable`` then has a code for it.
- An owner has ``ended`` only because whoever manages it answered so. That a list, a
  directory or a namespace lacks it is ``unknown``.

``processes`` is closed over ties: from the processes that were asked about to whatever
their ties reach, and on from there. The walk follows a parent upwards, a session's and a
group's leader, a tracer, kin of a fork, and the other ends of pipes, Unix sockets and TCP
connections of this network namespace. It follows children of the processes asked about,
and of nobody else. It does not go on from an adopter, a system service or a mere reader of
standard output: they have a row, and their own ties are not read. A process that has a row
and was not walked because a bound was hit has ``not_walked`` in ``unreadable``.
"""

from __future__ import annotations

from typing import Literal

from typing_extensions import TypedDict


class TiedEnvironment(TypedDict):
    """What a process's environment says of its owner; ``None`` where it is not set.

    Inherited by whatever was started from there, so it names where a process comes from,
    not where it is. ``values`` has further marks (RAY_JOB_ID, KUBERNETES_SERVICE_HOST, …).
    """

    invocation_id: str | None
    slurm_job_id: str | None
    pod_uid: str | None
    values: dict[str, str]


class OwnerRef(TypedDict):
    """One owner of a process: the place of its row in ``owners``, and where it was read."""

    owner: int
    source: Literal["cgroup", "environment"]


class Tied(TypedDict):
    """One process that ties reach. (pid, start_time) as in ``processes.identity``.

    ``asked``: it was asked about. ``state`` is the kernel's letter over all tasks (``Z`` only
    where every task has ended); ``alive`` is false for Z and X. ``tty``: number of its
    controlling terminal, 0 without one. ``tracer_pid`` 0: nobody traces it.
    ``pids_inside``: its numbers in the namespaces below (NSpid), outermost first.

    ``adopter``: it gets children that it did not start and started none of those here:
    process 1 of a pid namespace, a reaper, a shim, a subreaper. ``None``: cannot be told.
    ``system``: a service of the host by unit, user and executable, never by a socket's path:
    ``login`` (sshd and its sessions, login, a terminal's getty), ``logs`` (journald,
    collectors), ``names`` (dbus, nscd, sssd), ``runtime`` (dockerd, containerd, shims),
    ``scheduler`` (kubelet, slurmd, slurmstepd), ``monitoring``, ``mps``, ``agent`` (this
    agent and its ancestors), ``init``, ``other``.

    ``layout``: the same for processes that were forked from each other without an exec
    between (where program, stack and heap begin, chosen at random at each exec), ``None``
    unread.
    ``cgroup`` as in ``processes.identity``. ``cgroup_shared``: others than the processes of
    its family are in it, so it is a login's, a scheduler's or a supervisor's.

    ``term``: what SIGTERM would do: ``default``, ``handled``, ``ignored``, ``blocked``,
    ``init`` (a namespace's process 1 without a handler: nothing), ``None`` unread.

    ``unreadable``, codes: ``not_walked files maps status environment cgroup parent sockets
    unix_peers tcp layout exe namespaces``, and ``environment_overwritten`` where the process
    has written a title over its own environment, as setproctitle does: nobody can read that
    any more (``environment`` is ``None`` then).
    """

    pid: int
    start_time: int
    asked: bool
    ppid: int
    pgid: int
    sid: int
    uid: int
    user: str | None
    comm: str
    title: str
    exe: str | None
    state: str
    alive: bool
    kernel_thread: bool
    tty: int
    tracer_pid: int | None
    pids_inside: list[int]
    pid_namespace: int | None
    net_namespace: int | None
    adopter: bool | None
    system: str | None
    layout: str | None
    cgroup: str | None
    cgroup_shared: bool | None
    owners: list[OwnerRef]
    environment: TiedEnvironment | None
    term: str | None
    unreadable: list[str]


class Link(TypedDict):
    """One tie, as seen from ``pid``. Equal ones are one row with their ``count``.

    ``kind``: ``parent`` (*other* is the parent of *pid*), ``session`` and ``group`` (*other*
    leads it, and is another process), ``tracer``, ``fork`` (both share an open file of the
    driver, or their layout; rows enough to connect all that do), ``pipe``, ``unix`` (also
    socket pairs), ``tcp``.

    ``where`` the other end is: ``here`` (*other* is set); ``nobody`` (a positive finding: a
    dead leader, a pipe without another end, a socket whose peer has closed; of ``parent``:
    whoever started it has ended and its parent adopted it, which is certain where the parent
    is younger, or is not in the session that the child was born into); ``elsewhere``
    (an address that is not this host's); ``other_namespace`` (another network namespace of
    this host; *other* where it was found); ``unreadable``. A parent outside this pid
    namespace is ``unreadable``.

    ``standard``: *pid* has it as descriptors 0-2 and no other. ``reads`` and ``writes`` are
    *pid*'s: a standard one that *pid* only writes has a mere reader at its other end.
    A pipe of which *pid* has both ends and nobody else any is its own: no row. One that
    several share has rows enough to connect all that write it with all that read it.

    ``closed``: the other end has ended its sending (TCP in CLOSE_WAIT and after).
    ``address`` and ``port`` are the remote ones of a TCP connection, ``local_port`` the own;
    connections that only these tell apart are one row with the first. ``listener``: it came
    in through the listening socket of that place in ``listeners`` (this end accepted it).
    ``path`` is a Unix socket's name (either end's), ``@…`` abstract.
    """

    kind: Literal["parent", "session", "group", "tracer", "fork", "pipe", "unix", "tcp"]
    pid: int
    other: int | None
    where: Literal["here", "nobody", "elsewhere", "other_namespace", "unreadable"]
    count: int
    standard: bool
    reads: bool
    writes: bool
    closed: bool
    address: str | None
    port: int | None
    local_port: int | None
    path: str | None
    listener: int | None


class Listener(TypedDict):
    """One listening socket and those that have it open.

    ``ephemeral``: the port is in the kernel's own range (ip_local_port_range of its network
    namespace), ``None`` where that was not read or for Unix sockets. ``address`` as bound.
    CUDA's own socket that every context has is left out.
    """

    kind: Literal["tcp", "unix"]
    pids: list[int]
    address: str | None
    port: int | None
    path: str | None
    ephemeral: bool | None


class OwnerState(TypedDict):
    """A unit, container, pod or job, as whoever manages it answers.

    ``manager``: who was asked and answered (``systemd``, ``systemd --user uid 1000``,
    ``docker``, ``podman``, ``containerd``, ``slurm``, …), ``None``: nobody did, and
    ``state`` is ``unknown`` then. A unit inside a nested container is asked of that
    container's own systemd or of nobody. ``state``: ``live`` (also starting, stopping and
    waiting for a restart), ``ended`` (the manager says that it is over), ``unknown``.
    ``detail``: the manager's words ("failed/exit-code", "exited 137").

    A unit that only an environment's INVOCATION_ID names has that as its ``id``; where that
    invocation is not running, ``name`` is the unit that process 1 wrote of in the journal, and
    ``state`` what systemd says of it (``ended`` if it runs another invocation by now).

    ``invocation_id`` is the one that runs now (or ran last), ``invocation_started`` its
    start in clock ticks since boot, comparable with ``start_time``. ``kill_mode`` and
    ``send_sigkill`` are ``None`` where the unit is not loaded (systemd then names defaults).
    ``main_pid`` is the number in this pid namespace. ``restart``: ``no``, or what it
    restarts on; ``restart_seconds`` the pause before. ``stop_command``: for a person.
    """

    kind: Literal["unit", "user_unit", "container", "pod", "job", "session", "scope"]
    id: str
    name: str | None
    runtime: str | None
    manager: str | None
    state: Literal["live", "ended", "unknown"]
    detail: str | None
    invocation_id: str | None
    invocation_started: int | None
    kill_mode: str | None
    send_sigkill: bool | None
    main_pid: int | None
    restart: str | None
    restart_seconds: float | None
    stop_command: str | None


class Unseen(TypedDict):
    """Something that was not looked at: ``what`` (``processes files sockets namespace``),
    how much of it, whose, and in one line why."""

    what: str
    count: int
    user: str | None
    why: str


class Ties(TypedDict):
    """Reading of ``processes.ties``.

    ``complete`` is false where a bound ended the walk: ``bound`` says which (``processes
    files time``). ``initial_pid_namespace``: numbers here are the kernel's own, so that
    NVML's can be compared with them. ``gone``: asked-for pids that do not exist.
    """

    boot_id: str
    initial_pid_namespace: bool | None
    complete: bool
    bound: Literal["processes", "files", "time"] | None
    processes: list[Tied]
    links: list[Link]
    listeners: list[Listener]
    owners: list[OwnerState]
    unseen: list[Unseen]
    gone: list[int]
