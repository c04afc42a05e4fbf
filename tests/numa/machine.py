"""The NUMA machine with the agent's modules on it, and ways to plant memory there."""

from __future__ import annotations

import io
import json
import shlex
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pynvml

from fleetmem import agent
from tests.lab import api

MIB = 1 << 20
INSIDE = Path(__file__).parent.parent / "lab/probe_inside.py"
PLANTER = Path(__file__).parent / "planter.py"
PLACE = "/run/probe"


class Machine:
    """One running NUMA machine of a lab."""

    def __init__(self, lab: api.Lab) -> None:
        self.lab = lab
        self.name = next(name for name, at in lab.hosts.items() if at.machine)
        assert agent.__file__ is not None
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as tar:
            tar.add(
                Path(agent.__file__).parent,
                "fleetmem/agent",
                filter=lambda entry: None if "__pycache__" in entry.name else entry,
            )
            tar.addfile(tarfile.TarInfo("fleetmem/__init__.py"))
            tar.add(str(pynvml.__file__), "pynvml.py")
            tar.add(INSIDE, "probe_inside.py")
        unpack = f"mkdir -p {PLACE} && tar -xf - -C {PLACE} && python3 -m compileall -q {PLACE}"
        self.send(buffer.getvalue(), unpack)

    def send(self, data: bytes, command: str) -> None:
        """Runs *command* with *data* on its standard input."""
        words = [*self.lab.ssh_command(self.name), command]
        done = subprocess.run(words, input=data, capture_output=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr

    def sh(self, command: str, user: str = "root", timeout: float = 120) -> str:
        """Output of a shell command that must succeed."""
        done = self.lab.ssh(self.name, command, user, timeout)
        assert done.returncode == 0, f"{command}: {done.stderr or done.stdout}"
        return done.stdout

    def call(self, name: str, user: str = "root", **options: Any) -> dict[str, Any]:
        """One probe's or action's outcome, reason and reading."""
        start = f"import sys; sys.path.insert(0, '{PLACE}'); import probe_inside"
        words = ["python3", "-I", "-c", start, name, json.dumps(options)]
        found = json.loads(self.sh(shlex.join(words), user, 180))[name]
        assert isinstance(found, dict)
        return found

    def nodes(self) -> dict[int, dict[str, Any]]:
        """numa.nodes by node, after the kernel has summed up its counters."""
        self.sh("echo 1 >/proc/sys/vm/stat_refresh")
        found = self.call("numa.nodes")
        assert found["outcome"] == "ok", found
        return {row["id"]: row for row in found["reading"]["nodes"]}

    def shard(self, path: str, mib: int, policy: str) -> None:
        """Writes a file whose pages lie where numactl's *policy* says, and cleans them."""
        self.sh(
            f"numactl {policy} dd if=/dev/urandom of={shlex.quote(path)} bs=1M count={mib} "
            f"conv=fsync 2>/dev/null"
        )

    def plant(self, kind: str, node: int, mib: int) -> None:
        """Anonymous or shared memory on a node, kept by one process for all."""
        if self.lab.ssh(self.name, "test -p /run/plant.out").returncode:
            self.send(PLANTER.read_bytes(), "cat >/run/planter.py")
            self.sh("setsid python3 /run/planter.py </dev/null >/run/planter.log 2>&1 & sleep 1")
        command = f"echo {kind} {node} {mib} >/run/plant.in; cat /run/plant.out"
        assert self.sh(f"timeout 60 sh -c {shlex.quote(command)}") == "done"

    def start(self, script: str) -> int:
        """Starts a Python program that prints "ready" and then stays; its pid."""
        program = f"import os,sys,time\n{script}\nopen('/run/ready','w').write(str(os.getpid()))\n"
        program += "time.sleep(3600)\n"
        self.sh(
            "rm -f /run/ready; setsid python3 -c "
            + shlex.quote(program)
            + " </dev/null >/dev/null 2>&1 &"
            " for i in $(seq 300); do [ -s /run/ready ] && exit 0; sleep 0.1; done; exit 1"
        )
        return int(self.sh("cat /run/ready"))
