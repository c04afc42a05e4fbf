"""The probes on test hosts: real holders of every kind, faults of the library, dead files."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pynvml
import pytest

from fleetmem import agent
from tests.lab import api
from tests.lab.fixtures import wait_until
from tests.lab.inside import asking as inside

pytestmark = pytest.mark.lab

HERE = Path(__file__).parents[1] / "inside"
HOST = "gh200-01"
MIB = 1 << 20


class Host:
    """A test host with the agent's modules on it."""

    def __init__(self, lab: api.Lab) -> None:
        self.lab = lab
        place = lab.directory / HOST / "probe"
        assert agent.__file__ is not None
        shutil.copytree(
            Path(agent.__file__).parent,
            place / "fleetmem/agent",
            ignore=shutil.ignore_patterns("__pycache__"),
        )
        (place / "fleetmem/__init__.py").write_text("")
        shutil.copy(str(pynvml.__file__), place)
        shutil.copy(HERE / "call_probes.py", place)
        for path in (place, *place.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)

    def probe(self, *names: str, user: str | None = None, **options: Any) -> Any:
        """Outcomes by name; *options* go to the last one."""
        words: list[str] = []
        for name in names:
            words += [name, json.dumps(options if name == names[-1] else {})]
        command = ["python3", "-I", "-B", "-c"]
        start = "import sys; sys.path.insert(0, '/run/host/probe'); import call_probes"
        if user is None:
            done = self.lab.exec(HOST, *command, start, *words)
        else:
            import shlex

            done = self.lab.ssh(HOST, shlex.join([*command, start, *words]), user)
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        return found if len(names) > 1 else found[names[0]]

    def fault(self, text: str) -> None:
        inside.put(self.lab, HOST, "/run/nvml-sim/faults", text)


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    with api.lab(n=1) as lab:
        yield Host(lab)


@pytest.fixture
def fresh() -> Iterator[Host]:
    with api.lab(n=1) as lab:
        yield Host(lab)


