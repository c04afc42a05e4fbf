"""Random faults over many lab hosts, by hand: ``python -m tests.soak --minutes 40 --hosts 32``.

Holders come and go, controllers are interrupted, stopped and killed, agents and SSH sessions
are killed, disks fill up, NVML fails. What must hold all the time: nobody but a holder of
GPU 0 is ever signalled, no (identity, signal) pair twice, bystanders live, every answer adds
up, no traceback; at the end: memory back everywhere, nothing left behind.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.lab import api

FLEETMEM = Path(sys.executable).parent / "fleetmem"
KINDS = ("retitled", "forked-holder", "orphan", "term-ignorer", "plain", "leader-zombie", "mapped")
NVML_FAULTS = ("memory.0=15", "init=18", "processes.0=scrambled", "memory.0=999", "init=9")
CONTROLLER = ("none", "none", "none", "INT", "KILL", "STOP-CONT", "STOP-KILL")
HOST_FAULTS = ("serve", "guard", "session", "sshd", "disk", "nvml")
SETTLE_SECONDS = 25.0


@dataclass
class Soak:
    """The lab, what was started there, and what was counted."""

    lab: api.Lab
    folder: Path
    dice: random.Random
    bystanders: dict[str, int] = field(default_factory=dict)
    ours: dict[str, set[int]] = field(default_factory=dict)
    seen: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def fail(self, text: str) -> None:
        """Note what must not be, and go on."""
        print(f"FAILED {text}", flush=True)
        self.failures.append(text)


def main() -> int:
    """Run, print a table; 1 where something must not have been."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--minutes", type=float, default=40)
    options.add_argument("--hosts", type=int, default=32)
    options.add_argument("--pause", type=float, default=10, help="seconds between rounds")
    options.add_argument("--seed", type=int, default=random.randrange(10**6))
    words = options.parse_args()
    print(f"seed {words.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="fleetmem-soak-") as name:
        folder = Path(name)
        lab = api.up(folder / "lab", n=words.hosts, while_pid=os.getpid())
        try:
            soak = Soak(lab, folder, random.Random(words.seed))
            run(soak, words.minutes * 60, words.pause)
            finish(soak)
        finally:
            lab.down()
    for label, count in sorted(soak.seen.items()):
        print(f"{label:46} {count:6}")
    print(f"{'failures':46} {len(soak.failures):6}")
    return 1 if soak.failures else 0


def run(soak: Soak, seconds: float, pause: float) -> None:
    """Rounds until the time is over."""
    for host in soak.lab.hosts:
        soak.bystanders[host] = soak.lab.hog(host, "bystander", 1, 1000).holders[0]
        soak.ours[host] = set()
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        soak.seen["rounds"] += 1
        populate(soak)
        one_round(soak)
        check(soak)
        time.sleep(pause)


def populate(soak: Soak) -> None:
    """New holders on some hosts."""
    hosts = soak.dice.sample(sorted(soak.lab.hosts), max(1, len(soak.lab.hosts) // 4))

    def start(pair: tuple[str, str]) -> None:
        host, kind = pair
        with contextlib.suppress(api.LabError, subprocess.TimeoutExpired):
            hog = soak.lab.hog(host, kind, 0, 9000)
            soak.ours[host] |= {*hog.holders, *hog.dead}
            soak.seen[f"holders, {kind}"] += 1

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(start, [(host, soak.dice.choice(KINDS)) for host in hosts]))


def one_round(soak: Soak) -> None:
    """One reclaim with faults around it."""
    healed = []
    for _ in range(soak.dice.randint(0, 4)):
        healed.append(damage(soak, soak.dice.choice(sorted(soak.lab.hosts)), before=True))
    scope = ["-i", str(soak.lab.inventory), "-H", "gh200-*", "--gpu", "0", "--yes", "--no-drain"]
    spans = ["--grace-period", "1s", "--release-timeout", "5s", "--timeout", "20s"]
    running = subprocess.Popen(
        [str(FLEETMEM), "reclaim", *scope, *spans, "-q", "-o", "json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "XDG_STATE_HOME": str(soak.folder / "state")},
    )
    time.sleep(soak.dice.uniform(0.3, 4.0))
    for _ in range(soak.dice.randint(0, 3)):
        healed.append(damage(soak, soak.dice.choice(sorted(soak.lab.hosts)), before=False))
    way = soak.dice.choice(CONTROLLER)
    soak.seen[f"controller, {way}"] += 1
    strike(running, way, soak.dice.uniform(0.1, 22.0))
    try:
        out, err = running.communicate(timeout=180)
    except subprocess.TimeoutExpired:
        soak.fail("the controller did not end in 180 s")
        running.kill()
        out, err = running.communicate()
    for heal in healed:
        heal()
    judge(soak, way, running.returncode, out, err)


def strike(running: subprocess.Popen[str], way: str, seconds: float) -> None:
    """Interrupt the controller."""
    if way in ("INT", "KILL"):
        running.send_signal(getattr(signal, f"SIG{way}"))
    elif way.startswith("STOP"):
        running.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        running.send_signal(signal.SIGKILL if way == "STOP-KILL" else signal.SIGCONT)


def damage(soak: Soak, host: str, before: bool) -> Any:
    """One fault on one host; what heals it."""
    kind = soak.dice.choice(("disk", "nvml") if before else HOST_FAULTS)
    soak.seen[f"fault, {kind}"] += 1
    lab = soak.lab
    if kind == "disk":
        script = "for d in /run /root /tmp; do dd if=/dev/zero of=$d/.full bs=64k count=4000; done"
        lab.exec(host, "sh", "-c", script + " 2>/dev/null")
        return lambda: lab.exec(host, "rm", "-f", "/run/.full", "/root/.full", "/tmp/.full")
    if kind == "nvml":
        text = soak.dice.choice(NVML_FAULTS)
        lab.exec(host, "sh", "-c", "cat >/run/nvml-sim/faults", stdin=text + "\n")
        return lambda: lab.exec(host, "rm", "-f", "/run/nvml-sim/faults")
    names = {"serve": "fleetmem-serve", "guard": "fleetmem-guard"}
    for pid, name, parent in processes(lab, host):
        session = kind == "session" and name == "sshd" and parent not in (0, 1)
        if names.get(kind) == name or session or (kind == "sshd" and name.startswith("sshd-sess")):
            lab.exec(host, "kill", "-9", str(pid))
            break
    return lambda: None


def processes(lab: api.Lab, host: str) -> list[tuple[int, str, int]]:
    """(pid, comm, ppid) of everything on a host."""
    script = "for p in /proc/[0-9]*; do cat $p/stat 2>/dev/null; done"
    rows = []
    for line in lab.exec(host, "sh", "-c", script).stdout.splitlines():
        head, _, rest = line.rpartition(")")
        pid, _, comm = head.partition(" (")
        with contextlib.suppress(ValueError, IndexError):
            rows.append((int(pid), comm, int(rest.split()[1])))
    return rows


def judge(soak: Soak, way: str, code: int, out: str, err: str) -> None:
    """The answer must add up; only a killed controller may give none."""
    if "Traceback" in err:
        soak.fail(f"traceback: {err[-800:]}")
    if way in ("KILL", "STOP-KILL") and code == -signal.SIGKILL:
        return
    try:
        answer = json.loads(out)
    except ValueError:
        if not (way == "INT" and code in (130, -2)):
            soak.fail(f"no JSON, status {code}: {err[-300:]}")
        return
    counts = answer["summary"]
    if sum(v for k, v in counts.items() if k != "targeted") != counts["targeted"]:
        soak.fail(f"the sum is wrong: {counts}")
    for entry in answer["hosts"]:
        soak.seen[f"outcome, {entry['outcome']}"] += 1
        if "reclaim" in entry:
            soak.seen[f"verdict, {entry['reclaim']['verdict']}"] += 1


def check(soak: Soak) -> None:
    """After each round: bystanders, the trail, agents that stayed."""
    time.sleep(0.5)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda host: check_host(soak, host), soak.lab.hosts))


def check_host(soak: Soak, host: str) -> None:
    """One host."""
    until = time.monotonic() + SETTLE_SECONDS
    while True:
        rows = processes(soak.lab, host)
        agents = [row for row in rows if row[1].startswith("fleetmem-")]
        if not agents:
            break
        if time.monotonic() > until:
            soak.fail(f"{host}: still there after {SETTLE_SECONDS:.0f} s: {agents}")
            break
        time.sleep(1.0)
    bystander = soak.bystanders[host]
    if bystander not in {row[0] for row in rows}:
        soak.fail(f"{host}: the bystander is gone")
    if soak.lab.signals(host, bystander):
        soak.fail(f"{host}: the bystander was signalled")
    audit = soak.lab.exec(host, "cat", "/run/fleetmem/audit.jsonl").stdout
    pairs: Counter[tuple[int, int, str]] = Counter()
    for line in audit.splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue  # cut by a full disk
        pairs[(row["pid"], row["start_time"], row["signal"])] += 1
        if row["pid"] not in soak.ours[host]:
            soak.fail(f"{host}: {row['pid']} is no holder of ours and was signalled")
    for pair, count in pairs.items():
        if count > 1:
            soak.fail(f"{host}: {pair} stands {count} times in the trail")
    soak.seen["signals on record"] = max(soak.seen["signals on record"], sum(pairs.values()))


def finish(soak: Soak) -> None:
    """Without faults everything must come back, and nothing must be left."""
    for host in soak.lab.hosts:
        soak.lab.exec(host, "rm", "-f", "/run/nvml-sim/faults", "/run/.full", "/root/.full")
    words = ["reclaim", "-i", str(soak.lab.inventory), "-H", "gh200-*", "--gpu", "0", "--yes"]
    done = subprocess.run(
        [str(FLEETMEM), *words, "--no-drain", "--grace-period", "1s", "-q", "-o", "json"],
        capture_output=True,
        text=True,
        env={**os.environ, "XDG_STATE_HOME": str(soak.folder / "state")},
        check=False,
    )
    answer = json.loads(done.stdout)
    for entry in answer["hosts"]:
        verdict = entry.get("reclaim", {}).get("verdict")
        if verdict not in ("reclaimed", "nothing_to_do"):
            soak.fail(f"{entry['host']}: at the end {verdict}, {entry['error']}")
    check(soak)
    left = [p for p in (soak.folder / "state").rglob("*") if p.is_file()]
    soak.seen["files of the controller"] = len(left)


if __name__ == "__main__":
    sys.exit(main())
