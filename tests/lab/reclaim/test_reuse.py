"""Between the plan and its application the world moves on: numbers are reused, hosts change.

The person's answer is the gap: the plan is made, then something happens, then it is applied.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from fleetmem.controller.answer.envelope import Envelope, HostEntry
from fleetmem.controller.fleet import Fleet, FleetSettings
from fleetmem.controller.reclaim.options import ReclaimOptions
from tests.lab import api
from tests.lab.inside import asking as inside
from tests.lab.reclaim_stage import Answer, at_most_once, no_agents, traces

pytestmark = pytest.mark.lab

# Ends PID and makes children until one of them has its number, which then sleeps.
REUSE = r"""
import os, sys, time
pid = int(sys.argv[1])
if sys.argv[2] == "end":
    os.kill(pid, 9)
while os.path.exists("/proc/%d" % pid):
    time.sleep(0.005)
for _ in range(200):
    try:
        with open("/proc/sys/kernel/ns_last_pid", "w") as file:
            file.write(str(pid - 1))
    except OSError as error:
        sys.exit("ns_last_pid: %s" % error)
    child = os.fork()
    if child == 0:
        if os.getpid() != pid:
            os._exit(0)
        os.setsid()
        for number in (0, 1, 2):
            os.dup2(os.open("/dev/null", os.O_RDWR), number)
        os.execvp("sleep", ["sleep", "6000"])
    if child == pid:
        os._exit(0)
    os.waitpid(child, 0)
sys.exit("the number was never reached")
"""

# Holds GPU 0 until /tmp/let-go exists, then lives on without any of it.
LETS_GO = r"""
import mmap, os, time
nodes = sorted(name for name in os.listdir("/dev") if "nvidia" in name)
kept = [os.open("/dev/" + name, os.O_RDWR) for name in nodes]
ctl = mmap.mmap(os.open("/dev/nvidiactl", os.O_RDWR), 4 << 20, mmap.MAP_PRIVATE)
start = open("/proc/self/stat").read().rpartition(")")[2].split()[19]
charge = "/run/nvml-sim/charges/mine"
line = "gpu=0 bytes=9000000000 pid=%d start=%s lists=compute rule=process\n"
open(charge, "w").write(line % (os.getpid(), start))
open("/tmp/pid", "w").write(str(os.getpid()))
while not os.path.exists("/tmp/let-go"):
    time.sleep(0.05)
