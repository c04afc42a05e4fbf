"""What changed between two recorded snapshots."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fleetmem.controller.answer import envelope as env
from fleetmem.controller.errors import UsageError
from fleetmem.controller.look.diff import changes, diff, find
from fleetmem.controller.memory.account import snapshot
from fleetmem.controller.record.history import History, open_history
from fleetmem.controller.render.diff import diff_lines
from fleetmem.controller.render.kit.line import WIDTH, cells, plain
from tests.unit.memory.memory_samples import MIB, cached, gpu, node, process, readings


def host(file_mib: int, pid: int = 41, boot: str = "boot-1", rest: int = 0) -> dict[str, Any]:
    """A host with one node, one GPU of its own memory, one process."""
    nodes = [
        node(
            0,
            "cpu",
            "0",
            total=20_000,
            free=20_000 - file_mib - 300 - rest,
            file=file_mib,
            anon=300,
        )
    ]
    own = gpu(numa_node=None, total=1000, reserved=0, used=200, free=800)
    files = [cached("/models/a/1.bin", {"0": file_mib})]
    return readings(nodes, files, [own], {0: {pid: 200}}, [process(pid, "python3", 300)], boot=boot)


def record(history: History, hosts: dict[str, Any], phase: str | None, run_id: str) -> None:
    run = {**env.new_run("snapshot"), "id": run_id}
    entries = []
    history.begin(run, list(hosts))  # type: ignore[arg-type]
    for name, found in hosts.items():
        entry = env.new_host(name, "ok")
        entry["readings"] = {
            probe: {"outcome": "ok", "reason": None, "reading": reading, "seconds": 0.1}
            for probe, reading in found.items()
        }
        entry["snapshot"] = snapshot(found, phase)
        entries.append(entry)
        history.record_host(run_id, entry)
    history.finish(env.finish(env.new_envelope(run, list(hosts), entries), 0))  # type: ignore[arg-type]


@pytest.fixture
def history(tmp_path: Path) -> Any:
    opened = open_history(directory=tmp_path / "state")
    yield opened
    opened.close()


def test_a_process_is_found_again_under_another_pid() -> None:
    """Only the cache changed; the same python3 with another pid is no change."""
    found = changes(snapshot(host(100, 41)), snapshot(host(700, 99)))
    assert [(r["backing"], r["owner"], r["place"], r["change_bytes"] // MIB)
            for r in found["rows"] if r["change_bytes"] is not None] == [
        ("file", "nobody", "NUMA 0", 600),
        ("free", None, "NUMA 0", -600),
    ]  # fmt: skip
    assert found["same_boot"] is True


def test_a_library_that_one_more_process_maps_is_no_change() -> None:
    old, new = host(100), host(100)
    people = [process(pid, f"p{pid}", 0) for pid in (42, 43)]
    for found, pids in ((old, [41, 42]), (new, [41, 42, 43])):
        found["processes.memory"]["processes"] += people
        found["pagecache.files"]["files"][0]["mapped_by"] = pids
    owners = {row["owner"] for found in (old, new) for row in snapshot(found)["table"]}
    assert owners >= {"2 owners", "3 owners"}
    assert changes(snapshot(old), snapshot(new))["rows"] == []


def test_a_gpu_is_named_by_its_index() -> None:
    old, new = host(100), host(100)
    new["gpu.processes"]["gpus"][0]["processes"] = []
    found = changes(snapshot(old), snapshot(new))
    assert {(r["backing"], r["place"]) for r in found["rows"]} == {
        ("device", "GPU 0"),
        ("unaccounted", "GPU 0"),
    }


def test_what_one_side_does_not_know_has_no_change() -> None:
    old, new = host(100), host(100)
    new["gpu.processes"]["gpus"][0]["processes"][0]["used_bytes"] = None
    rows = changes(snapshot(old), snapshot(new))["rows"]
    assert all(row["change_bytes"] is None for row in rows)
    assert {row["backing"] for row in rows} == {"device", "unaccounted"}


def test_small_changes_are_noise() -> None:
    assert changes(snapshot(host(100)), snapshot(host(100)))["rows"] == []


def managing(**driver: int) -> dict[str, Any]:
    """A host whose process has 2000 MiB of managed memory on its GPU."""
    found = host(100)
    used = {"total": 4000, "reserved": 0, "used": 2200, "free": 1800}
    found["gpu.devices"]["gpus"] = [gpu(numa_node=None, **used)]
    sizes = {"map_bytes": 2000, "uvm_map_bytes": 2000, "pinned_resident_bytes": 0, **driver}
    mappings = {name: size * MIB for name, size in sizes.items()}
    found["processes.memory"]["processes"] = [process(41, "python3", 300, driver=mappings)]
    return found


def test_what_an_older_version_did_not_see_is_no_change(history: History) -> None:
    """Its readings said how much was mapped, its table had it as unaccounted."""
    record(history, {"h1": managing(uvm_resident_bytes=0)}, "before", "aaaa1111")
    record(history, {"h1": managing(uvm_pss_bytes=0, pss_bytes=0)}, "after", "bbbb2222")
    run = history.load("aaaa1111")
    section = run["hosts"][0]["snapshot"]
    for one in section["gpus"]:
        one["unaccounted_bytes"] += one.pop("managed_bytes")  # type: ignore[operator, misc, typeddict-item]
    for process_ in section["processes"]:
        for name in ("driver_bytes", "managed_map_bytes", "managed_by_gpu"):
            process_.pop(name)  # type: ignore[misc]
    for row in section["table"]:
        if row["backing"] == "device":
            row["bytes"] = 200 * MIB
        if row["backing"] == "unaccounted" and row["location"].startswith("gpu"):
            row["bytes"] = 2000 * MIB
    history.record_host("aaaa1111", run["hosts"][0])
    (entry,) = diff(history, "before", "after")["hosts"]
    assert entry["diff"]["rows"] == []
    assert (entry["diff"]["before_phase"], entry["diff"]["after_phase"]) == ("before", "after")


@pytest.mark.parametrize(("first", "second"), [(None, 900), (900, None), (900, 900)])
def test_what_only_root_may_see_is_no_change(
    history: History, first: int | None, second: int | None
) -> None:
    """900 MiB of vmalloc with 20 of stacks in it: the kernel's for root, unaccounted for others."""
    for phase, vmalloc, run_id in (("a", first, "aaaa1111"), ("b", second, "bbbb2222")):
        found = host(100)
        kernel = 20 if vmalloc is None else vmalloc
        (row,) = found["numa.nodes"]["nodes"]
        row.update(
            vmalloc_bytes=None if vmalloc is None else vmalloc * MIB,
            kernel_stack_bytes=20 * MIB,
            kernel_bytes=kernel * MIB,
            free_bytes=row["free_bytes"] - 920 * MIB,
            unaccounted_bytes=(920 - kernel) * MIB,
        )
        record(history, {"h1": found}, phase, run_id)
    assert diff(history, "a", "b")["hosts"][0]["diff"]["rows"] == []


