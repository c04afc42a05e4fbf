"""The simulated NVML library, asked through nvidia-ml-py inside a host."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.lab import api
from tests.lab.fixtures import wait_until
from tests.lab.inside import asking as inside

pytestmark = pytest.mark.lab

HOST = "gh200-01"
MIB = 1 << 20
TOTAL, RESERVED, IDLE = 1000 * MIB, 100 * MIB, 5 * MIB
GPUS = (
    f"index=0 uuid=GPU-aaaaaaaa-0000-0000-0000-000000000001 name=NVIDIA_H200_NVL total={TOTAL} "
    f"reserved={RESERVED} idle={IDLE} numa_node=- minor=4 bus=0009:01:00.0 mig=0 persistence=1\n"
    f"bus=0019:02:1f.0 persistence=0 mig=0 minor=1 numa_node=- idle=0 reserved=0 total={TOTAL} "
    "name=Other uuid=GPU-bbbbbbbb-0000-0000-0000-000000000002 index=1\n"
)
NONE = 0xFFFFFFFF


@pytest.fixture(scope="module")
def lab() -> Iterator[api.Lab]:
    with api.lab(n=1) as running:
        yield running


@pytest.fixture(autouse=True)
def fresh(lab: api.Lab) -> None:
    """GPUS, no charges, no faults."""
    lab.exec(HOST, "sh", "-c", "rm -rf /run/nvml-sim/*; mkdir -m 1777 /run/nvml-sim/charges")
    inside.put(lab, HOST, "/run/nvml-sim/gpus", GPUS)


def charge(lab: api.Lab, line: str, name: str = "one") -> None:
    inside.put(lab, HOST, f"/run/nvml-sim/charges/{name}", line + "\n")


def faults(lab: api.Lab, *lines: str) -> None:
    inside.put(lab, HOST, "/run/nvml-sim/faults", "".join(line + "\n" for line in lines))


def gpu(lab: api.Lab, index: int = 0, *words: str) -> dict[str, Any]:
    found = inside.nvml(lab, HOST, *words)["gpus"][index]
    assert isinstance(found, dict)
    return found


def used_mib(lab: api.Lab, index: int = 0) -> float:
    """MiB used above idle."""
    idle = IDLE if index == 0 else 0
    return (int(gpu(lab, index)["memory"]["used"]) - idle) / MIB


def until_used(lab: api.Lab, mib: int, index: int = 0) -> None:
    """Wait until that much is used: a process that was killed ends in its own time."""
    wait_until(f"{mib} MiB are used", lambda: used_mib(lab, index) == mib)


def sleeper(lab: api.Lab) -> tuple[int, int]:
    """(pid, start time) of a new process in the host."""
    pid = int(lab.exec(HOST, "sh", "-c", "sleep 600 >/dev/null 2>&1 & echo $!").stdout)
    return pid, int(inside.look(lab, HOST, pid)[0]["start"])


def test_what_the_gpus_file_says(lab: api.Lab) -> None:
    found = inside.nvml(lab, HOST)
    first, second = found["gpus"]
    assert found["driver"] == "580.159.04"
    assert found["after"] == {"error": 1}
    expected = {
        "name": "NVIDIA H200 NVL",
        "uuid": "GPU-aaaaaaaa-0000-0000-0000-000000000001",
        "minor": 4,
        "numa": {"error": 3},
        "persistence": 1,
        "bus": "00000009:01:00.0",
        "compute": [],
        "graphics": [],
        "mps": [],
        "utilization": 0,
        "recovery": [0, 0, 3],
        "mig": [0, 0],
        "instances": [],
        "same_by_uuid": True,
    }
    assert {name: first[name] for name in expected} == expected
    assert (second["name"], second["persistence"], second["minor"]) == ("Other", 0, 1)
    assert second["bus"] == "00000019:02:1F.0"


def test_memory_adds_up(lab: api.Lab) -> None:
    charge(lab, f"gpu=0 bytes={200 * MIB} lists=none rule=sticky")
    memory = gpu(lab)["memory"]
    assert memory["total"] == TOTAL
    assert memory["reserved"] == RESERVED
    assert memory["used"] == 205 * MIB
    assert memory["total"] == memory["reserved"] + memory["used"] + memory["free"]
    assert memory["used_v1"] == memory["used"] + memory["reserved"]


def test_more_than_there_is_never_wraps(lab: api.Lab) -> None:
    for name in ("one", "two"):
        charge(lab, f"gpu=0 bytes={9_000_000_000_000_000_000} lists=none rule=sticky", name)
    memory = gpu(lab)["memory"]
    assert (memory["free"], memory["used"]) == (0, TOTAL - RESERVED)


def test_the_file_rule_follows_the_lock(lab: api.Lab) -> None:
    hog = lab.hog(HOST, "forked-holder", mib=300)
    (heir,), (dead,) = hog.holders, hog.dead
    assert gpu(lab)["compute"] == [[dead, 300 * MIB, NONE, NONE]]
    bystander = (
        "import os, time\n"
        "folder = '/run/nvml-sim/charges/'\n"
        "f = open(folder + os.listdir(folder)[0])\n"
        "if os.fork(): os._exit(0)\n"
        "time.sleep(600)\n"
    )
    done = lab.exec(HOST, "sh", "-c", "python3 - >/dev/null 2>&1", stdin=bystander)
    assert done.returncode == 0
    assert used_mib(lab) == 300
    inside.kill(lab, HOST, "KILL", heir)
    until_used(lab, 0)
    assert gpu(lab)["compute"] == []


def test_the_lock_ends_with_exec(lab: api.Lab) -> None:
    script = (
        "import fcntl, os, time\n"
        "f = open('/run/nvml-sim/charges/x', 'w')\n"
        f"f.write('gpu=1 bytes={MIB} pid=%d rule=file' % os.getpid()); f.flush()\n"
        "fcntl.flock(f, fcntl.LOCK_EX)\n"
        "if os.fork(): os._exit(0)\n"
        "os.setsid()\n"
        "while not os.path.exists('/tmp/go-on'): time.sleep(0.02)\n"
        "os.execlp('sleep', 'sleep', '600')\n"
    )
    lab.exec(HOST, "sh", "-c", "python3 - >/dev/null 2>&1", stdin=script)
    assert used_mib(lab, 1) == 1
    inside.put(lab, HOST, "/tmp/go-on", "")
    until_used(lab, 0, 1)


def test_the_process_rule(lab: api.Lab) -> None:
    pid, start = sleeper(lab)
    charge(lab, f"gpu=0 bytes={MIB} pid={pid} start={start} lists=compute rule=process")
    charge(lab, f"gpu=0 bytes={4 * MIB} pid={pid} start={start + 1} rule=process", "reused")
    charge(lab, f"rule=process bytes={2 * MIB} pid={pid} gpu=0", "no-start")
    assert gpu(lab)["compute"] == [[pid, 3 * MIB, NONE, NONE]]
    inside.kill(lab, HOST, "KILL", pid)
    until_used(lab, 0)


def test_zombies_hold_nothing_but_zombie_leaders_do(lab: api.Lab) -> None:
    dead = lab.hog(HOST, "unreaped", mib=1).dead[0]
    leader = lab.hog(HOST, "leader-zombie", mib=1).holders[0]
    lab.exec(HOST, "sh", "-c", "rm /run/nvml-sim/charges/*")
    for name, pid in (("dead", dead), ("leader", leader)):
        assert inside.look(lab, HOST, pid)[0]["state"] == "Z"
        start = inside.look(lab, HOST, pid)[0]["start"]
        charge(lab, f"gpu=0 bytes={MIB} pid={pid} start={start} rule=process", name)
    assert [row[0] for row in gpu(lab)["compute"]] == [leader]
    inside.kill(lab, HOST, "KILL", leader)
    until_used(lab, 0)


def test_linger_starts_at_the_death_and_ends_in_one_step(lab: api.Lab) -> None:
    pid, start = sleeper(lab)
    charge(lab, f"gpu=0 bytes={MIB} pid={pid} start={start} rule=linger:2")
    time.sleep(2.2)  # its life does not count
    assert used_mib(lab) == 1
    inside.kill(lab, HOST, "KILL", pid)
    killed = time.monotonic()
    seen = set()
    with ThreadPoolExecutor(3) as readers:
        while 0.0 not in seen:
            now = [future.result() for future in [readers.submit(used_mib, lab) for _ in range(3)]]
            seen.update(now)
            assert time.monotonic() - killed < 60
    assert time.monotonic() - killed > 2
    assert seen == {0.0, 1.0}
    charge(lab, f"gpu=0 bytes={MIB} pid={pid} start={start} rule=linger:600")
    assert gpu(lab)["compute"] == [[pid, MIB, NONE, NONE]]


def test_linger_without_a_place_to_remember(lab: api.Lab) -> None:
    lab.exec(HOST, "sh", "-c", "rm -rf /run/nvml-sim/state; touch /run/nvml-sim/state")
    charge(lab, f"gpu=0 bytes={MIB} pid=999999 rule=linger:600")
    assert used_mib(lab) == 1


def test_ipc_moves_to_the_importer(lab: api.Lab) -> None:
    (owner, start), (importer, _) = sleeper(lab), sleeper(lab)
    charge(lab, f"gpu=0 bytes={7 * MIB} pid={owner} start={start} rule=ipc:{importer}")
    charge(lab, f"gpu=0 bytes={MIB} pid={importer} rule=process", "own")
    assert gpu(lab)["compute"] == sorted(
        [[owner, 7 * MIB, NONE, NONE], [importer, MIB, NONE, NONE]]
    )
    inside.kill(lab, HOST, "KILL", owner)
    moved = [[importer, 8 * MIB, NONE, NONE]]
    wait_until("it moves", lambda: gpu(lab)["compute"] == moved)
    inside.kill(lab, HOST, "KILL", importer)
    until_used(lab, 0)


def test_lists(lab: api.Lab) -> None:
    for pid, lists in ((11, "compute,mps"), (12, "none"), (13, "graphics")):
        charge(lab, f"gpu=1 bytes={MIB} pid={pid} lists={lists} rule=sticky", f"c{pid}")
    found = gpu(lab, 1)
    assert [row[0] for row in found["compute"]] == [11]
    assert [row[0] for row in found["mps"]] == [11]
    assert [row[0] for row in found["graphics"]] == [13]
    assert used_mib(lab, 1) == 3


@pytest.mark.parametrize(
    "line",
    [
        "",
        "nonsense",
        "gpu= bytes=",
        "gpu=0 bytes=-5 rule=sticky",
        "gpu=0 bytes=12x rule=sticky",
        "gpu=7 bytes=1048576 rule=sticky",
        "gpu=-1 bytes=1048576 rule=sticky",
        "bytes=1048576 rule=sticky",
        "gpu=0 bytes=1048576 pid=99999999999 rule=process",
        "gpu=0 bytes=1048576 pid=999999 rule=ipc:",
        "gpu=0 bytes=1048576 pid=999999 rule=linger:",
        "gpu=0 bytes=1048576 pid=1 rule=unknown-and-dead start=77",
        "x" * 300_000,
        "\x01\x02 = = gpu==0",
    ],
)
def test_lines_that_make_no_sense_count_nothing(lab: api.Lab, line: str) -> None:
    charge(lab, line, "bad")
    charge(lab, f"  gpu=0\tbytes={MIB}  rule=sticky extra=field\r", "good")
    inside.put(lab, HOST, "/run/nvml-sim/charges/.half", "gpu=0 bytes=1048576 rule=sticky")
    lab.exec(HOST, "mkdir", "-p", "/run/nvml-sim/charges/directory")
    lab.exec(HOST, "mkfifo", "/run/nvml-sim/charges/pipe")
    assert used_mib(lab) == 1


def test_no_driver(lab: api.Lab) -> None:
    lab.exec(HOST, "rm", "/run/nvml-sim/gpus")
    assert inside.nvml(lab, HOST) == {"init": {"error": 9}}


def test_broken_gpus_file(lab: api.Lab) -> None:
    inside.put(
        lab, HOST, "/run/nvml-sim/gpus", "# comment\n\nrubbish\nuuid=GPU-x total=7 index=2\n"
    )
    found = inside.nvml(lab, HOST)
    assert found["gpus"] == [{"error": 2}]  # one GPU, and not at index 0


def test_fault_of_one_gpu_spares_the_other(lab: api.Lab) -> None:
    faults(lab, "memory.0=15", "processes.0=4", "utilization.1=100", "recovery.1=2")
    first, second = inside.nvml(lab, HOST)["gpus"]
    assert first["memory"] == {"error": 15}
    assert first["compute"] == first["mps"] == {"error": 4}
    assert second["memory"]["total"] == TOTAL
    assert second["utilization"] == 100
    assert second["recovery"] == [0, 2, 3]


def test_init_faults(lab: api.Lab) -> None:
    faults(lab, "init=18")
    assert inside.nvml(lab, HOST) == {"init": {"error": 18}}
    faults(lab, "init=hang")
    with pytest.raises(subprocess.TimeoutExpired):
        inside.nvml(lab, HOST, timeout=0.5)


def test_a_call_that_hangs_begins_to_hang_when_wished(lab: api.Lab) -> None:
    faults(lab, "memory.1=hang")
    with pytest.raises(subprocess.TimeoutExpired):
        inside.nvml(lab, HOST, timeout=0.5)


def test_a_call_that_waits_goes_on_when_the_wish_is_gone(lab: api.Lab) -> None:
    faults(lab, "memory.1=wait", "memory.0=15")
    with ThreadPoolExecutor(1) as caller:
        asked = caller.submit(inside.nvml, lab, HOST)
        with pytest.raises(TimeoutError):
            asked.result(1.0)
        faults(lab, "memory.0=15")
        first, second = asked.result(60)["gpus"]
    assert first["memory"] == {"error": 15}
    assert second["memory"]["total"] == TOTAL


def test_scrambled_records(lab: api.Lab) -> None:
    faults(lab, "processes.0=scrambled")
    for pid in (21, 22, 23):
        charge(lab, f"gpu=0 bytes={pid * MIB} pid={pid} rule=sticky", f"c{pid}")
    rows = gpu(lab, 0, "inorder")["compute"]
    first = rows[0][0]
    assert rows[0] == [first, first * MIB, NONE, NONE]
    assert rows[1][0] == 0  # the extra field, read as a pid
    assert rows[1][1] in {21, 22, 23} - {first}  # the next pid, read as bytes
    faults(lab, "processes.0=unknown")
    assert [row[1] for row in gpu(lab)["compute"]] == [None, None, None]


def node_bytes(lab: api.Lab) -> dict[str, int]:
    """Node 0's meminfo."""
    lines = lab.exec(HOST, "cat", "/sys/devices/system/node/node0/meminfo").stdout.splitlines()
    return {line.split()[2]: int(line.split()[3]) * 1024 for line in lines}


