"""Histories of one host. Each tells who is wanted at its end, and what is left over.

``wanted``: somebody alive wants it. ``left``: nobody does, and traces show it, by the kind of
history. ``lost``: nobody does, and it looks exactly like something that somebody wants.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from tests.unit.reclaim.stories import scenes
from tests.unit.reclaim.stories.host import GIB, End, Host, Process


@dataclass
class Truth:
    """What the history knows."""

    wanted: set[Process] = field(default_factory=set)
    left: dict[str, set[Process]] = field(default_factory=dict)
    lost: set[Process] = field(default_factory=set)

    def leave(self, kind: str, *processes: Process) -> None:
        self.left.setdefault(kind, set()).update(p for p in processes if p.alive)

    def want(self, *processes: Process) -> None:
        self.wanted.update(p for p in processes if p.alive)


Tale = Callable[[Host, Random, Truth], None]


def serving(host: Host, rng: Random, truth: Truth) -> None:
    """An engine at work; whoever started it may have logged out."""
    place = rng.choice(scenes.PLACES)(host, rng)
    made = scenes.engine(host, rng, place)
    if place.name == "background" and rng.random() < 0.5:
        host.kill(place.launcher)
    truth.want(*made.living)


def servers_answer(host: Host, rng: Random, truth: Truth) -> None:
    """The parent of two API servers is dead; they still answer."""
    place = rng.choice([scenes.background, scenes.keeper, scenes.sandbox])(host, rng)
    made = scenes.engine(host, rng, place, servers=2)
    assert made.parent is not None
    host.kill(made.parent)
    if made.ports[0].ephemeral:
        guest = rng.choice(["proxy", "away", "client"])
        if guest == "proxy":
            host.tcp(host.proxy, made.apis[0], made.ports[0])
        elif guest == "away":
            host.tcp_away(made.apis[0], at=made.ports[0])
        else:
            host.tcp(_client(host, rng, truth), made.apis[0], made.ports[0])
    truth.want(*made.living)


def server_killed(host: Host, rng: Random, truth: Truth) -> None:
    """SIGKILL to every API server: core, workers and tracker live on for nobody."""
    place = rng.choice(_KILLED_IN)(host, rng)
    made = scenes.engine(host, rng, place)
    for one in filter(None, (made.parent, *made.apis)):
        host.kill(one)
    owner = place.owner
    if place.first and owner is not None and owner.kind == "unit" and place.name == "unit":
        host.stop_unit(owner)
        if owner.restart == "always" or rng.random() < 0.3:
            _run_again(host, rng, truth, place)
    if place.name == "container" and rng.random() < 0.3 and owner is not None:
        assert owner.main is not None
        owner.state = "ended"  # the runtime took it down and missed some
        if rng.random() < 0.5:
            owner.main = None
    truth.leave(_KINDS.get(place.name, "worker"), made.core, *made.workers)


_KINDS = {
    "terminal": "worker in a terminal",
    "job script": "worker in a live job script",
    "sandbox": "worker below a subreaper",
}
_KILLED_IN = (
    *(scenes.background, scenes.background, scenes.unit, scenes.unit, scenes.container),
    *(scenes.devbox, scenes.job, scenes.sandbox, scenes.keeper, scenes.supervisor),
    *(scenes.background, scenes.unit, scenes.container, scenes.job, scenes.terminal),
    *(scenes.background, scenes.unit, scenes.devbox, scenes.sandbox),
)


def _run_again(host: Host, rng: Random, truth: Truth, place: scenes.Place) -> None:
    """The unit runs another invocation, in the same control group."""
    assert place.owner is not None
    host.clock += 50
    place.owner.state = "live"
    place.owner.invocation = f"inv{host.clock}"
    place.owner.invocation_started = host.clock
    again = scenes.engine(host, rng, place)
    truth.want(*again.living)


def looked_at(host: Host, rng: Random, truth: Truth) -> None:
    """The same, at a terminal whose owner is still there and wants to know what happened."""
    made = scenes.engine(host, rng, scenes.terminal(host, rng))
    for one in filter(None, (made.parent, *made.apis)):
        host.kill(one)
    for one in made.living:
        one.tty = rng.choice([0, one.tty])
    truth.want(*made.living)


def daemon_by_title(host: Host, rng: Random, truth: Truth) -> None:
    """A worker that was made a daemon on purpose: it has no pipe to anybody, or its output's
    reader has gone."""
    place = rng.choice([scenes.background, scenes.unit])(host, rng)
    first = scenes.start(host, place, "python3", "python3 headless.py")
    one = host.spawn(first, "VLLM::EngineCore", "VLLM::EngineCore_DP1", session=True)
    one.owner = place.owner
    host.allocate(one, 0, 6 * GIB)
    if rng.random() < 0.5:
        host.pipe(one, first, standard=True)
    if place.name == "unit":
        assert place.owner is not None
        place.owner.main = host.spawn(host.init, "python3", "python3 other.py", session=True)
        if rng.random() < 0.5:  # started from another service, whose mark it has inherited
            one.env["INVOCATION_ID"] = "inv-of-another"
        else:  # moved there from a login before the unit was started again
            one.env.pop("INVOCATION_ID", None)
            place.owner.invocation, place.owner.invocation_started = "inv-new", host.clock + 1
            if rng.random() < 0.5:
                one.env["INVOCATION_ID"] = "inv-new"
    host.kill(first)
    truth.want(one)


def older_invocation(host: Host, rng: Random, truth: Truth) -> None:
    """A worker of a unit's earlier invocation, without a pipe that would show it."""
    place = scenes.unit(host, rng, rng.choice(["process", "none"]))
    assert place.owner is not None
    first = scenes.start(host, place, "vllm", "vllm serve m")
    one = host.spawn(first, "VLLM::Worker", "VLLM::Worker")
    host.allocate(one, 0, 6 * GIB)
    host.kill(first)
    place.owner.main = None
    _run_again(host, rng, truth, place)
    truth.leave("older invocation", one)


