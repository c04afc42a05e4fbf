"""Snapshot, playbooks, diff and the cache rung over real SSH, on hosts with one NUMA node."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.lab import api
from tests.lab.desk import PROGRAM, Desk, inventory
from tests.lab.fixtures import wait_until
from tests.lab.reclaim_stage import MIB, traces

pytestmark = pytest.mark.lab

HOST = "gh200-01"
MOST = 20 * MIB
"""A shard has 24 MiB; a machine short of memory may have taken some of its pages."""

MODELS = "/run/host/models"
MAPPER = """
import mmap, os, sys
file = open(sys.argv[1], "rb")
view = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
print(sum(view[::4096]) >= 0 and os.getpid(), flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[api.Lab]:
    """Two hosts; the first holds 1 000 MiB of GPU 0."""
    with api.lab(n=2) as running:
        running.hog(HOST, "plain", gpu=0, mib=1000)
        yield running


@pytest.fixture
def desk(lab: api.Lab, tmp_path: Path) -> Desk:
    return Desk(tmp_path, lab.inventory)


def snapshot(desk: Desk, *words: str, host: str = HOST) -> dict[str, Any]:
    """The host's entry of one ``snapshot -o json``."""
    return desk.run("snapshot", "-H", host, "-o", "json", *words).answer.host(host)


def node_figures() -> dict[str, int]:
    """Node 0's meminfo in bytes."""
    lines = Path("/sys/devices/system/node/node0/meminfo").read_text().splitlines()
    return {line.split()[2].rstrip(":"): int(line.split()[3]) * 1024 for line in lines}


def offline(desk: Desk, *words: str) -> subprocess.CompletedProcess[str]:
    """A command that reaches no host."""
    return subprocess.run(
        [str(PROGRAM), *words], capture_output=True, text=True, env=desk.environment, timeout=60
    )


def plant(lab: api.Lab, name: str, mib: int, host: str = HOST) -> str:
    """A clean file in the page cache, on the host's disk."""
    path = f"{MODELS}/{name}"
    script = f"mkdir -p {MODELS}; head -c {mib * MIB} /dev/urandom >{path}; sync {path}"
    done = lab.exec(host, "sh", "-c", script)
    assert done.returncode == 0, done.stderr
    return path


def resident(lab: api.Lab, path: str, host: str = HOST) -> int:
    """Bytes of *path* in memory as fincore counts them: the independent figure."""
    done = lab.exec(host, "fincore", "-b", "-n", "-o", "RES", path)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@contextlib.contextmanager
def standing(lab: api.Lab, *words: str) -> Iterator[str]:
    """A program on the host that says one line, and ends when its input does."""
    running = subprocess.Popen(
        lab.command(HOST, words), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert running.stdin is not None
    assert running.stdout is not None
    try:
        yield running.stdout.readline().strip()
    finally:
        running.stdin.close()
        running.wait(timeout=60)
        running.stdout.close()


@pytest.fixture
def shards(lab: api.Lab) -> Iterator[dict[str, str]]:
    """Two shards that nobody maps, one that a live process maps."""
    paths = {name: plant(lab, f"{name}.safetensors", 24) for name in ("one", "two", "mapped")}
    with standing(lab, "python3", "-c", MAPPER, paths["mapped"]) as pid:
        yield {**paths, "pid": pid}
    lab.exec(HOST, "rm", "-rf", MODELS)


def test_the_table_closes_and_agrees_with_what_others_count(lab: api.Lab, desk: Desk) -> None:
    """Total and free as the node's own file says, read here (the same kernel); the GPU as its
    charges say. (psutil's figures of the machine count a balloon's pages, too.)"""
    before = node_figures()
    section = snapshot(desk)["snapshot"]
    after = node_figures()
    (node,) = section["numa_nodes"]
    for name, field in (("MemTotal", "total_bytes"), ("MemFree", "free_bytes")):
        low, high = sorted((before[name], after[name]))
        assert low - 300 * MIB < node[field] < high + 300 * MIB
    for place, whole in [(f"numa:{node['id']}", node["total_bytes"])] + [
        (f"gpu:{gpu['uuid']}", gpu["total_bytes"]) for gpu in section["gpus"]
    ]:
        rows = [row for row in section["table"] if row["location"] == place]
        assert sum(row["bytes"] for row in rows) == whole
    gpu = section["gpus"][0]
    device = [
        row
        for row in section["table"]
        if row["location"] == f"gpu:{gpu['uuid']}" and row["backing"] == "device"
    ]
    held = [row["bytes"] for row in device if row["owner"] != "driver"]
    assert held == [1000 * MIB]
    assert gpu["processes_bytes"] == 1000 * MIB
    assert 0 <= gpu["unaccounted_bytes"] <= 64 * MIB  # idle handles


@pytest.mark.parametrize("most", [0, 3])
def test_numa_maps_of_as_many_as_asked_for(desk: Desk, most: int) -> None:
    """Of none on a kernel that has no numa_maps."""
    most = most if Path("/proc/self/numa_maps").exists() else 0
    entry = snapshot(desk, "--no-files", "--numa-maps", str(most))
    rows = entry["readings"]["processes.memory"]["reading"]["processes"]
    assert len(rows) > 3
    read = {at for at, row in enumerate(rows) if row["numa"] is not None}
    assert read <= set(range(most))
    assert (0 in read) is (most > 0)  # of the others one may have ended meanwhile


def test_the_formats_hold_the_same_table(desk: Desk) -> None:
    """csv and JSON lines have one row a row of the table, in numbers that add up."""
    out = desk.run("snapshot", "-H", HOST, "-o", "csv", "--no-files").out
    rows = list(csv.DictReader(io.StringIO(out)))
    entry = snapshot(desk, "--no-files")
    (node,) = entry["snapshot"]["numa_nodes"]
    total = sum(int(row["bytes"]) for row in rows if row["location"] == f"numa:{node['id']}")
    assert total == node["total_bytes"]
    lines = desk.run("snapshot", "-H", HOST, "-o", "jsonl", "--no-files").out.splitlines()
    assert {"backing", "owner", "location", "lifetime", "bytes", "evidence"} <= set(
        json.loads(lines[0])
    )


def test_the_picture_has_every_place_and_comes_back_from_history(desk: Desk) -> None:
    """One row a place, the GPU's holder in bytes; ``runs show`` draws the same document."""
    said = desk.run("snapshot", "-H", "gh200-*", "-o", "svg", "--no-files", "--phase", "drawn")
    assert said.code == 0
    titles = [
        one.text or "" for one in ElementTree.fromstring(said.out).iter() if "title" in one.tag
    ]
    assert titles[0].startswith("2 hosts: 2 ok · run ")
    assert " · phase drawn · " in titles[0]
    size = f"{1000 * MIB:,}".replace(",", " ")
    assert f"{HOST}, GPU 0, device: CUDA and drivers 1.0 GiB, {size} bytes" in titles
    for host in (HOST, "gh200-02"):
        assert any(title.startswith(f"{host}, CPU 0 DRAM, NUMA 0: free ") for title in titles)
    run = titles[0].partition(" · run ")[2][:8]
    assert offline(desk, "runs", "show", run, "-o", "svg").stdout == said.out


def test_named_files_are_traced_to_who_maps_them(
    desk: Desk, lab: api.Lab, shards: dict[str, str]
) -> None:
    """Bytes as fincore counts them; the mapper by its pid, the others by nobody."""
    entry = snapshot(desk, "--files", MODELS, "--phase", "after-load")
    section = entry["snapshot"]
    assert section["phase"] == "after-load"
    files = {one["path"]: one for one in section["page_cache"]["files"]}
    for name in ("one", "two", "mapped"):
        one = files[shards[name]]
        assert abs(one["resident_bytes"] - resident(lab, shards[name])) < MIB
        assert one["resident_bytes"] > MOST
        assert sum(one["by_numa_node"].values()) == one["resident_bytes"]
        assert one["mapped_by"] == ([int(shards["pid"])] if name == "mapped" else [])
    nobody = [
        row for row in section["table"] if row["backing"] == "file" and row["owner"] == "nobody"
    ]
    assert sum(row["bytes"] for row in nobody) > 2 * MOST


def test_an_ordinary_user_is_told_what_is_unknown(
    lab: api.Lab, tmp_path: Path, shards: dict[str, str]
) -> None:
    """Who maps a file of root's is not "nobody" to a user who cannot see root's mappings."""
    document = inventory(lab, {HOST: {"user": "guest"}})
    desk = Desk(tmp_path, lab.inventory).with_inventory(document)
    lab.exec(HOST, "chmod", "-R", "a+rX", MODELS)
    entry = snapshot(desk, "--files", MODELS)
    assert entry["outcome"] == "partial"
    files = {one["path"]: one for one in entry["snapshot"]["page_cache"]["files"]}
    for name in ("one", "mapped"):
        assert files[shards[name]]["mapped_by"] is None
        assert files[shards[name]]["resident_bytes"] is None


def test_the_cache_rung_frees_what_nobody_maps(
    desk: Desk, lab: api.Lab, shards: dict[str, str]
) -> None:
    """A dry run changes nothing; applied, exactly the unmapped shards leave memory."""
    answer = desk.run("reclaim", "-H", HOST, "--cache", MODELS, "--dry-run", "-o", "json").answer
    section = answer.reclaim(HOST)
    assert (answer.code, section["verdict"], section["rungs"]) == (0, "planned", [])
    assert {one["path"] for one in section["cache"]["files"]} == {shards["one"], shards["two"]}
    (spared,) = section["cache"]["spared"]
    assert spared["path"] == shards["mapped"]
    assert spared["mapped_by"] == [int(shards["pid"])]
    assert resident(lab, shards["one"]) > MOST
    assert not [row for row in traces(lab, HOST).audit if row["action"] == "pagecache.drop"]

    answer = desk.run("reclaim", "-H", HOST, "--cache", MODELS, "--yes", "-o", "json").answer
    section = answer.reclaim(HOST)
    assert (answer.code, section["verdict"]) == (0, "reclaimed")
    assert [(one["rung"], one["outcome"]) for one in section["rungs"]] == [("cache", "ok")]
    assert 2 * MOST < section["rungs"][0]["freed_bytes"] <= 48 * MIB
    assert {one["result"] for one in section["cache"]["files"]} == {"dropped"}
    assert [resident(lab, shards[name]) for name in ("one", "two")] == [0, 0]
    assert resident(lab, shards["mapped"]) > MOST
    trail = [row for row in traces(lab, HOST).audit if row["action"] == "pagecache.drop"]
    assert [row["operation"] for row in trail] == [section["plan"]["id"]]
    assert trail[0]["files"] == 2

    again = desk.run("reclaim", "-H", HOST, "--cache", MODELS, "--yes", "-o", "json").answer
    assert again.reclaim(HOST)["verdict"] == "nothing_to_do"


OVERLAYS = f"""
set -e
mkdir -p {MODELS}/lower {MODELS}/one {MODELS}/two
head -c {24 * MIB} /dev/urandom >{MODELS}/lower/image.bin
mkdir {MODELS}/upper {MODELS}/work
mount -t overlay -o lowerdir={MODELS}/lower,upperdir={MODELS}/upper,workdir={MODELS}/work \\
    overlay {MODELS}/one
mount -t tmpfs tmpfs {MODELS}/two
mkdir {MODELS}/two/upper {MODELS}/two/work {MODELS}/two/merged
mount -t overlay -o lowerdir={MODELS}/lower,upperdir={MODELS}/two/upper,workdir={MODELS}/two/work \\
    overlay {MODELS}/two/merged
head -c {24 * MIB} /dev/urandom >{MODELS}/one/own.bin
sync {MODELS}/lower/image.bin
"""


def test_a_file_of_a_container_s_image_is_one_file(desk: Desk, lab: api.Lab) -> None:
    """Its pages are the layer's: counted once, with who maps them through an overlay whose
    files have another device than its mount. It stays in memory as long as that lasts."""
    layer = f"{MODELS}/lower/image.bin"
    try:
        done = lab.exec(HOST, "sh", "-c", OVERLAYS)
        assert done.returncode == 0, done.stderr
        with standing(lab, "python3", "-c", MAPPER, f"{MODELS}/two/merged/image.bin") as pid:
            entry = snapshot(desk, "--files", MODELS, f"{MODELS}/one", f"{MODELS}/two/merged")
            reading = entry["readings"]["pagecache.files"]["reading"]
            found = [one for one in reading["files"] if one["path"].endswith(".bin")]
            rows = {one["path"].rpartition("/")[2]: one for one in found}
            assert len(rows) == len(found) == 2
            assert rows["image.bin"]["mapped_by"] == [int(pid)]
            assert (rows["own.bin"]["mapped_by"], rows["own.bin"]["dirty_bytes"] is None) == (
                [],
                False,
            )
            paths = (layer, f"{MODELS}/one/image.bin", f"{MODELS}/two/merged/image.bin")
            said = desk.run("reclaim", "-H", HOST, "--cache", *paths, "--yes", "-o", "json").answer
            (spared,) = said.reclaim(HOST)["cache"]["spared"]
            assert spared["mapped_by"] == [int(pid)]
            assert resident(lab, layer) > MOST
        said = desk.run("reclaim", "-H", HOST, "--cache", paths[2], "--yes", "-o", "json").answer
        assert said.reclaim(HOST)["verdict"] == "reclaimed"
        assert resident(lab, layer) == 0
    finally:
        lab.exec(HOST, "sh", "-c", f"umount {MODELS}/two/merged {MODELS}/two {MODELS}/one; "
                 f"rm -rf {MODELS}")  # fmt: skip


def test_more_small_files_than_a_plan_holds(desk: Desk, lab: api.Lab) -> None:
    """The snapshot counts them all; the plan says how many it leaves for the next one."""
    make = f"""
import os
os.makedirs("{MODELS}/small")
for number in range(6000):
    with open("{MODELS}/small/%d" % number, "wb") as file:
        file.write(b"x")
os.sync()
"""
    done = lab.exec(HOST, "python3", "-c", make)
    assert done.returncode == 0, done.stderr
    try:
        entry = snapshot(desk, "--files", f"{MODELS}/small")
        reading = entry["readings"]["pagecache.files"]["reading"]
        rows = [one for one in reading["files"] if one["path"].startswith(f"{MODELS}/small/")]
        assert 5500 < len(rows) + reading["unlisted"]["files"] <= 6000
        said = desk.run("reclaim", "-H", HOST, "--cache", f"{MODELS}/small", "--dry-run",
                        "-o", "json").answer  # fmt: skip
        section = said.reclaim(HOST)
        assert 4500 < len(section["cache"]["files"]) <= 5000
        (problem,) = section["cache"]["problems"]
        assert 500 < int(problem.split()[0]) <= 1500
        assert "are not in this plan" in problem
    finally:
        lab.exec(HOST, "rm", "-rf", f"{MODELS}/small")


def test_a_pattern_and_shared_memory(desk: Desk, lab: api.Lab, shards: dict[str, str]) -> None:
    """A quoted pattern is the host's; a file on tmpfs is never dropped, and that is said."""
    lab.exec(HOST, "sh", "-c", "head -c 4194304 /dev/zero >/dev/shm/kept")
    answer = desk.run(
        "reclaim", "-H", HOST, "--cache", f"{MODELS}/on*", "/dev/shm/kept", "--yes", "-o", "json"
    ).answer
    section = answer.reclaim(HOST)
    assert [one["path"] for one in section["cache"]["files"]] == [shards["one"]]
    said = json.dumps([section["cache"]["problems"], section["cache"]["spared"]])
    assert "/dev/shm/kept" in said
    assert "tmpfs" in said
    assert resident(lab, shards["two"]) > MOST
    assert resident(lab, "/dev/shm/kept") == 4 * MIB


def test_nothing_is_changed_without_a_yes(desk: Desk, lab: api.Lab, shards: dict[str, str]) -> None:
    said = desk.run("reclaim", "-H", HOST, "--cache", MODELS)
    assert said.code == 6
    assert "nothing was changed" in said.err
    assert resident(lab, shards["one"]) > MOST


def test_a_host_that_is_locked_keeps_its_pages(
    desk: Desk, lab: api.Lab, shards: dict[str, str]
) -> None:
    """Another run holds the lock: refused, exit 7, nothing dropped."""
    hold = "exec 9>>/run/fleetmem/lock; flock -n 9 || exit 3; echo held; exec cat"
    lab.exec(HOST, "sh", "-c", "mkdir -p -m 700 /run/fleetmem")
    with standing(lab, "sh", "-c", hold) as line:
        assert line == "held"
        said = desk.run("reclaim", "-H", HOST, "--cache", MODELS, "--yes", "-o", "json")
    assert said.code == 7
    assert said.answer.host(HOST)["error"]["code"] == "locked"
    assert resident(lab, shards["one"]) > MOST


def test_playbooks_run_and_runs_are_compared(desk: Desk, lab: api.Lab, tmp_path: Path) -> None:
    """A playbook of one's own over two hosts, and the difference that a file makes."""
    own = tmp_path / "own.yaml"
    own.write_text(
        "playbook: own\nabout: A test.\nprobes: [gpu.devices, gpu.processes]\nrules:\n"
        "  - {id: held, each: gpu.devices, field: processes_bytes, above: 900MiB,\n"
        "     severity: critical, say: '{processes_bytes} held'}\n"
    )
    said = desk.run("run", str(own), "-H", "gh200-*", "-o", "json", "--fail-on", "warn")
    assert said.code == 5
    (finding,) = said.answer.envelope["findings"]
    assert (finding["rule"], finding["hosts"], finding["subject"]) == ("own/held", HOST, "GPU 0")
    assert finding["evidence"]["say"] == "1000 MiB held"

    assert desk.run("snapshot", "-H", HOST, "--phase", "before-load").code == 0
    lab.hog(HOST, "plain", gpu=1, mib=500)
    assert desk.run("snapshot", "-H", HOST, "--phase", "after-load").code == 0
    done = offline(desk, "diff", "before-load", "after-load", "-o", "json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["hosts"][0]["diff"]["rows"]
    device = [row for row in rows if row["place"] == "GPU 1" and row["backing"] == "device"]
    assert [row["change_bytes"] for row in device] == [500 * MIB]


def test_agents_are_gone_afterwards(desk: Desk, lab: api.Lab) -> None:
    snapshot(desk)
    wait_until("no agent is left", lambda: not traces(lab, HOST).agents, pause=0.3)
