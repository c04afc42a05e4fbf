"""The lab's directory: who owns it, what is in it, and its removal."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.lab.making import kernel
from tests.lab.making.build import LabError
from tests.lab.making.files import HostSpec, put

LOCK, RECORD = "lab.lock", "lab.json"
CLIENT = ("id_ed25519", "id_ed25519.pub", "known_hosts", "inventory.yaml")


def claim(directory: Path, created: bool) -> int:
    """Makes the directory this process's lab; the open lock file is the claim.

    ``created``: the directory goes with the lab. Raises LabError where another lab runs
    there, or where somebody else's files lie.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise LabError(f"{directory}: {error.strerror}") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise LabError(f"a lab already runs in {directory}") from None
    _sweep(directory)
    foreign = sorted(p.name for p in directory.iterdir() if p.name != LOCK)
    if foreign:
        (directory / LOCK).unlink()
        raise LabError(f"{directory} is not empty: {foreign[0]}")
    record(directory, created)
    return lock


def load(directory: Path) -> dict[str, object]:
    """The record of a lab. Raises LabError where the directory holds none."""
    try:
        found = json.loads((directory / RECORD).read_text("utf-8"))
    except (OSError, ValueError):
        raise LabError(f"no lab in {directory}") from None
    assert isinstance(found, dict)
    return found


def record(
    directory: Path,
    created: bool,
    specs: Sequence[HostSpec] = (),
    pids: Mapping[str, int] | None = None,
    machines: Sequence[str] = (),
) -> None:
    """Replaces the record: this process, and the hosts with their pid 1 (or QEMU)."""
    pids = pids or {}
    hosts = {
        spec.name: {
            "address": spec.address,
            "port": spec.port,
            "init": pids[spec.name],
            "start": kernel.start_time(pids[spec.name]),
            "machine": spec.name in machines,
        }
        for spec in specs
    }
    pid = os.getpid()
    whole = {"pid": pid, "start": kernel.start_time(pid), "created": created, "hosts": hosts}
    put(directory / f".{RECORD}", json.dumps(whole, indent=1) + "\n")
    (directory / f".{RECORD}").rename(directory / RECORD)


def client_key(directory: Path) -> str:
    """Makes the client's key pair and returns the public half."""
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "lab", "-f"]
    try:
        subprocess.run(
            [*command, str(directory / "id_ed25519")], check=True, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.CalledProcessError):
        raise LabError("ssh-keygen is missing; tests/lab_setup.sh installs it") from None
    return (directory / "id_ed25519.pub").read_text("ascii")


def write_client_files(
    directory: Path, specs: list[HostSpec], machines: Sequence[str] = ()
) -> None:
    """known_hosts and inventory.yaml; *machines* are a group ``numa`` of their own too."""
    known, rows = [], []
    for spec in specs:
        kind, key = Path(spec.home, "ssh_host_ed25519_key.pub").read_text("ascii").split()[:2]
        known.append(f"[{spec.address}]:{spec.port} {kind} {key}\n")
        rows.append(
            f'  {spec.name}: {{address: {spec.address}, port: {spec.port}, labels: {{lab: "1"}}}}\n'
        )
    names = [spec.name for spec in specs]
    digits = [name.rpartition("-")[2] for name in names]
    folded = names[0] if len(names) == 1 else _fold(digits)
    put(directory / "known_hosts", "".join(known))
    quoted = json.dumps(str(directory))[1:-1]
    put(
        directory / "inventory.yaml",
        "defaults:\n"
        "  user: root\n"
        f'  identity: "{quoted}/id_ed25519"\n'
        f'  known_hosts: "{quoted}/known_hosts"\n'
        "groups:\n"
        f'  lab: {{hosts: "{folded}"}}\n'
        + "".join(f'  numa: {{hosts: "{name}"}}\n' for name in machines)
        + "hosts:\n"
        + "".join(rows),
    )


def _fold(digits: list[str]) -> str:
    """gh200-[01-99],gh200-[100-120]: one range for each width."""
    parts = []
    for width in sorted({len(number) for number in digits}):
        same = [number for number in digits if len(number) == width]
        parts.append(f"gh200-[{same[0]}-{same[-1]}]" if len(same) > 1 else f"gh200-{same[0]}")
    return ",".join(parts)


def _sweep(directory: Path) -> None:
    """Removes what a lab left whose keeper was killed; nothing else."""
    try:
        hosts = load(directory)["hosts"]
    except LabError:
        return
    assert isinstance(hosts, dict)
    for path in list(directory.iterdir()):
        if path.is_dir() and (path.name in hosts or path.name.startswith((".build-", "build-"))):
            shutil.rmtree(path)
        elif path.is_dir() and (path / "etc" / "boot_id").exists():
            shutil.rmtree(path)  # a host that was not recorded yet
        elif path.name in (*CLIENT, RECORD, f".{RECORD}"):
            path.unlink()


def remove(directory: Path, created: bool) -> None:
    """Removes everything that the lab made, and the directory if the lab made that."""
    _sweep(directory)
    (directory / LOCK).unlink(missing_ok=True)
    if created:
        try:
            directory.rmdir()
        except OSError:
            return  # somebody keeps files of his own there
