"""The peers, from the ordinary package sources, in a virtual environment of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
VENV = ROOT / ".venv-bench"
PACKAGES = ("ClusterShell", "ansible-core", "mitogen")
KEX = "-o KexAlgorithms=curve25519-sha256 -o LogLevel=ERROR -o IdentitiesOnly=yes -o BatchMode=yes"


def install() -> Path:
    """The folder of the peers' programs."""
    programs = VENV / "bin"
    if not (programs / "ansible").exists():
        print("installing the peers (ClusterShell, ansible-core, mitogen) …", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
        pip = [
            str(programs / "python"),
            "-m",
            "pip",
            "install",
            "-q",
            "--disable-pip-version-check",
        ]
        subprocess.run([*pip, *PACKAGES], check=True)
    return programs


def clush(programs: Path, lab: Path, hosts: list[str], fanout: int) -> list[str]:
    """``clush … true`` with curve25519 (its default key exchange costs ten times the CPU)."""
    options = f"-F none -p 2222 -i {lab}/id_ed25519 -o UserKnownHostsFile={lab}/known_hosts {KEX}"
    return [str(programs / "clush"), "-f", str(fanout), "-w", ",".join(hosts), "-l", "root",
            "-o", options, "true"]  # fmt: skip


def ansible(lab: Path, folder: Path, addresses: dict[str, str]) -> dict[str, str]:
    """Write an inventory and a configuration; the environment that ansible needs."""
    strategy = next(VENV.glob("lib/python*/site-packages/ansible_mitogen/plugins/strategy"))
    (folder / "hosts").write_text(
        "".join(f"{name} ansible_host={address}\n" for name, address in addresses.items())
    )
    (folder / "ansible.cfg").write_text(
        f"[defaults]\ninventory={folder}/hosts\nforks=64\nremote_user=root\nremote_port=2222\n"
        f"private_key_file={lab}/id_ed25519\nstrategy_plugins={strategy}\n"
        "strategy=mitogen_linear\ninterpreter_python=/usr/bin/python3\ngathering=explicit\n"
        "deprecation_warnings=False\n"
        f"[ssh_connection]\nssh_args=-F none -o UserKnownHostsFile={lab}/known_hosts {KEX}\n"
    )
    return {
        "ANSIBLE_CONFIG": str(folder / "ansible.cfg"),
        "ANSIBLE_HOME": str(folder / "ansible-home"),
        "PATH": f"{VENV}/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
        "HOME": str(folder),
        "LANG": "C.UTF-8",
    }