def test_runs_are_found_by_id_and_by_phase(history: History) -> None:
    record(history, {"h1": host(100), "h2": host(100)}, "before-load", "aaaa1111")
    record(history, {"h1": host(700), "h2": host(700, rest=2000)}, "after-load", "bbbb2222")
    by_id = diff(history, "aaaa", "bbbb")
    by_phase = diff(history, "before-load", "after-load")
    assert by_id["hosts"] == by_phase["hosts"]
    assert by_id["hosts"][0]["diff"]["before_phase"] == "before-load"
    json.dumps(by_id, allow_nan=False)


def test_a_phase_is_meant_before_the_start_of_an_id(history: History) -> None:
    """Its newest snapshot; a whole id is that run, whatever phases are called."""
    for run_id, phase in (
        ("bbbb2222", "old"),
        ("aaaa1111", "b"),
        ("aaaa2222", "b"),
        ("cccc3333", "aaaa1111"),
    ):
        record(history, {"h1": host(100), "h2": host(100)}, phase, run_id)
    assert find(history, "b") == "aaaa2222"
    assert find(history, "bb") == "bbbb2222"
    assert find(history, "aaaa1111") == "aaaa1111"
    with pytest.raises(UsageError, match="ambiguous: aaaa"):
        find(history, "aaaa")


