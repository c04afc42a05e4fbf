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
SERVER = Path(__file__).parent / "probe_server.py"
PLANTER = Path(__file__).parent / "planter.py"
PLACE = "/run/probe"


class Machine:
    """One running NUMA machine of a lab. SSH connections are shared: it computes slowly."""

    def __init__(self, lab: api.Lab) -> None:
        self.lab = lab
        self.name = next(name for name, at in lab.hosts.items() if at.machine)
        self.servers: dict[str, subprocess.Popen[str]] = {}
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
            tar.add(SERVER, SERVER.name)
        unpack = f"mkdir -p {PLACE} && tar -xf - -C {PLACE} && chmod -R a+rX {PLACE}"
        # Compiled first: a whole pynvml.py takes an emulated machine longer than NVML is given.
        self.send(buffer.getvalue(), f"{unpack} && python3 -m compileall -q {PLACE}")

    def close(self) -> None:
        """End the shared connections."""
        for user, server in self.servers.items():
            assert server.stdin is not None
            assert server.stdout is not None
            server.stdin.close()
            server.wait(120)
            server.stdout.close()
            subprocess.run(
                [*self._ssh(user)[:-1], "-O", "exit", self._ssh(user)[-1]],
                capture_output=True,
                check=False,
            )

    def _ssh(self, user: str = "root") -> list[str]:
        words = self.lab.ssh_command(self.name, user)
        control = f"ControlPath={self.lab.directory}/{user}.ssh"
        shared = ["-o", "ControlMaster=auto", "-o", control, "-o", "ControlPersist=300"]
        return [*words[:1], *shared, *words[1:]]

    def send(self, data: bytes, command: str) -> None:
        """Runs *command* with *data* on its standard input."""
        words = [*self._ssh(), command]
        done = subprocess.run(words, input=data, capture_output=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr

    def sh(self, command: str, user: str = "root", timeout: float = 300) -> str:
        """Output of a shell command that must succeed."""
        done = subprocess.run(
            [*self._ssh(user), command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert done.returncode == 0, f"{command}: {done.stderr or done.stdout}"
        return done.stdout

    def call(self, name: str, user: str = "root", **options: Any) -> dict[str, Any]:
        """One probe's or action's outcome, reason and reading."""
        if user not in self.servers:
            start = f"import sys; sys.path.insert(0, '{PLACE}'); import probe_server"
            words = [*self._ssh(user), shlex.join(["python3", "-I", "-c", start])]
            self.servers[user] = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        server = self.servers[user]
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(json.dumps([name, options]) + "\n")
        server.stdin.flush()
        line = server.stdout.readline()
        assert line, f"{name} ended the process that answers for {user}"
        found = json.loads(line)
        assert isinstance(found, dict)
        return found

    def nodes(self) -> dict[int, dict[str, Any]]:
        """numa.nodes by node, after the kernel has summed up its counters."""
        self.sh("echo 1 >/proc/sys/vm/stat_refresh")
        found = self.call("numa.nodes")
        assert found["outcome"] == "ok", found
        return {row["id"]: row for row in found["reading"]["nodes"]}

    def huge_page_bytes(self) -> int:
        """The default size of huge pages: 2 MiB with 4K pages, 32 MiB with 16K pages."""
        return int(self.sh("grep Hugepagesize: /proc/meminfo").split()[1]) << 10

    def shard(self, path: str, mib: int, policy: str) -> None:
        """Writes a file (its path again and again) whose pages lie where *policy* says."""
        place = shlex.quote(path)
        self.sh(
            f"yes {place} | numactl {policy} dd of={place} bs=1M count={mib} iflag=fullblock "
            "conv=fsync 2>/dev/null"
        )

    def whole(self, path: str, mib: int) -> None:
        """Fails where the file is not what :meth:`shard` wrote."""
        place = shlex.quote(path)
        self.sh(f"yes {place} | head -c {mib}M | cmp - {place}")

    def plant(self, kind: str, node: int, mib: int) -> None:
        """Anonymous or shared memory on a node, kept by one process for all."""
        if self.sh("ls /run").find("plant.out") < 0:
            self.send(PLANTER.read_bytes(), "cat >/run/planter.py")
            self.sh(
                "setsid python3 /run/planter.py </dev/null >/run/planter.log 2>&1 &"
                " for i in $(seq 1000); do [ -p /run/plant.out ] && exit 0; sleep 0.1; done; exit 1"
            )
        command = f"echo {kind} {node} {mib} >/run/plant.in; cat /run/plant.out"
        assert self.sh(f"timeout 200 sh -c {shlex.quote(command)}") == "done"

    def start(self, script: str) -> int:
        """Starts a Python program that prints "ready" and then stays; its pid."""
        program = f"import os,sys,time\n{script}\nopen('/run/ready','w').write(str(os.getpid()))\n"
        program += "time.sleep(3600)\n"
        self.sh(
            "rm -f /run/ready; setsid python3 -c "
            + shlex.quote(program)
            + " </dev/null >/dev/null 2>&1 &"
            " for i in $(seq 2000); do [ -s /run/ready ] && exit 0; sleep 0.1; done; exit 1"
        )
        return int(self.sh("cat /run/ready"))
