"""A unit's start followed on real hosts: engine-like lines, real memory taken between them.

The engine goes on only when the test lets it: each step waits for a file.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.systemd.world import FIRST, World

pytestmark = pytest.mark.lab

MIB = 1 << 20
SECONDS = 180
SHMEM, ANON = 200, 320

BEGIN = (
    "(Worker_TP0 pid=8) INFO 10-06 15:56:51 [gpu_model_runner.py:2602] Starting to load model /m"
)
LOADED = (
    "(Worker_TP0 pid=8) INFO 10-06 15:57:41 [r.py:9] Model loading took 14.25 GiB and 9.1 seconds"
)
READY = "(APIServer pid=7) INFO:     Application startup complete."
STARTED = [["say", "(APIServer pid=7) INFO 10-06 15:56:30 [a.py:1] vLLM API server version 0.11.2"]]
LOAD = [["wait", "load"], ["say", BEGIN], ["shm", SHMEM], ["wait", "loaded"], ["say", LOADED]]
INIT = [["wait", "init"], ["anon", ANON], ["say", READY], ["wait", "never"]]

ENGINE = r"""
import json, mmap, os, sys, time
name, steps = sys.argv[1], json.load(open(sys.argv[2]))
held = []
for what, value in steps:
    if what == "say":
        print(value, flush=True)
    elif what == "wait":
        while not os.path.exists("/run/host/%s.%s" % (name, value)):
            time.sleep(0.05)
    elif what == "shm":
        held.append(mmap.mmap(-1, value << 20))
        for _ in range(value):
            held[-1].write(b"w" * (1 << 20))
    elif what == "anon":
        held.append(bytearray(b"k") * (value << 20))
    elif what == "once":
        if os.path.exists("/run/host/%s.once" % name):
            continue
        open("/run/host/%s.once" % name, "w").close()
        print(value, flush=True)
        sys.exit(1)
    elif what == "exit":
        sys.exit(value)
