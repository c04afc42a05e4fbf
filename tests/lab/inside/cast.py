# mypy: ignore-errors
"""Runs inside a host: processes that look like an engine, a trainer, a person, and their ties.

``python3 cast.py ROLE JSON`` plays one role in a process of its own. Each role says its pid
through the descriptor in $READY when it is where it should be, then rests until it is ended.
"""

import ctypes
import fcntl
import json
import mmap
import os
import select
import signal
import socket
import subprocess
import sys
import time

MIB = 1 << 20
LIBC = ctypes.CDLL(None, use_errno=True)
CHARGES = "/run/nvml-sim/charges"
KEPT = []


def keep(*things):
    """Nothing here is collected: what is open stays open."""
    KEPT.extend(things)
    return things[0]


def rest():
    while True:
        signal.pause()


def stat_fields(pid="self"):
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()


def hold(gpu=0, mib=1000, charged=True, uvm=True):
    """What CUDA looks like in /proc, and a charge that lives as long as its file."""
    nodes = sorted(
        name for name in os.listdir("/dev") if name.startswith("nvidia") and name[6:].isdigit()
    )
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK
    for name in nodes:
        for _ in range(4):
            keep(os.open("/dev/" + name, flags))
    ctl, own = os.open("/dev/nvidiactl", flags), os.open("/dev/nvidia-uvm", flags)
    keep(ctl, own)
    for at in range(27):
        size = 2 * MIB if at else 18 * MIB
        keep(mmap.mmap(ctl, size, mmap.MAP_PRIVATE, offset=(at % 2) * 64 * MIB))
    if uvm:
        area = keep(mmap.mmap(own, 2 * MIB, mmap.MAP_PRIVATE))
        area.madvise(mmap.MADV_DONTFORK)
    if charged:
        charge(gpu, mib)


def charge(gpu, mib, lists="compute"):
    """Memory that lives as long as this file, over forks and not over an exec."""
    start = int(stat_fields()[19])
    name = f"{os.getpid()}-{start}-gpu{gpu}"
    scratch = f"{CHARGES}/.{name}"
    fd = keep(os.open(scratch, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644))
    row = "gpu=%d bytes=%d pid=%d start=%d lists=%s gi=- ci=- rule=file\n"
    named = int(os.environ.get("CHARGE_PID", os.getpid()))  # what NVML names it by
    os.write(fd, (row % (gpu, mib * MIB, named, start, lists)).encode())
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.rename(scratch, f"{CHARGES}/{name}")


def retitle(text):
    """What ps shows, written over the arguments as setproctitle does."""
    LIBC.prctl(15, ctypes.c_char_p(text.rpartition("/")[2].encode()[:15]), 0, 0, 0)
    fields = stat_fields()
    start, end = int(fields[45]), int(fields[46])  # arg_start, arg_end
    room = end - start
    with open("/proc/self/mem", "r+b", buffering=0) as memory:
        memory.seek(start)
        memory.write(text.encode()[: room - 1].ljust(room, b"\0"))


def ready(name=None):
    """Say where this role is, to whoever started it."""
    fd = int(os.environ["READY"])
    os.write(fd, json.dumps([name or os.environ["ROLE"], os.getpid()]).encode() + b"\n")
    os.close(fd)  # an end that stays open would be a tie


def fork(role, **options):
    """A fork that plays *role*: it keeps the layout, the files and the mappings."""
    pid = os.fork()
    if pid:
        return pid
    try:
        os.environ["ROLE"] = options.pop("name", role)
        if options.pop("session", False):
            os.setsid()
        ROLES[role](**options)
    finally:
        os._exit(1)


def start(what, /, fds=(), session=False, env=None, name=None, standard=None, **options):
    """The role *what* in a new program, as an engine spawns its workers."""
    environment = {**os.environ, "ROLE": name or what, **(env or {})}
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, what, json.dumps(options), " " * 200],
        pass_fds=(*fds, int(os.environ["READY"])),
        start_new_session=session,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=standard if standard is not None else subprocess.DEVNULL,
        stderr=os.open("/run/host/cast.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666),
        close_fds=True,
    )
    return keep(child).pid


def kill(*pids):
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


# --- roles -----------------------------------------------------------------------------------


def worker(title=None, gpu=0, mib=1000, **more):
    """Holds memory."""
    if title:
        retitle(title)
    hold(gpu, mib, **more)
    ready()
    rest()


def idle(title=None):
    if title:
        retitle(title)
    ready()
    rest()


