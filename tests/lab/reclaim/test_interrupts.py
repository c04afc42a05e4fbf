"""The controller goes away at a random moment of every rung, in every way it can.

Each trial has a host of its own with a holder that ignores TERM and whose fork inherits its
files, so that every rung is climbed. After the interruption no agent may be left on the
host; a second run finishes the work, tells the truth, and nobody gets a signal twice.
FLEETMEM_SEED repeats a run, FLEETMEM_ROUNDS makes it longer.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.lab import api
from tests.lab.fixtures import wait_until
from tests.lab.inside import asking as inside
from tests.lab.reclaim_stage import (
    Answer,
    Desk,
    answer,
    at_most_once,
    no_agents,
    own_holder,
    traces,
    untouched,
    wait_for_pids,
)

pytestmark = pytest.mark.lab

GIB = 1 << 30
WAYS = ("INT", "KILL", "STOP", "session killed", "session stopped")
RUNGS = ("plan", "term", "kill", "heirs", "end")
WORDS = ("--gpu", "0", "--yes", "--grace-period", "1s")


@dataclass(frozen=True)
class Trial:
    """What is done to whom, and when: *delay* seconds after the rung's first signal."""

    way: str
    rung: str
    delay: float
    host: str

    def __str__(self) -> str:
        return f"{self.host}: {self.way}, {self.delay:.2f} s into {self.rung}"


def trials(hosts: list[str], seed: int) -> list[Trial]:
    """Every way at a random moment of every rung."""
    dice = random.Random(seed)
    span = {"plan": 1.0, "term": 1.2, "kill": 1.2, "heirs": 1.4, "end": 0.5}
    pairs = [(way, rung) for way in WAYS for rung in RUNGS]
    rounds = len(hosts) // len(pairs)
    return [
        Trial(way, rung, dice.uniform(0, span[rung]), host)
        for (way, rung), host in zip(pairs * rounds, hosts, strict=True)
    ]


def test_interrupted_anywhere(tmp_path: Path) -> None:
    seed = int(os.environ.get("FLEETMEM_SEED") or random.randrange(10**6))
    rounds = int(os.environ.get("FLEETMEM_ROUNDS") or 1)
    print(f"FLEETMEM_SEED={seed}")
    with api.lab(n=rounds * len(WAYS) * len(RUNGS)) as lab:
        plans = trials(list(lab.hosts), seed)
        with ThreadPoolExecutor(16) as pool:
            failures = list(pool.map(lambda trial: attempt(lab, trial, tmp_path), plans))
    told = [text for text in failures if text]
    assert not told, f"FLEETMEM_SEED={seed}\n" + "\n\n".join(told)


def attempt(lab: api.Lab, trial: Trial, folder: Path) -> str:
    """One trial; what went wrong, or nothing."""
    try:
        one(lab, trial, folder)
    except Exception:  # noqa: BLE001  all trials are told, not the first
        return f"{trial}: {traceback.format_exc(limit=-2)}"
    return ""


def one(lab: api.Lab, trial: Trial, folder: Path) -> None:
    host = trial.host
    own_holder(lab, host, "python3 serve.py", 50 * GIB, "file", more="deaf fork")
    neighbour = lab.hog(host, "bystander", 1, 3000)
    desk = Desk(lab.inventory, folder / host)
    running = desk.start(*WORDS, hosts=host)
    try:
        begun = desk.state / "fleetmem"
        wait_until("it kept no history", lambda: begun.exists() and any(begun.iterdir()), 120)
        await_rung(lab, trial, running)
        time.sleep(trial.delay)
        stopped = strike(lab, trial, running)
        no_agents(lab, [host])
        for pid in stopped:
            lab.exec(host, "kill", "-CONT", str(pid))
        first = end(lab, trial, running)
    finally:
        running.kill()
        running.communicate()
    before = traces(lab, host).audit
    if first is not None:
        truthful(lab, trial, first)
    second = desk.reclaim(*WORDS, hosts=host)
    verdict = second.verdicts(host)[0]
    assert verdict in ("reclaimed", "nothing_to_do"), second.reclaim(host)
    assert verdict == "reclaimed" or second.targets(host) == {}
    assert second.code == 0
    assert inside.nvml(lab, host)["init"] is None
    assert inside.used(lab, host) == 0
    assert inside.used(lab, host, 1) == 3000
    untouched(lab, host, neighbour)
    told = [(pid, name) for _, pid, name in second.signalled(host)]
    pairs = at_most_once(lab, host)
    assert [(pid, name) for pid, _, name in pairs[len(before) :]] == told
    seen = lab.exec(host, "cat", "/tmp/own-terms").stdout.split()
    assert len(seen) == len(set(seen)), seen
    assert {int(pid) for pid in seen} <= {pid for pid, _, name in pairs if name == "TERM"}
    assert {pid for pid, _, _ in pairs} <= set(wait_for_pids(lab, host, 2))


