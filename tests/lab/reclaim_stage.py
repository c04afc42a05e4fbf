"""What tests of reclaim share: the command line as people use it, logins, traces on hosts."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.lab import api

PROGRAM = Path(sys.executable).parent / "fleetmem"
MIB = 1 << 20

_TRACES = r"""
import json, os
found = {"agents": [], "folder": [], "audit": [], "signals": []}
for name in filter(str.isdigit, os.listdir("/proc")):
    try:
        with open("/proc/%s/comm" % name) as file:
            comm = file.read().strip()
        with open("/proc/%s/cmdline" % name, "rb") as file:
            line = file.read()
        with open("/proc/%s/stat" % name) as file:
            state = file.read().rpartition(")")[2].split()[0]
    except OSError:
        continue
    if state in "ZX" or int(name) == os.getpid():
        continue
    if comm.startswith("fleetmem-") or b"b.a2b_base64(sys.argv[1])" in line:
        found["agents"].append([int(name), comm])
try:
    found["folder"] = sorted(os.listdir("/run/fleetmem"))
    found["signals"] = sorted(os.listdir("/run/fleetmem/signals"))
except OSError:
    pass
try:
    with open("/run/fleetmem/audit.jsonl") as file:
        found["audit"] = [json.loads(line) for line in file]
except OSError:
    pass
print(json.dumps(found))
"""


@dataclass(frozen=True)
class Traces:
    """What fleetmem left on a host: processes of the agent, files below /run/fleetmem."""

    agents: list[list[Any]]
    folder: list[str]
    audit: list[dict[str, Any]]
    signals: list[str]


def traces(lab: api.Lab, host: str) -> Traces:
    """The traces on *host* now."""
    done = lab.exec(host, "python3", "-I", "-S", "-c", _TRACES)
    assert done.returncode == 0, done.stderr
    return Traces(**json.loads(done.stdout))


@dataclass(frozen=True)
class Answer:
    """What one run of the command line gave."""

    code: int
    envelope: dict[str, Any]
    stderr: str

    def host(self, name: str) -> dict[str, Any]:
        """The host's entry."""
        (entry,) = [row for row in self.envelope["hosts"] if row["host"] == name]
        assert isinstance(entry, dict)
        return entry

    def reclaim(self, name: str) -> dict[str, Any]:
        """The host's ``reclaim`` section."""
        entry = self.host(name)
        assert "reclaim" in entry, entry
        section = entry["reclaim"]
        assert isinstance(section, dict)
        return section

    def verdicts(self, name: str) -> dict[int, str]:
        """The verdict over each GPU in scope."""
        return {row["index"]: row["verdict"] for row in self.reclaim(name)["gpus"]}

    def targets(self, name: str) -> dict[int, str]:
        """The class of each target by pid."""
        return {row["pid"]: row["class"] for row in self.reclaim(name)["targets"]}

    def spared(self, name: str) -> dict[int, tuple[str | None, str]]:
        """(class, why) of each spared process by pid."""
        rows = self.reclaim(name)["spared"]
        return {row["pid"]: (row["class"], row["why"]) for row in rows}

    def signalled(self, name: str) -> list[tuple[str, int, str]]:
        """(rung, pid, signal) in order."""
        return [
            (rung["rung"], row["pid"], row["signal"])
            for rung in self.reclaim(name)["rungs"]
            for row in rung["signalled"]
        ]


@dataclass(frozen=True)
class Desk:
    """Where somebody sits: an inventory, and a state folder of the person's own."""

    inventory: Path
    state: Path

    def start(self, *words: str, hosts: str = "gh200-*") -> subprocess.Popen[str]:
        """``fleetmem reclaim -o json`` in the background, in a session of its own."""
        command = [str(PROGRAM), "reclaim", "-i", str(self.inventory), "-H", hosts, "-o", "json"]
        return subprocess.Popen(
            [*command, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "XDG_STATE_HOME": str(self.state), "COLUMNS": "200"},
        )

    def reclaim(self, *words: str, hosts: str = "gh200-*", timeout: float = 400) -> Answer:
        """Run it to its end."""
        running = self.start(*words, hosts=hosts)
        try:
            return answer(running, timeout)
        finally:
            running.kill()
            running.wait()


