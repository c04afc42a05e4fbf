"""What can be wrong with a host, each as a few lines that make it so.

A day prepares one host (or only the desk's settings for it) and says how its row must look.
"""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fleetmem.agent.wire import PROTOCOL
from tests.lab import api
from tests.lab.desk import inside, known_hosts, script, second_sshd

PORT = 2300
Prepare = Callable[[api.Lab, str, Path], dict[str, Any]]


@dataclass(frozen=True)
class Day:
    """``prepare(lab, host, folder)`` gives the host's settings in the inventory; the row ends
    as ``outcome`` with ``code`` and ``words`` in its message."""

    name: str
    prepare: Prepare
    outcome: str = "failed"
    code: str | None = None
    words: tuple[str, ...] = field(default=())

    def __str__(self) -> str:
        return self.name


def keygen(path: Path, *options: str) -> Path:
    """A fresh key pair at *path*."""
    path.parent.mkdir(parents=True, exist_ok=True)
    words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", str(path)]
    subprocess.run([*words, *options], check=True, stdin=subprocess.DEVNULL)
    return path


def sign(authority: Path, public: Path, *options: str) -> None:
    """``NAME-cert.pub`` beside *public*."""
    words = ["ssh-keygen", "-q", "-s", str(authority), "-I", "test", *options, str(public)]
    subprocess.run(words, check=True, stdin=subprocess.DEVNULL)


# --- not reached ---------------------------------------------------------------------------


def no_name(_lab: api.Lab, _host: str, _folder: Path) -> dict[str, Any]:
    return {"address": "no-such-host.invalid", "connect_timeout": "20s"}


def refused(_lab: api.Lab, _host: str, _folder: Path) -> dict[str, Any]:
    return {"port": 1}


def mute(lab: api.Lab, host: str, _folder: Path) -> dict[str, Any]:
    listener = socket.create_server((lab.hosts[host].address, PORT))
    _open.append(listener)  # the kernel accepts, nobody ever speaks
    return {"port": PORT, "connect_timeout": "2s"}


_open: list[socket.socket] = []


def _trust(lab: api.Lab, host: str, folder: Path, text: str) -> dict[str, Any]:
    at = lab.hosts[host]
    path = folder / f"known-{host}-{len(list(folder.glob('known-*')))}"
    path.write_text(text.format(at=f"[{at.address}]:{at.port}"))
    return {"known_hosts": str(path)}


def wrong_key(lab: api.Lab, host: str, folder: Path) -> dict[str, Any]:
    other = keygen(folder / "other_host_key").with_suffix(".pub").read_text()
    return _trust(lab, host, folder, "{at} " + other)


def unknown_key(lab: api.Lab, host: str, folder: Path) -> dict[str, Any]:
    return _trust(lab, host, folder, "")


def revoked_key(lab: api.Lab, host: str, folder: Path) -> dict[str, Any]:
    own = (lab.directory / host / "ssh_host_ed25519_key.pub").read_text()
    return _trust(lab, host, folder, "{at} " + own + "@revoked * " + own)


def wrong_user_key(_lab: api.Lab, _host: str, folder: Path) -> dict[str, Any]:
    return {"identity": str(keygen(folder / "stranger"))}


def expired_certificate(lab: api.Lab, host: str, folder: Path) -> dict[str, Any]:
    authority, key = keygen(folder / "users_ca"), keygen(folder / "late")
    sign(authority, folder / "late.pub", "-n", "root", "-V", "-2h:-1h")
    (lab.directory / host / "ca.pub").write_text((folder / "users_ca.pub").read_text())
    second_sshd(lab, host, PORT + 1, "TrustedUserCAKeys /run/host/ca.pub")
    path = folder / "known-late"
    path.write_text(known_hosts(lab, host, PORT + 1))
    return {"port": PORT + 1, "identity": str(key), "known_hosts": str(path)}


def expired_host_certificate(lab: api.Lab, host: str, folder: Path) -> dict[str, Any]:
    authority = keygen(folder / "hosts_ca")
    home = lab.directory / host
    address = lab.hosts[host].address
    sign(authority, home / "ssh_host_ed25519_key.pub", "-h", "-n", address, "-V", "-2h:-1h")
    lines = "HostCertificate /run/host/ssh_host_ed25519_key-cert.pub"
    second_sshd(lab, host, PORT + 2, lines)
    path = folder / "known-ca"
    path.write_text("@cert-authority * " + (folder / "hosts_ca.pub").read_text())
    return {"port": PORT + 2, "known_hosts": str(path)}


# --- Python --------------------------------------------------------------------------------


