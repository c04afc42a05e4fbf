"""From a forked child to a test host: runs as pid 1 of a new pid namespace."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
from pathlib import Path

from tests.lab.making import kernel
from tests.lab.making.files import USERS, HostSpec, gpu_lines, put

NODES = {"null": 3, "zero": 5, "full": 7, "random": 8, "urandom": 9}
# The only number that can be mapped and that everybody may open (/dev/zero).
MAPPABLE = (1, 5)
OVER_ETC = ("passwd", "group", "shadow", "sudoers", "hosts", "hostname", "machine-id")
PRIVATE_VAR = ("/var/tmp", "/var/log", "/var/lib/sudo")
ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}


KTHREADD = "2 (kthreadd) S 0 0 0 0 -1 2129984 0 0 0 0 0 0 0 0 20 0 1 0 " + "0 " * 29 + "0\n"
"""What /proc/2/stat says on a machine: flags with PF_KTHREAD, started at once."""


def second(spec: HostSpec) -> None:
    """Starts the process with number 2, so that the host looks like a machine of its own.

    To be called before anything else is started. Namespaces made inside of the host have
    a number 2 that is any process.
    """
    put(Path(spec.home, "etc", "kthreadd"), KTHREADD)
    if os.fork() == 0:
        os.execve(f"{spec.build}/bin/init", ["init", "-k"], {})


def become(spec: HostSpec, listener: socket.socket | None) -> None:
    """Turns this process into pid 1 of the host. Never returns; raises where it cannot."""
    os.umask(0o022)
    second(spec)
    key = f"{spec.home}/ssh_host_ed25519_key"
    made = subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", spec.name, "-f", key],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if made.returncode:
        raise RuntimeError(f"ssh-keygen: {made.stderr.strip()}")
    flags = kernel.CLONE_NEWNS | kernel.CLONE_NEWUTS | kernel.CLONE_NEWIPC | kernel.CLONE_NEWCGROUP
    kernel.unshare(flags | (kernel.CLONE_NEWNET if spec.net else 0))
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    kernel.sethostname(spec.name)
    opened = {path: os.open(path, os.O_PATH) for path in _sources(spec)}
    kernel.mount("proc", "/proc", "proc")
    kernel.read_only("/sys")  # cgroups and kernel settings there are the machine's
    mount_run(spec, opened)
    _etc(spec, opened)
    _homes()
    mount_dev(spec)
    for path in (*PRIVATE_VAR, "/tmp"):
        if os.path.isdir(path):
            kernel.mount("tmpfs", path, "tmpfs", 0, "mode=1777")
    for path in spec.expose:
        _bind_exposed(opened[path], path)
    if spec.net:
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    os.chdir("/")
    init, sshd = "/run/lab/init", "/usr/sbin/sshd"
    options = ["-f", "/run/host/sshd_config", "-E", "/run/host/sshd.log"]
    if listener is not None:
        os.set_inheritable(listener.fileno(), True)
        command = [init, "-l", str(listener.fileno()), sshd, "-i", *options]
    else:
        command = [init, sshd, "-D", "-r", *options]
    os.execve(init, command, ENVIRONMENT)


def _sources(spec: HostSpec) -> list[str]:
    """Everything that is bound from outside: opened first, since /tmp and /run get covered."""
    own = [f"{spec.home}/etc/{name}" for name in (*OVER_ETC, "devices", "boot_id", "kthreadd")]
    built = [f"{spec.build}/bin", f"{spec.build}/nv"]
    return [spec.home, *own, *built, spec.loader_cache, *spec.expose]


def _bind(fd: int, target: str) -> None:
    kernel.mount(f"/proc/self/fd/{fd}", target, None, kernel.MS_BIND | kernel.MS_REC)


def mount_run(spec: HostSpec, opened: dict[str, int]) -> None:
    """A /run of the host's own, with what the lab binds into it."""
    kernel.mount("tmpfs", "/run", "tmpfs", 0, "mode=0755")
    places = {
        spec.home: "/run/host",
        f"{spec.build}/bin": "/run/lab",
        f"{spec.build}/nv": "/run/nv",
    }
    for source, target in places.items():
        os.mkdir(target)
        _bind(opened[source], target)
    os.mkdir("/run/sshd", 0o755)
    for shared in ("/run/lock", "/run/nvml-sim", "/run/nvml-sim/charges", "/run/nvml-sim/state"):
        os.mkdir(shared)
        os.chmod(shared, 0o755 if shared == "/run/nvml-sim" else 0o1777)
    for uid in (0, *(uid for _, uid, _ in USERS)):
        runtime = f"/run/user/{uid}"
        os.makedirs(runtime, 0o755, exist_ok=True)
        os.chmod(runtime, 0o700)
        os.chown(runtime, uid, uid)
    put(Path("/run/nvml-sim/gpus"), gpu_lines(spec))
    put(Path("/run/utmp"), "", 0o664)


