"""From a forked child to a host with its own systemd and journald, as pid 1 of a namespace.

Everything is private: an overlay over the image, its own cgroup, mounts, names and /proc/sys
read-only. A systemd is never started on a root that anybody else uses.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

from tests.lab.making import host, kernel
from tests.lab.making.build import LIBRARY, LabError
from tests.lab.making.files import USERS, HostSpec, put

CGROUP = "fleetmem-lab"
INOTIFY = "/proc/sys/fs/inotify/max_user_instances"
INSTANCES = 8192
MS_RDONLY = 1
MNT_DETACH = 2
SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}

SSHD_UNIT = """\
[Unit]
Description=sshd of the test host
[Service]
ExecStart=/usr/sbin/sshd -D -f /run/host/sshd_config -E /run/host/sshd.log
KillMode=process
[Install]
WantedBy=multi-user.target
"""
USER_UNIT = """\
[Unit]
Description=User manager of %i
[Service]
User=%i
Type=notify
Environment=XDG_RUNTIME_DIR=/run/user/%i
ExecStart=/lib/systemd/systemd --user
Slice=user-%i.slice
KillMode=mixed
Delegate=yes
"""
JOURNALD = """\
[Journal]
Storage=persistent
SystemMaxUse=256M
RateLimitIntervalSec=0
ReadKMsg=no
Audit=no
"""


def prepare() -> None:
    """What the machine must allow before the first host: enough inotify instances."""
    now = int(Path(INOTIFY).read_text("ascii"))
    if now < INSTANCES:
        Path(INOTIFY).write_text(f"{INSTANCES}\n", "ascii")


def cgroup_root() -> Path:
    """Where this machine's cgroup2 hierarchy is mounted; LabError where there is none."""
    for line in Path("/proc/mounts").read_text("utf-8", "replace").splitlines():
        fields = line.split(" ")
        if fields[2] == "cgroup2":
            return Path(fields[1].encode().decode("unicode_escape"))
    raise LabError("systemd hosts need a cgroup2 hierarchy; this machine has none mounted")


def cgroup(spec: HostSpec) -> Path:
    """The host's own cgroup: named by its address, which no other lab has."""
    return cgroup_root() / f"{CGROUP}-{spec.address}"


def release_of(address: str) -> None:
    """Removes the cgroup of the host that had *address*; quiet where there is none."""
    try:
        release(cgroup_root() / f"{CGROUP}-{address}")
    except LabError:
        return


def release(path: Path) -> None:
    """Removes a host's cgroup with all below it, once its processes are gone."""
    for folder, _, _ in os.walk(path, topdown=False):
        try:
            os.rmdir(folder)
        except OSError:
            continue


def become(spec: HostSpec, image: str) -> None:
    """Turns this process into the host's systemd. Never returns; raises where it cannot."""
    os.umask(0o022)
    host.second(spec)
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
    own = cgroup(spec)
    own.mkdir(exist_ok=True)
    (own / "cgroup.procs").write_text("0\n", "ascii")
    kernel.unshare(
        kernel.CLONE_NEWNS | kernel.CLONE_NEWUTS | kernel.CLONE_NEWIPC | kernel.CLONE_NEWCGROUP
    )
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    kernel.sethostname(spec.name)
    root = _root(spec, image)
    opened = {path: os.open(path, os.O_PATH) for path in _sources(spec)}
    _enter(root)
    kernel.mount("proc", "/proc", "proc")
    kernel.mount("sysfs", "/sys", "sysfs", MS_RDONLY)
    kernel.mount("cgroup2", "/sys/fs/cgroup", "cgroup2")
    kernel.mount("tmpfs", "/tmp", "tmpfs", 0, "mode=1777")
    host.mount_run(spec, opened)
    host.mount_dev(spec)
    _bind(opened[f"{spec.home}/etc/boot_id"], "/proc/sys/kernel/random/boot_id")
    _bind(opened[f"{spec.home}/etc/devices"], "/proc/devices")
    _bind(opened[f"{spec.home}/etc/kthreadd"], "/proc/2/stat")
    for place in ("/proc/sys", "/proc/sysrq-trigger"):
        if os.path.exists(place):
            kernel.mount(place, place, None, kernel.MS_BIND | kernel.MS_REC)
            kernel.read_only(place)
    _leave()
    os.umask(0)
    words = ["systemd", "--system", "--log-target=journal", "--show-status=no"]
    os.execve(
        "/lib/systemd/systemd",
        words,
        {"container": "lab", "PATH": host.ENVIRONMENT["PATH"], "LANG": "C.UTF-8"},
    )


