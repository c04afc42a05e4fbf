"""pagecache.files and pagecache.drop on the GH200 shape: shards on the GPU's node."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.numa.machine import MIB, Machine

pytestmark = pytest.mark.lab

ON_GPU, SPREAD, MAPPED = "/data/ckpt/1-of-3", "/data/ckpt/2-of-3", "/data/ckpt/3-of-3"
SHARD = 48
MAPPER = f"""
import mmap
f = open({MAPPED!r}, 'rb')
m = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
for i in range(0, len(m), mmap.PAGESIZE): m[i]
"""


@pytest.fixture
def shards(machine: Machine) -> Iterator[tuple[int, dict[int, Any]]]:
    """(mapper's pid, nodes before): three shards of a checkpoint in the cache."""
    machine.sh("rm -rf /data/ckpt; mkdir /data/ckpt")
    before = machine.nodes()
    machine.shard(ON_GPU, SHARD, "--membind=1")
    machine.shard(SPREAD, SHARD, "--interleave=0,1")
    machine.shard(MAPPED, SHARD, "--membind=1")
    pid = machine.start(MAPPER)
    try:
        yield pid, before
    finally:
        machine.sh(f"kill {pid}; rm -rf /data/ckpt")


def rows(reading: Any) -> dict[str, Any]:
    return {row["path"]: row for row in reading["files"]}


def test_each_file_by_node(machine: Machine, shards: tuple[int, dict[int, Any]]) -> None:
    pid, before = shards
    after = machine.nodes()
    found = machine.call("pagecache.files")  # nothing is named: they must be found
    reading = found["reading"]
    files = rows(reading)
    whole = SHARD * MIB
    assert files[ON_GPU]["by_numa_node"] == {"1": whole}
    assert files[MAPPED]["by_numa_node"] == {"1": whole}
    assert files[MAPPED]["mapped_by"] == [pid]
    assert files[MAPPED]["mapped_elsewhere"] is True
    assert files[ON_GPU]["mapped_by"] == []
    assert files[ON_GPU]["mapped_elsewhere"] is False
    spread = files[SPREAD]["by_numa_node"]
    assert sum(spread.values()) == whole
    assert abs(spread["1"] - whole / 2) < whole / 50
    delta = after[1]["file_bytes"] - before[1]["file_bytes"]
    told = sum(files[path]["by_numa_node"]["1"] for path in (ON_GPU, SPREAD, MAPPED))
    assert abs(told - delta) < delta / 100
    assert reading["coverage"]["by_numa_node"]["1"]["percent"] >= 95
    assert reading["complete"] is True
    lines = machine.sh("fincore -bnr -o RES /data/ckpt/*").split()
    assert [int(line) for line in lines] == [files[p]["resident_bytes"] for p in sorted(files)[:3]]
    # Looking moved nothing, and nothing was read from disk.
    assert abs(machine.nodes()[1]["file_bytes"] - after[1]["file_bytes"]) < 2 * MIB


def test_an_ordinary_user_is_not_lied_to(
    machine: Machine, shards: tuple[int, dict[int, Any]]
) -> None:
    machine.sh(f"cp {ON_GPU} /data/own; chown guest /data/own; sync /data/own; chmod 777 /data")
    found = machine.call(
        "pagecache.files", "guest", paths=["/data/ckpt", "/data/own"], walk="never"
    )
    assert found["outcome"] == "partial"
    files = rows(found["reading"])
    for path in (ON_GPU, SPREAD, MAPPED):
        assert files[path]["resident_bytes"] is None
        assert files[path]["by_numa_node"] is None
        assert "unknown" in files[path]["problem"]
    assert files["/data/own"]["resident_bytes"] == SHARD * MIB
    refused = machine.call("pagecache.drop", "guest", paths=[ON_GPU], mode="drop", dry_run=1)
    assert [row["result"] for row in refused["reading"]["files"]] == ["refused"]
    machine.sh("rm /data/own")


@pytest.mark.parametrize("mode", ["drop", "auto"])
def test_the_gpu_s_node_gets_its_memory_back(
    machine: Machine, shards: tuple[int, dict[int, Any]], mode: str
) -> None:
    pid, _ = shards
    before = machine.nodes()
    found = machine.call("pagecache.drop", paths=["/data/ckpt"], mode=mode, operation="numa-1")
    assert found["outcome"] == "ok", found["reason"]
    reading = found["reading"]
    files = rows(reading)
    done = "dropped" if mode == "drop" else "migrated"
    assert {path: row["result"] for path, row in files.items()} == {
        ON_GPU: done,
        SPREAD: done,
        MAPPED: "spared",
    }
    assert str(pid) in files[MAPPED]["why"]
    expected = files[ON_GPU]["before"]["1"] + files[SPREAD]["before"]["1"]
    node = next(row for row in reading["nodes"] if row["id"] == 1)
    assert node["files_freed_bytes"] == expected
    assert abs(node["file_before_bytes"] - node["file_after_bytes"] - expected) < expected / 50
    gain = node["free_after_bytes"] - node["free_before_bytes"]
    gain += node["percpu_after_bytes"] - node["percpu_before_bytes"]
    assert abs(gain - expected) < expected / 50
    if mode == "drop":
        assert reading["freed_bytes"] == 2 * SHARD * MIB
        assert files[ON_GPU]["after"] == {}
    else:
        assert (reading["moved_bytes"], reading["target_node"]) == (expected, 0)
        assert files[ON_GPU]["after"] == {"0": SHARD * MIB}
    after = machine.nodes()
    risen = after[1]["free_bytes"] + after[1]["percpu_bytes"]
    risen -= before[1]["free_bytes"] + before[1]["percpu_bytes"]
    assert abs(risen - expected) < expected / 20
    assert rows(machine.call("pagecache.files", paths=[MAPPED], discover=0)["reading"])[MAPPED][
        "by_numa_node"
    ] == {"1": SHARD * MIB}
    for path in (ON_GPU, SPREAD):
        machine.whole(path, SHARD)
    trail = machine.sh("cat /run/fleetmem/audit.jsonl")
    assert "numa-1" in trail
