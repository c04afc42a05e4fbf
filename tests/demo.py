"""``make demo``: what people do today, what it leaves, and what fleetmem does instead.

Eight test hosts with a real sshd each, in namespaces of this machine. The GPUs are
simulated (a libnvidia-ml.so.1 that reads files); the processes, the SSH and the signals are
real. Nothing outside the test hosts is touched, and all of it is gone at the end.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from fleetmem.controller.text.sizes import thousands
from tests.lab import api
from tests.lab.inside.asking import used

MIB = 92000
KINDS = {
    "retitled": "an engine's worker whose launcher was killed; it renamed itself",
    "forked-holder": "a fork that inherited a killed process's GPU files",
    "leader-zombie": "main thread gone (shows as Z), another thread lives",
    "second-node": "opened the GPU through a device node of its container's own",
}
CHAIN = "pkill -9 -f 'vllm serve'; fuser -k -9 /dev/nvidia*; sleep 3"
FLEETMEM = Path(sys.executable).parent / "fleetmem"


def main() -> int:
    """Run the demo; 0 where fleetmem brought back what it should have."""
    say(
        "fleetmem demo · SIMULATED GPUs, real processes, real SSH",
        "8 test hosts in namespaces of this machine; nothing outside them is touched.",
    )
    with tempfile.TemporaryDirectory(prefix="fleetmem-demo-") as folder:
        begin = time.monotonic()
        try:
            lab = api.up(Path(folder) / "lab", n=8, while_pid=os.getpid())
        except api.LabError as error:
            print(f"demo: {error}", file=sys.stderr)
            return 1
        try:
            say(f"8 hosts up in {time.monotonic() - begin:.1f} s, two simulated GPUs each.")
            return show(lab, Path(folder))
        finally:
            lab.down()


def show(lab: api.Lab, folder: Path) -> int:
    """The three acts."""
    hosts = sorted(lab.hosts)
    kinds = dict(zip(hosts, [*KINDS, *KINDS], strict=True))
    bystanders = {}
    for host, kind in kinds.items():
        lab.hog(host, kind, gpu=0, mib=MIB)
        bystanders[host] = lab.hog(host, "bystander", gpu=1, mib=1000).holders[0]
    say(
        "",
        "THE MORNING AFTER  on each host 92 000 MiB of GPU 0 are held by one of these:",
        *(f"  {', '.join(h for h in hosts if kinds[h] == k)}  {text}" for k, text in KINDS.items()),
        "GPU 1 of each host belongs to somebody else, who is working (the bystander).",
    )
    title("1  What people do today, on gh200-[01-04]", f"$ {CHAIN}   (on each host)")
    for host in hosts[:4]:
        lab.exec(host, "sh", "-s", stdin=f"exec >/dev/null 2>&1\n{CHAIN}\n")
    left = [table_row(lab, host, kinds[host], bystanders[host]) for host in hosts[:4]]
    say("", "what it leaves            GPU 0 MiB   bystander on GPU 1")
    say(*(f"  {host:22}  {thousands(mib):>9}   {state}" for host, mib, state in left))
    stuck = sum(mib > 1000 for _, mib, _ in left)
    gone = sum(state != "alive" for _, _, state in left)
    say(f"{stuck} of 4 hosts still hold their memory, and {gone} of 4 bystanders were killed.")

    environment = {
        **os.environ,
        "XDG_STATE_HOME": str(folder / "state"),
        "FLEETMEM_INVENTORY": str(lab.inventory),
    }
    base = ["-H"]
    title("2  fleetmem, all hosts at once: leftovers only, since no scope was named")
    status = fleetmem(["reclaim", *base, "gh200-*", "--yes", "--grace-period", "2s"], environment)
    title(
        "3  fleetmem, with a scope: the rest of GPU 0",
        "A detached process may be somebody's nohup job, and a live launcher's child is in use,",
        "so fleetmem touches these only where a person names them. The bystander stays.",
    )
    words = ["reclaim", *base, "gh200-*", "--gpu", "0", "--yes", "--grace-period", "2s"]
    status = status or fleetmem(words, environment)
    rows = [table_row(lab, host, kinds[host], bystanders[host]) for host in hosts]
    say("", "the proof                 GPU 0 MiB   bystander on GPU 1")
    say(*(f"  {host:22}  {thousands(mib):>9}   {state}" for host, mib, state in rows))
    held = sum(mib > 1000 for _, mib, _ in rows)
    killed = sum(state != "alive" for host, _, state in rows if host in hosts[4:])
    say(
        "",
        f"{8 - held} of 8 hosts have their memory back; fleetmem killed {killed} bystanders.",
        "Simulated GPUs; docs/gpu-h200.md has the same on a real driver.",
        "Next: write an inventory (inventory.example.yaml) and run",
        "  .venv/bin/fleetmem reclaim -H YOUR-HOSTS --dry-run",
    )
    return 0 if status == 0 and held == 0 and killed == 0 else 1


def table_row(lab: api.Lab, host: str, kind: str, bystander: int) -> tuple[str, int, str]:
    """A host's used MiB on GPU 0, and whether its bystander lives."""
    alive = lab.exec(host, "test", "-d", f"/proc/{bystander}").returncode == 0
    return f"{host} {kind}", used(lab, host, 0), "alive" if alive else "KILLED"


def fleetmem(words: list[str], environment: dict[str, str]) -> int:
    """Run the command line as a person would; its status."""
    say("", "$ " + shlex.join(["fleetmem", *words]), "")
    return subprocess.run([FLEETMEM, *words], env=environment, check=False).returncode


def title(*lines: str) -> None:
    """A heading."""
    bold, plain = ("\033[1m", "\033[0m") if sys.stdout.isatty() else ("", "")
    say("", f"{bold}{lines[0]}{plain}", *lines[1:])


def say(*lines: str) -> None:
    """Lines for the newcomer, at once."""
    for line in lines:
        print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