def test_numa_mode_follows_the_node(lab: api.Lab) -> None:
    inside.put(lab, HOST, "/run/nvml-sim/gpus", GPUS.replace("numa_node=-", "numa_node=0", 1))
    before = node_bytes(lab)
    first, second = inside.nvml(lab, HOST)["gpus"]
    after = node_bytes(lab)
    memory = first["memory"]
    assert (first["numa"], second["numa"]) == (0, {"error": 3})
    assert memory["used"] + memory["free"] == before["MemTotal:"]
    low, high = sorted((before["MemFree:"], after["MemFree:"]))
    assert low - 512 * MIB < memory["free"] < high + 512 * MIB
    assert memory["total"] == memory["reserved"] + memory["used"] + memory["free"]


def test_mig_instances(lab: api.Lab) -> None:
    inside.put(lab, HOST, "/run/nvml-sim/gpus", GPUS.replace("mig=0", "mig=2", 1))
    charge(lab, f"gpu=0 bytes={MIB} pid=31 gi=1 ci=0 rule=sticky", "first")
    charge(lab, f"gpu=0 bytes={2 * MIB} pid=32 gi=2 ci=0 rule=sticky", "second")
    found = gpu(lab)
    assert found["mig"] == [1, 1]
    assert found["compute"] == [[31, MIB, 1, 0], [32, 2 * MIB, 2, 0]]
    assert [part["gi"] for part in found["instances"]] == [1, 2]
    assert [part["memory"]["used"] for part in found["instances"]] == [MIB, 2 * MIB]
    assert [part["compute"] for part in found["instances"]] == [
        [[31, MIB, 1, 0]],
        [[32, 2 * MIB, 2, 0]],
    ]
    assert len({part["uuid"] for part in found["instances"]}) == 2


def test_an_ordinary_user_sees_the_same(lab: api.Lab) -> None:
    charge(lab, f"gpu=0 bytes={MIB} pid=41 rule=sticky")
    inside.nvml(lab, HOST)
    script = (inside.HERE / "query.py").read_text("utf-8")
    command = ["env", "PYTHONPATH=/run/host", "python3", "-B", "-"]
    words = ["su", "ops", "-s", "/bin/sh", "-c", " ".join(command)]
    as_ops = lab.exec(HOST, *words, stdin=script)
    as_root = lab.exec(HOST, *command, stdin=script)
    assert as_ops.stdout == as_root.stdout != ""


def test_found_over_plain_ssh_and_sudo(lab: api.Lab) -> None:
    load = "python3 -c \"import ctypes; print(ctypes.CDLL('libnvidia-ml.so.1').nvmlInit_v2())\""
    assert lab.ssh(HOST, load, "ops").stdout == "0\n"
    assert lab.ssh(HOST, f"sudo -n {load}", "ops").stdout == "0\n"
    with pytest.raises(OSError, match="libnvidia-ml"):
        __import__("ctypes").CDLL("libnvidia-ml.so.1")
