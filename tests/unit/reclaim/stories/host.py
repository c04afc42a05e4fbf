"""A host in small: processes, files they share, owners, and what a death does to them.

Knows nothing of how fleetmem judges. It keeps to what the kernel does: children of the dead
go to the nearest subreaper or to process 1 of their namespace, a session's leader takes the
terminal with it, files live as long as somebody has them open, a fork keeps the driver's
files and mappings and an exec drops them, memory is charged to whoever allocated it for as
long as its files are open anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

GIB = 1 << 30


@dataclass(eq=False)
class File:
    """A pipe, a pair of Unix sockets, a TCP connection, a listener or the driver's files.

    ``beyond``: what has the other side where no process of this host does: ``elsewhere`` or
    ``other_namespace`` (another network namespace of this host, out of sight).
    """

    kind: str
    beyond: str | None = None
    path: str | None = None
    address: str | None = None
    port: int | None = None
    ephemeral: bool = True
    accepted_by: File | None = None


@dataclass(eq=False)
class End:
    """One descriptor: side ``r``/``w`` of a pipe, ``a``/``b`` of a socket, else ``-``."""

    file: File
    side: str
    standard: bool = False


@dataclass(eq=False)
class Owner:
    """A unit, container, pod, job or session as its manager has it."""

    kind: str
    name: str
    manager: str | None = "systemd"
    state: str = "live"
    invocation: str | None = None
    invocation_started: int | None = None
    kill_mode: str | None = "control-group"
    send_sigkill: bool = True
    main: Process | None = None
    restart: str = "no"
    shared: bool = True


@dataclass(eq=False)
class Process:
    """One process. ``image`` is one object for all that were forked without an exec.

    ``context``: it made a CUDA context; ``opened``: it has the driver's files and no more.
    """

    pid: int
    start: int
    parent: Process | None
    sid: int
    pgid: int
    uid: int
    comm: str
    title: str
    exe: str
    image: object
    tty: int = 0
    alive: bool = True
    state: str = "S"
    tracer: int = 0
    subreaper: bool = False
    reaper: bool = False
    system: str | None = None
    known_adopter: bool | None = False
    ends: list[End] = field(default_factory=list)
    owner: Owner | None = None
    env: dict[str, str] = field(default_factory=dict)
    context: bool = False
    opened: bool = False
    hidden: set[str] = field(default_factory=set)
    net: int = 1

    def has(self, file: File) -> bool:
        return any(end.file is file for end in self.ends)


@dataclass(eq=False)
class Charge:
    """Bytes on a GPU, named after *pid* by NVML, alive while anybody has *files* open."""

    gpu: int
    size: int
    pid: int
    files: File


class Host:
    """The host, with process 1 and a few services that every host has."""

    def __init__(self) -> None:
        self.clock = 100
        self.next_pid = 1
        self.processes: dict[int, Process] = {}
        self.charges: list[Charge] = []
        self.owners: list[Owner] = []
        self.initial_namespace = True
        self.init = self._add(None, "systemd", "/sbin/init", "/usr/lib/systemd/systemd")
        self.init.reaper = True
        self.init.system = "init"
        self.init.known_adopter = True
        self.sshd = self.service("sshd", "login", self.own("unit", "ssh.service"))
        self.proxy = self.service("nginx", "other", self.own("unit", "nginx.service"))

    # --- beginnings ------------------------------------------------------------------------

    def own(self, kind: str, name: str, **more: Any) -> Owner:
        owner = Owner(kind, name, **more)
        self.owners.append(owner)
        return owner

    def service(self, comm: str, system: str, owner: Owner) -> Process:
        one = self.spawn(self.init, comm, f"/usr/sbin/{comm}", session=True)
        one.system, one.owner, owner.main = system, owner, one
        return one

    def _add(self, parent: Process | None, comm: str, title: str, exe: str) -> Process:
        self.clock += 7
        self.next_pid += 1 if parent is None else 3
        pid = 1 if parent is None else self.next_pid
        one = Process(pid, self.clock, parent, pid, pid, 0, comm[:15], title, exe, object())
        self.processes[pid] = one
        return one

    def fork(self, parent: Process, *, session: bool = False, keep: bool = True) -> Process:
        """A fork without an exec: files, driver's included, and the image are shared."""
        one = self._add(parent, parent.comm, parent.title, parent.exe)
        one.image, one.uid, one.tty, one.net = parent.image, parent.uid, parent.tty, parent.net
        one.owner, one.env = parent.owner, dict(parent.env)
        one.sid, one.pgid = parent.sid, parent.pgid
        if keep:
            one.ends = [End(end.file, end.side, end.standard) for end in parent.ends]
        if session:
            self.setsid(one)
        return one

    def spawn(
        self, parent: Process, comm: str, title: str, *, session: bool = False, exe: str = ""
    ) -> Process:
        """A fork with an exec: a new image, without files beyond the standard ones."""
        one = self.fork(parent, session=session, keep=False)
        one.image = object()
        one.ends = [End(e.file, e.side, True) for e in parent.ends if e.standard]
        one.comm, one.title = comm[:15], title
        one.exe = exe or f"/usr/bin/{comm.split(':', maxsplit=1)[0]}"
        return one

    def setsid(self, one: Process) -> None:
        one.sid = one.pgid = one.pid
        one.tty = 0

    def login(self, uid: int = 1000, *, tty: bool = True) -> Process:
        """A shell of somebody who is logged in over ssh."""
        session = self.spawn(self.sshd, "sshd-session", "sshd: ops", session=True)
        session.system = "login"
        session.owner = self.own("session", f"session-{session.pid}.scope", manager=None)
        shell = self.spawn(session, "bash", "-bash", session=True)
        shell.uid = uid
        if tty:
            shell.tty = 34816 + shell.pid
        return shell

    # --- ties ------------------------------------------------------------------------------

    def pipe(self, writer: Process, reader: Process, *, standard: bool = False) -> File:
        """*standard*: the writer has it as its output."""
        file = File("pipe")
        writer.ends.append(End(file, "w", standard))
        reader.ends.append(End(file, "r", False))
        return file

    def pair(self, a: Process, b: Process, path: str | None = None) -> File:
        file = File("unix", path=path)
        a.ends.append(End(file, "a"))
        b.ends.append(End(file, "b"))
        return file

    def tcp(self, a: Process, b: Process, at: File | None = None) -> File:
        """A connection from *a*, accepted by *b* through the listener *at*."""
        file = File("tcp", address="127.0.0.1", port=40000, accepted_by=at)
        a.ends.append(End(file, "a"))
        b.ends.append(End(file, "b"))
        return file

    def tcp_away(self, one: Process, where: str = "elsewhere", at: File | None = None) -> File:
        file = File("tcp", beyond=where, address="10.99.0.2", port=5000, accepted_by=at)
        one.ends.append(End(file, "b" if at else "a"))
        return file

    def listen(self, one: Process, port: int, *, ephemeral: bool) -> File:
        file = File("listen", address="0.0.0.0", port=port, ephemeral=ephemeral)
        one.ends.append(End(file, "-"))
        return file

    def listen_unix(self, one: Process, path: str) -> File:
        file = File("listen", path=path)
        one.ends.append(End(file, "-"))
        return file

    def allocate(self, one: Process, gpu: int, size: int) -> None:
        """Memory of a context, which is made where there is none."""
        if not one.context:
            one.context = True
            one.ends.append(End(File("driver"), "-"))
        files = next(e.file for e in reversed(one.ends) if e.file.kind == "driver")
        self.charges.append(Charge(gpu, size, one.pid, files))

    # --- ends ------------------------------------------------------------------------------

    def kill(self, one: Process) -> None:
        """SIGKILL: only the kernel tidies up."""
        if not one.alive:
            return
        one.alive = False
        del self.processes[one.pid]
        one.ends = []
        if one.tty and one.sid == one.pid:
            for other in self.processes.values():
                if other.sid == one.sid:
                    other.tty = 0
        for child in [p for p in self.processes.values() if p.parent is one]:
            child.parent = self._adopter(one)
        self.charges = [c for c in self.charges if self.holders(c.files)]

    def _adopter(self, dead: Process) -> Process:
        above = dead.parent
        while above is not None and above is not self.init:
            if above.alive and (above.subreaper or above.reaper):
                return above
            above = above.parent
        return self.init

    def hang_up(self, shell: Process) -> None:
        """A login ends; what was started with nohup stays."""
        session = shell.parent
        self.kill(shell)
        if session is not None and session.system == "login":
            self.kill(session)

    def stop_unit(self, owner: Owner) -> None:
        """systemctl stop, or what systemd does when the main process has ended."""
        owner.state = "ended"
        main = owner.main
        if main is not None and main.alive and owner.kill_mode != "none":
            self.kill(main)
        if owner.kill_mode in ("control-group", "mixed") and owner.send_sigkill:
            for one in [p for p in self.processes.values() if p.owner is owner]:
                self.kill(one)
        owner.main = None

    # --- looking ---------------------------------------------------------------------------

    def holders(self, file: File) -> list[Process]:
        return [p for p in self.processes.values() if p.has(file)]

    def children(self, one: Process) -> list[Process]:
        return [p for p in self.processes.values() if p.parent is one]
