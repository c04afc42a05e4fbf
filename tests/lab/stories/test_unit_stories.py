"""Stories under systemd: units that leave processes on purpose, that run again, that are inside
of something else. With ``--yes`` and no scope nobody who is wanted ends."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fleetmem import agent
from tests.lab import api
from tests.lab.desk import Desk
from tests.lab.fixtures import wait_until
from tests.lab.inside import asking
from tests.lab.stories.scenes import FREED, NOTHING, WANTED, orphaned
from tests.lab.stories.test_story_hosts import INSIDE

pytestmark = pytest.mark.lab

CALL = "import sys; sys.path.insert(0, '/run/host/probe'); import call_probes"
NOHUP = (
    'start("worker", session=True, name="worker", title="python3 train.py")\nstage.wait("worker")\n'
)
ENGINE_WORKER = NOHUP.replace("python3 train.py", "VLLM::Worker_TP0")
STAY = "print(json.dumps(cast), flush=True)\nrest()\n"
NESTED = (
    NOHUP
    + """
place = "/sys/fs/cgroup/machine.slice/machine-box.scope/payload/system.slice/vllm.service"
os.makedirs(place)
with open(place + "/cgroup.procs", "w") as file:
    file.write(str(cast["worker"]))
"""
)
KEEPS = "KillMode=process"


@dataclass(frozen=True)
class Story:
    """Scenes run as *unit* one after the other, or through a login; who lives afterwards.

    ``stopped``: the unit is stopped in the end. ``wanted`` and ``left`` are roles of the
    first scene, ``after`` the roles of the last one, which are wanted too.
    """

    scenes: tuple[str, ...]
    unit: str | None = None
    more: str = KEEPS
    stopped: bool = False
    wanted: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    verdicts: frozenset[str] = NOTHING
    scope: bool = False
    unloaded: bool = False


STORIES = {
    "nohup-from-a-unit-that-was-stopped": Story((NOHUP,), "batch.service", wanted=("worker",)),
    "nohup-from-cron-that-was-stopped": Story(
        (NOHUP + STAY,), "cron.service", stopped=True, wanted=("worker",)
    ),
    "nohup-from-a-login-of-its-own-unit": Story(
        (NOHUP,), "sshd@1-10.0.0.1:22-10.0.0.2:4242.service", wanted=("worker",)
    ),
    "engine-worker-from-cron-that-was-stopped": Story(
        (ENGINE_WORKER + STAY,), "cron.service", stopped=True, wanted=("worker",)
    ),
    "unit-that-runs": Story(
        (
            'start("worker", name="worker", title="VLLM::Worker_TP0")\nstage.wait("worker")\n'
            + STAY,
        ),
        "vllm.service",
        more="KillMode=control-group",
        wanted=("worker",),
    ),
    "unit-that-restarts-what-it-left": Story(
        (ENGINE_WORKER, STAY), "vllm.service", left=("worker",), verdicts=FREED
    ),
    "nohup-of-the-invocation-before": Story((NOHUP, STAY), "vllm.service", wanted=("worker",)),
    "unit-inside-of-a-machine": Story((NESTED,), wanted=("worker",)),
    "leftover-of-a-unit-that-was-unloaded": Story(
        (orphaned(),), "gone.service", unloaded=True, left=("worker",), verdicts=FREED
    ),
    "leftover-in-the-group-of-sshd": Story((orphaned(),), left=("worker",), verdicts=FREED),
    "leftover-in-the-group-of-a-supervisor": Story(
        (orphaned() + STAY,), "supervisor.service", left=("worker",), verdicts=FREED
    ),
    "leftover-in-a-scope-that-it-keeps-alive": Story(
        (orphaned(),), scope=True, left=("worker",), verdicts=FREED
    ),
    "two-unrelated-heirs-in-the-group-of-sshd": Story(
        (WANTED["two-unrelated-heirs"].code,),
        wanted=("loader0", "loader1"),
        verdicts=frozenset({"held_by"}),
    ),
}


@dataclass(frozen=True)
class Told:
    """A story after reclaim."""

    cast: dict[str, int]
    after: dict[str, int]
    alive: frozenset[int]
    section: dict[str, Any]
    ties: dict[str, Any]


class Place:
    """Hosts with systemd, one for each story, with the agent's modules on them."""

    def __init__(self, lab: api.Lab) -> None:
        self.lab = lab
        self.at = dict(zip(STORIES, lab.hosts, strict=True))
        for host in lab.hosts:
            own = lab.directory / host
            shutil.copy(INSIDE / "cast.py", own / "cast.py")
            (own / "probe").mkdir()
            shutil.copy(INSIDE / "call_probes.py", own / "probe")
            assert agent.__file__ is not None
            shutil.copytree(
                Path(agent.__file__).parent,
                own / "probe/fleetmem/agent",
                ignore=shutil.ignore_patterns("__pycache__"),
            )
            (own / "probe/fleetmem/__init__.py").write_text("")

    def sh(self, name: str, script: str) -> str:
        done = self.lab.exec(self.at[name], "sh", "-ec", script)
        assert done.returncode == 0, (name, done.stdout, done.stderr)
        return done.stdout

    def play(self, name: str) -> list[dict[str, int]]:
        """Play the scenes of a story; the cast of each."""
        story, host = STORIES[name], self.at[name]
        own = self.lab.directory / host
        command = "exec python3 -I -S /run/host/cast.py </run/host/scene.py"
        found: list[dict[str, int]] = []
        for number, scene in enumerate(story.scenes):
            (own / "scene.py").write_text(scene)
            if story.unit is None:
                wrap = "systemd-run --quiet --scope " if story.scope else ""
                done = self.lab.ssh(host, f"{wrap}sh -c '{command}'", timeout=60)
                assert done.returncode == 0, (name, done.stderr)
                found.append(json.loads(done.stdout))
                continue
            out = f"/run/cast{number}.json"
            (own / "unit").write_text(
                f'[Service]\nExecStart=/bin/sh -c "{command} >{out}"\n{story.more}\n'
            )
            unit = f"'{story.unit}'"
            self.sh(
                name,
                f"cp /run/host/unit /etc/systemd/system/{unit}; systemctl daemon-reload;"
                f"systemctl restart {unit}",
            )
            wait_until(f"{name} plays", lambda out=out: self.sh(name, f"cat {out} || true"), 30)
            found.append(json.loads(self.sh(name, f"cat {out}")))
        if story.stopped:
            self.sh(name, f"systemctl stop '{story.unit}'")
        if story.unloaded:  # not before its main process is waited for: it needs its KillMode
            over = f"systemctl is-active {story.unit} || true"
            wait_until(f"{name} is over", lambda: self.sh(name, over).strip() == "inactive", 30)
            unit = f"/etc/systemd/system/{story.unit}"
            self.sh(name, f"rm {unit}; systemctl daemon-reload")
        return found

    def ties(self, name: str, pid: int) -> dict[str, Any]:
        words = ["processes.ties", json.dumps({"pids": [pid]})]
        done = self.lab.exec(self.at[name], "python3", "-I", "-B", "-c", CALL, *words)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)["processes.ties"]["reading"]
        return found


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Told]]:
    with api.lab(n=len(STORIES), systemd=True) as lab, ThreadPoolExecutor(4) as pool:
        place = Place(lab)
        casts = dict(zip(STORIES, pool.map(place.play, STORIES), strict=True))

        def seen(name: str) -> dict[str, Any]:
            story = STORIES[name]
            return place.ties(name, casts[name][0][(story.wanted + story.left)[0]])

        ties = dict(zip(STORIES, pool.map(seen, STORIES), strict=True))
        desk = Desk(tmp_path_factory.mktemp("desk"), lab.inventory)
        answer = desk.reclaim(",".join(place.at.values()), "--timeout", "300s")
        sections = {row["host"]: row for row in answer.envelope["hosts"]}

        def after(name: str) -> Told:
            first, last = casts[name][0], casts[name][-1]
            pids = [*first.values(), *last.values()]
            host = place.at[name]
            alive = frozenset(pid for pid in pids if asking.exists(lab, host, pid))
            row = sections[host]
            assert row["error"] is None, (name, row["error"])
            return Told(first, last, alive, row["reclaim"], ties[name])

        yield dict(zip(STORIES, pool.map(after, STORIES), strict=True))


