"""Real SSH servers on loopback: OpenSSH's sshd where there is one, else asyncssh's.

A machine without sshd can be handed one in a folder: ``sshd`` and, beside it, ``lib/`` with
the libraries that the machine lacks. A second server may run in a pid namespace of its own.
"""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

NVML = "libnvidia-ml.so.1"
NVML_PLACES = ("/usr/local/nvidia/lib64", "/usr/local/nvidia/lib", "/usr/lib/x86_64-linux-gnu")
_PASSWD = Path("/etc/passwd")
_SSHD_USER = "sshd:x:64901:65534::/run/sshd:/usr/sbin/nologin\n"


@dataclass
class Servers:
    """What runs, and the inventory file that leads to it. Made by :func:`start`."""

    folder: Path
    kind: str
    inventory: Path
    ports: dict[str, int] = field(default_factory=dict)
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    added_user: bool = False

    def stop(self) -> None:
        """End the servers and take back what was written outside the folder."""
        for process in self.processes:
            process.send_signal(signal.SIGTERM)
        for process in self.processes:
            try:
                process.wait(3)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self.added_user:
            kept = [line for line in _lines(_PASSWD) if line != _SSHD_USER]
            _PASSWD.write_text("".join(kept), encoding="utf-8")


def start(folder: Path, sshd_folder: Path | None) -> Servers:
    """Start the servers ``gpu`` and, in a pid namespace, ``gpu-ns``; RuntimeError if not."""
    import asyncssh

    for name in ("host", "id"):
        key = asyncssh.generate_private_key("ssh-ed25519")
        key.write_private_key(str(folder / name))
        key.write_public_key(str(folder / f"{name}.pub"))
        (folder / name).chmod(0o600)
    (folder / "authorized").write_bytes((folder / "id.pub").read_bytes())
    sshd, libraries = _find_sshd(sshd_folder)
    servers = Servers(folder, "openssh" if sshd else "asyncssh", folder / "inventory.yaml")
    try:
        if sshd and os.geteuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
            servers.added_user = _add_sshd_user()
        for name in ("gpu", "gpu-ns"):
            _start_one(servers, name, sshd, libraries)
        _write_inventory(servers)
    except BaseException:
        servers.stop()
        raise
    return servers


def _start_one(servers: Servers, name: str, sshd: str | None, libraries: str) -> None:
    port = free_port()
    environ = dict(os.environ)
    if sshd:
        command = [sshd, "-D", "-e", "-f", str(_configuration(servers.folder, name, port))]
        if libraries:
            environ["LD_LIBRARY_PATH"] = libraries
    else:
        command = [sys.executable, "-m", "tests.gpu.ssh_server", str(servers.folder), str(port)]
    if name == "gpu-ns":
        unshare = shutil.which("unshare")
        if unshare is None:
            raise RuntimeError("unshare (util-linux) is missing")
        words = ["--pid", "--fork", "--mount-proc", "--kill-child"]
        command = [unshare, *words, *command]
    with (servers.folder / f"{name}.log").open("ab") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environ,
            start_new_session=True,
        )
    servers.processes.append(process)
    servers.ports[name] = port
    _await_greeting(servers.folder / f"{name}.log", process, port)


def _configuration(folder: Path, name: str, port: int) -> Path:
    path = folder / f"sshd_{name}"
    places = _nvml_places()
    path.write_text(
        f"ListenAddress 127.0.0.1\nPort {port}\nHostKey {folder}/host\n"
        f"AuthorizedKeysFile {folder}/authorized\nPidFile none\nStrictModes no\nUsePAM no\n"
        "UseDNS no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n"
        "PermitRootLogin yes\nPrintMotd no\nLogLevel INFO\n"
        + (f"SetEnv LD_LIBRARY_PATH={places}\n" if places else ""),
        encoding="ascii",
    )
    return path


def _nvml_places() -> str:
    """A library path for sessions, where a bare process would not find NVML without one."""
    test = [sys.executable, "-I", "-S", "-c", f"import ctypes; ctypes.CDLL('{NVML}')"]
    if subprocess.run(test, env={}, capture_output=True).returncode == 0:
        return ""
    places = [*os.environ.get("LD_LIBRARY_PATH", "").split(":"), *NVML_PLACES]
    return ":".join(place for place in places if place and (Path(place) / NVML).exists())


def _find_sshd(folder: Path | None) -> tuple[str | None, str]:
    if folder is not None and (folder / "sshd").exists():
        return str((folder / "sshd").resolve()), str((folder / "lib").resolve())
    found = shutil.which("sshd", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")
    return found, ""


def _add_sshd_user() -> bool:
    """sshd separates privileges with a user of this name; whether it had to be added."""
    try:
        pwd.getpwnam("sshd")
    except KeyError:
        with _PASSWD.open("a", encoding="utf-8") as file:
            file.write(_SSHD_USER)
        return True
    return False


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines(keepends=True)


def _write_inventory(servers: Servers) -> None:
    folder = servers.folder
    public = " ".join((folder / "host.pub").read_text().split()[:2])
    known = folder / "known_hosts"
    known.write_text("".join(f"[127.0.0.1]:{port} {public}\n" for port in servers.ports.values()))
    python = [] if shutil.which("python3", path="/usr/bin:/usr/local/bin") else [sys.executable]
    lines = [
        "defaults:",
        f"  user: {pwd.getpwuid(os.geteuid()).pw_name}",
        f"  identity: {folder}/id",
        f"  known_hosts: {known}",
        *(f"  python: {path}" for path in python),
        "hosts:",
        *(f"  {name}: {{address: 127.0.0.1, port: {p}}}" for name, p in servers.ports.items()),
    ]
    servers.inventory.write_text("\n".join(lines) + "\n", encoding="utf-8")


def free_port() -> int:
    """A loopback port that nobody listens on."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def _await_greeting(log: Path, process: subprocess.Popen[bytes], port: int) -> None:
    end = time.monotonic() + 15
    while time.monotonic() < end and process.poll() is None:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1) as sock:
                if sock.recv(4):
                    return
        except OSError:
            pass
        time.sleep(0.05)
    raise RuntimeError(f"the SSH server did not start: {log.read_text(errors='replace')[-800:]}")


async def _serve(folder: Path, port: int) -> None:
    """asyncssh's server: every command runs through /bin/sh, with nothing but its environment."""
    import asyncssh

    places = _nvml_places()
    environ = {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME": str(Path.home())}
    if places:
        environ["LD_LIBRARY_PATH"] = places

    async def handle(process: asyncssh.SSHServerProcess[bytes]) -> None:
        child = await asyncio.create_subprocess_exec(
            "/bin/sh", "-c", process.command or "exec /bin/sh", env=environ,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        await process.redirect(stdin=child.stdin, stdout=child.stdout, stderr=child.stderr)
        process.exit(await child.wait())

    await asyncssh.listen(
        "127.0.0.1",
        port,
        server_host_keys=[str(folder / "host")],
        authorized_client_keys=str(folder / "authorized"),
        process_factory=handle,
        encoding=None,
    )
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1]), int(sys.argv[2])))