def engine(workers=2, gpu=0, port=0, ipc="/tmp", core_holds=False):
    """A vLLM: this is its API server; it starts a resource tracker and the engine's core."""
    down, up, tracker = os.pipe(), os.pipe(), os.pipe()
    for fd in (*down, *up, *tracker):
        os.set_inheritable(fd, True)
    retitle("VLLM::APIServer_0")
    if port:
        keep(socket.create_server(("0.0.0.0", port)))
    start(
        "idle",
        fds=[tracker[0]],
        name="tracker",
        title="python3 -c from multiprocessing.resource_tracker import main;main(5)",
    )
    listener = keep(socket.socket(socket.AF_UNIX))
    place = f"{ipc}/vllm-{os.getpid()}.sock"
    listener.bind(place)
    listener.listen(8)
    start(
        "core",
        fds=[down[0], up[1], tracker[1]],
        name="core",
        place=place,
        workers=workers,
        gpu=gpu,
        holds=core_holds,
        tracker=tracker[1],
    )
    for fd in (down[0], up[1], tracker[0]):
        os.close(fd)
    keep(listener.accept()[0])
    ready("server")
    rest()


def core(place, workers, gpu, holds, tracker):
    """The engine's core: connects to its server, starts workers, holds rendezvous sockets."""
    retitle("VLLM::EngineCore")
    back = keep(socket.socket(socket.AF_UNIX))
    back.connect(place)
    rendezvous = keep(socket.create_server(("127.0.0.1", 0)))
    nccl("0")
    own = os.pipe()
    os.set_inheritable(own[0], True)
    if holds:
        hold(gpu)
    for number in range(workers):
        start(
            "rank",
            fds=[own[0], tracker],
            number=number,
            gpu=gpu,
            port=rendezvous.getsockname()[1],
            name=f"worker{number}",
        )
        keep(rendezvous.accept()[0])
    os.close(own[0])
    ready("core")
    rest()


def nccl(name):
    """The datagram socket that each rank of the collective library has."""
    keep(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)).bind(
        f"\0tmp/nccl-socket-{name}-{os.getpid()}"
    )


def rank(number, gpu, port):
    retitle(f"VLLM::Worker_TP{number}")
    keep(socket.create_connection(("127.0.0.1", port)))
    nccl(str(number))
    keep(socket.create_server(("127.0.0.1", 0)))
    hold(gpu)
    ready()
    rest()


def parent(role, name=None, options=None):
    """Starts one role and waits for it, as a shell or a process manager does."""
    start(role, name=name or role, **(options or {}))
    ready("parent")
    rest()


def serving(
    place=None, port=None, accept=True, dgram=False, title="VLLM::Worker_TP0", fifo=None, **holding
):
    """A worker that somebody else may be connected to; ``port`` 0 is the kernel's choice."""
    retitle(title)
    hold(**holding)
    listener = None
    if fifo:
        keep(os.open(fifo, os.O_RDONLY | os.O_NONBLOCK))
    elif place:
        kind = socket.SOCK_DGRAM if dgram else socket.SOCK_STREAM
        listener = keep(socket.socket(socket.AF_UNIX, kind))
        listener.bind("\0" + place[1:] if place[0] == "@" else place)
        if not dgram:
            listener.listen(8)
    elif port is not None:
        listener = keep(socket.create_server(("0.0.0.0", port)))
        with open("/tmp/port", "w") as file:
            file.write(str(listener.getsockname()[1]))
    ready()
    while listener is not None and accept and not dgram:
        keep(listener.accept()[0])
    rest()


def launcher(role="worker", options=None, own=False, extra=(), output=False):
    """Starts one worker with two pipes and a socket pair between them."""
    down, up = os.pipe(), os.pipe()
    ours, theirs = socket.socketpair()
    keep(ours)
    for fd in (down[0], up[1], theirs.fileno()):
        os.set_inheritable(fd, True)
    retitle("python3 -m vllm.entrypoints.cli.main serve")
    start(
        role,
        fds=[down[0], up[1], theirs.fileno(), *extra],
        session=own,
        name="worker",
        standard=1 if output else None,
        **(options or {}),
    )
    for fd in (down[0], up[1], *extra):
        os.close(fd)
    theirs.close()
    ready("launcher")
    rest()


