"""``fleetmem gate`` as the standalone file in front of a start: twelve situations."""

from __future__ import annotations

import json
import re
import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fleetmem.controller.gate.emit import standalone
from tests.lab import api

pytestmark = pytest.mark.lab

HOST = "gh200-01"
MIB = 1 << 20
FILE = "/run/host/gate.py"


@pytest.fixture(scope="module")
def lab() -> Iterator[api.Lab]:
    """One host with two GPUs, and the gate on it."""
    with api.lab() as running:
        file = running.directory / HOST / "gate.py"
        file.write_text(standalone("test"))
        file.chmod(0o755)
        yield running


def gate(lab: api.Lab, *words: str) -> tuple[int, dict[str, Any], float]:
    """(exit status, answer, seconds)."""
    began = time.monotonic()
    done = lab.exec(HOST, "python3", FILE, "-o", "json", *words, timeout=60)
    found: dict[str, Any] = json.loads(done.stdout) if done.stdout else {}
    return done.returncode, found.get("gate", {}), time.monotonic() - began


def kill(lab: api.Lab, *pids: int) -> None:
    assert lab.exec(HOST, "kill", "-KILL", *map(str, pids)).returncode == 0


def faults(lab: api.Lab, text: str) -> None:
    lab.exec(HOST, "sh", "-c", f"printf '%s\\n' '{text}' >/run/nvml-sim/faults")


def clear(lab: api.Lab) -> None:
    lab.exec(HOST, "sh", "-c", "rm -f /run/nvml-sim/charges/* /run/nvml-sim/faults")


def test_an_idle_gpu_is_free(lab: api.Lab) -> None:
    status, found, _ = gate(lab, "--gpu", "all")
    assert (status, found["verdict"]) == (0, "free")
    assert [row["index"] for row in found["gpus"]] == [0, 1]
    assert found["next"] == []


def test_a_live_holder_fails_at_once_and_is_named(lab: api.Lab) -> None:
    hog = lab.hog(HOST, "plain", 0, 9000)
    try:
        status, found, seconds = gate(lab, "--gpu", "all", "--timeout", "60s")
        assert (status, found["verdict"]) == (5, "held")
        assert found["waited_seconds"] < 1
        assert seconds < 10
        (holder,) = found["gpus"][0]["holders"]
        assert holder["pid"] == hog.holders[0]
        assert holder["bytes"] == 9000 * MIB
        assert found["gpus"][1]["verdict"] == "free"
        assert any("reclaim" in command for command in found["next"])
        # the other GPU alone, and a need that fits beside the holder
        assert gate(lab, "--gpu", "1")[0] == 0
        assert gate(lab, "--gpu", "0", "--need", "80GiB")[0] == 0
        assert gate(lab, "--gpu", "0", "--need", "90GiB")[0] == 5
    finally:
        kill(lab, *hog.holders, *hog.helpers)
        clear(lab)


def test_memory_that_falls_is_waited_for(lab: api.Lab) -> None:
    """The driver gives it back seconds after the death, all at once."""
    hog = lab.hog(HOST, "pinned", 0, 9000)
    kill(lab, *hog.holders)
    status, found, _ = gate(lab, "--gpu", "0", "--timeout", "30s")
    assert (status, found["verdict"]) == (0, "free"), found
    kill(lab, *hog.helpers)
    clear(lab)


def test_memory_of_the_dead_that_does_not_fall_is_held(lab: api.Lab) -> None:
    hog = lab.hog(HOST, "forked-holder", 0, 9000)
    try:
        status, found, _ = gate(lab, "--gpu", "0", "--timeout", "30s")
        assert (status, found["verdict"]) == (5, "held")
        assert 9 < found["waited_seconds"] < 20
        assert hog.dead[0] in [row["pid"] for row in found["gpus"][0]["holders"]]
    finally:
        kill(lab, *hog.holders, *hog.helpers)
        clear(lab)


def test_the_timeout_ends_the_waiting(lab: api.Lab) -> None:
    hog = lab.hog(HOST, "forked-holder", 0, 9000)
    try:
        status, found, _ = gate(lab, "--gpu", "0", "--timeout", "500ms")
        assert (status, found["verdict"]) == (5, "held")
        assert found["waited_seconds"] < 2
        assert found["gpus"][0]["why"].endswith("timeout")
    finally:
        kill(lab, *hog.holders, *hog.helpers)
        clear(lab)


def test_every_command_of_its_page_runs(lab: api.Lab) -> None:
    page = (Path(__file__).parents[3] / "docs" / "gate.md").read_text("utf-8")
    commands = re.findall(r"^python3 gate\.py (.*)$", page, re.MULTILINE)
    assert len(commands) >= 3
    for words in commands:
        done = lab.exec(HOST, "python3", FILE, *shlex.split(words), timeout=60)
        assert done.returncode == 0, (words, done.stdout, done.stderr)


def test_a_gpu_that_does_not_exist_is_usage(lab: api.Lab) -> None:
    assert gate(lab, "--gpu", "7")[0] == 2


@pytest.mark.parametrize("fault", ["init=18", "init=9", "memory.0=15"])
def test_what_cannot_be_read_is_not_free(lab: api.Lab, fault: str) -> None:
    faults(lab, fault)
    try:
        status, found, _ = gate(lab, "--gpu", "0")
        assert (status, found["verdict"]) == (3, "unknown"), found
    finally:
        clear(lab)


def test_nvml_that_hangs_is_not_free_and_ends_in_time(lab: api.Lab) -> None:
    faults(lab, "init=hang")
    try:
        status, found, seconds = gate(lab, "--gpu", "0", "--timeout", "2s")
        assert (status, found["verdict"]) == (3, "unknown")
        assert seconds < 15
        assert "no answer" in found["problem"]
    finally:
        clear(lab)


def test_an_unreadable_list_of_processes_frees_nothing(lab: api.Lab) -> None:
    hog = lab.hog(HOST, "plain", 0, 9000)
    faults(lab, "processes.0=scrambled")
    try:
        assert gate(lab, "--gpu", "0", "--timeout", "20s")[0] == 5
    finally:
        clear(lab)
        kill(lab, *hog.holders, *hog.helpers)
        clear(lab)


def test_in_a_pid_namespace_a_number_of_the_host_is_not_looked_up(lab: api.Lab) -> None:
    """NVML names the host's numbers; here they would be nobody, or somebody else."""
    hog = lab.hog(HOST, "plain", 0, 9000)
    try:
        inside = ["unshare", "--pid", "--fork", "--mount-proc", "python3", FILE, "-o", "json"]
        done = lab.exec(HOST, *inside, "--gpu", "0", "--timeout", "20s", timeout=60)
        assert done.returncode == 5, done.stderr
        (row,) = json.loads(done.stdout)["gate"]["gpus"][0]["holders"]
        assert row["pid"] == hog.holders[0]
        assert "outside this container" in row["why"]
    finally:
        kill(lab, *hog.holders, *hog.helpers)
        clear(lab)
