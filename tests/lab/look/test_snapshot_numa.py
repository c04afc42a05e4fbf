"""The GH200 case from one end to the other: a virtual machine whose node 1 is a GPU's memory."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab import api
from tests.lab.desk import Desk
from tests.lab.numa import arch as numa_arch

pytestmark = pytest.mark.lab

MIB = 1 << 20
FOLDER = "/data/shards"
SIZE = 48
MAPPER = """
import mmap, os
file = open("%s/mapped.safetensors", "rb")
view = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
sum(view[:: mmap.PAGESIZE])
open("/run/mapper.pid", "w").write(str(os.getpid()))
import time; time.sleep(3600)
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[api.Lab]:
    with api.lab(n=0, numa_vm=True) as running:
        yield running


@pytest.fixture(scope="module")
def name(lab: api.Lab) -> str:
    return next(host for host, at in lab.hosts.items() if at.machine)


@pytest.fixture
def desk(lab: api.Lab, tmp_path: Path) -> Desk:
    return Desk(tmp_path, lab.inventory)


def sh(lab: api.Lab, host: str, command: str) -> str:
    """Output of a command that must succeed. A connection that an emulated machine under load
    did not take (status 255, before anything ran) is tried again."""
    for _ in range(4):
        done = lab.ssh(host, command, timeout=300)
        if done.returncode != 255 or "kex_exchange" not in done.stderr:
            break
        time.sleep(3)
    assert done.returncode == 0, f"{command[:80]}: {done.stderr or done.stdout}"
    return done.stdout


def file_pages(text: str) -> dict[str, int]:
    """FilePages less Shmem of each node in the kernel's own files: the independent figure."""
    found: dict[str, int] = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) > 3 and words[2] in ("FilePages:", "Shmem:"):
            sign = 1 if words[2] == "FilePages:" else -1
            found[words[1]] = found.get(words[1], 0) + sign * int(words[3]) * 1024
    return found


LOOK = "echo ====; echo 1 >/proc/sys/vm/stat_refresh; cat /sys/devices/system/node/node*/meminfo"
STAGE = f"""
mkdir -p {FOLDER} && cd {FOLDER} || exit 1
for n in alone spread mapped; do
  [ -s $n.safetensors ] ||
    dd if=/dev/urandom of=$n.safetensors bs=1M count={SIZE} conv=fsync 2>/dev/null
  dd if=$n.safetensors iflag=nocache count=0 2>/dev/null
done
{LOOK}; numactl --membind=1 cat alone.safetensors >/dev/null
{LOOK}; numactl --interleave=all cat spread.safetensors >/dev/null
{LOOK}; numactl --membind=1 cat mapped.safetensors >/dev/null
{LOOK}
cat >/run/mapper.py <<'E'
{MAPPER % FOLDER}
E
rm -f /run/mapper.pid
(setsid numactl --membind=1 python3 /run/mapper.py >/dev/null 2>&1 </dev/null &)
for n in $(seq 600); do [ -s /run/mapper.pid ] && break; sleep 0.1; done
echo ====; cat /run/mapper.pid
"""


@pytest.fixture
def shards(lab: api.Lab, name: str) -> Iterator[dict[str, Any]]:
    """``alone`` lies on node 1, ``spread`` on both, ``mapped`` on node 1 with a live mapper."""
    _, *looks, last = sh(lab, name, STAGE).split("====")
    seen = [file_pages(look) for look in looks]
    deltas = {
        shard: {node: after[node] - before[node] for node in after}
        for shard, before, after in zip(("alone", "spread", "mapped"), seen, seen[1:], strict=False)
    }
    yield {"deltas": deltas, "pid": int(last)}
    sh(lab, name, f"kill {int(last)}")


def paths(section: Any) -> dict[str, Any]:
    """The shards' rows by their short name."""
    rows = section["page_cache"]["files"]
    return {Path(row["path"]).stem: row for row in rows if row["path"].startswith(f"{FOLDER}/")}


