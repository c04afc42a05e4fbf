"""Memory that does not simply come back, libraries that fail, users without rights.

One host for each trouble, all in one run: a trouble of one host is one row, never the run's.
The holders are of other people's making (own_holder.py), with other numbers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.lab import api
from tests.lab.inside import asking as inside
from tests.lab.reclaim_stage import (
    MIB,
    Answer,
    Desk,
    answer,
    at_most_once,
    no_agents,
    own_holder,
    traces,
    wait_for_pids,
)

pytestmark = pytest.mark.lab

GIB = 1 << 30
HOSTS = (
    "linger",
    "sticky",
    "pinned",
    "ipc",
    "ipc-plain",
    "respawn",
    "mismatch",
    "init-hang",
    "lost",
    "memory-hang",
    "scrambled",
    "sizes",
    "numbers",
    "late",
)
FAULTS = {
    "mismatch": "init=18",
    "init-hang": "init=hang",
    "lost": "memory.0=15",
    "memory-hang": "memory.0=hang",
    "scrambled": "processes.0=scrambled",
    "sizes": "processes.0=unknown",
}
OWN_GPUS = """\
index=1 minor=0 uuid=GPU-0b1e name=NVIDIA_RTX_PRO_6000 total=102005473280 reserved=734003200 \
idle=7340032 numa_node=- bus=0000:c1:00.0 mig=0 persistence=0
index=0 minor=1 uuid=GPU-0a1e name=NVIDIA_RTX_PRO_6000 total=102005473280 reserved=734003200 \
idle=7340032 numa_node=- bus=0000:41:00.0 mig=0 persistence=0
"""


@dataclass(frozen=True)
class Stage:
    """``short``: a release time of 3 s. ``patient`` and ``late``: the predicted one."""

    lab: api.Lab
    hosts: dict[str, str]
    pids: dict[str, int]
    short: Answer
    patient: Answer
    respawned: list[int] = field(default_factory=list)


def place(lab: api.Lab, name: str, host: str) -> int:
    """Start the host's trouble; the pid that holds GPU 0."""
    if name in FAULTS:
        title = {"scrambled": "Processes 7", "sizes": "-bash"}.get(name, "python3 train.py")
        pid = lab.hog(host, "orphan", 0, 9000, title=title).holders[0]
        if name == "scrambled":
            lab.hog(host, "bystander", 0, 1000, title="/usr/bin/python3 -m other")
        inside.put(lab, host, "/run/nvml-sim/faults", FAULTS[name] + "\n")
        return pid
    if name == "ipc":
        importer = own_holder(lab, host, "lmcache_server", 2 * GIB, gpu=1)
        return own_holder(lab, host, "engine", 40 * GIB, f"ipc:{importer}")
    if name == "ipc-plain":
        helper = lab.hog(host, "bystander", 0, 0).holders[0]
        return own_holder(lab, host, "engine", 40 * GIB, f"ipc:{helper}")
    if name == "respawn":
        return own_holder(lab, host, "service main", 40 * GIB, more="again")
    if name == "numbers":
        inside.put(lab, host, "/run/nvml-sim/gpus", OWN_GPUS)
        return own_holder(lab, host, "/opt/venv/bin/python -m my.server", 77 * GIB, user="ops")
    rule = {"linger": "linger:3600", "pinned": "linger:4", "late": "linger:7"}.get(name, "sticky")
    pid = own_holder(lab, host, "python3 train.py", 40 * GIB, rule)
    if name == "late":  # what people did before they called: memory of a dead process
        inside.kill(lab, host, "KILL", pid)
    return pid


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with api.lab(n=len(HOSTS)) as lab:
        hosts = dict(zip(HOSTS, lab.hosts, strict=True))
        with ThreadPoolExecutor(4) as pool:
            started = pool.map(lambda name: place(lab, name, hosts[name]), HOSTS)
            pids = dict(zip(HOSTS, started, strict=True))
        desk = Desk(lab.inventory, tmp_path_factory.mktemp("state"))
        words = ("--gpu", "0", "--yes", "--grace-period", "1s")
        patient = ("sticky", "pinned", "late")
        long = desk.start(*words, hosts=",".join(hosts[name] for name in patient))
        others = ",".join(hosts[name] for name in HOSTS if name not in patient)
        short = desk.reclaim(*words, "--release-timeout", "3s", hosts=others)
        respawned = wait_for_pids(lab, hosts["respawn"], 2)
        yield Stage(lab, hosts, pids, short, answer(long), respawned)


def gpu(found: Answer, host: str, index: int = 0) -> tuple[str, str]:
    """(verdict, why) over one GPU."""
    (row,) = [row for row in found.reclaim(host)["gpus"] if row["index"] == index]
    return row["verdict"], row["why"]


