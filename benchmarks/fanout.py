"""64 hosts, second contact: connect, stage, GPU and holder readings, plan, fold."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from benchmarks import measure, peers
from tests.lab import api

HOSTS = 64
ROUNDS = 4
HERE = Path(__file__).parent
FLEETMEM = Path(sys.executable).parent / "fleetmem"


def main(hosts: int = HOSTS, rounds: int = ROUNDS) -> list[tuple[str, str]]:
    """The rows of the table: what, figure."""
    programs = peers.install()
    with tempfile.TemporaryDirectory(prefix="fleetmem-bench-") as name:
        folder = Path(name)
        lab = api.up(folder / "lab", n=hosts, while_pid=os.getpid())
        try:
            for host in lab.hosts:
                lab.hog(host, "orphan", mib=5000)
            return compare(lab, folder, programs, rounds)
        finally:
            lab.down()


def compare(lab: api.Lab, folder: Path, programs: Path, rounds: int) -> list[tuple[str, str]]:
    """All contenders in turns; the best run of each."""
    addresses = {name: at.address for name, at in lab.hosts.items()}
    key, known = str(lab.directory / "id_ed25519"), str(lab.directory / "known_hosts")
    ours = {**os.environ, "XDG_STATE_HOME": str(folder / "state")}
    theirs = peers.ansible(lab.directory, folder, addresses)
    bare = [sys.executable, str(HERE / "bare_asyncssh.py"), key, known, *addresses.values()]
    product = [str(FLEETMEM), "reclaim", "-i", str(lab.inventory), "-H", "@all", "--dry-run", "-q"]
    contenders: dict[str, tuple[list[str], dict[str, str] | None]] = {
        "fleetmem": (product, ours),
        "asyncssh": (bare, None),
    }
    for fanout in (32, 64):
        words = peers.clush(programs, lab.directory, list(addresses.values()), fanout)
        contenders[f"clush -f {fanout}"] = (words, theirs)
    first = measure.run(product, ours)
    costs: dict[str, list[measure.Cost]] = {}
    for _ in range(rounds):
        for label, (words, environment) in contenders.items():
            costs.setdefault(label, []).append(measure.run(words, environment))
    module = [str(programs / "ansible"), "all", "-m", "command", "-a", "true", "-o"]
    costs["ansible + mitogen"] = [measure.run(module, theirs) for _ in range(2)]
    best = {label: measure.best(found) for label, found in costs.items()}
    return list(table(best, first, len(addresses)))


def table(best: dict[str, measure.Cost], first: measure.Cost, hosts: int) -> list[tuple[str, str]]:
    """Figures and ratios, with the bound each must keep."""
    ours, bare = best["fleetmem"], best["asyncssh"]
    clush = min((best["clush -f 32"], best["clush -f 64"]), key=lambda cost: cost.wall)
    mitogen = best["ansible + mitogen"]
    rows = [
        (
            f"{label}, {hosts} hosts",
            f"wall {cost.wall:.2f} s · client CPU {cost.client:.2f} s · "
            f"host CPU {1000 * cost.other / hosts:.0f} ms a host",
        )
        for label, cost in [*best.items(), ("fleetmem, first contact", first)]
    ]
    rows += [
        ratio("wall, fleetmem / bare asyncssh", ours.wall / bare.wall, 1.6),
        ratio("client CPU, fleetmem / bare asyncssh", ours.client / bare.client, 2.0),
        ratio("wall, fleetmem / clush (best fan-out)", ours.wall / clush.wall, 1.3),
        ratio("wall, fleetmem / ansible + mitogen", ours.wall / mitogen.wall, 1 / 8),
    ]
    return rows


def ratio(label: str, value: float, bound: float) -> tuple[str, str]:
    """A ratio beside its bound; missed bounds are marked."""
    mark = "" if value <= bound else "   MISSED"
    return label, f"{value:.3f} (at most {bound:.3g}){mark}"