"""


class Engine:
    """A unit of one or more hosts whose steps the test lets happen."""

    def __init__(
        self, world: World, name: str, steps: list[list[Any]], more: str = "", *hosts: str
    ) -> None:
        self.world = world
        self.name = name
        self.hosts = hosts or (FIRST,)
        for host in self.hosts:
            script = world.put(host, "engine.py", ENGINE)
            plan = world.put(host, f"{name}.json", json.dumps(steps))
            run = f"/usr/bin/python3 {script} {name} {plan}"
            source = world.put(host, f"{name}.service", f"[Service]\nExecStart={run}\n{more}\n")
            world.sh(f"cp {source} /etc/systemd/system/; systemctl daemon-reload", host)

    def start(self) -> None:
        for host in self.hosts:
            self.world.sh(f"systemctl start {self.name}", host)

    def let(self, gate: str) -> None:
        """Let the engine pass where it waits for *gate*."""
        for host in self.hosts:
            (self.world.lab.directory / host / f"{self.name}.{gate}").touch()

    def stop(self) -> None:
        for host in self.hosts:
            self.world.sh(f"systemctl stop {self.name}; systemctl reset-failed", host, check=False)


class Following:
    """``fleetmem snapshot --follow-start`` in the background; ``sees`` waits for what it says."""

    def __init__(self, world: World, unit: str, *words: str, hosts: str = FIRST) -> None:
        code = "from fleetmem.controller.cli import main; import sys; sys.exit(main())"
        command = [sys.executable, "-c", code, "snapshot", "-H", hosts, "--follow-start", unit]
        self.process = subprocess.Popen(
            [*command, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            env={
                **os.environ,
                "XDG_STATE_HOME": str(world.state),
                "FLEETMEM_INVENTORY": str(world.lab.inventory),
                "NO_COLOR": "1",
            },
        )
        self._said: list[str] = []
        self._news = threading.Condition()
        self._readers = [threading.Thread(target=self._listen), threading.Thread(target=self._out)]
        self._answer = ""
        for reader in self._readers:
            reader.start()

    def _listen(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._news:
                self._said.append(line)
                self._news.notify_all()

    def _out(self) -> None:
        assert self.process.stdout is not None
        self._answer = self.process.stdout.read()

    def sees(self, text: str, times: int = 1) -> str:
        """Waits until stderr holds *text* that often; all of stderr."""

        def there() -> bool:
            return "".join(self._said).count(text) >= times

        with self._news:
            if not self._news.wait_for(there, SECONDS):
                self.process.kill()
                pytest.fail(f"{text!r} was not said:\n{''.join(self._said)}")
        return "".join(self._said)

    def ends(self, code: int = 0) -> str:
        """Its stdout, once it has ended with *code*."""
        self.process.wait(SECONDS)
        for reader in self._readers:
            reader.join(SECONDS)
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()
        said = "".join(self._said)
        assert self.process.returncode == code, self._answer + said
        assert "Traceback" not in said
        return self._answer


def answer(out: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """(envelope, the first host's follow section)."""
    envelope: dict[str, Any] = json.loads(out)
    return envelope, envelope["hosts"][0]["follow"]


def change(rows: list[dict[str, Any]], backing: str, owner: str) -> int:
    return sum(r["change_bytes"] for r in rows if (r["backing"], r["owner"]) == (backing, owner))


def no_agent(world: World, host: str = FIRST) -> None:
    """No process of ours is left on the host."""
    world.wait("no agent", lambda: "fleetmem" not in world.sh("cat /proc/[0-9]*/comm", host), 60)


def test_each_phase_has_its_snapshot_and_the_right_difference(world: World) -> None:
    """Waits for a unit that never ran; 200 MiB of shm are the load's, 320 MiB the init's."""
    engine = Engine(world, "whole", [*STARTED, *LOAD, *INIT])
    run = Following(world, "whole")
    run.sees("waiting for whole to start")
    engine.start()
    run.sees("before-load, ")
    engine.let("load")
    engine.let("loaded")
    run.sees("after-load, ")
    engine.let("init")
    screen = run.ends()
    engine.stop()
    assert re.search(r"^before-load +\w{8} +\S+ +\+\d+\.\d s +Started whole\.service", screen, re.M)
    assert re.search(r"^after-load .* TP0: Model loading took 14\.25 GiB", screen, re.M)
    assert "before-load → after-load · 1 host in both" in screen
    assert "phase after-init" in screen
    assert "fleetmem diff before-load after-init" in screen
    assert max(map(len, screen.splitlines())) <= 100

    loaded, inited = (
        world.data("diff", first, second)["hosts"][0]["diff"]["rows"]
        for first, second in (("before-load", "after-load"), ("after-load", "after-init"))
    )
    unit = "whole.service"
    assert change(loaded, "shmem", unit) == pytest.approx(SHMEM * MIB, rel=0.02)
    assert abs(change(loaded, "anon", unit)) < 4 * MIB
    assert change(inited, "anon", unit) == pytest.approx(ANON * MIB, rel=0.02)
    assert change(inited, "shmem", unit) == 0
    runs = world.data("runs", "list", "-n", "4")["runs"]
    assert [row["command"] for row in runs] == ["snapshot"] * 3 + ["follow"]
    shown = world.run("runs", "show", runs[-1]["id"]).stdout
    assert "after-load → after-init" in shown


def test_a_start_under_way_is_taken_and_a_finished_one_is_not(world: World) -> None:
    """The newest start that is not ready yet; its line, moment and delay are in the JSON."""
    engine = Engine(world, "under", [*STARTED, *LOAD, *INIT])
    engine.let("load")
    engine.start()
    begun = "journalctl -q -u under | grep 'Starting to load'"
    world.wait("loading", lambda: world.sh(begun, check=False), SECONDS)
    run = Following(world, "under", "-o", "json")
    run.sees("before-load, ")
    engine.let("loaded")
    run.sees("after-load, ")
    engine.let("init")
    envelope, section = answer(run.ends())
    id_ = world.sh("systemctl show --property=InvocationID --value under").strip()
    assert (section["status"], section["invocation"]) == ("ready", id_)
    marks = {one["phase"]: one["mark"] for one in section["phases"]}
    assert list(marks) == ["before-load", "after-load", "after-init"]
    assert "weights began to load " in marks["before-load"]["note"]
    assert marks["before-load"]["text"].startswith("Started under.service")
    assert (marks["after-load"]["text"], marks["after-load"]["rank"]) == (LOADED, "TP0")
    assert marks["after-load"]["pattern"] == "vllm/weights-v1"
    stamp = world.sh("journalctl -q -u under -o json -g 'Model loading took' | head -1")
    logged = int(json.loads(stamp)["__REALTIME_TIMESTAMP"])
    assert marks["after-load"]["time"].endswith(f".{logged // 1000 % 1000:03d}Z")
    assert 0 < marks["after-load"]["delay_seconds"] < SECONDS
    assert envelope["hosts"][0]["snapshot"]["mark"] == marks["after-init"]
    assert envelope["hosts"][0]["snapshot"]["page_cache"]["files"] == []

    again = Following(world, "under", "-o", "json")  # it is ready: only a new start counts
    again.sees("waiting for under to start again: its newest start is already ready")
    world.sh("systemctl restart under")
    _, section = answer(again.ends())
    new = world.sh("systemctl show --property=InvocationID --value under").strip()
    assert new != id_
    assert (section["status"], section["invocation"], section["restarts"]) == ("ready", new, 0)
    engine.stop()


def test_a_start_that_fails_has_its_failing_line(world: World) -> None:
    """The engine's own words, not systemd's; the memory is looked at while it is still held."""
    line = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 448.00 MiB. GPU 0 has a"
    line += " total capacity of 79.10 GiB of which 101.88 MiB is free."
    steps = [*STARTED, *LOAD, ["wait", "init"], ["say", line], ["wait", "end"], ["exit", 1]]
    engine = Engine(world, "fails", steps)
    run = Following(world, "fails", "-o", "json", "--fail-on", "critical")
    run.sees("waiting for fails to start")
    engine.start()
    run.sees("before-load, ")
    engine.let("load")
    engine.let("loaded")
    run.sees("after-load, ")
    engine.let("init")
    run.sees("failed, ")
    engine.let("end")
    envelope, section = answer(run.ends(5))
    assert section["status"] == "failed"
    assert [one["phase"] for one in section["phases"]] == ["before-load", "after-load", "failed"]
    assert section["phases"][-1]["mark"]["text"] == line
    (found,) = [one for one in envelope["findings"] if one["rule"] == "follow/start-failed"]
    assert found["evidence"]["text"] == line
    held = [r for r in envelope["hosts"][0]["snapshot"]["table"] if r["owner"] == "fails.service"]
    shmem = sum(row["bytes"] for row in held if row["backing"] == "shmem")
    assert shmem == pytest.approx(SHMEM * MIB, rel=0.02)


def test_a_unit_that_ends_without_a_word(world: World) -> None:
    """systemd's line is the failing one where the engine says nothing."""
    engine = Engine(world, "mute", [*STARTED, ["wait", "end"], ["exit", 3]])
    run = Following(world, "mute")
    run.sees("waiting for mute to start")
    engine.start()
    run.sees("before-load, ")
    engine.let("end")
    screen = run.ends()
    assert "mute: failed" in screen
    assert "Main process exited, code=exited, status=3" in " ".join(screen.split())
    assert "fleetmem audit startup -H gh200-01 --unit mute" in screen


def test_a_unit_that_never_gets_ready_is_a_clear_line(world: World) -> None:
    """The timeout ends it, what was taken is kept, no agent stays."""
    engine = Engine(world, "slow", [*STARTED, ["wait", "never"]])
    run = Following(world, "slow", "--follow-timeout", "30s")
    run.sees("waiting for slow to start")
    engine.start()
    screen = run.ends(3)
    engine.stop()
    said = " ".join(screen.split())
    assert "timed_out: slow was not ready within 30 s; taken: before-load" in said
    assert "slow: starting" in screen
    newest = world.data("runs", "list", "-n", "1")["runs"][0]
    assert newest["outcomes"] == {"ok": 1}
    no_agent(world)


def test_an_interrupt_keeps_what_was_taken(world: World) -> None:
    engine = Engine(world, "cut", [*STARTED, ["wait", "never"]])
    run = Following(world, "cut", "-o", "json")
    run.sees("waiting for cut to start")
    engine.start()
    run.sees("before-load, ")
    run.process.send_signal(signal.SIGINT)
    envelope, section = answer(run.ends(130))
    engine.stop()
    assert envelope["hosts"][0]["error"]["code"] == "interrupted"
    assert [one["phase"] for one in section["phases"]] == ["before-load"]
    recorded = world.data("runs", "show", section["phases"][0]["run"])
    assert recorded["hosts"][0]["snapshot"]["phase"] == "before-load"
    assert recorded["hosts"][0]["snapshot"]["mark"]["unit"] == "cut"
    no_agent(world)


def test_a_unit_that_is_restarted_is_followed_to_its_newest_start(world: World) -> None:
    """systemd starts it again after a failure: that start's phases, and the failure named."""
    line = "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static."
    more = "Restart=on-failure\nRestartSec=10"  # the failure is looked at before
    steps = [*STARTED, ["wait", "first"], ["once", line], *LOAD, *INIT]
    engine = Engine(world, "again", steps, more)
    run = Following(world, "again", "-o", "json")
    run.sees("waiting for again to start")
    engine.start()
    run.sees("before-load, ")
    engine.let("first")
    run.sees("failed, ")
    run.sees("again was restarted (restart 1)")
    run.sees("before-load, ", times=2)
    for gate in ("load", "loaded"):
        engine.let(gate)
    run.sees("after-load, ")
    engine.let("init")
    _, section = answer(run.ends())
    engine.stop()
    assert (section["status"], section["restarts"]) == ("ready", 1)
    assert [one["phase"] for one in section["phases"]] == [
        "before-load",
        "after-load",
        "after-init",
    ]
    assert [one["text"] for one in section["failed"]] == [line]
    assert section["failed"][0]["invocation"] != section["invocation"]


def test_a_unit_in_a_loop_is_left(world: World) -> None:
    """It fails sooner than anybody can look: bounded, and the failing line is told."""
    line = "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static."
    more = "Restart=always\nRestartSec=100ms\n[Unit]\nStartLimitIntervalSec=0"
    engine = Engine(world, "loop", [*STARTED, ["say", line], ["exit", 1]], more)
    run = Following(world, "loop", "-o", "json")
    run.sees("waiting for loop to start")
    engine.start()
    envelope, section = answer(run.ends())
    engine.stop()
    assert section["status"] == "failed"
    assert section["restarts"] >= 1
    assert {one["text"] for one in section["failed"]} == {line}
    assert [one["evidence"]["text"] for one in envelope["findings"]] == [line]


def test_each_host_follows_its_own_unit_and_rows_fold(world: World) -> None:
    hosts = ("gh200-01", "gh200-02", "gh200-03")
    engine = Engine(world, "many", [*STARTED, *LOAD, *INIT], "", *hosts)
    run = Following(world, "many", hosts="gh200-[01-03]")
    run.sees("waiting for many to start")
    engine.start()
    run.sees("before-load, ", times=3)
    engine.let("load")
    engine.let("loaded")
    run.sees("after-load, ", times=3)
    engine.let("init")
    screen = run.ends()
    engine.stop()
    assert "many: ready on gh200-[01-03]" in screen
    for phase in ("before-load", "after-load", "after-init"):
        assert len(re.findall(rf"^gh200-\[01-03\] +{phase} ", screen, re.M)) == 1
    assert "before-load → after-load · 3 hosts in both" in screen
    assert "fleetmem audit startup -H 'gh200-[01-03]' --unit many" in screen
    whole = world.data("diff", "before-load", "after-init")["hosts"]
    assert len(whole) == 3
    for entry in whole:
        assert change(entry["diff"]["rows"], "shmem", "many.service") == pytest.approx(
            SHMEM * MIB, rel=0.02
        )


def test_who_cannot_be_followed_is_one_clear_line(world: World) -> None:
    """A unit that systemd has not got; a user who may not read the journal."""
    done = world.run("snapshot", "-H", FIRST, "--follow-start", "no-such-unit", code=3)
    assert "probe_failed: systemd has no unit no-such-unit.service to start" in done.stdout
    at = world.lab.hosts[FIRST]
    guest = f"guest@{at.address}:{at.port}"
    done = world.run("snapshot", "-H", guest, "--follow-start", "private", code=3)
    assert "(group systemd-journal" in " ".join(done.stdout.split()), done.stdout + done.stderr
    for out in (done.stdout, done.stderr):
        assert "Traceback" not in out


def test_the_documented_command(world: World) -> None:
    """What the documents print is run here: it needs a host with systemd."""
    root = Path(__file__).parent.parent.parent
    found = re.findall(
        r"^(fleetmem .*--follow-start .*)$", (root / "docs/snapshot.md").read_text(), re.M
    )
    assert found == ["fleetmem snapshot -H gh200-01 --follow-start vllm-ds"]
    engine = Engine(world, "vllm-ds", [*STARTED, *LOAD, *INIT])
    for gate in ("load", "loaded", "init"):
        engine.let(gate)
    run = Following(world, "vllm-ds")
    run.sees("waiting for vllm-ds to start")
    engine.start()
    run.ends()
    engine.stop()