def test_memory_still_on_its_way_is_releasing(stage: Stage) -> None:
    """After 3 s nobody can know whether it comes back: exit 5, and the same host later."""
    host = stage.hosts["linger"]
    assert gpu(stage.short, host)[0] == "releasing", stage.short.reclaim(host)
    assert stage.short.code == 5
    assert any(f"-H {host}" in step for step in stage.short.reclaim(host)["next"])
    inside.gives_back(stage.lab, host)
    desk = Desk(stage.lab.inventory, stage.lab.directory / "state")
    again = desk.reclaim("--gpu", "0", "--yes", hosts=host)
    assert gpu(again, host) == ("nothing_to_do", "at its baseline")
    assert again.code == 0
    assert again.signalled(host) == []


def test_slow_release_is_reclaimed(stage: Stage) -> None:
    """Memory that comes 4 s after the death is no leak."""
    host = stage.hosts["pinned"]
    assert gpu(stage.patient, host)[0] == "reclaimed"
    assert stage.patient.reclaim(host)["gpus"][0]["after_bytes"] == 3 * MIB


def test_memory_of_somebody_killed_before_is_waited_for(stage: Stage) -> None:
    """Nothing to signal, but memory that nobody has: it is watched until it is back."""
    host = stage.hosts["late"]
    assert stage.patient.targets(host) == {}
    assert gpu(stage.patient, host) == ("nothing_to_do", "at its baseline")
    section = stage.patient.reclaim(host)
    assert section["gpus"][0]["before_bytes"] == 40 * GIB + 3 * MIB
    assert section["gpus"][0]["after_bytes"] == 3 * MIB
    assert traces(stage.lab, host).folder == []


def test_memory_that_never_comes_back_is_pinned(stage: Stage) -> None:
    host = stage.hosts["sticky"]
    verdict, why = gpu(stage.patient, host)
    assert verdict == "kernel_pinned"
    assert "not back after 6" in why
    assert "RDMA" in stage.patient.reclaim(host)["advice"]
    assert stage.patient.code == 5


def test_memory_that_moved_names_the_importer(stage: Stage) -> None:
    host = stage.hosts["ipc"]
    verdict, why = gpu(stage.short, host)
    (importer,) = [pid for pid, _ in stage.short.spared(host).items()]
    assert verdict == "held_by"
    assert f" {importer}: it imported it" in why
    assert any(f"--pid {importer} " in step for step in stage.short.reclaim(host)["next"])
    assert inside.exists(stage.lab, host, importer)


def test_memory_that_moved_to_a_process_without_files(stage: Stage) -> None:
    """A number of NVML is no proof, so it is named and not touched."""
    host = stage.hosts["ipc-plain"]
    verdict, why = gpu(stage.short, host)
    assert verdict == "held_by"
    assert "which shows no file of the driver" in why


def test_a_respawn_names_the_supervisor(stage: Stage) -> None:
    host, new = stage.hosts["respawn"], stage.respawned
    verdict, why = gpu(stage.short, host)
    assert verdict == "respawned"
    assert len(new) == 2  # it was not killed again and again
    (row,) = inside.look(stage.lab, host, new[1])
    assert f"python3 {new[1]} (parent python3 {row['ppid']})" in why
    assert "supervisor" in stage.short.reclaim(host)["advice"]


@pytest.mark.parametrize(
    ("name", "code", "text"),
    [
        ("mismatch", "nvml_mismatch", "differ in version"),
        ("init-hang", "nvml_hung", "no answer"),
        ("memory-hang", "nvml_hung", "no answer"),
    ],
)
def test_a_library_that_fails_is_one_clear_error(
    stage: Stage, name: str, code: str, text: str
) -> None:
    entry = stage.short.host(stage.hosts[name])
    assert entry["outcome"] == ("partial" if code == "nvml_hung" else "failed")
    assert entry["error"]["code"] == code
    assert text in entry["error"]["message"]
    assert inside.exists(stage.lab, stage.hosts[name], stage.pids[name])
    assert stage.lab.signals(stage.hosts[name], stage.pids[name]) == []


@pytest.mark.parametrize("name", ["init-hang", "memory-hang"])
def test_a_hang_is_met_once(stage: Stage, name: str) -> None:
    """The second call to a library that hung is answered without asking it."""
    entry = stage.short.host(stage.hosts[name])
    rows = {n: r["outcome"] for n, r in entry["readings"].items() if n.startswith("gpu.")}
    assert rows["gpu.devices"] == "timed_out"
    assert rows["gpu.processes"] == "failed"
    assert entry["readings"]["gpu.processes"]["code"] == "nvml_hung"


def test_a_lost_gpu_is_the_drivers_trouble(stage: Stage) -> None:
    host = stage.hosts["lost"]
    verdict, why = gpu(stage.short, host)
    assert verdict == "driver_wedged"
    assert "GPU is lost (15)" in why
    assert stage.short.host(host)["outcome"] == "partial"


