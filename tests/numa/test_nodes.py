"""numa.nodes on two nodes: what is planted moves its own column and no other."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.numa.machine import MIB, Machine

pytestmark = pytest.mark.lab

PARTS = ("free", "file", "anon", "shmem", "slab", "hugetlb", "kernel", "unaccounted")
X = 64


def test_the_shape_of_a_gh200(machine: Machine) -> None:
    nodes = machine.nodes()
    assert sorted(nodes) == [0, 1]
    assert (nodes[0]["kind"], nodes[0]["cpus"]) == ("cpu", "0-1")
    assert (nodes[1]["kind"], nodes[1]["cpus"]) == ("gpu", "")
    assert nodes[1]["gpu_evidence"] == "nvml"
    assert nodes[1]["gpu_uuid"].startswith("GPU-")
    assert nodes[1]["movable_only"] is True
    assert nodes[0]["distances"] == [10, 80]
    for row in nodes.values():
        parts = sum(row[f"{part}_bytes"] for part in PARTS) + (row["device_bytes"] or 0)
        assert parts == row["total_bytes"]
    assert abs(nodes[1]["unaccounted_bytes"]) < 4 * MIB


def test_it_agrees_with_numastat(machine: Machine) -> None:
    machine.sh("numastat -m")  # its own pages are in the cache from now on
    nodes = machine.nodes()
    table: dict[str, list[float]] = {}
    for line in machine.sh("numastat -m").splitlines():
        words = line.split()
        if len(words) == 4 and words[1].replace(".", "").isdigit():
            table[words[0]] = [float(word) * MIB for word in words[1:3]]
    for node, row in nodes.items():
        near = (12 if node == 0 else 2) * MIB  # the probe's own interpreter lies on node 0
        for field, name in (
            ("total_bytes", "MemTotal"),
            ("free_bytes", "MemFree"),
            ("anon_bytes", "AnonPages"),
            ("shmem_bytes", "Shmem"),
            ("slab_bytes", "Slab"),
            ("mapped_bytes", "Mapped"),
            ("kernel_stack_bytes", "KernelStack"),
        ):
            assert abs(row[field] - table[name][node]) < near, (node, name)
        file = table["FilePages"][node] - table["Shmem"][node]
        assert abs(row["file_bytes"] - file) < near


def _moved(before: dict[str, Any], after: dict[str, Any]) -> dict[str, float]:
    return {part: (after[f"{part}_bytes"] - before[f"{part}_bytes"]) / MIB for part in PARTS}


def _faults(node: int, backing: str, before: Any, after: Any) -> list[tuple[Any, ...]]:
    """What is wrong with the figures of a node on which X MiB of *backing* were planted."""
    wrong: list[tuple[Any, ...]] = []
    moved = _moved(before, after)
    column = "unaccounted" if backing == "zram" else backing
    told = {k: round(v, 2) for k, v in moved.items()}
    if abs(moved[column] - X) > 0.02 * X:
        wrong.append((node, backing, told))
    others = [p for p in PARTS if p not in (column, "free", "kernel", "slab")]
    if any(abs(moved[part]) >= 8 for part in others):
        wrong.append((node, backing, told))
    if backing == "zram":
        pages = after["zspages_bytes"] - before["zspages_bytes"]
        if abs(pages / MIB - X) > 0.02 * X:
            wrong.append((node, "zspages", pages))
    return wrong


def test_each_backing_on_each_node_moves_its_own_column(machine: Machine) -> None:
    machine.sh(
        "modprobe zram num_devices=2; mkdir -p /data/plant; "
        "dd if=/dev/urandom of=/run/random bs=1M count=4 2>/dev/null"
    )
    for node in (0, 1):
        machine.sh(f"echo 512M >/sys/block/zram{node}/disksize")
    machine.plant("anon", 0, 1)  # the planter itself is there from now on
    machine.call("numa.nodes")
    huge = machine.huge_page_bytes()
    pool = f"/sys/devices/system/node/node%d/hugepages/hugepages-{huge >> 10}kB/nr_hugepages"
    before = machine.nodes()
    wrong = []
    for node in (1, 0):
        for backing in ("file", "anon", "shmem", "hugetlb", "zram"):
            if backing == "file":
                machine.shard(f"/data/plant/{node}", X, f"--membind={node}")
            elif backing == "hugetlb":
                machine.sh(f"echo {X * MIB // huge} >{pool % node}")
            elif backing == "zram":
                machine.sh(
                    f"while cat /run/random; do :; done | numactl --membind={node} "
                    f"dd of=/dev/zram{node} bs=1M count={X} iflag=fullblock oflag=direct "
                    "2>/dev/null"
                )
            else:
                machine.plant(backing, node, X)
            # Pages freed just before lie on per-CPU lists, in no column, until the kernel's next
            # round, which is late on a busy machine: figures count once they have settled.
            deadline = time.monotonic() + 60
            while True:
                after = machine.nodes()
                faults = _faults(node, backing, before[node], after[node])
                if not faults or time.monotonic() > deadline:
                    break
            wrong += faults
            before = after
    machine.sh(
        "rm -r /data/plant; for n in 0 1; do echo 1 >/sys/block/zram$n/reset; done; "
        f"echo 0 >{pool % 0}; echo 0 >{pool % 1}; "
        "kill $(cat /run/planter.pid); rm /run/plant.in /run/plant.out"
    )
    assert wrong == []