def test_unaccounted_growth_is_a_finding(history: History) -> None:
    record(history, {"h1": host(100), "h2": host(100)}, None, "aaaa1111")
    record(history, {"h1": host(100), "h2": host(100, rest=2000)}, None, "bbbb2222")
    found = diff(history, "aaaa", "bbbb")
    assert [(row["rule"], row["hosts"]) for row in found["findings"]] == [
        ("memory/unaccounted-grew", "h2")
    ]


def test_readings_that_make_no_sense_to_this_version_spoil_their_own_host(history: History) -> None:
    """The recorded table still serves; growth is not judged from them."""
    record(history, {"h1": host(100), "h2": host(100)}, None, "aaaa1111")
    record(history, {"h1": host(700), "h2": host(700, rest=2000)}, None, "bbbb2222")
    old = history.load("aaaa1111")["hosts"][0]
    del old["readings"]["numa.nodes"]["reading"]["nodes"][0]["free_bytes"]
    history.record_host("aaaa1111", old)
    found = diff(history, "aaaa", "bbbb")
    assert [len(entry["diff"]["rows"]) for entry in found["hosts"]] == [2, 3]
    assert [row["hosts"] for row in found["findings"]] == ["h2"]


def test_what_an_ordinary_user_does_not_see_is_no_growth(history: History) -> None:
    """Whose memory it is, is root's to see; for others more is unaccounted."""
    seen, less = host(100), host(100, rest=2000)
    less["host.facts"]["uid"] = 1000
    record(history, {"h1": seen, "h2": seen}, None, "aaaa1111")
    record(history, {"h1": less, "h2": host(100, rest=2000)}, None, "bbbb2222")
    assert [row["hosts"] for row in diff(history, "aaaa", "bbbb")["findings"]] == ["h2"]


def test_another_boot_compares_no_growth_and_says_so(history: History) -> None:
    record(history, {"h1": host(100)}, None, "aaaa1111")
    record(history, {"h1": host(100, rest=2000, boot="boot-2")}, None, "bbbb2222")
    found = diff(history, "aaaa", "bbbb")
    assert found["findings"] == []
    text = [plain(line) for line in diff_lines(found, "aaaa", "bbbb")]
    assert "rebooted in between: h1" in text


def test_hosts_of_one_run_only_keep_a_row(history: History) -> None:
    record(history, {"h1": host(100), "h2": host(100)}, None, "aaaa1111")
    record(history, {"h1": host(900)}, None, "bbbb2222")
    found = diff(history, "aaaa", "bbbb")
    assert [entry["outcome"] for entry in found["hosts"]] == ["ok", "not_attempted"]
    assert found["summary"]["targeted"] == 2


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ("aaaa", "zzzz", "is not a recorded run or phase"),
        ("aaaa", "aaaa", "the same run"),
        ("aaaa", "cccc", "no snapshot of a common host"),
    ],
)
def test_one_line_for_what_cannot_be_compared(
    history: History, first: str, second: str, said: str
) -> None:
    record(history, {"h1": host(100)}, None, "aaaa1111")
    record(history, {"h9": host(100)}, None, "cccc3333")
    with pytest.raises(UsageError) as caught:
        diff(history, first, second)
    assert said in caught.value.message


def test_a_change_of_a_few_mib_is_shown_as_one(history: History) -> None:
    record(history, {"h1": host(100)}, None, "aaaa1111")
    record(history, {"h1": host(102)}, None, "bbbb2222")
    lines = [plain(line) for line in diff_lines(diff(history, "aaaa", "bbbb"), "before", "after")]
    assert [line.split()[-1] for line in lines[3:]] == ["+0.002", "-0.002"]


def test_equal_changes_of_hosts_are_one_row(history: History) -> None:
    names = [f"gh200-{n:02d}" for n in range(1, 17)]
    record(history, {name: host(100) for name in names}, None, "aaaa1111")
    record(history, {name: host(700 + n) for n, name in enumerate(names)}, None, "bbbb2222")
    lines = [plain(line) for line in diff_lines(diff(history, "aaaa", "bbbb"), "before", "after")]
    assert max(map(cells, lines)) <= WIDTH
    rows = [line for line in lines if line.startswith("gh200-[01-16]")]
    assert len(rows) == 2
    assert "+0.59 to +0.60" in rows[0] or "+0.59 to +0.60" in rows[1]
