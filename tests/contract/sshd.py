"""A real sshd for contract tests: own keys, own configuration, a free loopback port.

Needs OpenSSH's sshd; as root it logs in any user of the machine, otherwise only the own one.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

SSHD = shutil.which("sshd", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")
USER = getpass.getuser()


@dataclass
class Sshd:
    """One running server; ``known_hosts`` and ``key`` are what a client needs."""

    directory: Path
    address: str
    port: int
    process: subprocess.Popen[bytes]
    known_hosts: Path
    key: Path
    children: list[int] = field(default_factory=list)

    @property
    def log(self) -> str:
        """What the server said so far."""
        return (self.directory / "log").read_text(errors="replace")

    def host_key(self, kind: str = "ed25519") -> str:
        """The public host key as known_hosts writes it: type and base64."""
        return " ".join((self.directory / f"host_{kind}.pub").read_text().split()[:2])


def keygen(path: Path, *options: str) -> Path:
    """A fresh key pair at *path*."""
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", str(path), *options],
        check=True,
        stdin=subprocess.DEVNULL,
    )
    return path


@contextlib.contextmanager
def closed_port(address: str) -> Iterator[int]:
    """A port on which nobody listens while the block runs, unless it is a server that, as
    sshd does, may take an address that is bound already (SO_REUSEADDR)."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address, 0))
        yield sock.getsockname()[1]


@contextlib.contextmanager
def running(directory: Path, *, address: str = "127.0.0.1", extra: str = "") -> Iterator[Sshd]:
    """An sshd while the block runs; *extra* are lines that come first in its configuration."""
    with closed_port(address) as port, _running(directory, address, extra, port) as server:
        yield server


@contextlib.contextmanager
def _running(directory: Path, address: str, extra: str, port: int) -> Iterator[Sshd]:
    assert SSHD is not None
    directory.mkdir(parents=True, exist_ok=True)
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    host_key, key = directory / "host_ed25519", directory / "id"
    for path in (host_key, key):
        if not path.exists():
            keygen(path)
    authorized = directory / "authorized_keys"
    if not authorized.exists():
        authorized.write_text((directory / "id.pub").read_text())
    configuration = directory / "sshd_config"
    startups = "" if "MaxStartups" in extra else "MaxStartups 200:30:400\n"  # the last one wins
    configuration.write_text(
        f"{extra}\nListenAddress {address}\nPort {port}\nHostKey {host_key}\n"
        f"AuthorizedKeysFile {authorized}\nPidFile none\nStrictModes no\nUsePAM no\nUseDNS no\n"
        "PasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin yes\n"
        f"{startups}LogLevel VERBOSE\nPrintMotd no\n"
    )
    known_hosts = directory / "known_hosts"
    if not known_hosts.exists():
        public = " ".join((directory / "host_ed25519.pub").read_text().split()[:2])
        known_hosts.write_text(f"[{address}]:{port} {public}\n")
    with (directory / "log").open("ab") as log:
        process = subprocess.Popen(
            [SSHD, "-D", "-e", "-f", str(configuration)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    server = Sshd(directory, address, port, process, known_hosts, key)
    try:
        _await_greeting(server)
        yield server
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _await_greeting(server: Sshd) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            with socket.create_connection((server.address, server.port), timeout=1) as sock:
                if sock.recv(4):
                    return
        except OSError:
            pass
        if server.process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"sshd did not start: {server.log}")
        time.sleep(0.02)