def by_pid(rows: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    return {row["pid"]: row for row in rows}


def test_every_kind_of_holder_is_seen_for_what_it_is(fresh: Host) -> None:
    kinds = (
        "plain",
        "mapped",
        "second-node",
        "orphan",
        "leader-zombie",
        "retitled",
        "forked-holder",
        "unreaped",
    )
    hogs = {kind: fresh.lab.hog(HOST, kind, mib=1000) for kind in kinds}
    bystander = fresh.lab.hog(HOST, "bystander", gpu=1, mib=100)
    found = fresh.probe("gpu.devices", "gpu.processes", "gpu.holders", "processes.identity")
    assert {row["outcome"] for row in found.values()} == {"ok"}
    holders = by_pid(found["gpu.holders"]["reading"]["holders"])
    people = by_pid(found["processes.identity"]["reading"]["processes"])
    listed = [by_pid(row["processes"]) for row in found["gpu.processes"]["reading"]["gpus"]]
    expected = {pid for hog in (*hogs.values(), bystander) for pid in hog.holders}
    assert set(holders) == set(people) == expected

    for kind, hog in hogs.items():
        for pid in hog.holders:
            row = holders[pid]
            assert row["ctl_map_bytes"] >= 60 * MIB, kind
            assert row["via_task"] is (kind == "leader-zombie")
            assert (row["uvm_map_bytes"] == 0) is (kind == "forked-holder")
            minors = [gpu["minor"] for gpu in row["gpus"]]
            assert minors == ([] if kind == "mapped" else [0, 1])
            assert people[pid]["alive"] is True
            alive = kind in ("plain", "mapped", "second-node")
            assert people[pid]["launcher_alive"] is alive, kind
            assert people[pid]["owner"]["kind"] == "none"
            if kind != "forked-holder":
                assert listed[0][pid]["state"] == "alive"
                assert listed[0][pid]["used_bytes"] == 1000 * MIB
    assert people[hogs["leader-zombie"].holders[0]]["state"] == "Z"
    heir = hogs["forked-holder"]
    assert listed[0][heir.dead[0]]["state"] == "dead"
    assert heir.holders[0] not in listed[0]
    worker = people[hogs["retitled"].holders[0]]
    assert worker["title"].startswith("VLLM::Worker_TP0")
    assert worker["orphaned_pipes"] >= 1
    assert worker["live_peers"] == []
    assert worker["group_leader_alive"] is False
    assert people[hogs["orphan"].holders[0]]["orphaned_pipes"] == 0
    assert hogs["unreaped"].dead[0] not in holders
    assert listed[1][bystander.holders[0]]["used_bytes"] == 100 * MIB
    assert bystander.holders[0] not in listed[0]


def test_an_ordinary_user_sees_its_own_and_says_what_is_missing(fresh: Host) -> None:
    theirs = fresh.lab.hog(HOST, "plain", mib=100)
    own = fresh.lab.hog(HOST, "plain", gpu=1, mib=100, user="ops")
    ended = fresh.lab.hog(HOST, "leader-zombie", gpu=1, mib=100, user="ops")
    found = fresh.probe("gpu.processes", "gpu.holders", "processes.identity", user="ops")
    assert found["gpu.processes"]["outcome"] == "ok"
    assert theirs.holders[0] in by_pid(found["gpu.processes"]["reading"]["gpus"][0]["processes"])
    scan = found["gpu.holders"]
    assert scan["outcome"] == "partial"
    assert scan["reading"]["denied"] >= 1
    assert "cannot be read by this user" in scan["reason"]
    holders = by_pid(scan["reading"]["holders"])
    assert set(holders) == {own.holders[0], ended.holders[0]}
    assert holders[own.holders[0]]["ctl_map_bytes"] >= 60 * MIB
    assert holders[ended.holders[0]]["via_task"] is True
    people = by_pid(found["processes.identity"]["reading"]["processes"])
    assert people[own.holders[0]]["user"] == "ops"
    other = fresh.probe("processes.identity", user="ops", pids=theirs.holders)
    assert other["outcome"] == "partial"
    row = other["reading"]["processes"][0]
    assert row["user"] == "root"
    assert row["orphaned_pipes"] is None
    assert row["live_peers"] is None
    assert row["listening"] is None


def test_faults_of_the_library_are_outcomes(host: Host) -> None:
    try:
        host.fault("memory.0=15\nprocesses.1=15\n")
        found = host.probe("gpu.devices", "gpu.processes")
        assert found["gpu.devices"]["outcome"] == "partial"
        rows = found["gpu.devices"]["reading"]["gpus"]
        assert rows[0]["used_bytes"] is None
        assert rows[1]["used_bytes"] is not None
        complete = [row["complete"] for row in found["gpu.processes"]["reading"]["gpus"]]
        assert complete == [True, False]
        host.fault("init=18\n")
        found = host.probe("gpu.devices")
        assert found["outcome"] == "failed"
        assert found["code"] == "nvml_mismatch"
        host.fault("init=9\n")
        assert host.probe("gpu.processes")["code"] == "nvml_no_driver"
    finally:
        host.fault("")


def test_a_scrambled_list_is_never_trusted(fresh: Host) -> None:
    for _ in range(2):
        fresh.lab.hog(HOST, "plain", mib=100)
    fresh.fault("processes.0=scrambled\n")
    found = fresh.probe("gpu.processes")
    row = found["reading"]["gpus"][0]
    assert row["complete"] is False
    assert {process["state"] for process in row["processes"]} == {"implausible"}


def test_waiting_sees_slow_memory_fall(fresh: Host) -> None:
    hog = fresh.lab.hog(HOST, "pinned", mib=5000)
    pid = hog.holders[0]
    person = fresh.probe("processes.identity", pids=[pid])["reading"]["processes"][0]
    assert person["pinned_bytes"] >= 60 * MIB
    inside.kill(fresh.lab, HOST, "KILL", pid)
    wait_until("it ends", lambda: not inside.exists(fresh.lab, HOST, pid))
    found = fresh.probe(
        "gpu.wait",
        gpus=[0, 1],
        below_bytes=[64 * MIB, None],
        pids=[pid],
        start_times=[person["start_time"]],
        timeout_seconds=100,
    )
    reading = found["reading"]
    assert reading["met"] is True
    assert reading["processes"][0]["state"] == "gone"
    first = reading["gpus"][0]
    assert first["start_bytes"] >= 5000 * MIB
    assert first["used_bytes"] < 64 * MIB
    assert first["met_after_seconds"] >= 0.5
    assert found["chunks"][0]["alive"] == 0
    assert 3 <= len(found["chunks"]) <= 4 * reading["seconds"] + 3


def test_a_dead_file_server_does_not_stop_the_scan(fresh: Host) -> None:
    started = fresh.lab.exec(HOST, "python3", "-", stdin=(HERE / "dead_fuse.py").read_text("utf-8"))
    assert started.returncode == 0, started.stderr
    words = started.stdout.split()
    holder, server, held = int(words[1]), int(words[3]), int(words[5])
    entry = fresh.lab.entry(HOST)
    follow = f"import os; os.stat('/proc/{holder}/fd/{held}')"
    victim = subprocess.Popen([*entry, "--", "python3", "-c", follow])
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            victim.wait(1.0)  # the premise: following the link waits for the server
        found = fresh.probe("gpu.holders")
        assert found["outcome"] == "ok"
        assert holder in by_pid(found["reading"]["holders"])
        people = fresh.probe("processes.identity", pids=[holder])
        assert people["outcome"] == "ok"
    finally:
        inside.kill(fresh.lab, HOST, "KILL", server)
        victim.wait(60)