@pytest.mark.parametrize("mode", ["drop", "migrate"])
def test_the_unmapped_shards_leave_the_gpu_and_the_mapped_one_stays(
    lab: api.Lab, name: str, desk: Desk, shards: dict[str, Any], mode: str
) -> None:
    """Per file and node within 1 % of what the kernel counted; freed is what node 1 gains."""
    answer = desk.run("snapshot", "-H", name, "-o", "json").answer
    section = answer.host(name)["snapshot"]
    files = paths(section)
    for shard, delta in shards["deltas"].items():
        for node, size in delta.items():
            found = files[shard]["by_numa_node"].get(node, 0)
            assert abs(found - size) <= max(SIZE * MIB // 100, 2 * MIB), (shard, node)
    assert files["mapped"]["mapped_by"] == [shards["pid"]]
    assert files["alone"]["mapped_by"] == []
    coverage = section["page_cache"]["coverage"]["by_numa_node"]["1"]
    assert coverage["percent"] >= 95
    for node in section["numa_nodes"]:
        place = f"numa:{node['id']}"
        rows = [row for row in section["table"] if row["location"] == place]
        assert sum(row["bytes"] for row in rows) == node["total_bytes"]
    (gpu,) = section["gpus"]
    assert gpu["same_as"] == "numa:1"

    on_hbm = sum(files[shard]["by_numa_node"].get("1", 0) for shard in ("alone", "spread"))
    said = desk.run(
        "reclaim", "-H", name, "--cache", FOLDER, "--cache-mode", mode, "--yes", "-o", "json"
    )
    done = said.answer.reclaim(name)
    assert done["verdict"] == "reclaimed", json.dumps(done["cache"])
    assert {Path(one["path"]).stem for one in done["cache"]["files"]} == {"alone", "spread"}
    (spared,) = done["cache"]["spared"]
    assert (Path(spared["path"]).stem, spared["mapped_by"]) == ("mapped", [shards["pid"]])
    hbm = next(node for node in done["numa_nodes"] if node["id"] == 1)
    assert abs(hbm["freed_bytes"] - on_hbm) < MIB
    gained = hbm["after_free_bytes"] - hbm["before_free_bytes"]
    waiting = hbm["after_percpu_bytes"] - hbm["before_percpu_bytes"]
    assert abs(gained + waiting - hbm["freed_bytes"]) < 4 * MIB
    (device,) = done["gpus"]
    fallen = device["before_bytes"] - device["after_bytes"]
    assert fallen > on_hbm - max(waiting, 0) - 4 * MIB  # NVML's free is the node's free
    assert device["after_free_bytes"] - device["before_free_bytes"] == fallen
    assert abs(device["after_free_bytes"] - hbm["after_free_bytes"]) < 64 * MIB

    after = desk.run("snapshot", "-H", name, "--files", FOLDER, "-o", "json").answer
    left = paths(after.host(name)["snapshot"])
    assert left["mapped"]["by_numa_node"]["1"] == files["mapped"]["by_numa_node"]["1"]
    for shard in ("alone", "spread"):
        assert "1" not in (left.get(shard, {}).get("by_numa_node") or {})
    if mode == "migrate":
        assert left["alone"]["by_numa_node"] == {"0": SIZE * MIB}


def test_what_is_in_hbm_is_said_and_how_to_get_it_out(
    lab: api.Lab, name: str, desk: Desk, shards: dict[str, Any], tmp_path: Path
) -> None:
    """A rule with a bound that fits this small machine names the directory to drop."""
    own = tmp_path / "own.yaml"
    shipped = Path(__file__).parents[3] / "playbooks/hbm-page-cache.yaml"
    own.write_text(shipped.read_text().replace("above: 1GiB", "above: 100MiB", 1))
    answer = desk.run("run", str(own), "-H", name, "-o", "json").answer
    found = {row["rule"]: row for row in answer.envelope["findings"]}
    one = found["hbm-page-cache/file-pages-on-gpu"]
    assert one["subject"] == "NUMA node 1"
    assert f"mapped by {shards['pid']}" in one["evidence"]["say"]
    where = f"-i {lab.inventory} -H {name}"
    assert one["next"] == [f"fleetmem reclaim {where} --cache {FOLDER} --dry-run"]
    plan = desk.run("reclaim", "-H", name, "--cache", "--dry-run", "-o", "json").answer
    cache = plan.reclaim(name)["cache"]
    assert {Path(row["path"]).stem for row in cache["files"]} >= {"alone", "spread"}
    assert "mapped" in {Path(row["path"]).stem for row in cache["spared"]}
    assert all((row["by_numa_node"] or {}).get("1") for row in cache["files"])
    lines = desk.run("snapshot", "-H", name).out.splitlines()
    assert f"{numa_arch.named().page_bytes >> 10}K pages" in lines[0]
    hbm = next(line for line in lines if line.startswith("GPU 0 HBM   NUMA 1"))
    assert "F" in hbm
    assert any(f"{FOLDER}/*.safetensors" in line and "nobody" in line for line in lines)


def test_holders_of_the_gpu_are_found_as_on_any_host(lab: api.Lab, name: str, desk: Desk) -> None:
    """The machine's GPU has a node that programs can open, and hogs hold it."""
    hog = lab.hog(name, "orphan", 0, 300)
    words = ("-H", name, "--gpu", "0", "--grace-period", "1s")
    planned = desk.run("reclaim", *words, "--dry-run", "-o", "json").answer
    assert {row["pid"]: row["class"] for row in planned.reclaim(name)["targets"]} == dict.fromkeys(
        hog.holders, "detached"
    )
    done = desk.run("reclaim", *words, "--yes", "-o", "json").answer
    assert done.reclaim(name)["verdict"] == "reclaimed"
    gone = " ".join(f"/proc/{pid}" for pid in hog.holders)
    assert "proc" not in sh(lab, name, f"ls -d {gone} 2>/dev/null || true")