_HIDE = """
for d in /usr/bin /usr/local/bin /usr/libexec; do
  if [ -d $d ]; then
    mkdir -p /run/hidden$d /run/hidden/work$d
    mount -t overlay -o lowerdir=$d,upperdir=/run/hidden$d,workdir=/run/hidden/work$d overlay $d
    rm -f $d/python3* $d/platform-python
  fi
done
"""


def no_python(lab: api.Lab, host: str, _folder: Path) -> dict[str, Any]:
    inside(lab, host, _HIDE)
    return {}


def minimal_python(lab: api.Lab, host: str, _folder: Path) -> dict[str, Any]:
    """The library that Debian's python3-minimal has, and no more."""
    inside(
        lab,
        host,
        """
        v=$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
        mkdir /run/minimal
        dpkg -L libpython$v-minimal python$v-minimal | grep "^/usr/lib/python$v/" |
          while read f; do
            if [ -f "$f" ]; then
              mkdir -p "/run/minimal/${f%/*}"; cp "$f" "/run/minimal/$f"
            fi
          done
        mount --bind "/run/minimal/usr/lib/python$v" "/usr/lib/python$v"
        """,
    )
    return {}


def without(module: str, *more: str) -> Prepare:
    """A Python whose library lacks modules: as if somebody had cleaned up too well."""
    names = " ".join(
        f"/run/lean/{name} /run/lean/{name}.py /run/lean/lib-dynload/{name}.*"
        for name in (module, *more)
    )

    def prepare(lab: api.Lab, host: str, _folder: Path) -> dict[str, Any]:
        inside(
            lab,
            host,
            f"""
            v=$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
            mkdir -p /run/lean; cp -a /usr/lib/python$v/. /run/lean/
            rm -rf {names}
            mount --bind /run/lean /usr/lib/python$v
            """,
        )
        return {}

    return prepare


# --- NVML ----------------------------------------------------------------------------------


def faults(text: str) -> Prepare:
    """Faults of the simulated library."""

    def prepare(lab: api.Lab, host: str, _folder: Path) -> dict[str, Any]:
        inside(lab, host, f"echo '{text}' >/run/nvml-sim/faults")
        return {}

    return prepare


def no_library(lab: api.Lab, host: str, _folder: Path) -> dict[str, Any]:
    inside(lab, host, "umount /etc/ld.so.cache")
    return {}


def absurd_pids(lab: api.Lab, host: str, _folder: Path) -> dict[str, Any]:
    """Names of nobody, of everybody, and of more than there can be."""
    for number, pid in enumerate((0, 1, 4194305, 2147483647, 4294967295)):
        line = f"gpu=0 bytes={1 << 30} pid={pid} start=- lists=compute gi=- ci=- rule=sticky"
        inside(lab, host, f"echo '{line}' >/run/nvml-sim/charges/absurd{number}")
    return {}


# --- shells and sessions -------------------------------------------------------------------

_NOISE = """#!/bin/sh
printf '{"type": "hello"} [{ \\033[31mwelcome\\033[0m \\377\\376 }\\r\\n{'
echo 'warning: {"quota": 99}' >&2
%s
printf '} {"type": "result", "id": 1} bye {\\n'
"""


def noisy_shell(lab: api.Lab, host: str, _folder: Path) -> dict[str, Any]:
    script(lab, host, "noisy", _NOISE % '/bin/sh -c "$SSH_ORIGINAL_COMMAND"')
    second_sshd(lab, host, PORT + 3, "ForceCommand /run/host/noisy")
    path = lab.directory / "known-noisy"
    path.write_text(known_hosts(lab, host, PORT + 3))
    return {"port": PORT + 3, "known_hosts": str(path)}


def noisy_profile(lab: api.Lab, host: str, _folder: Path) -> dict[str, Any]:
    script(lab, host, "profile", _NOISE % "trap 'echo { leaving }' EXIT")
    inside(
        lab, host, "for f in .bashrc .profile .bash_profile; do cp /run/host/profile /root/$f; done"
    )
    return {}


# --- nowhere to write ----------------------------------------------------------------------


def full_disk(lab: api.Lab, host: str, _folder: Path) -> dict[str, Any]:
    inside(
        lab,
        host,
        """
        for d in /root /tmp /var/tmp /dev/shm /home; do
          mount -t tmpfs -o size=64k tmpfs $d
          cat /dev/zero >$d/full 2>/dev/null || true
        done
        """,
    )
    return {}


def noexec(lab: api.Lab, host: str, _folder: Path) -> dict[str, Any]:
    inside(
        lab,
        host,
        "for d in /root /tmp /var/tmp /dev/shm /home /run; do mount -o remount,noexec $d; done",
    )
    return {}


