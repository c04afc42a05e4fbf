"""Scenes in real processes, each on a host of its own: who is wanted, and what is left over.

The code of a scene runs inside a host, in the words of ``cast.py``, through a login that then
ends. ``wanted`` must live whatever ``reclaim --yes`` does; ``left`` must be freed by it.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Scene:
    """One history of a host; names are those of roles."""

    code: str
    wanted: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    verdicts: frozenset[str] = field(default_factory=frozenset)


NOTHING = frozenset({"nothing_to_do"})
FREED = frozenset({"reclaimed"})


def wanted(code: str, *names: str, verdicts: frozenset[str] = NOTHING) -> Scene:
    """A scene in which nothing may be touched."""
    return Scene(code, wanted=names, verdicts=verdicts)


def left(code: str, *names: str, wanted: tuple[str, ...] = ()) -> Scene:
    """A scene whose memory comes back by default."""
    return Scene(code, wanted=wanted, left=names, verdicts=FREED)


def launched(role: str = "worker", how: str = "", **options: object) -> str:
    """Code for an engine's worker with a launcher that lives; *how* goes to the launcher."""
    if role == "worker":
        options.setdefault("title", "VLLM::Worker_TP0")
    return (
        f'start("launcher", session=True, name="launcher", role={role!r}, '
        f"options={options!r}{how})\n"
        'stage.wait("launcher", "worker")\n'
    )


def orphaned(role: str = "worker", how: str = "", **options: object) -> str:
    """The same with the launcher killed: its pipes have no other end any more."""
    return launched(role, how, **options) + 'kill(cast["launcher"])\ngone(cast["launcher"])\n'


LEFT = {
    "vllm-two-workers": left(
        """
start("engine", session=True, name="server", workers=2)
stage.wait("server", "core", "worker0", "worker1", "tracker")
kill(cast["server"])
gone(cast["server"])
""",
        *("core", "worker0", "worker1"),
    ),
    "vllm-one-core": left(
        """
start("engine", session=True, name="server", workers=0, core_holds=True)
stage.wait("server", "core", "tracker")
kill(cast["server"])
gone(cast["server"])
""",
        "core",
    ),
    "vllm-served-before": left(
        """
start("engine", session=True, name="server", workers=2, port=8000)
stage.wait("server", "core", "worker0", "worker1", "tracker")
kill(cast["server"])
gone(cast["server"])
""",
        *("core", "worker0", "worker1"),
    ),
    "worker-in-its-launchers-session": left(orphaned(), "worker"),
    "worker-in-a-session-of-its-own": left(orphaned(how=", own=True"), "worker"),
    "sglang-scheduler": left(orphaned(title="sglang::scheduler_TP0"), "worker"),
    "shell-that-goes-on": left(
        """
start("parent", session=True, role="launcher", name="parent",
      options={"options": {"title": "VLLM::Worker_TP0"}})
stage.wait("parent", "launcher", "worker")
kill(cast["launcher"])
gone(cast["launcher"])
""",
        "worker",
    ),
    "subreaper-that-started-nothing": left(
        """
start("subreaper", session=True, name="subreaper", options={"title": "VLLM::Worker_TP0"})
stage.wait("subreaper", "launcher", "worker")
kill(int(open("/tmp/middle").read()), cast["launcher"])
gone(cast["launcher"])
""",
        "worker",
        wanted=("subreaper",),
    ),
    "one-heir": left(
        """
start("trainer", session=True, name="trainer", loaders=1)
stage.wait("trainer", "loader0")
kill(cast["trainer"])
gone(cast["trainer"])
""",
        "loader0",
    ),
    "two-heirs-of-one-family": left(
        """
start("trainer", session=True, name="trainer", loaders=2)
stage.wait("trainer", "loader0", "loader1")
kill(cast["trainer"])
gone(cast["trainer"])
""",
        *("loader0", "loader1"),
    ),
    "port-of-the-kernels-choice": left(orphaned("serving", port=0), "worker"),
    "output-to-a-log-collector": left(
        """
read, write = os.pipe()
reader = os.fork()
if reader == 0:
    os.setsid()
    null = os.open("/dev/null", os.O_WRONLY)
    os.dup2(read, 0), os.dup2(null, 1), os.dup2(null, 2)
    os.closerange(3, 100)
    os.execv("/bin/cat", ["cat"])
os.close(read)
os.set_inheritable(write, True)
"""
        + orphaned(how=", standard=write, output=True")
        + "os.close(write)\n",
        "worker",
    ),
}

SOCKETS = {
    "run": "/run/engine.sock",
    "var-run": "/var/run/engine.sock",
    "shm": "/dev/shm/engine.sock",
    "tmp": "/tmp/engine.sock",
    "runtime-dir": "/run/user/0/engine.sock",
    "abstract": "@engine",
}


def with_client(place: str, **options: object) -> Scene:
    """A leftover, but for a client that is connected to it."""
    code = orphaned("serving", place=place, **options)
    dgram = options.get("dgram", False)
    code += f'start("client", session=True, name="client", place={place!r}, dgram={dgram})\n'
    return wanted(code + 'stage.wait("client")\n', "worker", "client")


