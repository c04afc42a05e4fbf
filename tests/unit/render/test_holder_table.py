"""Who has the memory of each GPU, on the screen of ``snapshot``."""

from __future__ import annotations

from typing import Any

import pytest

from fleetmem.controller.answer import envelope as env
from fleetmem.controller.memory.account import snapshot
from fleetmem.controller.render.kit.line import cells, plain
from fleetmem.controller.render.snapshot.holder_table import (
    folded_holder_lines,
    holder_lines,
    orphaned,
)
from fleetmem.controller.render.snapshot.snapshot import snapshot_lines
from tests.unit.memory.memory_samples import MIB, gpu, node, process, readings
from tests.unit.reclaim.reclaim_world import identity, owner

OTHER = "GPU-22222222-2222-3333-4444-555555555555"


def host(found: dict[str, Any], name: str = "h1") -> Any:
    entry = env.new_host(name, "ok")
    entry["readings"] = {
        probe: {"outcome": "ok", "reason": None, "reading": one, "seconds": 0.1}
        for probe, one in found.items()
    }
    entry["snapshot"] = snapshot(found)
    return entry


def lines_of(entry: Any, width: int = 100) -> list[str]:
    found = [plain(line) for line in holder_lines(entry, entry["snapshot"], width)]
    assert max(map(cells, found), default=0) <= width
    return found


def two_gpus(listed: dict[int, dict[int, int]], *rows: Any, **more: Any) -> dict[str, Any]:
    """A host with two GPUs of 2 GiB that are no NUMA nodes; *rows*: its processes."""
    used = [sum(listed.get(index, {}).values()) + more.get("rest", 0) for index in (0, 1)]
    gpus = [
        gpu(index, None, uuid, used=size, free=2048 - size)
        for index, uuid, size in zip((0, 1), (gpu()["uuid"], OTHER), used, strict=True)
    ]
    nodes = [node(0, "cpu", "0-71", total=4096, free=2000)]
    found = readings(nodes, [], gpus, listed, [process(row["pid"], "python3", 300) for row in rows])
    found["processes.identity"] = {"processes": list(rows), "gone": [], "denied": 0}
    return found


def without(found: dict[str, Any], pid: int) -> dict[str, Any]:
    """The same, and *pid* is dead: NVML goes on naming it."""
    for one in found["gpu.processes"]["gpus"]:
        for row in one["processes"]:
            if row["pid"] == pid:
                row["state"] = "dead"
    return found


def test_only_those_with_a_twentieth_of_a_gpu_are_shown() -> None:
    alive = identity(41, launcher_alive=True)
    alive["ancestors"] = []
    lines = lines_of(host(two_gpus({0: {41: 1000}}, alive)))
    assert lines[0].split() == ["PID", "HOLDER", "GPU", "CUDA", "PINNED", "ANON", "COMMAND"]
    assert lines[1].split() == ["41", "python3", "0", "1.0", "0", "0.3", "python3", "train.py"]
    assert lines_of(host(two_gpus({0: {41: 20}}, alive))) == []


def test_they_stand_by_gpu_the_largest_first() -> None:
    rows = [identity(pid, launcher_alive=True) for pid in (41, 42, 43)]
    lines = lines_of(host(two_gpus({0: {41: 300, 42: 400}, 1: {43: 1900}}, *rows)))
    assert [line.split()[0] for line in lines[1:]] == ["42", "41", "43"]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({}, "python3 · launcher dead"),
        ({"launcher_alive": True}, "python3"),
        ({"group_leader_alive": True}, "python3"),
        ({"owner": owner("unit", "vllm.service", "live")}, "vllm.service · python3"),
        (
            {"owner": owner("unit", "vllm.service", "gone")},
            "vllm.service · python3 · unit is gone",
        ),
    ],
)
def test_one_that_nobody_is_left_of_is_said(more: dict[str, Any], said: str) -> None:
    entry = host(two_gpus({0: {41: 1000}}, identity(41, **more)))
    assert lines_of(entry)[1].split("  ")[1].strip() == said
    assert orphaned([entry]) == (["h1"] if "dead" in said or "gone" in said else [])


def test_a_long_name_keeps_its_note() -> None:
    """So that a narrow screen still says that its launcher is gone."""
    found = two_gpus({0: {41: 1000}}, identity(41))
    found["processes.memory"]["processes"][0]["title"] = "VLLM::Worker_DP0_TP0_EP0_of_a_long_name"
    first, second, *_ = lines_of(host(found), 60)[1:]
    assert first.split()[1:3] == ["VLLM::Worker_DP0_TP0_EP0_of_a_", "0"]
    assert second.strip() == "long_name · launcher dead"


