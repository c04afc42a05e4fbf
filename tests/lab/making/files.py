"""The files of a host that are its own: accounts, names, sshd's configuration."""

from __future__ import annotations

import os
import subprocess
import uuid
from dataclasses import dataclass
from pathlib import Path

# name, uid, may use sudo without a password
USERS = (("ops", 1000, True), ("guest", 1001, False))
NOBODY = 65534


@dataclass(frozen=True)
class HostSpec:
    """One host to start. ``home`` is its directory inside the lab's."""

    name: str
    address: str
    port: int
    home: str
    build: str
    loader_cache: str
    gpus: tuple[tuple[int, int], ...]
    gpu_mib: int
    sshd_extra: str
    net: bool
    expose: tuple[str, ...]


SSHD_CONFIG = """\
ListenAddress {address}:{port}
HostKey /run/host/ssh_host_ed25519_key
AuthorizedKeysFile /run/host/authorized_keys
PidFile none
StrictModes no
UsePAM no
UseDNS no
PasswordAuthentication no
PermitRootLogin prohibit-password
PrintMotd no
PrintLastLog no
LogLevel ERROR
MaxStartups 200:30:400
MaxSessions 64
Subsystem sftp internal-sftp
"""

SUDOERS = """\
Defaults env_reset, !lecture
Defaults secure_path="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
root ALL=(ALL:ALL) ALL
{users}
"""


def write(spec: HostSpec, authorized_key: str) -> None:
    """Writes the host's own files into ``spec.home`` (seen as /run/host) and its etc/."""
    home = Path(spec.home)
    etc = home / "etc"
    etc.mkdir(parents=True)
    logs = home / "hogs"
    logs.mkdir()
    logs.chmod(0o777)
    config = SSHD_CONFIG.format(address=spec.address, port=spec.port) + spec.sshd_extra
    rules = "\n".join(f"{name} ALL=(ALL:ALL) NOPASSWD: ALL" for name, _, sudo in USERS if sudo)
    put(home / "sshd_config", config)
    put(home / "authorized_keys", authorized_key)
    put(etc / "passwd", _passwd())
    put(etc / "group", _group())
    put(etc / "shadow", _shadow(), 0o600)
    put(etc / "sudoers", SUDOERS.format(users=rules), 0o440)
    put(etc / "hosts", f"127.0.0.1 localhost\n{spec.address} {spec.name}\n")
    put(etc / "hostname", spec.name + "\n")
    put(etc / "machine-id", uuid.uuid4().hex + "\n")
    put(etc / "boot_id", f"{uuid.uuid4()}\n", 0o444)
    put(etc / "devices", _devices(spec))


def sshd_extra() -> str:
    """Lines that only newer servers know: no penalties for clients that only knock."""
    line = "PerSourcePenalties=no"
    try:
        known = subprocess.run(
            ["/usr/sbin/sshd", "-G", "-f", "/dev/null", "-o", line],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
    except OSError:
        return ""
    return line.replace("=", " ") + "\n" if known.returncode == 0 else ""


def put(path: Path, text: str, mode: int = 0o644) -> None:
    """Writes a file with exactly this mode."""
    path.write_text(text, "utf-8")
    path.chmod(mode)


def _system(path: str) -> list[str]:
    """Lines of the machine's system accounts, without those the lab adds itself."""
    own = {"root", *(name for name, _, _ in USERS)}
    lines = []
    for line in Path(path).read_text("utf-8", "replace").splitlines():
        fields = line.split(":")
        if len(fields) > 3 and fields[0] not in own and fields[2].isdigit():
            number = int(fields[2])
            if number < 1000 or number == NOBODY:
                lines.append(line)
    return lines


def _passwd() -> str:
    users = [f"{name}:x:{uid}:{uid}::/home/{name}:/bin/bash" for name, uid, _ in USERS]
    return "\n".join(["root:x:0:0:root:/root:/bin/bash", *_system("/etc/passwd"), *users]) + "\n"


def _group() -> str:
    users = [f"{name}:x:{uid}:" for name, uid, _ in USERS]
    return "\n".join(["root:x:0:", *_system("/etc/group"), *users]) + "\n"


def _shadow() -> str:
    # "*" is no password, yet not locked: sshd without PAM refuses "!".
    names = [line.split(":")[0] for line in _passwd().splitlines()]
    return "".join(f"{name}:*:19000:0:99999:7:::\n" for name in names)


def _devices(spec: HostSpec) -> str:
    """/proc/devices of a host: the GPUs' major is called nvidia where it is theirs alone."""
    majors = {major for major, _ in spec.gpus}
    lines = []
    character = True
    for line in Path("/proc/devices").read_text("ascii").splitlines():
        number = line.split(" ")[-2] if line.strip() and line.strip()[0].isdigit() else ""
        character = character and not line.startswith("Block")
        if character and number.isdigit() and int(number) in majors and int(number) != 10:
            lines.append(f"{int(number):3d} nvidia")
        else:
            lines.append(line)
    return "\n".join(lines) + "\n"


def gpu_lines(spec: HostSpec) -> str:
    """The ``gpus`` file of the simulated library, one line a GPU."""
    total = spec.gpu_mib << 20
    lines = []
    for index in range(len(spec.gpus)):
        own = uuid.uuid5(uuid.UUID(bytes=os.urandom(16)), f"{spec.name}/{index}")
        lines.append(
            f"index={index} uuid=GPU-{own} name=NVIDIA_GH200_480GB total={total} "
            f"reserved={min(615 << 20, total // 8)} idle={min(3 << 20, total // 64)} "
            f"numa_node=- minor={index} bus={index:03x}9:01:00.0 mig=0 persistence=1\n"
        )
    return "".join(lines)