WANTED = {
    **{f"client-below-{name}": with_client(place) for name, place in SOCKETS.items()},
    "client-not-accepted-yet": with_client("/tmp/engine.sock", accept=False),
    "sender-of-datagrams": with_client("/tmp/engine.sock", dgram=True),
    "client-on-a-port": wanted(
        orphaned("serving", port=0)
        + """
start("client", session=True, name="client", port=int(open("/tmp/port").read()))
stage.wait("client")
""",
        *("worker", "client"),
    ),
    "service-on-a-port": wanted(orphaned("serving", port=18080), "worker"),
    "nohup": wanted(
        'start("worker", session=True, name="worker", title="python3 train.py")\n'
        'stage.wait("worker")\n',
        "worker",
    ),
    "somebodys-own-worker-0": wanted(orphaned(title="Worker_0"), "worker"),
    "trtllm-build": wanted(orphaned(title="trtllm-build"), "worker"),
    "launcher-that-lives": wanted(launched(), "worker", "launcher"),
    "shell-that-waits": wanted(
        'start("parent", session=True, role="worker", options={"title": "VLLM::Worker_TP0"})\n'
        'stage.wait("parent", "worker")\n',
        *("worker", "parent"),
    ),
    "vllm-that-serves": wanted(
        """
start("engine", session=True, name="server", workers=2, port=8000)
stage.wait("server", "core", "worker0", "worker1", "tracker")
""",
        *("server", "core", "worker0", "worker1"),
    ),
    "api-server-without-its-parent": wanted(
        """
start("parent", session=True, role="engine", options={"workers": 2, "port": 8000})
stage.wait("parent", "server", "core", "worker0", "worker1", "tracker")
kill(cast["parent"])
gone(cast["parent"])
""",
        *("server", "core", "worker0", "worker1"),
    ),
    "one-core-whose-server-answers": wanted(
        """
start("parent", session=True, role="engine",
      options={"workers": 0, "core_holds": True, "port": 8000})
stage.wait("parent", "server", "core", "tracker")
kill(cast["parent"])
gone(cast["parent"])
""",
        *("server", "core"),
    ),
    "heir-that-serves": wanted(
        """
start("serving_fork", session=True, name="trainer", port=8080)
stage.wait("trainer", "heir")
kill(cast["trainer"])
gone(cast["trainer"])
""",
        "heir",
        verdicts=frozenset({"nothing_to_do", "held_by"}),
    ),
    "loaders-of-a-living-trainer": wanted(
        'start("trainer", session=True, name="trainer", loaders=2)\n'
        'stage.wait("trainer", "loader0", "loader1")\n',
        *("trainer", "loader0", "loader1"),
    ),
    "loaders-forked-twice": wanted(
        'start("trainer", session=True, name="trainer", loaders=2, double=True)\n'
        'stage.wait("trainer", "loader0", "loader1")\n',
        *("trainer", "loader0", "loader1"),
    ),
    "loader-of-the-living-beside-a-dead-number": wanted(
        """
start("trainer", session=True, name="trainer", loaders=1, double=True)
stage.wait("trainer", "loader0")
dead_number()
""",
        *("trainer", "loader0"),
        verdicts=frozenset({"nothing_to_do", "held_by", "cannot_attribute"}),
    ),
    "two-unrelated-heirs": wanted(
        """
start("trainer", session=True, name="one", loaders=1, title="python3 one.py")
stage.wait("loader0", "trainer")
first, heir = cast["trainer"], cast["loader0"]
del cast["trainer"], cast["loader0"]
start("trainer", session=True, name="two", loaders=1, title="python3 two.py")
stage.wait("loader0", "trainer")
kill(first, cast["trainer"])
gone(first, cast["trainer"])
cast["loader1"] = heir
""",
        *("loader0", "loader1"),
        verdicts=frozenset({"held_by"}),
    ),
    "keeper-of-exported-memory": wanted(
        'start("keeper", session=True, name="keeper")\nstage.wait("keeper")\n',
        "keeper",
        verdicts=frozenset({"cannot_attribute", "held_by"}),
    ),
    "under-a-debugger": wanted(
        orphaned()
        + 'start("tracer", session=True, name="tracer", pid=cast["worker"])\n'
        + 'stage.wait("tracer")\n',
        *("worker", "tracer"),
    ),
    "stopped-by-a-person": wanted(orphaned() + "os.kill(cast['worker'], 19)\n", "worker"),
    "named-pipe": wanted(
        'os.mkfifo("/tmp/fifo")\n'
        + orphaned("serving", fifo="/tmp/fifo")
        + 'start("writer", session=True, name="writer", fifo="/tmp/fifo")\nstage.wait("writer")\n',
        *("worker", "writer"),
    ),
    "on-a-terminal": wanted(
        'start("on_terminal", session=True, options={"title": "VLLM::Worker_TP0"})\n'
        'stage.wait("terminal", "shell", "worker")\n',
        *("worker", "shell"),
    ),
    "pipe-to-another-session": wanted(
        """
read, write = os.pipe()
os.set_inheritable(write, True)
os.set_inheritable(read, True)
start("idle", session=True, fds=[write], name="feeder")
"""
        + orphaned(how=", fds=[read], extra=[read]")
        + "os.close(read)\nos.close(write)\nstage.wait('feeder')\n",
        *("worker", "feeder"),
    ),
}