def trainer(loaders=2, double=False, gpu=0, title="python3 train.py"):
    """Charged itself; forks that never call CUDA keep its files."""
    retitle(title)
    hold(gpu)
    for number in range(loaders):
        if double:
            middle = os.fork()
            if middle == 0:
                os.setsid()
                fork("idle", name=f"loader{number}")
                os._exit(0)
            os.waitpid(middle, 0)
        else:
            fork("idle", name=f"loader{number}", session=True)
    ready("trainer")
    rest()


def keeper(gpu=0, mib=1000):
    """Holds memory that was exported to it: one open nvidiactl, and no list names it."""
    keep(os.open("/dev/nvidiactl", os.O_RDWR | os.O_CLOEXEC))
    charge(gpu, mib, lists="none")
    ready()
    rest()


def fork_that_serves(port):
    keep(socket.create_server(("0.0.0.0", port)))
    ready()
    rest()


def serving_fork(port):
    """A process of CUDA and its fork, which listens."""
    hold(0)
    fork("fork_that_serves", name="heir", port=port, session=True)
    ready("trainer")
    rest()


def subreaper(options):
    """Takes in orphans and starts nothing that stays."""
    LIBC.prctl(36, 1, 0, 0, 0)
    middle = os.fork()
    if middle == 0:
        os.setsid()
        start("launcher", name="launcher", options=options)
        os.close(int(os.environ["READY"]))
        rest()
    ready("subreaper")
    with open("/tmp/middle", "w") as file:
        file.write(str(middle))
    rest()


def tracer(pid):
    LIBC.ptrace.argtypes = [ctypes.c_long] * 4
    if LIBC.ptrace(0x4206, pid, 0, 0):
        raise SystemExit(f"cannot trace {pid}")
    ready()
    rest()


def on_terminal(options):
    """A shell on a terminal of its own, and a worker that it started there."""
    import pty

    pid, master = pty.fork()
    if pid == 0:
        start("worker", name="worker", **options)
        ready("shell")
        rest()
    keep(master)
    ready("terminal")
    rest()


def writer(fifo):
    keep(os.open(fifo, os.O_WRONLY))
    ready()
    rest()


def client(place=None, port=0, dgram=False, address="127.0.0.1"):
    if place:
        kind = socket.SOCK_DGRAM if dgram else socket.SOCK_STREAM
        channel = keep(socket.socket(socket.AF_UNIX, kind))
        channel.connect(place if place[0] != "@" else "\0" + place[1:])
    else:
        keep(socket.create_connection((address, port)))
    ready()
    rest()


ROLES = {
    name: value
    for name, value in list(globals().items())
    if callable(value) and getattr(value, "__module__", "") == __name__
}


def dead_number(gpu=0, mib=500, pid=60000):
    """A charge that the driver keeps for a process which has ended, and that nobody holds."""
    with open(f"{CHARGES}/{pid}", "w") as file:
        row = "gpu=%d bytes=%d pid=%d start=1 lists=compute gi=- ci=- rule=sticky\n"
        file.write(row % (gpu, mib * MIB, pid))


# --- scenes ----------------------------------------------------------------------------------


class Stage:
    """Where a scene is played: roles say when they are ready, and the answer names them."""

    def __init__(self):
        read, write = os.pipe()
        os.set_inheritable(write, True)
        os.environ["READY"] = str(write)
        self.read = read
        self.cast = {}

    def wait(self, *names, seconds=20):
        """Until each of *names* is ready; their pids."""
        until = time.monotonic() + seconds
        while not all(name in self.cast for name in names):
            if time.monotonic() > until:
                raise SystemExit(f"not ready: {set(names) - set(self.cast)}")
            left = max(0.0, until - time.monotonic())
            if select.select([self.read], [], [], left)[0]:
                for line in os.read(self.read, 4096).decode().splitlines():
                    name, pid = json.loads(line)
                    self.cast[name] = pid
        return [self.cast[name] for name in names]


def gone(*pids):
    """Until each of *pids* has ended."""
    for pid in pids:
        for _ in range(500):
            try:
                if stat_fields(pid)[0] in "ZX":
                    break
            except OSError:
                break
            time.sleep(0.01)


def play(code):
    """Play a scene in a session of its own, say who is where, and leave."""
    stage = Stage()
    exec(code, {**globals(), "stage": stage, "cast": stage.cast})
    print(json.dumps(stage.cast))


if __name__ == "__main__":
    if len(sys.argv) > 2:
        ROLES[sys.argv[1]](**json.loads(sys.argv[2]))
    else:
        play(sys.stdin.read())