def _etc(spec: HostSpec, opened: dict[str, int]) -> None:
    """An /etc of the host's own over the machine's, with the host's files bound into it.

    A file bound over the machine's own would be uncovered as soon as the machine replaces that
    file by rename, as ldconfig and useradd do; the names in an overlay stay.
    """
    layers = "lowerdir=/etc,upperdir=/run/etc/upper,workdir=/run/etc/work"
    for place in ("/run/etc", "/run/etc/upper", "/run/etc/work"):
        os.mkdir(place)
    kernel.mount("overlay", "/etc", "overlay", 0, layers)
    for name in OVER_ETC:
        if os.path.exists(f"/etc/{name}"):
            _bind(opened[f"{spec.home}/etc/{name}"], f"/etc/{name}")
    if os.path.isdir("/etc/sudoers.d"):
        kernel.mount("tmpfs", "/etc/sudoers.d", "tmpfs", 0, "mode=0750")
    if os.path.exists("/etc/ld.so.cache"):
        _bind(opened[spec.loader_cache], "/etc/ld.so.cache")
    _bind(opened[f"{spec.home}/etc/devices"], "/proc/devices")
    _bind(opened[f"{spec.home}/etc/boot_id"], "/proc/sys/kernel/random/boot_id")
    _bind(opened[f"{spec.home}/etc/kthreadd"], "/proc/2/stat")


def _homes() -> None:
    kernel.mount("tmpfs", "/root", "tmpfs", 0, "mode=0700")
    kernel.mount("tmpfs", "/home", "tmpfs", 0, "mode=0755")
    for name, uid, _ in USERS:
        os.mkdir(f"/home/{name}", 0o700)
        os.chown(f"/home/{name}", uid, uid)


def mount_dev(spec: HostSpec) -> None:
    """A /dev of the host's own, with its GPUs' nodes."""
    new = "/run/dev"
    os.mkdir(new)
    kernel.mount("tmpfs", new, "tmpfs", 0, "mode=0755")
    for name, minor in NODES.items():
        node(f"{new}/{name}", 1, minor)
    node(f"{new}/tty", 5, 0)
    node(f"{new}/fuse", 10, 229)
    for index, (major, minor) in enumerate(spec.gpus):
        node(f"{new}/nvidia{index}", major, minor)
    for name in ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"):
        node(f"{new}/{name}", *MAPPABLE)
    for name, target in (
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
        ("ptmx", "pts/ptmx"),
    ):
        os.symlink(target, f"{new}/{name}")
    os.mkdir(f"{new}/pts")
    kernel.mount("devpts", f"{new}/pts", "devpts", 0, "newinstance,ptmxmode=0666,mode=620,gid=5")
    os.mkdir(f"{new}/shm")
    kernel.mount("tmpfs", f"{new}/shm", "tmpfs", 0, "mode=1777")
    kernel.mount(new, "/dev", None, kernel.MS_MOVE)
    os.rmdir(new)


def node(path: str, major: int, minor: int) -> None:
    """A character device that everybody may open."""
    os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(major, minor))
    os.chmod(path, 0o666)


def _bind_exposed(fd: int, path: str) -> None:
    """The same path as on the machine; the way to it is passable for every user."""
    if stat.S_ISDIR(os.fstat(fd).st_mode):
        os.makedirs(path, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        Path(path).touch()
    if path.startswith("/root/"):
        os.chmod("/root", 0o711)
    _bind(fd, path)