@pytest.mark.parametrize("name", STORIES)
def test_who_is_wanted_lives_and_what_is_left_comes_back(told: dict[str, Told], name: str) -> None:
    one, story = told[name], STORIES[name]
    assert {one.cast[who] for who in story.wanted} <= one.alive, one.section
    assert not {one.cast[who] for who in story.left} & one.alive, one.section
    assert one.section["verdict"] in story.verdicts, one.section


def owners(told: dict[str, Told], name: str) -> list[dict[str, Any]]:
    one, story = told[name], STORIES[name]
    pid = one.cast[(story.wanted + story.left)[0]]
    (row,) = [row for row in one.ties["processes"] if row["pid"] == pid]
    return [{**one.ties["owners"][ref["owner"]], "source": ref["source"]} for ref in row["owners"]]


def test_a_unit_that_is_over_says_how_it_ends(told: dict[str, Told]) -> None:
    found = owners(told, "nohup-from-cron-that-was-stopped")
    unit = next(row for row in found if row["source"] == "cgroup")
    assert (unit["kind"], unit["id"], unit["manager"]) == ("unit", "cron.service", "systemd")
    assert (unit["state"], unit["kill_mode"]) == ("ended", "process")


def test_a_unit_that_runs_again_has_another_invocation(told: dict[str, Told]) -> None:
    name = "unit-that-restarts-what-it-left"
    found = owners(told, name)
    unit = next(row for row in found if row["source"] == "cgroup")
    pid = told[name].cast["worker"]
    (row,) = [row for row in told[name].ties["processes"] if row["pid"] == pid]
    assert unit["state"] == "live"
    assert row["environment"]["invocation_id"] not in (None, unit["invocation_id"])
    assert unit["invocation_started"] > row["start_time"]


def test_an_invocation_that_is_over_is_told_by_its_unit(told: dict[str, Told]) -> None:
    found = owners(told, "unit-that-restarts-what-it-left")
    before = next(row for row in found if row["source"] == "environment")
    assert (before["name"], before["manager"]) == ("vllm.service", "systemd")
    assert (before["state"], before["kill_mode"]) == ("ended", "process")


def test_a_unit_inside_of_a_machine_is_not_looked_up_in_the_hosts(told: dict[str, Told]) -> None:
    units = [row for row in owners(told, "unit-inside-of-a-machine") if row["kind"] == "unit"]
    assert [(row["id"], row["manager"], row["state"]) for row in units] == [
        ("vllm.service", None, "unknown")
    ]
