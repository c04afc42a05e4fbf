"""The hogs: what each kind looks like, and what gets its memory back."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from tests.lab import api
from tests.lab.fixtures import wait_until
from tests.lab.hogs import KINDS as ALL_KINDS
from tests.lab.inside import asking as inside

KINDS = tuple(kind for kind in ALL_KINDS if kind != "unit")  # that one needs systemd

pytestmark = pytest.mark.lab

MIB = 1 << 20
SIZE = 92000
LIVE_LAUNCHER = ("plain", "mapped", "second-node", "pinned", "term-ignorer", "bystander")


@dataclass(frozen=True)
class Stage:
    """One kind on a host of its own, charged on GPU 0."""

    lab: api.Lab
    host: str
    hog: api.Hog

    def used(self) -> int:
        """MiB above idle on GPU 0."""
        return inside.used(self.lab, self.host)

    def look(self, *pids: int) -> list[dict[str, Any]]:
        return inside.look(self.lab, self.host, *pids)

    def lives(self, pid: int) -> bool:
        return inside.exists(self.lab, self.host, pid)

    def ended(self, pid: int) -> bool:
        return not self.lives(pid)

    def kill(self, signal: str, *pids: int) -> None:
        inside.kill(self.lab, self.host, signal, *pids)

    def names(self, pid: int) -> list[str]:
        return [seen.name for seen in self.lab.signals(self.host, pid)]

    def listed(self) -> list[int]:
        """Pids on GPU 0's compute list."""
        return [row[0] for row in inside.nvml(self.lab, self.host)["gpus"][0]["compute"]]


@pytest.fixture(scope="module")
def stages() -> Iterator[dict[str, Stage]]:
    """All kinds, started at once by root and by ops in turn."""
    with api.lab(n=len(KINDS)) as lab, ThreadPoolExecutor(4) as pool:
        hosts = dict(zip(KINDS, lab.hosts, strict=True))

        def start(kind: str) -> api.Hog:
            user = "ops" if KINDS.index(kind) % 2 else "root"
            return lab.hog(hosts[kind], kind, 0, SIZE, user)

        hogs = dict(zip(KINDS, pool.map(start, KINDS), strict=True))
        yield {kind: Stage(lab, hosts[kind], hogs[kind]) for kind in KINDS}


def test_what_is_charged(stages: dict[str, Stage]) -> None:
    for kind, stage in stages.items():
        hog = stage.hog
        heirs = kind in ("forked-holder", "ambiguous-heirs")
        charged = hog.dead if heirs else hog.holders
        assert (kind, stage.used()) == (kind, 0 if kind == "unreaped" else SIZE)
        assert (kind, sorted(stage.listed())) == (kind, sorted(charged))


def test_who_lives(stages: dict[str, Stage]) -> None:
    for kind, stage in stages.items():
        hog = stage.hog
        counts = (len(hog.holders), len(hog.dead), len(hog.helpers))
        if kind in LIVE_LAUNCHER:
            assert (kind, counts) == (kind, (1, 0, 1))
        elif kind == "unreaped":
            assert (kind, counts) == (kind, (0, 1, 1))
        else:
            pairs = 2 if kind == "ambiguous-heirs" else 1
            assert (kind, counts) == (kind, (pairs, pairs, 0))
        assert not any(stage.lives(pid) for pid in hog.dead)
        for holder in stage.look(*hog.holders):
            assert (kind, holder["ppid"]) == (kind, hog.helpers[0] if hog.helpers else 1)
        for helper in stage.look(*hog.helpers):
            assert (kind, helper["ppid"], helper["fds"]) == (kind, 1, {})


def test_holders_look_like_cuda(stages: dict[str, Stage]) -> None:
    for kind in ("plain", "pinned", "term-ignorer", "orphan", "retitled", "bystander"):
        (found,) = stages[kind].look(*stages[kind].hog.holders)
        assert found["fds"] == {
            "/dev/nvidia0": 23,
            "/dev/nvidia1": 23,
            "/dev/nvidiactl": 2,
            "/dev/nvidia-uvm": 4,
        }
        assert found["maps"] == {
            "/dev/nvidiactl": [27, 70 * MIB],
            "/dev/nvidia-uvm": [1, 2 * MIB],
        }


def test_titles(stages: dict[str, Stage]) -> None:
    (plain,) = stages["plain"].look(*stages["plain"].hog.holders)
    assert (plain["comm"], plain["title"]) == ("python3", ["python3", "train.py"])
    (worker,) = stages["retitled"].look(*stages["retitled"].hog.holders)
    assert (worker["comm"], worker["title"]) == ("VLLM::Worker_TP", ["VLLM::Worker_TP0"])