def await_rung(lab: api.Lab, trial: Trial, running: subprocess.Popen[str]) -> None:
    """Wait until the host's trail shows that the rung has begun."""
    wanted = {"plan": 0, "term": 1, "kill": 2, "heirs": 3, "end": 4}[trial.rung]
    trail = Path(f"/proc/{lab.hosts[trial.host].init}/root/run/fleetmem/audit.jsonl")
    deadline = time.monotonic() + 120
    while wanted:
        try:
            if len(trail.read_text().splitlines()) >= wanted:
                return
        except FileNotFoundError:
            pass
        assert running.poll() is None, running.communicate()
        assert time.monotonic() < deadline, f"{trial}: the rung was never reached"
        time.sleep(0.01)


def strike(lab: api.Lab, trial: Trial, running: subprocess.Popen[str]) -> list[int]:
    """Interrupt it; processes of the host that must be continued later."""
    if not trial.way.startswith("session"):
        running.send_signal(getattr(signal, f"SIG{trial.way}"))
        return []
    sessions = session_processes(lab, trial.host)
    if sessions:  # before the login, or after the end, there is none
        word = "KILL" if trial.way == "session killed" else "STOP"
        lab.exec(trial.host, "kill", f"-{word}", *map(str, sessions))
    return sessions if trial.way == "session stopped" else []


def session_processes(lab: api.Lab, host: str) -> list[int]:
    """The sshd processes between the host's agent and its listening sshd."""
    found = []
    for pid, name in traces(lab, host).agents:
        if name == "fleetmem-guard":
            above = parent(lab, host, pid)
            while above > 1 and "sshd" in comm(lab, host, above):
                found.append(above)
                above = parent(lab, host, above)
    return [pid for pid in found if parent(lab, host, pid) > 1][:2]


def parent(lab: api.Lab, host: str, pid: int) -> int:
    text = lab.exec(host, "cat", f"/proc/{pid}/stat").stdout
    return int(text.rpartition(")")[2].split()[1]) if text else 0


def comm(lab: api.Lab, host: str, pid: int) -> str:
    return lab.exec(host, "cat", f"/proc/{pid}/comm").stdout


def end(lab: api.Lab, trial: Trial, running: subprocess.Popen[str]) -> Answer | None:
    """How the interrupted run ended; None where it could not say a word."""
    if trial.way == "KILL":
        running.wait(60)
        return None
    if trial.way == "STOP":
        running.send_signal(signal.SIGCONT)
    found = answer(running)
    # the last rung's last signal was sent: it may have said its last word already
    late = found.code == 0 and len(traces(lab, trial.host).audit) == 4
    assert trial.way != "INT" or found.code == 130 or late, found
    return found


def truthful(lab: api.Lab, trial: Trial, first: Answer) -> None:
    """A run that was cut off never says more than it saw."""
    if first.envelope.get("error"):  # it had not come to its hosts
        assert (first.envelope["error"]["code"], first.envelope["hosts"]) == ("interrupted", [])
        return
    entry: dict[str, Any] = first.host(trial.host)
    section = entry.get("reclaim")
    if section is not None and section["verdict"] == "reclaimed":
        assert inside.used(lab, trial.host) == 0
        return
    if entry["outcome"] in ("ok", "partial"):
        return  # it came to its end, or never past the plan
    assert entry["error"]["code"], entry
    signalled = traces(lab, trial.host).audit
    if signalled and section is not None:
        assert (entry["outcome"], section["verdict"]) == ("unknown", "unknown"), entry
    if first.code not in (0, 130):
        assert first.code == (8 if signalled else first.code)
        assert first.code in (3, 4, 8), first