def core_with_a_customer(host: Host, rng: Random, truth: Truth) -> None:
    """As above, but somebody still talks to what is left, or looks at it."""
    place = rng.choice([scenes.background, scenes.keeper, scenes.sandbox])(host, rng)
    made = scenes.engine(host, rng, place)
    for one in filter(None, (made.parent, *made.apis)):
        host.kill(one)
    some = rng.choice([made.core, *made.workers])
    how = rng.randrange(7)
    if how == 0:
        host.pair(_client(host, rng, truth), some, rng.choice(["/run/user/1/x", "/dev/shm/y"]))
    elif how == 1:
        host.tcp(_client(host, rng, truth), some)
    elif how == 2:
        host.tcp_away(some)
    elif how == 3:
        host.tcp_away(some, "other_namespace")
    elif how == 4:
        host.pipe(_client(host, rng, truth), some)
    elif how == 5:
        debugger = host.spawn(host.init, "gdb", "gdb -p", session=True)
        some.tracer = debugger.pid
    else:
        some.state = "T"
    truth.want(*made.living)


def _client(host: Host, rng: Random, truth: Truth) -> Process:
    """Somebody's program, at a terminal or left to run by itself."""
    if rng.random() < 0.5:
        one = host.spawn(host.login(), "client", "python3 client.py")
    else:
        one = host.spawn(host.init, "client", "python3 client.py", session=True)
    truth.want(one)
    return one


def second_node(host: Host, rng: Random, truth: Truth) -> None:
    """Ranks whose local launcher was a dummy; their head is elsewhere."""
    place = rng.choice([scenes.background, scenes.job, scenes.container])(host, rng)
    dummy = scenes.start(host, place, "python3", "python3 node.py --rank 1")
    ranks = []
    for gpu in range(2):
        title = f"VLLM::Worker_TP{gpu + 4}"
        one = host.spawn(dummy, title, title)
        host.pipe(dummy, one)
        host.allocate(one, gpu, rng.randrange(1, 40) * GIB)
        host.tcp_away(one, rng.choice(["elsewhere", "other_namespace"]))
        ranks.append(one)
    host.kill(dummy)
    truth.want(*ranks)