def test_mapped_has_no_file_open(stages: dict[str, Stage]) -> None:
    (found,) = stages["mapped"].look(*stages["mapped"].hog.holders)
    assert found["fds"] == {}
    assert found["maps"]["/dev/nvidiactl"][1] == 70 * MIB


def test_second_node_has_the_number_but_not_the_file(stages: dict[str, Stage]) -> None:
    stage = stages["second-node"]
    (found,) = stage.look(*stage.hog.holders)
    paths = ["/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm"]
    stats = stage.lab.exec(stage.host, "stat", "-c", "%t %T %d %i", *paths).stdout.splitlines()
    nodes = [[int(a, 16), int(b, 16), int(c), int(d)] for a, b, c, d in map(str.split, stats)]
    assert nodes[0][:2] in [number[:2] for number in found["numbers"]]
    assert not any(node[2:] == number[2:] for node in nodes for number in found["numbers"])
    fuser = stage.lab.exec(stage.host, "sh", "-c", "fuser /dev/nvidia* 2>/dev/null")
    assert fuser.stdout.split() == []


def test_leader_zombie_hides_from_fuser(stages: dict[str, Stage]) -> None:
    stage = stages["leader-zombie"]
    (found,) = stage.look(*stage.hog.holders)
    assert (found["state"], found["fds"], found["maps"]) == ("Z", {}, {})
    assert found["tasks"] == 2
    assert found["task_fds"]["/dev/nvidia0"] == 23
    fuser = stage.lab.exec(stage.host, "sh", "-c", "fuser /dev/nvidia* 2>/dev/null")
    assert fuser.stdout.split() == []


def test_pinned_memory_is_shared_memory(stages: dict[str, Stage]) -> None:
    (found,) = stages["pinned"].look(*stages["pinned"].hog.holders)
    assert found["shmem_kib"] >= 64 * 1024


def test_orphan_leads_a_session(stages: dict[str, Stage]) -> None:
    for kind in ("orphan", "leader-zombie"):
        (pid,) = stages[kind].hog.holders
        assert stages[kind].look(pid)[0]["sid"] == pid


def test_retitled_has_orphaned_pipes(stages: dict[str, Stage]) -> None:
    stage = stages["retitled"]
    (found,) = stage.look(*stage.hog.holders)
    assert found["sid"] == stage.hog.dead[0]
    assert len(found["pipes"]) == 3
    script = "ls -l /proc/[0-9]*/fd 2>/dev/null"
    everything = stage.lab.exec(stage.host, "sh", "-c", script).stdout
    assert [everything.count(f"{pipe}\n") for pipe in found["pipes"]] == [1, 1, 1]


def test_heirs_look_like_forks(stages: dict[str, Stage]) -> None:
    for kind in ("forked-holder", "ambiguous-heirs"):
        for found in stages[kind].look(*stages[kind].hog.holders):
            assert found["maps"] == {"/dev/nvidiactl": [27, 70 * MIB]}
            assert found["fds"]["/dev/nvidia0"] == 23


def test_ambiguous_heirs_are_no_family(stages: dict[str, Stage]) -> None:
    one, two = stages["ambiguous-heirs"].look(*stages["ambiguous-heirs"].hog.holders)
    assert one["sid"] != two["sid"]
    assert one["exe"] != two["exe"]


def test_unreaped_waits_for_its_parent(stages: dict[str, Stage]) -> None:
    stage = stages["unreaped"]
    (dead,) = stage.look(*stage.hog.dead)
    assert (dead["state"], dead["ppid"]) == ("Z", stage.hog.helpers[0])


def test_bystander_without_a_charge(stages: dict[str, Stage]) -> None:
    lab = stages["bystander"].lab
    hog = lab.hog("gh200-01", "bystander", 0, 0, "ops", "VLLM::Worker_TP0")
    (found,) = inside.look(lab, "gh200-01", *hog.holders)
    assert (found["fds"], found["maps"], found["uid"]) == ({}, {}, 1000)
    assert found["title"] == ["VLLM::Worker_TP0"]
    assert inside.used(lab, "gh200-01") == SIZE