os.unlink(charge)
ctl.close()
os.closerange(3, 1000)
open("/tmp/gone", "w").write("yes")
time.sleep(6000)
"""


@pytest.fixture
def lab() -> Iterator[api.Lab]:
    with api.lab(n=1) as running:
        yield running


def reclaim(
    lab: api.Lab, folder: Path, between: Callable[[], None], options: ReclaimOptions
) -> Answer:
    """Plan, let *between* happen, apply."""
    fleet = Fleet.load(lab.inventory, "gh200-*", settings=FleetSettings(history_dir=folder))

    async def approve(entries: Sequence[HostEntry]) -> bool:
        assert [row["class"] for entry in entries for row in entry["reclaim"]["targets"]]
        await asyncio.to_thread(between)
        return True

    envelope: Envelope = asyncio.run(fleet.reclaim(options, approve))
    return Answer(0, dict(envelope), "")


def test_a_reused_number_is_somebody_else(lab: api.Lab, tmp_path: Path) -> None:
    """The newcomer lives and hears nothing; the target counts as gone."""
    (host,) = lab.hosts
    hog = lab.hog(host, "orphan", 0, 70000)
    (pid,) = hog.holders

    def reuse() -> None:
        done = lab.exec(host, "python3", "-c", REUSE, str(pid), "end")
        assert done.returncode == 0, done.stderr

    found = reclaim(lab, tmp_path, reuse, ReclaimOptions(gpu="0", grace_period_seconds=2))
    section = found.reclaim(host)
    assert list(found.targets(host)) == [pid]
    assert found.signalled(host) == []
    assert found.verdicts(host) == {0: "reclaimed"}
    assert [rung["gone"] for rung in section["rungs"] if rung["rung"] == "term"] == [1]
    assert inside.exists(lab, host, pid)
    assert lab.exec(host, "cat", f"/proc/{pid}/comm").stdout == "sleep\n"
    assert at_most_once(lab, host) == []
    no_agents(lab, [host])


def test_a_target_that_ends_and_comes_back_under_its_number(lab: api.Lab, tmp_path: Path) -> None:
    """The same number, the same name, the same GPU: still not what the plan named."""
    (host,) = lab.hosts
    (pid,) = lab.hog(host, "orphan", 0, 70000).holders

    def again() -> None:
        inside.kill(lab, host, "KILL", pid)
        for _ in range(40):
            write = f"echo {pid - 2} >/proc/sys/kernel/ns_last_pid"
            command = "/run/lab/hog orphan 0 60000"
            done = lab.exec(host, "sh", "-c", f"{write}; exec {command}")
            if f'"holders": [{pid}]' in done.stdout:
                return
            other = done.stdout.split("[")[1].split("]")[0]
            inside.kill(lab, host, "KILL", int(other))
        pytest.fail("the number was never reached")

    found = reclaim(lab, tmp_path, again, ReclaimOptions(gpu="0", grace_period_seconds=2))
    assert found.signalled(host) == []
    assert inside.exists(lab, host, pid)
    assert lab.signals(host, pid) == []
    assert found.verdicts(host)[0] in ("respawned", "held_by")
    assert str(pid) in found.reclaim(host)["gpus"][0]["why"]


def test_another_run_in_between_makes_the_plan_stale(lab: api.Lab, tmp_path: Path) -> None:
    (host,) = lab.hosts
    kept = lab.hog(host, "orphan", 0, 30000)
    other = lab.hog(host, "orphan", 1, 30000)

    def meanwhile() -> None:
        done = reclaim(
            lab, tmp_path / "b", lambda: None, ReclaimOptions(gpu="1", grace_period_seconds=2)
        )
        assert done.verdicts(host) == {1: "reclaimed"}

    found = reclaim(lab, tmp_path / "a", meanwhile, ReclaimOptions(gpu="0"))
    assert found.host(host)["error"]["code"] == "stale_plan"
    assert lab.signals(host, kept.holders[0]) == []
    assert {pid for pid, _, _ in at_most_once(lab, host)} == set(other.holders)


def test_a_reboot_in_between_makes_the_plan_stale(lab: api.Lab, tmp_path: Path) -> None:
    (host,) = lab.hosts
    (pid,) = lab.hog(host, "orphan", 0, 30000).holders
    file = lab.directory / host / "etc" / "boot_id"

    def reboot() -> None:
        file.write_text("11111111-2222-3333-4444-555555555555\n")

    found = reclaim(lab, tmp_path, reboot, ReclaimOptions(gpu="0"))
    assert found.host(host)["error"]["code"] == "stale_plan"
    assert lab.signals(host, pid) == []
    assert traces(lab, host).audit == []


def test_one_run_at_a_time(lab: api.Lab, tmp_path: Path) -> None:
    """While one run holds the host's lock another is refused by name, and changes nothing."""
    (host,) = lab.hosts
    deaf = lab.hog(host, "term-ignorer", 0, 30000)
    other = lab.hog(host, "orphan", 1, 30000)
    fleet = Fleet.load(lab.inventory, "gh200-*", settings=FleetSettings(history_dir=tmp_path))

    async def both() -> tuple[Envelope, Envelope]:
        planned, ready = asyncio.Event(), asyncio.Event()

        def on_event(event: dict[str, object]) -> None:
            if event.get("text") == "term":
                ready.set()

        async def approve_first(entries: Sequence[HostEntry]) -> bool:
            await planned.wait()
            return True

        async def approve_second(entries: Sequence[HostEntry]) -> bool:
            planned.set()
            await ready.wait()
            return True

        async def second() -> Envelope:
            found = await fleet.reclaim(ReclaimOptions(gpu="1"), approve_second)
            inside.kill(lab, host, "KILL", *deaf.holders)  # the first one need wait no longer
            return found

        one = ReclaimOptions(gpu="0", grace_period_seconds=300)
        async with asyncio.timeout(240):
            first = fleet.reclaim(one, approve_first, on_event)
            return await asyncio.gather(first, second())

    first, second = (Answer(0, dict(found), "") for found in asyncio.run(both()))
    assert first.verdicts(host) == {0: "reclaimed"}
    error = second.host(host)["error"]
    assert error["code"] == "locked"
    assert first.reclaim(host)["plan"]["id"] in error["message"]
    assert lab.signals(host, other.holders[0]) == []
    assert {pid for pid, _, _ in at_most_once(lab, host)} == set(deaf.holders)


def test_a_process_that_let_go_of_the_gpu_is_not_signalled(lab: api.Lab, tmp_path: Path) -> None:
    """Preconditions are looked at again on the host, right before the signal."""
    (host,) = lab.hosts
    put = "cat >/tmp/mine.py; nohup setsid python3 /tmp/mine.py </dev/null >/dev/null 2>&1 &"
    lab.exec(host, "sh", "-c", put, stdin=LETS_GO)
    wait = "for i in $(seq 600); do test -s %s && exit 0; sleep 0.1; done; exit 1"
    assert lab.exec(host, "sh", "-c", wait % "/tmp/pid").returncode == 0
    pid = int(lab.exec(host, "cat", "/tmp/pid").stdout)

    def let_go() -> None:
        lab.exec(host, "touch", "/tmp/let-go")
        assert lab.exec(host, "sh", "-c", wait % "/tmp/gone").returncode == 0

    found = reclaim(lab, tmp_path, let_go, ReclaimOptions(gpu="0", grace_period_seconds=2))
    assert list(found.targets(host)) == [pid]
    assert found.signalled(host) == []
    assert at_most_once(lab, host) == []
    assert inside.exists(lab, host, pid)
    assert found.verdicts(host) == {0: "reclaimed"}