def training(host: Host, rng: Random, truth: Truth) -> None:
    """A training somewhere; its login, cron or dummy launcher may be long gone."""
    place = rng.choice(scenes.PLACES)(host, rng)
    main, loaders = scenes.trainer(host, rng, place, rng.randrange(2))
    if place.launcher is not host.init and rng.random() < 0.5:
        scene_end(host, place)
    truth.want(main, *loaders)


def scene_end(host: Host, place: scenes.Place) -> None:
    """Whoever started something there goes away, and leaves it running."""
    if place.name == "terminal":
        host.hang_up(place.launcher)
    elif place.name in ("background", "keeper", "sandbox"):
        host.kill(place.launcher)


def from_cron(host: Host, rng: Random, truth: Truth) -> None:
    """Started by cron, or left by a unit on purpose; that unit is over by now."""
    mode = rng.choice(["process", "none", None])
    owner = host.own("unit", rng.choice(["cron.service", "run-u7.service"]), kill_mode=mode)
    cron = host.service("cron", "other", owner)
    middle = host.spawn(cron, "sh", "/bin/sh -c train", session=True)
    pipe = host.pipe(cron, middle)
    main, loaders = scenes.trainer(host, rng, scenes.Place("cron", middle, owner))
    main.ends.append(End(pipe, "r"))
    host.kill(middle)
    host.stop_unit(owner)
    truth.want(main, *loaders)


def handed_over(host: Host, rng: Random, truth: Truth) -> None:
    """A unit was restarted around what it does, which is left to finish."""
    place = scenes.unit(host, rng, "process")
    assert place.owner is not None
    old, loaders = scenes.trainer(host, rng, place)
    batch = scenes.start(host, place, "python3", "python3 batch.py")
    core = host.spawn(batch, "VLLM::EngineCore", "VLLM::EngineCore")
    host.pipe(batch, core)
    host.allocate(core, 1, 5 * GIB)
    place.owner.main = None
    host.clock += 50
    place.owner.invocation, place.owner.invocation_started = "inv-new", host.clock
    new = scenes.start(host, place, "python3", "python3 serve.py")
    truth.want(old, *loaders, batch, core, new)


def forking_service(host: Host, rng: Random, truth: Truth) -> None:
    """A unit whose main process has become a daemon: its launcher is dead by design."""
    place = scenes.unit(host, rng)
    assert place.owner is not None
    first = scenes.start(host, place, "python3", "python3 daemonize.py")
    main = host.spawn(first, "VLLM::Worker", "VLLM::Worker")
    host.pipe(first, main)
    host.setsid(main)
    host.allocate(main, rng.randrange(2), 3 * GIB)
    place.owner.main = main
    host.kill(first)
    truth.want(main)


def nested(host: Host, rng: Random, truth: Truth) -> None:
    """Inside something that nobody here could ask: a container with its own systemd."""
    owner = host.own(rng.choice(["unit", "container", "job"]), "inner", manager=None)
    first = host.spawn(host.init, "python3", "python3 pre.py", session=True)
    first.owner = owner
    if owner.kind == "job":
        first.env["SLURM_JOB_ID"] = owner.name
    one = host.spawn(first, "VLLM::Worker", "VLLM::Worker")
    host.pipe(first, one)
    host.allocate(one, 0, 3 * GIB)
    host.kill(first)
    truth.want(one)


def job_ended(host: Host, rng: Random, truth: Truth) -> None:
    """The scheduler or runtime says that it is over; some of it lives on, whatever its name."""
    make = rng.choice([scenes.job, scenes.container])
    place = make(host, rng)
    main, loaders = scenes.trainer(host, rng, place)
    assert place.owner is not None
    if place.owner.main not in (None, main) and rng.random() < 0.7:
        host.kill(place.owner.main)
    place.owner.state, place.owner.main = "ended", None
    if main.parent is not None and main.parent.title == "bash job.sh":
        host.kill(main.parent)
    truth.leave("ended", main, *loaders)


def in_a_jobs_terminal(host: Host, rng: Random, truth: Truth) -> None:
    """tmux was started inside a job; the job has ended, the terminal has not."""
    owner = host.own("job", f"{500 + len(host.owners)}", manager="slurm", state="ended")
    shell = host.login(tty=False)
    shell.env["SLURM_JOB_ID"] = owner.name
    main, loaders = scenes.trainer(host, rng, scenes.Place("tmux", shell, shell.owner))
    host.hang_up(shell)
    truth.want(main, *loaders)