def test_bystander_on_the_other_gpu(stages: dict[str, Stage]) -> None:
    lab = stages["bystander"].lab
    hog = lab.hog("gh200-01", "bystander", 1, 700)
    (found,) = inside.look(lab, "gh200-01", *hog.holders)
    assert found["fds"]["/dev/nvidia0"] == 23
    assert inside.used(lab, "gh200-01", 1) == 700
    assert hog.holders[0] not in stages["plain"].listed()


@pytest.mark.parametrize("kind", ["plain", "mapped", "second-node", "orphan", "leader-zombie"])
def test_term_ends_and_is_logged(stages: dict[str, Stage], kind: str) -> None:
    stage = stages[kind]
    (pid,) = stage.hog.holders
    assert stage.names(pid) == []
    began = time.time()
    stage.kill("TERM", pid)
    wait_until("the memory is back", lambda: stage.used() == 0)
    (seen,) = stage.lab.signals(stage.host, pid)
    assert (seen.name, began - 1 < seen.at < time.time() + 1) == ("TERM", True)
    assert all(stage.lives(helper) for helper in stage.hog.helpers)
    assert [stage.names(helper) for helper in stage.hog.helpers] == [[]] * len(stage.hog.helpers)


@pytest.mark.parametrize("kind", ["term-ignorer", "retitled"])
def test_term_is_ignored_and_logged(stages: dict[str, Stage], kind: str) -> None:
    stage = stages[kind]
    (pid,) = stage.hog.holders
    stage.kill("TERM", pid)
    wait_until("TERM is logged", lambda: stage.names(pid) == ["TERM"])
    assert stage.used() == SIZE
    stage.kill("KILL", pid)
    wait_until("the memory is back", lambda: stage.used() == 0)
    assert stage.names(pid) == ["TERM"]


def test_pinned_comes_back_slowly(stages: dict[str, Stage]) -> None:
    stage = stages["pinned"]
    (pid,) = stage.hog.holders
    stage.kill("KILL", pid)
    began = time.monotonic()
    wait_until("it ends", lambda: not stage.lives(pid))
    first = inside.nvml(stage.lab, stage.host)["gpus"][0]  # from this look on it lingers
    assert first["memory"]["used"] >> 20 == SIZE + 3
    assert [row[0] for row in first["compute"]] == [pid]
    wait_until("the memory is back", lambda: stage.used() == 0)
    assert time.monotonic() - began > 2


@pytest.mark.parametrize("kind", ["forked-holder", "ambiguous-heirs"])
def test_memory_is_back_when_all_heirs_are_gone(stages: dict[str, Stage], kind: str) -> None:
    stage = stages[kind]
    for left in range(len(stage.hog.holders), 0, -1):
        assert stage.used() == SIZE * left // len(stage.hog.holders)
        pid = stage.hog.holders[left - 1]
        stage.kill("TERM", pid)
        wait_until("it ends", partial(stage.ended, pid))
    assert stage.used() == 0


def test_a_pid_used_again_starts_a_new_log(stages: dict[str, Stage]) -> None:
    stage = stages["unreaped"]
    logs = stage.lab.directory / stage.host / "hogs"
    (before,) = stage.lab.hog(stage.host, "bystander", 0, 0).holders
    for pid in range(before + 1, before + 300):
        (logs / f"{pid}.log").write_text("TERM 1.000 from 2\n", "ascii")
    (again,) = stage.lab.hog(stage.host, "bystander", 0, 0, "ops").holders
    assert before < again < before + 300
    assert stage.names(again) == []
    assert (logs / f"{again}.log.1").read_text("ascii") == "TERM 1.000 from 2\n"


def test_command_line(stages: dict[str, Stage]) -> None:
    lab = stages["plain"].lab
    words = ["--kind", "orphan", "--gpu", "1", "--mib", "5", "--user", "ops", "--title", "my job"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.lab", "hog", str(lab.directory), "gh200-02", *words],
        cwd=api.ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    found = json.loads(done.stdout)
    assert (done.returncode, done.stdout.count("\n"), list(found)) == (
        0,
        1,
        ["holders", "dead", "helpers"],
    )
    (holder,) = inside.look(lab, "gh200-02", *found["holders"])
    assert (holder["uid"], holder["title"], holder["comm"]) == (1000, ["my", "job"], "my")


def test_a_hundred_hogs(stages: dict[str, Stage]) -> None:
    lab = stages["unreaped"].lab
    host = stages["unreaped"].host
    script = "for i in $(seq 100); do /run/lab/hog orphan 1 10 || exit 1; done"
    done = lab.ssh(host, script, timeout=600)
    assert len(done.stdout.splitlines()) == 100
    assert inside.used(lab, host, 1) == 1000
