"""Ties that leave a namespace: another network on this host, another host, a pid namespace."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fleetmem import agent
from tests.lab import api
from tests.lab.stories.scenes import Scene
from tests.lab.stories.test_story_hosts import INSIDE, play

pytestmark = pytest.mark.lab

FIRST, SECOND = "gh200-01", "gh200-02"
CALL = "import sys; sys.path.insert(0, '/run/host/probe'); import call_probes"
SERVER = """
start("serving", session=True, name="serving", port=5000, title="python3 head.py")
stage.wait("serving")
"""
CLIENT = """
start("client", session=True, name="client", address="{address}", port=5000)
stage.wait("client")
"""


class Hosts:
    """Two hosts with networks of their own and a cable between them."""

    def __init__(self, lab: api.Lab) -> None:
        self.lab = lab
        for host in (FIRST, SECOND):
            place = lab.directory / host / "probe"
            assert agent.__file__ is not None
            shutil.copytree(
                Path(agent.__file__).parent,
                place / "fleetmem/agent",
                ignore=shutil.ignore_patterns("__pycache__"),
            )
            (place / "fleetmem/__init__.py").write_text("")
            shutil.copy(INSIDE / "call_probes.py", place)
        ends = [f"/proc/{lab.hosts[host].init}/ns/net" for host in (FIRST, SECOND)]
        enter = ["nsenter", f"--net={ends[0]}"]
        peer = str(lab.hosts[SECOND].init)
        self.run(
            *enter,
            "ip",
            "link",
            "add",
            "cable",
            "type",
            "veth",
            "peer",
            "name",
            "cable",
            "netns",
            peer,
        )
        for number, end in enumerate(ends, start=1):
            inside = ["nsenter", f"--net={end}"]
            self.run(*inside, "ip", "address", "add", f"10.99.0.{number}/24", "dev", "cable")
            self.run(*inside, "ip", "link", "set", "cable", "up")

    def run(self, *words: str) -> None:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    def ties(self, host: str, *pids: int, within: tuple[str, ...] = ()) -> dict[str, Any]:
        words = ["processes.ties", json.dumps({"pids": list(pids)})]
        done = self.lab.exec(host, *within, "python3", "-I", "-B", "-c", CALL, *words)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)["processes.ties"]["reading"]
        return found


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    with api.lab(n=2, net=True) as lab:
        yield Hosts(lab)


def tcp(reading: dict[str, Any], pid: int) -> list[tuple[str, int | None, str]]:
    rows = [row for row in reading["links"] if row["kind"] == "tcp" and row["pid"] == pid]
    return [(row["where"], row["other"], row["address"]) for row in rows]


def test_an_end_on_another_host_is_elsewhere(hosts: Hosts) -> None:
    head = play(hosts.lab, SECOND, Scene(SERVER))["serving"]
    rank = play(hosts.lab, FIRST, Scene(CLIENT.format(address="10.99.0.2")))["client"]
    assert tcp(hosts.ties(FIRST, rank), rank) == [("elsewhere", None, "10.99.0.2")]
    assert tcp(hosts.ties(SECOND, head), head) == [("elsewhere", None, "10.99.0.1")]


def test_an_end_in_another_network_of_this_host_has_its_pid(hosts: Hosts) -> None:
    script = """
        unshare --net sleep 600 >/dev/null 2>&1 </dev/null & inner=$!
        until [ "$(readlink /proc/$inner/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do :; done
        ip link add out type veth peer name in netns $inner
        ip address add 10.98.0.1/24 dev out
        ip link set out up
        nsenter --net=/proc/$inner/ns/net ip address add 10.98.0.2/24 dev in
        nsenter --net=/proc/$inner/ns/net ip link set in up
        echo $inner
    """
    made = hosts.lab.exec(SECOND, "sh", "-c", script)
    assert made.returncode == 0, made.stderr
    inner = made.stdout.strip()
    entered = Scene(
        "import ctypes\n"
        f"fd = os.open('/proc/{inner}/ns/net', os.O_RDONLY)\n"
        "assert ctypes.CDLL(None).setns(fd, 0) == 0\n" + SERVER
    )
    head = play(hosts.lab, SECOND, entered)["serving"]
    rank = play(hosts.lab, SECOND, Scene(CLIENT.format(address="10.98.0.2")))["client"]
    assert tcp(hosts.ties(SECOND, rank), rank) == [("other_namespace", head, "10.98.0.2")]
    assert tcp(hosts.ties(SECOND, head), head) == [("other_namespace", rank, "10.98.0.1")]


def test_a_namespace_inside_of_a_host_is_not_the_initial_one(hosts: Hosts) -> None:
    assert hosts.ties(FIRST, 1)["initial_pid_namespace"] is True
    inside = ("unshare", "--pid", "--fork", "--mount-proc")
    seen = hosts.ties(FIRST, 1, within=inside)
    assert seen["initial_pid_namespace"] is False
    (first,) = [row for row in seen["processes"] if row["pid"] == 1]
    assert (first["term"], first["system"]) == ("init", "init")


OUTSIDE = """
import os, subprocess, sys
read, write = os.pipe()
words = ["unshare", "--pid", "--fork", "--mount-proc", "python3", "-I", "-B", "-c"]
subprocess.run([*words, sys.argv[1], str(write)], pass_fds=[write], check=True)
"""
WITHIN = """
import json, os, subprocess, sys
write = int(sys.argv[1])
child = subprocess.Popen(["sleep", "600"], pass_fds=[write])
os.close(write)
sys.argv = ["", "processes.ties", json.dumps({"pids": [child.pid]})]
sys.path.insert(0, "/run/host/probe")
import call_probes
child.kill()
"""


def test_a_pipe_out_of_a_pid_namespace_is_not_held_by_nobody(hosts: Hosts) -> None:
    """Who looks from inside does not see the other end; the kernel knows that there is one."""
    done = hosts.lab.exec(FIRST, "python3", "-c", OUTSIDE, WITHIN)
    assert done.returncode == 0, done.stderr
    reading = json.loads(done.stdout)["processes.ties"]["reading"]
    (pid,) = [row["pid"] for row in reading["processes"] if row["asked"]]
    ties = [row for row in reading["links"] if row["kind"] == "pipe" and row["pid"] == pid]
    assert [row["where"] for row in ties if not row["standard"]] == ["unreadable"]
