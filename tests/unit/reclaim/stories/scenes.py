"""What the histories are made of: places to start something from, engines, trainers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.unit.reclaim.stories.host import GIB, End, File, Host, Owner, Process

if TYPE_CHECKING:
    from random import Random

TRACKER = "/usr/bin/python3 -c from multiprocessing.resource_tracker import main;main(48)"
PREFIXES = ("VLLM::", "VLLM::", "prod::")


@dataclass
class Place:
    """Where something is started: by *launcher*, under *owner*."""

    name: str
    launcher: Process
    owner: Owner | None = None
    shell: Process | None = None
    first: bool = False
    """What is started first is the owner's main process, with no launcher of its own."""


@dataclass
class Engine:
    """A serving engine; ``everyone`` are all its processes, living or dead."""

    apis: list[Process]
    core: Process
    workers: list[Process]
    tracker: Process
    parent: Process | None = None
    ports: list[File] = field(default_factory=list)

    @property
    def everyone(self) -> list[Process]:
        above = [self.parent] if self.parent else []
        return [*above, *self.apis, self.core, *self.workers, self.tracker]

    @property
    def living(self) -> list[Process]:
        return [p for p in self.everyone if p.alive]


# --- places --------------------------------------------------------------------------------


def terminal(host: Host, rng: Random) -> Place:
    """In somebody's terminal."""
    shell = host.login()
    return Place("terminal", shell, shell.owner, shell)


def background(host: Host, rng: Random) -> Place:
    """``nohup setsid`` from a login that has ended, or is still there."""
    shell = host.login(tty=rng.random() < 0.7)
    script = host.spawn(shell, "bash", "bash -c", session=True)
    place = Place("background", script, shell.owner)
    if rng.random() < 0.5:
        per_connection = host.own(
            "unit", f"sshd@{shell.pid}.service", state="ended", kill_mode="process"
        )
        script.owner = place.owner = per_connection
    host.hang_up(shell)
    return place


def unit(host: Host, rng: Random, kill_mode: str = "") -> Place:
    """A service of systemd."""
    mode = kill_mode or rng.choice(["control-group", "mixed", "process", "none"])
    owner = host.own(
        "unit",
        f"vllm{len(host.owners)}.service",
        kill_mode=mode,
        invocation=f"inv{host.clock}",
        invocation_started=host.clock,
        restart=rng.choice(["no", "always"]),
    )
    return Place("unit", host.init, owner, first=True)


def container(host: Host, rng: Random) -> Place:
    """A container of some runtime; with an init of its own, or without."""
    runtime = rng.choice(["docker", "podman", "containerd", "rootless podman"])
    owner = host.own(
        rng.choice(["container", "container", "pod"]), f"c{len(host.owners)}f00", manager=runtime
    )
    owner.shared = False
    shim = host.spawn(host.init, "containerd-shim", "containerd-shim-runc-v2", session=True)
    shim.system, shim.known_adopter, shim.subreaper = "runtime", True, True
    tini = host.spawn(shim, "tini", "tini -- serve", session=True)
    tini.reaper, tini.known_adopter = True, True
    tini.owner, owner.main = owner, tini
    return Place("container", tini, owner)


def devbox(host: Host, rng: Random) -> Place:
    """A container that sleeps, with somebody's shell in it."""
    place = container(host, rng)
    place.launcher.comm, place.launcher.title = "sleep", "sleep infinity"
    shim = place.launcher.parent
    assert shim is not None
    shell = host.spawn(shim, "bash", "bash -c serve", session=True)
    shell.owner = place.owner
    return Place("devbox", shell, place.owner, shell)


def job(host: Host, rng: Random) -> Place:
    """A step of a Slurm job: started by slurmstepd itself, or by a batch script."""
    owner = host.own("job", str(100 + len(host.owners)), manager="slurm", kill_mode=None)
    owner.shared = False
    step = host.spawn(host.init, "slurmstepd", "slurmstepd: [7.0]", session=True)
    step.system, step.subreaper, step.known_adopter = "scheduler", True, True
    if rng.random() < 0.7:
        return Place("job", step, owner, first=True)
    script = host.spawn(step, "bash", "bash job.sh", session=True)
    script.owner, owner.main = owner, script
    script.env["SLURM_JOB_ID"] = owner.name
    return Place("job script", script, owner)


def sandbox(host: Host, rng: Random) -> Place:
    """Below a subreaper that launched somebody who launched it, and nothing here itself."""
    reaper = host.spawn(host.init, "sandboxd", "python3 sandboxd", session=True)
    reaper.subreaper, reaper.known_adopter = True, rng.choice([None, False])
    middle = host.spawn(reaper, "bash", "bash -c serve", session=True)
    return Place("sandbox", middle, None, middle)