def read_only_home(lab: api.Lab, host: str, _folder: Path) -> dict[str, Any]:
    inside(lab, host, "for d in /root /tmp /var/tmp /home; do mount -o remount,ro $d; done")
    return {}


def no_home(lab: api.Lab, host: str, _folder: Path) -> dict[str, Any]:
    path = lab.directory / host / "etc/passwd"
    path.write_text(path.read_text().replace(":/root:", ":/nowhere/at/all:", 1))
    return {}


def nothing(_lab: api.Lab, _host: str, _folder: Path) -> dict[str, Any]:
    return {}


# --- dying, frozen and lying -----------------------------------------------------------------


def session_process(signal: str, then: str = "exec sleep 600") -> Prepare:
    """A host whose sshd session process gets *signal* when the agent is to start."""

    def prepare(lab: api.Lab, host: str, _folder: Path) -> dict[str, Any]:
        text = f"#!/bin/sh\nkill -{signal} $PPID\n{then}\n"
        return {"python": script(lab, host, f"at-{signal.lower()}", text)}

    return prepare


def late(seconds: float) -> Prepare:
    """A host whose Python needs *seconds* to start."""

    def prepare(lab: api.Lab, host: str, _folder: Path) -> dict[str, Any]:
        text = f'#!/bin/sh\nsleep {seconds}\nexec python3 "$@"\n'
        return {"python": script(lab, host, f"late-{seconds:g}", text)}

    return prepare


def liar(lie: str) -> Prepare:
    """A host whose agent is somebody else's; see liar.py."""

    def prepare(lab: api.Lab, host: str, _folder: Path) -> dict[str, Any]:
        text = (Path(__file__).parent / "inside" / "liar.py").read_text("utf-8")
        text = text.replace("PROTOCOL = 0", f"PROTOCOL = {PROTOCOL}")
        script(lab, host, "liar.py", text)
        line = f'#!/bin/sh\nexec python3 -S /run/host/liar.py {lie} "$@"\n'
        return {"python": script(lab, host, f"lie-{lie}", line)}

    return prepare


NOT_REACHED = (
    Day("dns", no_name, "unreachable", "dns_failed", ("no-such-host.invalid",)),
    Day("refused", refused, "unreachable", "connect_refused", (":1 ",)),
    Day("mute", mute, "unreachable", "connect_timeout", ("within 2 s",)),
    Day("wrong-key", wrong_key, "unreachable", "hostkey_changed", ("SHA256:", "known_hosts has")),
    Day("unknown-key", unknown_key, "unreachable", "hostkey_unknown", ("SHA256:",)),
    Day("revoked-key", revoked_key, "unreachable", "hostkey_revoked", ("SHA256:",)),
    Day("wrong-user-key", wrong_user_key, "unreachable", "auth_failed", ("user root",)),
    Day("expired-cert", expired_certificate, "unreachable", "auth_failed", ("expired",)),
    Day("expired-host", expired_host_certificate, "unreachable", "hostcert_invalid", ("expired",)),
)
FAILED = (
    Day("no-python", no_python, "failed", "python_missing", ("python3.8",)),
    Day("minimal", minimal_python, "failed", "python_incomplete", ("/usr/bin/python3",)),
    Day("no-json", without("json", "_json"), "failed", "python_incomplete", ("json",)),
    Day("no-ctypes", without("_ctypes"), "failed", "python_incomplete", ("ctypes",)),
    Day("no-library", no_library, "failed", "nvml_missing", ("libnvidia-ml.so.1",)),
    Day("mismatch", faults("init=18"), "failed", "nvml_mismatch", ("version",)),
    Day("no-driver", faults("init=9"), "failed", "nvml_no_driver", ("driver",)),
    Day("nvml-hangs", faults("init=hang"), "partial", "nvml_hung", ("no answer in",)),
    Day("nvml-broken", faults("init=999"), "failed", "nvml_failed", ("999",)),
    Day("killed", session_process("KILL"), "failed", "session_lost"),
)
FINE = (
    Day("good-a", nothing, "ok"),
    Day("good-b", nothing, "ok"),
    Day("noisy-shell", noisy_shell, "ok"),
    Day("noisy-profile", noisy_profile, "ok"),
    Day("json-in-c", without("json"), "ok"),  # the half in C is all the agent wants
    Day("full-disk", full_disk, "ok"),
    Day("noexec", noexec, "ok"),
    Day("read-only", read_only_home, "ok"),
    Day("no-home", no_home, "ok"),
)
