"""Whom a person spares, TERM that cannot work, and a host's trail, on real hosts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab import api, desk
from tests.lab.reclaim_stage import MIB, own_holder, traces

pytestmark = pytest.mark.lab

ONE, TWO = "gh200-01", "gh200-02"
GRACE = ("--grace-period", "5m")
"""So long that a test which waits for it fails by its time limit."""

FROZEN = """
import os, socket, sys
os.makedirs("/run/systemd/journal", exist_ok=True)
one = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
one.bind("/run/systemd/journal/socket")
other = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
other.setblocking(False)
sent = 1
while sent:
    try:
        sent = other.sendto(b"x", "/run/systemd/journal/socket")
    except BlockingIOError:
        sent = 0
if os.fork():
    os._exit(0)
os.setsid()
null = os.open("/dev/null", os.O_RDWR)
for number in range(3):
    os.dup2(null, number)
import time
time.sleep(600)
"""
"""A journald that has stopped reading: its queue is full and nobody empties it."""


@pytest.fixture
def lab() -> Iterator[api.Lab]:
    """Two hosts with a GPU each."""
    with api.lab(n=2, gpus=1) as running:
        yield running


@pytest.fixture
def sat(lab: api.Lab, tmp_path: Path) -> desk.Desk:
    return desk.Desk(tmp_path, lab.inventory)


def lives(lab: api.Lab, host: str, pid: int) -> bool:
    return lab.exec(host, "test", "-d", f"/proc/{pid}").returncode == 0


def apply(sat: desk.Desk, *words: str) -> desk.Answer:
    return sat.run("reclaim", "-H", ONE, "--yes", "-o", "json", *GRACE, *words, timeout=120).answer


def test_an_excluded_host_is_spared_by_any_of_its_names(lab: api.Lab, sat: desk.Desk) -> None:
    """As the address that the inventory has for it, too; two exclusions are two."""
    pids = {host: lab.hog(host, "retitled", 0, 2000).holders[0] for host in (ONE, TWO)}
    at = lab.hosts[ONE]
    typed = f"root@{at.address}:{at.port}"
    said = sat.run("reclaim", "-H", f"{typed},{TWO}", "-x", ONE, "--yes", "-o", "json")
    assert [entry["host"] for entry in said.answer.envelope["hosts"]] == [TWO]
    assert lives(lab, ONE, pids[ONE])
    assert not lives(lab, TWO, pids[TWO])
    none = sat.run("reclaim", "-H", f"{ONE},{TWO}", "-x", ONE, "-x", TWO, "--yes", "-o", "json")
    assert none.code == 2
    both = sat.run("reclaim", "-H", f"{ONE},{TWO}", "--pid", str(pids[ONE]), "--yes", "-o", "json")
    assert both.code == 2
    assert lives(lab, ONE, pids[ONE])


def test_term_that_is_ignored_is_not_waited_for(lab: api.Lab, sat: desk.Desk) -> None:
    pid = own_holder(lab, ONE, "train", 2000 * MIB, more="ignores")
    short = apply(sat, "--gpu", "0", "--up-to", "term").reclaim(ONE)
    assert short["verdict"] == "held_by"
    assert "ignores SIGTERM" in short["gpus"][0]["why"]
    assert "outside the plan" not in short["advice"]
    done = apply(sat, "--gpu", "0").reclaim(ONE)
    assert done["verdict"] == "reclaimed"
    assert not lives(lab, ONE, pid)
    (event,) = [row for row in traces(lab, ONE).audit if row["signal"] == "KILL"]
    assert (event["scope"], event["pid"]) == ("--gpu 0", pid)


def test_a_stopped_process_is_not_waited_for(lab: api.Lab, sat: desk.Desk) -> None:
    pid = own_holder(lab, ONE, "train", 2000 * MIB)
    assert lab.exec(ONE, "kill", "-STOP", str(pid)).returncode == 0
    done = apply(sat, "--pid", str(pid)).reclaim(ONE)
    assert done["verdict"] == "reclaimed"
    (term,) = [row for row in done["rungs"] if row["rung"] == "term"]
    assert "is stopped, so SIGTERM stays pending" in term["why"]


def test_a_journal_that_does_not_read_blocks_nothing(lab: api.Lab, sat: desk.Desk) -> None:
    pid = lab.hog(ONE, "retitled", 0, 2000).holders[0]
    assert lab.exec(ONE, "python3", "-S", "-c", FROZEN).returncode == 0
    done = sat.run(
        "reclaim", "-H", ONE, "--yes", "--grace-period", "1s", "-o", "json", timeout=120
    ).answer
    assert done.reclaim(ONE)["verdict"] == "reclaimed"
    assert not lives(lab, ONE, pid)
    kept = traces(lab, ONE).audit
    assert [row["signal"] for row in kept] == ["TERM", "KILL"]
    assert {json.dumps(row["scope"]) for row in kept} == {'"leftovers"'}