def test_memory_of_a_dead_process_has_a_row() -> None:
    """On a GPU with memory of its own, and where it is a NUMA node."""
    entry = host(without(two_gpus({1: {8: 1500}}), 8))
    (line,) = lines_of(entry)[1:]
    assert line.split() == [
        "–",
        "no",
        "visible",
        "process",
        "has",
        "PID",
        "8",
        "1",
        "1.5",
        "–",
        "–",
    ]
    assert orphaned([entry]) == ["h1"]
    nodes = [
        node(0, "cpu", "0-71", total=4096, free=2000),
        node(1, "gpu", "", total=2048, free=500, device=None),
    ]
    entry = host(without(readings(nodes, [], listed={0: {8: 1500}}), 8))
    assert lines_of(entry)[1].split()[6:9] == ["8", "0", "1.5"]


def test_managed_memory_has_a_column_of_its_own() -> None:
    """NVML says 512 MiB; 1 GiB more is used, and mapped as managed memory."""
    found = two_gpus({0: {41: 512}}, identity(41, launcher_alive=True), rest=1024)
    found["processes.memory"]["processes"][0]["driver"] = driver(1024)
    lines = lines_of(host(found), 55)
    assert lines[0].split() == ["PID", "HOLDER", "GPU", "CUDA", "MANAGED", "PINNED", "ANON"]
    assert lines[1].split() == ["41", "python3", "0", "0.5", "1.0", "0", "0.3"]


def test_managed_memory_of_one_of_several_says_so() -> None:
    rows = [identity(pid, launcher_alive=True) for pid in (41, 42)]
    found = two_gpus({0: {41: 256, 42: 256}}, *rows, rest=1024)
    for row in found["processes.memory"]["processes"]:
        row["driver"] = driver(1024)
    entry = host(found)
    line = next(line for line in lines_of(entry, 140) if line.strip().startswith("–"))
    assert line.strip().startswith("–  managed memory of one of pids 41 42")
    assert line.split()[-4:] == ["–", "1.0", "–", "–"]
    assert orphaned([entry]) == []


def driver(map_mib: int) -> dict[str, Any]:
    """A process that has so much managed memory mapped, none of it in the host's memory."""
    return {
        "uvm_map_bytes": map_mib * MIB,
        "uvm_pss_bytes": 0,
        "pss_bytes": 0,
        "pinned_resident_bytes": 0,
    }


def test_ranks_and_hosts_are_folded() -> None:
    ranks = [
        identity(pid, comm=f"VLLM::TP{pid - 41}", title=f"VLLM::TP{pid - 41}") for pid in (41, 42)
    ]
    entries = []
    for name in ("h1", "h2"):
        found = two_gpus({0: {41: 1024}, 1: {42: 1024}}, *ranks)
        for row in found["processes.memory"]["processes"]:
            row["comm"] = row["title"] = f"VLLM::TP{row['pid'] - 41}"
        entries.append(host(found, name))
    entries.append(host(without(two_gpus({1: {8: 1536}}), 8), "h3"))
    lines = [plain(line) for line in folded_holder_lines(entries)]
    assert [line.split(maxsplit=3) for line in lines[1:]] == [
        ["h[1-2]", "0-1", "2.0", "VLLM::TP[0-1] · launcher dead"],
        ["h3", "1", "1.5", "no visible process has PID 8"],
    ]


def test_the_hosts_of_a_row_have_a_line_where_they_are_long() -> None:
    found = two_gpus({0: {41: 1024}}, identity(41, launcher_alive=True))
    entries = [host(found, name) for name in ("a-long-name-of-a-host", "and-another-long-one")]
    lines = [plain(line) for line in folded_holder_lines(entries, 80)]
    assert lines[1] == "a-long-name-of-a-host,and-another-long-one"
    assert lines[2].split() == ["0", "1.0", "python3"]


def test_one_dry_run_for_all_of_them() -> None:
    """A finding's own dry run of the same hosts is not said twice."""
    entries = [
        host(without(two_gpus({1: {8: 1536}}), 8), "h1"),
        host(two_gpus({0: {41: 1000}}, identity(41)), "h2"),
        host(two_gpus({0: {41: 1000}}, identity(41, launcher_alive=True)), "h3"),
    ]
    whole = env.new_envelope(env.new_run("snapshot"), ["h1", "h2", "h3"], entries)
    finding = {"rule": "memory/held-by-no-process", "severity": "warn", "hosts": "h1",
               "subject": "", "evidence": {"say": "1.5 GiB"}, "advice": None}  # fmt: skip
    other = "fleetmem reclaim -H h1 --gpu 1 --dry-run"
    for given in ("", "-i /tmp/inventory.yaml "):
        same = f"fleetmem reclaim {given}-H h1 --dry-run"
        whole["findings"] = [{**finding, "next": [same, other]}]  # type: ignore[typeddict-item]
        lines = [plain(line).strip() for line in snapshot_lines(env.finish(whole, 0))]
        assert lines[-2:] == [f"next   {other}", "fleetmem reclaim -H 'h[1-2]' --dry-run"]