def unit_over(host: Host, rng: Random, truth: Truth) -> None:
    """systemd has ended a unit and could not end all of it then."""
    place = scenes.unit(host, rng, rng.choice(["control-group", "mixed"]))
    main, loaders = scenes.trainer(host, rng, place)
    assert place.owner is not None
    if rng.random() < 0.3:  # systemd was told to leave what ignores TERM
        place.owner.send_sigkill = False
        place.owner.state, place.owner.main = "ended", None
        truth.want(main, *loaders)
        return
    place.owner.state, place.owner.main = "ended", None
    truth.leave("unit over", main, *loaders)


def heirs(host: Host, rng: Random, truth: Truth) -> None:
    """A trainer is killed; its forks keep its memory."""
    where = [scenes.background, scenes.unit, scenes.container, scenes.keeper]
    place = rng.choice(where)(host, rng)
    main, loaders = scenes.trainer(host, rng, place, least=1)
    if place.name == "unit":
        assert place.owner is not None
        place.owner.kill_mode = rng.choice(["process", "none"])
        place.owner.main = None
    host.kill(main)
    if place.name in ("background", "keeper") and rng.random() < 0.8:
        host.kill(place.launcher)
    how = rng.randrange(8)
    if how == 0:
        host.listen(rng.choice(loaders), 8080, ephemeral=False)
        truth.want(*loaders)
    elif how == 1:
        host.pair(_client(host, rng, truth), rng.choice(loaders), "/run/feed")
        truth.want(*loaders)
    elif how == 2:  # one of them has a work of its own to do, in a terminal
        shell = host.login()
        host.pair(shell, rng.choice(loaders))
        truth.want(*loaders)
    else:
        truth.leave("heir", *loaders)


def two_estates(host: Host, rng: Random, truth: Truth) -> None:
    """Two trainers of two people die on one GPU; one of the forks is wanted by somebody."""
    logins, people = host.own("unit", "ssh.service"), rng.randrange(2)
    families = []
    for n in range(2):
        main = host.spawn(host.init, "python3", f"python3 job{n}.py", session=True)
        main.uid, main.owner = 1000 + n * people, logins
        host.allocate(main, 0, 9 * GIB)
        families.append((main, host.fork(main, session=True)))
    wanted = host.spawn(host.init, "python3", "python3 broker.py", session=True)
    wanted.uid, wanted.owner = 1000 + 2 * people, logins
    host.allocate(wanted, 0, GIB)
    keeps = host.fork(wanted, session=True)
    for main, _ in families:
        host.kill(main)
    host.kill(wanted)
    truth.want(keeps)


def helper_of_the_living(host: Host, rng: Random, truth: Truth) -> None:
    """A living trainer's double-forked helper, beside a number that is dead on the same GPU."""
    place = scenes.background(host, rng)
    main, loaders = scenes.trainer(host, rng, place)
    middle = host.fork(main)
    helper = host.fork(middle, session=rng.random() < 0.5)
    host.kill(middle)
    dead = host.spawn(host.init, "python3", "python3 other.py", session=True)
    host.allocate(dead, 0, 5 * GIB)
    if rng.random() < 0.5:  # an exported handle keeps it
        broker = host.spawn(host.init, "broker", "broker", session=True)
        broker.opened = True
        broker.ends.append(dead.ends[-1])
        if rng.random() < 0.5:
            helper.hidden.add("layout")
    else:
        fork = host.fork(dead, session=True)
        truth.leave("heir beside the living", fork)
        if rng.random() < 0.3:
            helper.hidden.add("layout")
    host.kill(dead)
    truth.want(main, *loaders, helper)


def in_a_namespace(host: Host, rng: Random, truth: Truth) -> None:
    """The agent itself is in a container: NVML's numbers are other people's."""
    host.initial_namespace = False
    main, loaders = scenes.trainer(host, rng, scenes.background(host, rng))
    truth.want(main, *loaders)
    if rng.random() < 0.5:
        server_killed(host, rng, truth)