def _sources(spec: HostSpec) -> list[str]:
    """Everything that is bound from outside: opened while the machine's root is still seen."""
    own = [f"{spec.home}/etc/{name}" for name in ("devices", "boot_id", "kthreadd")]
    return [spec.home, *own, f"{spec.build}/bin", f"{spec.build}/nv"]


def _bind(fd: int, target: str) -> None:
    kernel.mount(f"/proc/self/fd/{fd}", target, None, kernel.MS_BIND | kernel.MS_REC)


def _root(spec: HostSpec, image: str) -> Path:
    """The overlay, with what is the host's own written into it."""
    home = Path(spec.home)
    for name in ("root", "upper", "work"):
        (home / name).mkdir(exist_ok=True)
    root = home / "root"
    layers = f"lowerdir={image},upperdir={home}/upper,workdir={home}/work"
    kernel.mount("overlay", str(root), "overlay", 0, layers)
    shutil.copy(f"{spec.build}/{LIBRARY}", root / "usr/lib/libnvidia-ml.so.1")
    put(root / "etc/hostname", spec.name + "\n")
    shutil.copy(home / "etc/machine-id", root / "etc/machine-id")
    put(root / "etc/hosts", f"127.0.0.1 localhost\n{spec.address} {spec.name}\n")
    put(root / "etc/sudoers", (home / "etc/sudoers").read_text("utf-8"), 0o440)
    _accounts(root)
    units = root / "etc/systemd/system"
    put(units / "lab-sshd.service", SSHD_UNIT)
    (units / "multi-user.target.wants").mkdir(exist_ok=True)
    (units / "multi-user.target.wants/lab-sshd.service").symlink_to("../lab-sshd.service")
    put(units / "user@.service", USER_UNIT)
    (root / "etc/systemd/journald.conf.d").mkdir(exist_ok=True)
    put(root / "etc/systemd/journald.conf.d/lab.conf", JOURNALD)
    (root / "var/log/journal").mkdir(exist_ok=True)
    return root


def _accounts(root: Path) -> None:
    """root may log in by key; the lab's users beside the image's own accounts."""
    files = {name: (root / "etc" / name).read_text("utf-8") for name in ("passwd", "group")}
    shadow = (root / "etc/shadow").read_text("utf-8").splitlines()
    for name, uid, _ in USERS:
        files["passwd"] += f"{name}:x:{uid}:{uid}::/home/{name}:/bin/bash\n"
        files["group"] += f"{name}:x:{uid}:\n"
        shadow.append(f"{name}:*:19000:0:99999:7:::")
        place = root / "home" / name
        place.mkdir(mode=0o700)
        os.chown(place, uid, uid)
    for name, text in files.items():
        put(root / "etc" / name, text)
    put(root / "etc/shadow", "\n".join(shadow) + "\n", 0o600)


def _enter(root: Path) -> None:
    """Makes the overlay the root; the machine's own lies on /mnt until :func:`_leave`."""
    number = SYS_PIVOT_ROOT.get(os.uname().machine)
    if number is None:
        raise LabError(f"no pivot_root number for {os.uname().machine}")
    os.chdir(root)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(ctypes.c_long(number), b".", b"mnt") != 0:
        raise OSError(ctypes.get_errno(), "pivot_root")
    os.chdir("/")


def _leave() -> None:
    """The machine's own root is seen no more."""
    if ctypes.CDLL(None, use_errno=True).umount2(b"/mnt", MNT_DETACH) != 0:
        raise OSError(ctypes.get_errno(), "umount2")