def answer(running: subprocess.Popen[str], timeout: float = 400) -> Answer:
    """What a started run says in the end."""
    out, err = running.communicate(timeout=timeout)
    assert "Traceback" not in err, err
    try:
        envelope = json.loads(out)
    except ValueError:
        raise AssertionError(f"no envelope; status {running.returncode}: {out}{err}") from None
    assert envelope["run"]["exit_code"] == running.returncode
    assert envelope["summary"]["targeted"] == len(envelope["hosts"])
    return Answer(running.returncode, envelope, err)


@contextlib.contextmanager
def login(lab: api.Lab, host: str, user: str = "root") -> Iterator[subprocess.Popen[str]]:
    """A session over the host's sshd that stays open and answers."""
    running = subprocess.Popen(
        [*lab.ssh_command(host, user), "exec cat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        answers(running)
        yield running
    finally:
        running.kill()
        running.communicate()


def answers(running: subprocess.Popen[str]) -> None:
    """Fails where a session of :func:`login` is gone."""
    assert running.stdin is not None
    assert running.stdout is not None
    running.stdin.write("still here\n")
    running.stdin.flush()
    assert running.stdout.readline() == "still here\n"


def untouched(lab: api.Lab, host: str, hog: api.Hog) -> None:
    """Fails where a process of *hog* is gone or saw a signal."""
    for pid in (*hog.holders, *hog.helpers):
        assert lab.exec(host, "test", "-d", f"/proc/{pid}").returncode == 0, (host, pid)
        assert lab.signals(host, pid) == [], (host, pid)


def no_agents(lab: api.Lab, hosts: Sequence[str]) -> None:
    """Wait until no process of the agent is on *hosts*; fails where one stays for 60 s."""
    deadline = time.monotonic() + 60
    left = list(hosts)
    while left := [host for host in left if traces(lab, host).agents]:
        assert time.monotonic() < deadline, {host: traces(lab, host).agents for host in left}
        time.sleep(0.4)


def at_most_once(lab: api.Lab, host: str) -> list[tuple[int, int, str]]:
    """All (pid, start, signal) of the host's trail; fails where one is there twice."""
    pairs = [(row["pid"], row["start_time"], row["signal"]) for row in traces(lab, host).audit]
    assert len(pairs) == len(set(pairs)), (host, pairs)
    return pairs


def own_holder(
    lab: api.Lab,
    host: str,
    title: str,
    size_bytes: int,
    rule: str = "process",
    gpu: int = 0,
    user: str = "root",
    more: str = "",
) -> int:
    """Start own_holder.py over the host's sshd, as nohup leaves it; the holder's pid.

    *more*: words for own_holder.py.
    """
    script = (Path(__file__).parent / "inside" / "own_holder.py").read_text("utf-8")
    made = "umask 0; : >/tmp/own-pids; : >/tmp/own-terms; cat >/tmp/own.py"
    assert lab.exec(host, "sh", "-c", made, stdin=script).returncode == 0
    words = f"/tmp/own.py {gpu} {size_bytes} {rule} {more}"
    start = f"exec -a {shlex.quote(title)} python3 -S {words}"
    line = f"nohup setsid bash -c {shlex.quote(start)} </dev/null >/tmp/own-out 2>&1 &"
    done = lab.ssh(host, f"rm -f /tmp/own-out; {line}", user)
    assert done.returncode == 0, done.stderr
    return wait_for_pids(lab, host, 2 if "fork" in more else 1)[0]


def wait_for_pids(lab: api.Lab, host: str, count: int) -> list[int]:
    """The pids that own holders of *host* wrote down, once there are *count*."""
    deadline = time.monotonic() + 60
    while True:
        pids = [int(word) for word in lab.exec(host, "cat", "/tmp/own-pids").stdout.split()]
        if len(pids) >= count:
            return pids
        assert time.monotonic() < deadline, lab.exec(host, "cat", "/tmp/own-out").stdout
        time.sleep(0.05)