def torchrun(host: Host, rng: Random, truth: Truth) -> None:
    """The agent of torchrun is killed; its ranks go on. Nothing tells them from nohup."""
    place = scenes.background(host, rng)
    agent = scenes.start(host, place, "torchrun", "torchrun train.py")
    ranks = [host.spawn(agent, "python3", "python3 -u train.py") for _ in range(2)]
    meet = host.listen(ranks[0], 41001, ephemeral=True)
    host.tcp(ranks[1], ranks[0], meet)
    for gpu, one in enumerate(ranks):
        host.allocate(one, gpu, 7 * GIB)
    host.kill(agent)
    truth.lost.update(ranks)


def by_a_program(host: Host, rng: Random, truth: Truth) -> None:
    """A program that lives starts an engine's worker, without a pipe between them."""
    above = host.spawn(host.init, "python3", "python3 orchestrator.py", session=True)
    first = host.spawn(above, "python3", "python3 stage.py")
    worker = host.spawn(above, "VLLM::Worker", "VLLM::Worker")
    if rng.random() < 0.5:
        host.pipe(worker, above, standard=True)
    else:
        host.pair(worker, above)
    feed = host.pipe(first, worker)
    assert feed
    host.allocate(worker, 1, 3 * GIB)
    host.kill(first)
    truth.want(above, worker)


def library(host: Host, rng: Random, truth: Truth) -> None:
    """A trainer that uses an engine as a library, through a fork server or without one."""
    place = rng.choice([scenes.background, scenes.terminal, scenes.job])(host, rng)
    main = scenes.start(host, place, "python3", "python3 rl.py")
    host.allocate(main, 0, 4 * GIB)
    above = main
    through_server = rng.random() < 0.5
    if through_server:
        above = host.spawn(main, "python3", "python3 -c from multiprocessing.forkserver import m")
        host.pipe(main, above)
    core = host.spawn(above, "VLLM::EngineCore", "VLLM::EngineCore")
    host.pipe(main, core)
    if through_server:
        host.pipe(core, above)
    host.allocate(core, 1, 4 * GIB)
    spare = host.pipe(core, host.spawn(main, "python3", "python3 once.py"))
    host.kill(host.holders(spare)[-1])
    if rng.random() < 0.5:
        truth.want(main, core)
    else:
        host.kill(main)
        kind = "worker of a fork server" if through_server else "worker"
        truth.leave(_KINDS.get(place.name, kind), core)


TALES: tuple[tuple[Tale, int], ...] = (
    (serving, 8),
    (server_killed, 24),
    (servers_answer, 4),
    (looked_at, 2),
    (daemon_by_title, 4),
    (older_invocation, 3),
    (core_with_a_customer, 10),
    (second_node, 4),
    (training, 8),
    (from_cron, 3),
    (handed_over, 3),
    (forking_service, 2),
    (nested, 3),
    (job_ended, 6),
    (in_a_jobs_terminal, 2),
    (unit_over, 6),
    (heirs, 9),
    (two_estates, 2),
    (helper_of_the_living, 4),
    (in_a_namespace, 3),
    (torchrun, 1),
    (by_a_program, 2),
    (library, 4),
)


ESTATES = (heirs, helper_of_the_living, two_estates)
"""Histories that leave numbers of dead processes on NVML's lists."""


def tell(seed: int) -> tuple[Host, Truth, bool]:
    """The history of *seed*: the host, who is wanted, and whether everything can be read."""
    rng = Random(seed)
    host, truth = Host(), Truth()
    tales, weights = zip(*TALES, strict=True)
    chosen = rng.choices(tales, weights, k=rng.choice([1, 1, 2, 3]))
    for tale in chosen:
        tale(host, rng, truth)
    if rng.random() < 0.3:
        one = rng.choice(list(host.processes.values()))
        one.hidden.update(rng.sample(["files", "environment", "cgroup", "layout", "status"], k=2))
    several = sum(tale in ESTATES for tale in chosen) > 1
    if several or not host.initial_namespace:  # a person decides; NVML's numbers mean nothing
        for kind in ("heir", "heir beside the living"):
            truth.lost |= truth.left.pop(kind, set())
    return host, truth, not any(p.hidden for p in host.processes.values())