def test_scrambled_numbers_never_lead_to_a_signal(stage: Stage) -> None:
    """Only what NVML names plausibly and what has driver files is signalled."""
    host = stage.hosts["scrambled"]
    targets = stage.short.targets(host)
    for pid in targets:
        (row,) = [t for t in stage.short.reclaim(host)["targets"] if t["pid"] == pid]
        assert {"nvml", "fd"} <= set(row["evidence"])
    reading = stage.short.host(host)["readings"]["gpu.processes"]["reading"]
    gate = {p["pid"]: p["state"] for row in reading["gpus"] for p in row["processes"]}
    signalled = {pid for pid, _, _ in at_most_once(stage.lab, host)}
    assert signalled <= set(targets)
    assert all(gate.get(pid, "alive") != "implausible" for pid in signalled)


def test_unknown_sizes_do_not_hinder(stage: Stage) -> None:
    host = stage.hosts["sizes"]
    assert stage.short.targets(host) == {stage.pids["sizes"]: "detached"}
    assert gpu(stage.short, host)[0] == "reclaimed"
    assert stage.short.reclaim(host)["targets"][0]["held_bytes"] is None


def test_other_numbers_and_makers(stage: Stage) -> None:
    """GPU 0 has minor 1 here, another size, and its holder is another user's script."""
    host, pid = stage.hosts["numbers"], stage.pids["numbers"]
    assert stage.short.targets(host) == {pid: "detached"}
    (target,) = stage.short.reclaim(host)["targets"]
    assert (target["user"], target["gpus"], target["held_bytes"]) == ("ops", [0], 77 * GIB)
    (row,) = stage.short.reclaim(host)["gpus"]
    assert (row["uuid"], row["verdict"]) == ("GPU-0a1e", "reclaimed")
    assert row["before_bytes"] == 77 * GIB + 7340032
    assert row["after_bytes"] == 7340032


def test_nothing_is_signalled_twice_and_nothing_is_left(stage: Stage) -> None:
    for host in stage.lab.hosts:
        at_most_once(stage.lab, host)
    no_agents(stage.lab, list(stage.lab.hosts))


# --- users ---------------------------------------------------------------------------------


def inventory(lab: api.Lab, folder: Path, sudo: bool) -> Path:
    """The lab's inventory for the user ops."""
    text = lab.inventory.read_text("utf-8")
    text = text.replace("user: root", f"user: ops\n  sudo: {json.dumps(sudo)}")
    path = folder / f"ops-{sudo}.yaml"
    path.write_text(text)
    return path


@dataclass(frozen=True)
class Users:
    """Root's holder, one of ops, one of ops without a place for records; a run as ops."""

    lab: api.Lab
    theirs: str
    own: str
    homeless: str
    hogs: dict[str, api.Hog]
    folder: Path
    found: Answer


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Users]:
    folder = tmp_path_factory.mktemp("users")
    with api.lab(n=3) as lab:
        theirs, own, homeless = lab.hosts
        hogs = {
            theirs: lab.hog(theirs, "retitled", 0, 30000),
            own: lab.hog(own, "orphan", 0, 30000, user="ops"),
            homeless: lab.hog(homeless, "orphan", 0, 30000, user="ops"),
        }
        assert lab.exec(homeless, "rmdir", "/run/user/1000").returncode == 0
        desk = Desk(inventory(lab, folder, False), folder / "state")
        found = desk.reclaim("--gpu", "0", "--yes", "--grace-period", "1s")
        yield Users(lab, theirs, own, homeless, hogs, folder, found)


def test_what_others_own_is_listed_and_not_touched(users: Users) -> None:
    """Even a leftover: without rights it is foreign, and the verdict says why."""
    host, (pid,) = users.theirs, users.hogs[users.theirs].holders
    assert users.found.targets(host) == {}
    assert users.found.spared(host)[pid][0] == "foreign"
    assert "belongs to user root" in users.found.spared(host)[pid][1]
    assert users.found.host(host)["outcome"] == "partial"
    assert gpu(users.found, host)[0] == "not_permitted"
    assert users.found.code == 7
    assert users.lab.signals(host, pid) == []


def test_their_own_they_may_have(users: Users) -> None:
    host, (pid,) = users.own, users.hogs[users.own].holders
    assert users.found.targets(host) == {pid: "detached"}
    assert gpu(users.found, host)[0] == "reclaimed"
    assert [one.name for one in users.lab.signals(host, pid)] == ["TERM"]


def test_without_a_place_for_records_nothing_is_done(users: Users) -> None:
    host, (pid,) = users.homeless, users.hogs[users.homeless].holders
    assert users.found.host(host)["error"]["code"] == "no_state_dir"
    assert users.lab.signals(host, pid) == []
    assert inside.exists(users.lab, host, pid)


def test_with_sudo_all_is_reclaimed(users: Users) -> None:
    desk = Desk(inventory(users.lab, users.folder, True), users.folder / "sudo")
    found = desk.reclaim("--gpu", "0", "--yes", "--grace-period", "1s")
    assert found.verdicts(users.theirs) == {0: "reclaimed"}
    assert found.verdicts(users.homeless) == {0: "reclaimed"}
    assert found.verdicts(users.own) == {0: "nothing_to_do"}
    assert found.code == 0
    assert [inside.used(users.lab, host) for host in users.lab.hosts] == [0, 0, 0]
    no_agents(users.lab, list(users.lab.hosts))
