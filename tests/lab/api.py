"""Test labs for Python: start, reach into, hold GPUs, end.

with lab(n=2) as hosts:
    hog = hosts.hog("gh200-01", "orphan", gpu=0, mib=92000)
    assert hosts.exec("gh200-01", "kill", str(hog.holders[0])).returncode == 0
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.lab import state
from tests.lab.hogs import Hog, hog_command, parse_hog
from tests.lab.making import kernel, systemd_host
from tests.lab.making.build import LabError
from tests.lab.numa import arch as numa_arch
from tests.lab.signals import Signal, read_signals

__all__ = ["Address", "Hog", "Lab", "LabError", "Signal", "attach", "down", "lab", "up"]

ROOT = Path(__file__).parent.parent.parent
ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "USER": "root",
    "LOGNAME": "root",
    "SHELL": "/bin/bash",
    "LANG": "C.UTF-8",
}
SECONDS_TO_END = 35.0


@dataclass(frozen=True)
class Address:
    """Where a host's sshd listens, and its pid 1 as this machine sees it.

    ``machine``: a virtual machine; ``init`` is then its QEMU.
    """

    host: str
    address: str
    port: int
    init: int
    start: int
    machine: bool = False


@dataclass(frozen=True)
class Lab:
    """A running lab. ``directory`` holds inventory.yaml, the client's key and known_hosts."""

    directory: Path
    hosts: dict[str, Address]

    @property
    def inventory(self) -> Path:
        """The inventory that reaches every host as root."""
        return self.directory / "inventory.yaml"

    def entry(self, host: str) -> list[str]:
        """Command prefix that enters all of a host's namespaces as root."""
        at = self._host(host)
        if kernel.start_time(at.init) != at.start:
            raise LabError(f"{host} is not running")
        if at.machine:
            raise LabError(f"{host} is a virtual machine: reach it by ssh")
        namespaces = ["--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup"]
        return ["nsenter", "--target", str(at.init), *namespaces, "--root", "--wd"]

    def command(self, host: str, words: Sequence[str]) -> list[str]:
        """Full command that runs *words* as root in a host; a machine is entered by ssh."""
        at = self._host(host)
        if not at.machine:
            return [*self.entry(host), "--", *words]
        if kernel.start_time(at.init) != at.start:
            raise LabError(f"{host} is not running")
        return [*self.ssh_command(host), shlex.join(words)]

    def exec(
        self, host: str, *command: str, stdin: str | None = None, timeout: float = 180
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command as root inside the host; text in and out. TimeoutExpired after
        ``timeout`` seconds."""
        return subprocess.run(
            self.command(host, command),
            input="" if stdin is None else stdin,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            env=ENVIRONMENT,
            check=False,
        )

    def ssh_command(self, host: str, user: str = "root") -> list[str]:
        """OpenSSH client command that reaches the host's own sshd."""
        at = self._host(host)
        options = {
            "IdentityFile": str(self.directory / "id_ed25519"),
            "UserKnownHostsFile": str(self.directory / "known_hosts"),
            "IdentitiesOnly": "yes",
            "BatchMode": "yes",
            "KexAlgorithms": "curve25519-sha256",
            "ConnectTimeout": "60",
            "LogLevel": "ERROR",
        }
        words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
        return ["ssh", "-F", "none", *words, "-p", str(at.port), f"{user}@{at.address}"]

    def ssh(
        self, host: str, command: str, user: str = "root", timeout: float = 180
    ) -> subprocess.CompletedProcess[str]:
        """Runs a shell command over the host's sshd."""
        return subprocess.run(
            [*self.ssh_command(host, user), command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
        )

    def hog(
        self,
        host: str,
        kind: str,
        gpu: int = 0,
        mib: int = 92000,
        user: str = "root",
        title: str | None = None,
    ) -> Hog:
        """Starts a GPU memory holder over ssh; see hogs.KINDS."""
        if kind == "second-node":  # as a container runtime does: nodes of its own, by root
            made = self.exec(host, "/run/lab/hog", "make-nodes")
            if made.returncode:
                raise LabError(made.stderr.strip())
        done = self.ssh(host, hog_command(kind, gpu, mib, title), user)
        return parse_hog(done)

    def signals(self, host: str, pid: int) -> list[Signal]:
        """The signals that a hog process saw, in order. KILL is never seen."""
        return read_signals(self.directory / host / "hogs" / f"{pid}.log")

    def down(self) -> None:
        """Ends the lab."""
        down(self.directory)

    def _host(self, host: str) -> Address:
        try:
            return self.hosts[host]
        except KeyError:
            raise LabError(f"no host {host} in {self.directory}") from None


def up(
    directory: Path,
    n: int = 8,
    gpus: int = 2,
    gpu_mib: int = 97887,
    while_pid: int | None = None,
    net: bool = False,
    expose: Sequence[Path] = (),
    numa_vm: bool = False,
    systemd: bool = False,
    arch: str | None = None,
) -> Lab:
    """Starts ``n`` hosts and returns when every sshd answers. Raises LabError.

    ``while_pid``: the lab ends when that process does. ``net``: a network namespace for each
    host. ``expose``: paths of this machine that hosts see at the same place, although /root,
    /tmp, /run and /home are private. ``numa_vm``: one more host after the ``n``, a virtual
    machine with two NUMA nodes, the second a GPU's (``n`` may then be 0), of architecture
    ``arch`` (see :func:`numa_arch.named`). ``systemd``: the hosts run a systemd and a journald
    of their own, on an image that is built once.
    """
    if os.geteuid() != 0:
        raise LabError("the lab needs root: it makes namespaces and device nodes")
    if n < (0 if numa_vm else 1) or gpus < 0 or gpu_mib < 1:
        raise LabError("a lab needs at least one host, no negative number of GPUs, some MiB")
    _require("/usr/sbin/sshd", "/usr/bin/ssh-keygen", "/usr/bin/nsenter")
    directory = Path(os.path.abspath(directory))
    ours, theirs = socket.socketpair()
    wish = {
        "dir": str(directory),
        "n": n,
        "gpus": gpus,
        "gpu_mib": gpu_mib,
        "while_pid": while_pid,
        "net": net,
        "numa_vm": numa_arch.named(arch).name if numa_vm else None,
        "systemd": systemd,
        "expose": [os.path.abspath(path) for path in expose],
        "fd": theirs.fileno(),
    }
    with ours:
        with theirs:
            subprocess.Popen(
                [sys.executable, "-m", "tests.lab.making.keeper", json.dumps(wish)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                pass_fds=[theirs.fileno()],
                cwd=ROOT,
            ).wait()
        with ours.makefile("rb") as answers:
            line = answers.readline()
        if not line:
            raise LabError("the lab's keeper ended before the lab was up")
        answer = json.loads(line)
        if "error" in answer:
            raise LabError(answer["error"])
        ours.sendall(b"k")
    return attach(directory)


def attach(directory: Path) -> Lab:
    """A lab that runs already. Raises LabError where there is none."""
    directory = Path(os.path.abspath(directory))
    found = state.load(directory)["hosts"]
    assert isinstance(found, dict)
    hosts = {
        name: Address(name, row["address"], row["port"], row["init"], row["start"], row["machine"])
        for name, row in found.items()
    }
    return Lab(directory, hosts)


def down(directory: Path) -> None:
    """Ends the lab there: processes, mounts, files. Quiet where there is none any more."""
    directory = Path(os.path.abspath(directory))
    if not (directory / state.RECORD).exists():
        return
    found = state.load(directory)
    keeper, start = int(str(found["pid"])), found["start"]
    with contextlib.suppress(ProcessLookupError):
        fd = os.pidfd_open(keeper)
        try:
            if kernel.start_time(keeper) == start:
                signal.pidfd_send_signal(fd, signal.SIGTERM)
                _await_end(fd)
        finally:
            os.close(fd)
    _await_hosts(found)
    _release_cgroups(found)
    if (directory / state.RECORD).exists():  # the keeper was killed and left its files
        os.close(state.claim(directory, False))
        state.remove(directory, bool(found.get("created", False)))


def _await_end(fd: int) -> None:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    if not poll.poll(SECONDS_TO_END * 1000):
        signal.pidfd_send_signal(fd, signal.SIGKILL)
        poll.poll(1000)


def _await_hosts(found: dict[str, object]) -> None:
    hosts = found["hosts"]
    assert isinstance(hosts, dict)
    deadline = time.monotonic() + 60
    left = dict(hosts)
    while left:
        left = {h: r for h, r in left.items() if kernel.start_time(r["init"]) == r["start"]}
        if left and time.monotonic() > deadline:
            raise LabError(f"still there after SIGKILL: {', '.join(left)}")
        if left:
            time.sleep(0.01)


def _release_cgroups(found: dict[str, object]) -> None:
    """What hosts with systemd leave where their keeper was killed."""
    hosts = found["hosts"]
    assert isinstance(hosts, dict)
    for row in hosts.values():
        systemd_host.release_of(row["address"])


@contextlib.contextmanager
def lab(
    n: int = 1,
    gpus: int = 2,
    gpu_mib: int = 97887,
    net: bool = False,
    expose: Sequence[Path] = (),
    numa_vm: bool = False,
    systemd: bool = False,
) -> Iterator[Lab]:
    """A lab in a scratch directory that ends with the block, and with this process."""
    with tempfile.TemporaryDirectory(prefix="fleetmem-lab-") as scratch:
        directory = Path(scratch) / "lab"
        running = up(directory, n, gpus, gpu_mib, os.getpid(), net, expose, numa_vm, systemd)
        try:
            yield running
        finally:
            running.down()


def _require(*programs: str) -> None:
    for program in programs:
        if not os.path.exists(program):
            raise LabError(f"{program} is missing; tests/lab_setup.sh installs it")