def keeper(host: Host, rng: Random) -> Place:
    """A script that goes on after what it waits for: ``bash -c 'serve; sleep'``."""
    script = host.spawn(host.init, "bash", "bash -c serve; sleep 9", session=True)
    return Place("keeper", script)


def supervisor(host: Host, rng: Random) -> Place:
    """A supervisor that starts programs in sessions of their own."""
    owner = host.own("unit", "supervisor.service")
    one = host.spawn(host.init, "supervisord", "supervisord -n", session=True)
    one.owner, owner.main = owner, one
    return Place("supervisor", one, owner, first=True)


PLACES = (terminal, background, unit, container, devbox, job, sandbox, keeper, supervisor)


def start(host: Host, place: Place, comm: str, title: str) -> Process:
    """Something started there."""
    one = host.spawn(place.launcher, comm, title, session=place.first)
    if place.owner is not None and place.name != "sandbox":
        one.owner = place.owner
        if place.owner.kind == "job":
            one.env["SLURM_JOB_ID"] = place.owner.name
        if place.first and place.name != "supervisor":
            place.owner.main = one
        if place.owner.invocation:
            one.env["INVOCATION_ID"] = place.owner.invocation
    return one


# --- what is started -----------------------------------------------------------------------


def engine(host: Host, rng: Random, place: Place, servers: int = 0) -> Engine:
    """A server with its engine core, its workers and their pipes, ipc and rendezvous."""
    prefix = rng.choice(PREFIXES)
    servers = servers or rng.choice([1, 1, 1, 2])
    parent = None
    above = start(host, place, "vllm", "/usr/bin/python3 /usr/bin/vllm serve m")
    tracker = host.spawn(above, "python3", TRACKER)
    tracked = File("pipe")
    tracker.ends.append(End(tracked, "r"))
    above.ends.append(End(tracked, "w"))

    def child(of: Process, title: str) -> Process:
        one = host.spawn(of, title, title)
        one.exe = "/usr/bin/python3"
        one.ends.append(End(tracked, "w"))
        host.pipe(of, one)
        host.pipe(one, of)
        return one

    port = File("listen", address="0.0.0.0", port=8000, ephemeral=rng.random() < 0.3)
    if servers == 1:
        apis = [above]
    else:
        parent = above
        apis = [child(above, f"VLLM::APIServer_{n}") for n in range(servers)]
    for api in apis:
        api.ends.append(End(port, "-"))
    core = child(above, f"{prefix}EngineCore")
    host.listen_unix(core, "/tmp/7f3d")
    for api in apis:
        host.pair(api, core, "/tmp/7f3d")
    tp = rng.choice([1, 2, 2])
    workers = []
    if tp > 1:
        core.opened = True
        core.ends.append(End(File("driver"), "-"))
        workers = [child(core, f"{prefix}Worker_TP{n}") for n in range(tp)]
        meet = host.listen(workers[0], 41000, ephemeral=True)
        host.tcp(workers[1], workers[0], meet)
        host.tcp(core, workers[0], meet)
    for gpu, one in enumerate(workers or [core]):
        host.listen(one, 42000 + gpu, ephemeral=True)
        host.allocate(one, gpu, rng.randrange(1, 40) * GIB)
    if rng.random() < 0.2:  # its output goes to a collector
        reader = host.spawn(host.init, "tee", "tee log", session=True)
        output = File("pipe")
        reader.ends.append(End(output, "r"))
        for one in (above, *apis, core, *workers):
            one.ends.append(End(output, "w", True))
    return Engine(apis, core, workers, tracker, parent, [port])


def trainer(
    host: Host, rng: Random, place: Place, gpu: int = 0, least: int = 0
) -> tuple[Process, list[Process]]:
    """A training with loaders that were forked from it after its start on the GPU."""
    title = rng.choice(["python3 train.py", "Worker_0", "trtllm-build --dir x", "python3 -m mine"])
    main = start(host, place, "python3", title)
    host.allocate(main, gpu, rng.randrange(1, 40) * GIB)
    loaders = []
    for _ in range(rng.randrange(least, 4)):
        to_loader, back = File("pipe"), File("pipe")
        main.ends += [End(to_loader, "w"), End(back, "r")]
        one = host.fork(main)
        one.ends = [e for e in one.ends if e.file not in (to_loader, back)]
        one.ends += [End(to_loader, "r"), End(back, "w")]
        loaders.append(one)
    return main, loaders
