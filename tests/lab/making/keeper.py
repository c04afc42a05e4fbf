"""The process that owns a lab: starts its hosts, watches, and ends them.

Every host's pid 1 is a child of this process and dies with it (parent-death signal), and
a pid namespace dies with its pid 1: nothing survives, however this process ends.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from tests.lab import state
from tests.lab.making import address, build, devices, files, host, image, kernel, systemd_host
from tests.lab.numa import arch as numa_arch
from tests.lab.numa import image as numa_image
from tests.lab.numa import vm as numa_vm

SECONDS_TO_ANSWER = 120.0
SECONDS_TO_DIE = 30.0  # the machine's pid 1 may be slow to reap what `exec` left


@dataclass
class Running:
    """What exists so far of a lab that starts."""

    directory: Path
    created: bool
    pids: dict[str, int] = field(default_factory=dict)
    consoles: list[int] = field(default_factory=list)
    cgroups: list[Path] = field(default_factory=list)


def main() -> int:
    """Argument: the wish as JSON; its ``fd`` is a socket to the starter."""
    if os.fork():
        os._exit(0)  # the starter waits for this one, and has no child to reap later
    os.umask(0o022)
    wish = json.loads(sys.argv[1])
    starter = socket.socket(fileno=wish["fd"])
    starter.set_inheritable(False)
    stop = _stop_signals()
    directory = Path(wish["dir"])
    created = not directory.exists()
    try:
        lock = state.claim(directory, created)
    except build.LabError as error:
        _tell(starter, {"error": str(error)})
        return 1
    running = Running(directory, created)
    try:
        watched = _watch(wish["while_pid"])
        answer = _start(running, wish, starter, stop)
        _tell(starter, answer)
        if starter.recv(1) == b"k":
            starter.close()
            _wait([stop, *watched])
        return 0
    except (build.LabError, OSError) as error:
        _tell(starter, {"error": str(error)})
        return 1
    except Exception as error:  # noqa: BLE001 - nobody reads this process's stderr
        _tell(starter, {"error": f"the lab broke: {error!r}"})
        return 1
    finally:
        _end(running)
        os.close(lock)


def _tell(starter: socket.socket, answer: dict[str, object]) -> None:
    try:
        starter.sendall(json.dumps(answer).encode() + b"\n")
    except OSError:
        return  # the starter is gone: the following read says so


def _stop_signals() -> int:
    """A file that becomes readable when this process is asked to end."""
    reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(writer)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    return reader


def _watch(pid: int | None) -> list[int]:
    if pid is None:
        return []
    try:
        return [os.pidfd_open(pid)]
    except OSError as error:
        raise build.LabError(f"--while {pid}: {error.strerror}") from None


def _wait(fds: list[int]) -> None:
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    poll.poll()


def _start(
    running: Running, wish: dict[str, Any], starter: socket.socket, stop: int
) -> dict[str, object]:
    directory = running.directory
    count, gpus = int(wish["n"]), int(wish["gpus"])
    built = build.build(directory)
    cache = build.loader_cache(built)
    numbers, running.consoles = devices.gpu_numbers(gpus, directory)
    net = bool(wish["net"])
    extra = files.sshd_extra()
    root = None
    if wish.get("systemd"):
        systemd_host.prepare()
        root = str(image.image())
    base, reservation = address.reserve(str(directory), count + 1)
    names = [f"gh200-{index:02d}" for index in range(1, count + 1)]
    key = state.client_key(directory)
    specs = [
        files.HostSpec(
            name=name,
            address=base.format(*divmod(index + 1, 250)),
            port=address.PORT,
            home=str(directory / name),
            build=str(built),
            loader_cache=str(cache),
            gpus=numbers,
            gpu_mib=int(wish["gpu_mib"]),
            sshd_extra=extra,
            net=net,
            expose=tuple(wish["expose"]),
        )
        for index, name in enumerate(names)
    ]
    pipes: dict[int, str] = {}
    for spec in specs:
        files.write(spec, key)
        listener = address.listen(spec.address) if net else None
        if root is not None:
            running.cgroups.append(systemd_host.cgroup(spec))
        pid, pipe = _fork_host(spec, listener, root)
        running.pids[spec.name] = pid
        pipes[pipe] = spec.name
        if listener is not None:
            listener.close()
    seconds = SECONDS_TO_ANSWER
    machines: tuple[str, ...] = ()
    if wish.get("numa_vm"):
        arch = numa_arch.named(wish["numa_vm"])
        debian = numa_image.image(arch)
        spec = _numa_spec(wish, str(build.build(directory, arch.compiler)), base, count)
        vm = numa_vm.Vm(spec, arch, debian)
        numa_vm.prepare(vm, key)
        pid, pipe = _fork_vm(vm)
        running.pids[spec.name] = pid
        pipes[pipe] = spec.name
        specs.append(spec)
        machines, seconds = (spec.name,), numa_vm.SECONDS_TO_ANSWER
    state.record(directory, running.created, specs, running.pids, machines)
    _await_exec(pipes)
    starts = 1
    while (ended := _await_answers(specs, starter, stop, seconds)) is not None:
        name = next((name for name, pid in running.pids.items() if pid == ended), "")
        if name not in machines or starts == numa_vm.STARTS:
            raise build.LabError(f"{name}: ended before sshd answered{_log(directory / name)}")
        os.waitpid(ended, 0)
        console = directory / name / "console.log"
        if console.exists():
            console.rename(console.with_name(f"console-{starts}.log"))
        starts += 1
        running.pids[name], pipe = _fork_vm(vm)
        state.record(directory, running.created, specs, running.pids, machines)
        _await_exec({pipe: name})
    state.write_client_files(directory, specs, machines)
    # Kept open on purpose: the address range is ours while this process lives.
    reservation.detach()
    return {"hosts": {spec.name: f"{spec.address}:{spec.port}" for spec in specs}}


def _fork_host(
    spec: files.HostSpec, listener: socket.socket | None, root: str | None
) -> tuple[int, int]:
    """(pid, pipe): the pipe ends empty when the host's pid 1 runs, else it tells why not.

    *root* is the image of a host with systemd.
    """
    become = (
        (lambda: host.become(spec, listener))
        if root is None
        else (lambda: systemd_host.become(spec, root))
    )
    own = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    reader, writer = os.pipe2(os.O_CLOEXEC)
    keeper = os.getpid()
    kernel.unshare(kernel.CLONE_NEWPID)
    pid = os.fork()
    if pid == 0:
        _child(become, writer, keeper)
    kernel.setns(own, kernel.CLONE_NEWPID)
    os.close(own)
    os.close(writer)
    return pid, reader


def _numa_spec(wish: dict[str, Any], built: str, base: str, count: int) -> files.HostSpec:
    """One more host: the machine with two NUMA nodes."""
    name = f"gh200-{count + 1:02d}"
    return files.HostSpec(
        name=name,
        address=base.format(*divmod(count + 2, 250)),
        port=address.PORT,
        home=str(Path(wish["dir"]) / name),
        build=built,
        loader_cache="",
        gpus=(),
        gpu_mib=numa_vm.GPU_MIB,
        sshd_extra="",
        net=False,
        expose=(),
    )


def _fork_vm(vm: numa_vm.Vm) -> tuple[int, int]:
    """Like :func:`_fork_host`, for a machine: it has kernels and namespaces of its own."""
    reader, writer = os.pipe2(os.O_CLOEXEC)
    keeper = os.getpid()
    pid = os.fork()
    if pid == 0:
        _child(lambda: numa_vm.become(vm), writer, keeper)
    os.close(writer)
    return pid, reader


def _child(become: Callable[[], None], writer: int, keeper: int) -> NoReturn:
    try:
        kernel.die_with_parent()
        # /proc is still the keeper's: if it died before the line above, it is gone there.
        if kernel.start_time(keeper) is None:
            os._exit(1)
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_DFL)  # also what the starter ignored
        become()
    except BaseException as error:  # noqa: BLE001 - a forked child must never return
        os.write(writer, str(error).encode()[:4000] or b"failed")
    finally:
        os._exit(1)


def _await_exec(pipes: dict[int, str]) -> None:
    for pipe, name in pipes.items():
        with os.fdopen(pipe, "rb") as file:
            if said := file.read():
                raise build.LabError(f"{name} did not start: {said.decode(errors='replace')}")


def _await_answers(
    specs: list[files.HostSpec], starter: socket.socket, stop: int, seconds: float
) -> int | None:
    """None when all answer; the pid of a child that ended before, not reaped."""
    deadline = time.monotonic() + seconds
    waiting = list(specs)
    while waiting:
        waiting = [spec for spec in waiting if not address.answers(spec.address)]
        if not waiting:
            break
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is not None:
            return ended.si_pid
        if time.monotonic() > deadline:
            said = _log(Path(waiting[0].home))
            raise build.LabError(f"{waiting[0].name}: sshd does not answer{said}")
        if select.select([starter.fileno(), stop], [], [], 0.01)[0]:
            raise build.LabError("interrupted")
    return None


def _log(home: Path) -> str:
    """The last line that a host's sshd, or a machine's emulator and kernel, said."""
    lines: list[str] = []
    for name in ("sshd.log", "console.log"):
        try:
            lines += (home / name).read_text("utf-8", "replace").split("\n")
        except OSError:
            continue
    lines = [line.strip() for line in lines if line.strip()]
    return f": {lines[-1]}" if lines else ""


def _end(running: Running) -> None:
    for pid in running.pids.values():
        os.kill(pid, signal.SIGKILL)  # our own child, not reaped yet: the number is its own
    deadline = time.monotonic() + SECONDS_TO_DIE
    left = dict(running.pids)
    while left and time.monotonic() < deadline:
        left = {name: pid for name, pid in left.items() if os.waitpid(pid, os.WNOHANG)[0] == 0}
        if left:
            time.sleep(0.005)
    devices.release(running.consoles)
    for path in running.cgroups:
        systemd_host.release(path)
    if not left:
        state.remove(running.directory, running.created)


if __name__ == "__main__":
    sys.exit(main())
