"""The cache rung: what would leave memory, what is spared, what became of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fleetmem.controller.answer import envelope as env
from fleetmem.controller.answer.exit_codes import exit_code
from fleetmem.controller.cli.reclaim_cache import check_options
from fleetmem.controller.errors import UsageError
from fleetmem.controller.reclaim.cache.plan import CacheEnd, CachePlan, make_plan, outcome, verdict
from fleetmem.controller.reclaim.cache.section import cache_section
from fleetmem.controller.reclaim.options import ReclaimOptions
from fleetmem.controller.render.kit.line import WIDTH, cells, plain
from fleetmem.controller.render.reclaim.cache import (
    cache_plan_lines,
    cache_result_lines,
    describe_cache,
)
from fleetmem.controller.render.runs import recorded_lines
from tests.unit.memory.memory_samples import MIB, cached, readings

GIB = 1 << 30

FILES = [
    cached("/models/a/1.bin", {"1": 500, "0": 100}),
    cached("/models/a/2.bin", {"1": 200}, mapped_by=[41]),
    cached("/models/a/3.bin", {"1": 50}, dirty_bytes=3 * MIB),
    cached("/models/a/4.bin", {"0": 40}),
    cached("/usr/lib/libc.so", {"1": 10}, mapped_by=[41, 42], sources=["mapping"]),
]


def plan(paths: tuple[str, ...] = ("/models/a",), files: list[Any] | None = None) -> CachePlan:
    found = readings(files=FILES if files is None else files)
    return make_plan(found, paths, "auto", {41: "python3 41"})


def done(files: list[Any], **more: Any) -> CacheEnd:
    """What the action answers."""
    reading = {
        "mode": "auto",
        "target_node": None,
        "files": files,
        "nodes": [],
        "freed_bytes": sum(one["before_bytes"] - one["after_bytes"] for one in files),
        "moved_bytes": 0,
        "spared_bytes": 0,
        "problems": [],
        "seconds": 0.1,
        **more,
    }
    return CacheEnd(reading, None, False, 0.2)


def row(path: str, result: str, before: int, after: int, **more: Any) -> dict[str, Any]:
    return {
        "path": path,
        "raw": None,
        "device": "254:0",
        "inode": 0,
        "result": result,
        "why": None,
        "residue": None,
        "before_bytes": before * MIB,
        "after_bytes": after * MIB,
        "before": None,
        "after": None,
        **more,
    }


def test_named_files_that_are_clean_and_unmapped_are_the_targets() -> None:
    made = plan()
    assert [file.path for file in made.targets] == ["/models/a/1.bin", "/models/a/4.bin"]
    assert [(one.file.path, one.why) for one in made.spared] == [
        ("/models/a/2.bin", "mapped by python3 41"),
        ("/models/a/3.bin", "not all of it is written to disk yet"),
    ]
    assert made.epoch == 4
    assert made.nodes == ()


def test_without_a_path_it_is_what_lies_on_a_gpus_node() -> None:
    made = plan(())
    assert [file.path for file in made.targets] == ["/models/a/1.bin"]
    assert [one.file.path for one in made.spared] == [
        "/models/a/2.bin",
        "/models/a/3.bin",
        "/usr/lib/libc.so",
    ]
    assert made.nodes == (1,)


def test_more_files_than_a_plan_holds_are_said_and_come_next() -> None:
    """What was dropped is not all that was meant, so the next step is the same command."""
    found = readings(files=FILES[:1])
    found["pagecache.files"]["unlisted"] = {"files": 94_000, "resident_bytes": 393_150_464}
    made = make_plan(found, ("/models/a",), "auto", {})
    assert made.unlisted == 94_000
    assert made.problems == (
        "94000 more files with 393150464 bytes in memory are not in this plan, the largest are: "
        "apply it and run it again for the rest",
    )
    section = cache_section(made, found, done([row("/models/a/1.bin", "dropped", 600, 0)]), None,
                            "h1")  # fmt: skip
    assert section["verdict"] == "reclaimed"
    assert section["next"] == ["fleetmem reclaim -H h1 --cache /models/a --yes"]


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"filesystem": "tmpfs"}, "refused: tmpfs has no other copy of it"),
        ({"mapped_elsewhere": True}, "mapped by a process that is not visible here"),
        ({"writeback_bytes": 5}, "not all of it is written to disk yet"),
        ({"deleted": True}, "deleted, and kept by a process that has it open"),
        ({"mapped_by": [1, 2, 3, 4]}, "mapped by process 1, process 2, process 3 and 1 more"),
        (
            {"resident_bytes": None, "by_numa_node": None, "problem": "not its owner"},
            "not its owner",
        ),
    ],
)
def test_each_reason_to_spare(more: dict[str, Any], why: str) -> None:
    made = plan(files=[cached("/models/a/1.bin", {"1": 500}, **more)])
    assert made.targets == ()
    assert [one.why for one in made.spared] == [why]
    assert verdict(made, None)[0] == "nothing_to_do"


def test_the_hash_covers_files_mode_and_boot() -> None:
    made = plan()
    other = plan(files=FILES[:1])
    assert len(made.hash) == 64
    assert made.hash != other.hash
    assert [row[0] for row in made.document["files"]] == ["/models/a/1.bin", "/models/a/4.bin"]


def test_a_path_that_is_no_utf8_goes_as_hex() -> None:
    made = plan(files=[cached("/models/\\xff", {"1": 5}, raw="2f6d2fff")])
    assert made.targets[0].argument == "hex:2f6d2fff"


def test_all_gone_is_reclaimed_a_residue_is_host_pages() -> None:
    made = plan()
    good = done(
        [row("/models/a/1.bin", "dropped", 600, 0), row("/models/a/4.bin", "migrated", 40, 40)]
    )
    assert verdict(made, good) == ("reclaimed", "all of them left memory")
    assert outcome(made, good) == "ok"
    bad = done([row("/models/a/1.bin", "partial", 600, 100, residue="mapped, locked or pinned"),
                row("/models/a/4.bin", "dropped", 40, 0)])  # fmt: skip
    assert verdict(made, bad) == (
        "host_pages",
        "1 of 2 files stay in part: mapped, locked or pinned",
    )
    assert outcome(made, bad) == "partial"


def test_a_file_that_was_mapped_meanwhile_is_no_failure_of_the_rest() -> None:
    end = done([row("/models/a/1.bin", "dropped", 600, 0),
                row("/models/a/4.bin", "spared", 40, 40, why="mapped by 77")])  # fmt: skip
    assert verdict(plan(), end) == ("reclaimed", "1 spared meanwhile: mapped by 77")


def test_an_end_that_was_not_seen_is_unknown() -> None:
    end = CacheEnd(None, "the connection ended", True, None)
    assert verdict(plan(), end) == ("unknown", "the connection ended")
    assert outcome(plan(), end) == "failed"


def test_the_section_has_nodes_and_the_gpu_before_and_after() -> None:
    before, after = readings(files=FILES), readings(files=[])
    after["numa.nodes"]["nodes"][1]["free_bytes"] += 500 * MIB
    after["gpu.devices"]["gpus"][0]["used_bytes"] -= 500 * MIB
    after["gpu.devices"]["gpus"][0]["free_bytes"] += 500 * MIB
    end = done(
        [row("/models/a/1.bin", "dropped", 600, 0), row("/models/a/4.bin", "dropped", 40, 0)]
    )
    section = cache_section(plan(), before, end, after, "h1")
    hbm = section["numa_nodes"][1]
    assert hbm["after_free_bytes"] - hbm["before_free_bytes"] == 500 * MIB
    assert hbm["planned_bytes"] == 500 * MIB
    gpu = section["gpus"][0]
    assert gpu["before_bytes"] - gpu["after_bytes"] == 500 * MIB  # type: ignore[operator]
    assert (gpu["before_free_bytes"], gpu["after_free_bytes"]) == (900 * MIB, 1400 * MIB)
    assert gpu["verdict"] == "reclaimed"
    found = env.new_host("h1", "ok")
    found["reclaim"] = section
    lines = [plain(line).strip() for line in cache_result_lines([found])]
    assert "GPU 0: used 1.1 → 0.6, free 0.9 → 1.4 GiB by NVML" in lines
    assert any(line.startswith("NUMA 1: free 0.9 → 1.4 GiB") for line in lines)
    assert section["targets"] == []
    assert section["cache"]["freed_bytes"] == 640 * MIB
    assert [one["result"] for one in section["cache"]["files"]] == ["dropped", "dropped"]
    assert section["next"] == ["fleetmem snapshot -H h1 --phase after-action"]


def test_a_dry_run_says_the_whole_command() -> None:
    made = plan(("/models/it's here",))
    section = cache_section(made, readings(files=FILES), None, None, "h1")
    assert section["verdict"] == "planned"
    assert section["next"] == ["fleetmem reclaim -H h1 --cache '/models/it'\"'\"'s here' --yes"]
    assert {one["result"] for one in section["cache"]["files"]} == {"planned"}


def entry(host: str, made: CachePlan, end: CacheEnd | None = None) -> Any:
    found = env.new_host(host, "ok")
    found["reclaim"] = cache_section(made, readings(files=FILES), end, None, host)
    return found


def asked(**more: Any) -> dict[str, Any]:
    """What the post-check's probe answered."""
    reading = {
        "url": "http://127.0.0.1:8000/health",
        "method": "GET",
        "model": None,
        "status": 200,
        "problem": None,
        "seconds": 0.314,
        "body_bytes": 2,
        "listening": [9],
        "read_bytes": 3 * GIB,
        "processes": [{"pid": 9, "comm": "python3", "listens": True, "read_bytes": 3 * GIB}],
        "disks_read_bytes": 4 * GIB,
        "disks": [],
        "denied": 0,
        **more,
    }
    return {"outcome": "ok", "reason": None, "reading": reading, "seconds": 0.4}


REFUSED = {"outcome": "failed", "reason": "the connection ended", "reading": None, "seconds": None}
GOOD = done([row("/models/a/1.bin", "dropped", 600, 0), row("/models/a/4.bin", "dropped", 40, 0)])


def after_check(host: str, answer: dict[str, Any]) -> Any:
    """A host whose pages are gone and whose engine was asked."""
    made = replace(plan(), post_check="http://127.0.0.1:8000/health")
    found = env.new_host(host, "ok")
    found["reclaim"] = cache_section(made, readings(files=FILES), GOOD, None, host, checked=answer)
    return found


@pytest.mark.parametrize(
    ("answer", "code", "said"),
    [
        (asked(), 0, "GET http://127.0.0.1:8000/health: 200 in 0.31 s; its 1 process read 3.0 GiB"
         " from disk, all disks 4.0 GiB"),
        (asked(read_bytes=0, disks_read_bytes=0), 0,
         "GET http://127.0.0.1:8000/health: 200 in 0.31 s; its 1 process read nothing from disk,"
         " all disks 0 GiB"),
        (asked(status=500), 5, "GET http://127.0.0.1:8000/health: 500 in 0.31 s; its 1 process"
         " read 3.0 GiB from disk, all disks 4.0 GiB"),
        (asked(status=None, problem="no answer in time", read_bytes=None, disks_read_bytes=None), 5,
         "GET http://127.0.0.1:8000/health: no answer in time; bytes read by its processes are"
         " unknown, disks unknown"),
        (REFUSED, 5, "http://127.0.0.1:8000/health: the connection ended"),
    ],
)  # fmt: skip
def test_the_post_check_is_said_and_counts(answer: Any, code: int, said: str) -> None:
    """A check that failed is the run's status; the verdict about memory stays."""
    found = after_check("h1", answer)
    assert found["reclaim"]["verdict"] == "reclaimed"
    assert found["reclaim"]["cache"]["post_check"]["answered"] is (code == 0)
    text = " ".join(" ".join(plain(line) for line in cache_result_lines([found])).split())
    assert f"post-check {said}" in text
    whole = env.new_envelope(env.new_run("reclaim"), ["h1"], [found])
    assert exit_code(whole) == code


def test_post_checks_of_many_hosts_are_folded_the_failed_ones_first() -> None:
    hosts = [after_check(f"h{n}", asked(seconds=n / 10)) for n in range(1, 5)]
    hosts.append(after_check("h5", asked(status=503)))
    lines = [plain(line).strip() for line in cache_result_lines(hosts)]
    checks = [line for line in lines if line.startswith("post-check ")]
    assert checks[0].startswith("post-check h5: GET http://127.0.0.1:8000/health: 503")
    assert checks[1].startswith("post-check h[1-4]: GET http://127.0.0.1:8000/health: 200 in")
    assert len(checks) == 2
    assert any("(and 3 alike)" in line for line in lines)


def test_the_screen_of_one_host() -> None:
    lines = [plain(line) for line in cache_plan_lines([entry("h1", plan())])]
    assert lines[0].startswith("PLAN ")
    assert any(line.startswith("/models/a/*.bin") and "NUMA 0-1" in line for line in lines)
    assert "    mapped by python3 41" in lines
    assert max(map(cells, lines)) <= WIDTH
    assert describe_cache([entry("h1", plan())]) == ("0.6 GiB of file cache (2 files)", 1)


def test_many_files_are_counted_in_thousands() -> None:
    planned = entry("h1", plan())
    planned["reclaim"]["cache"]["files"] *= 600
    lines = [plain(line) for line in cache_result_lines([planned])]
    assert lines[0].startswith("! planned     h1: 1 200 files, ")
    assert lines[0].endswith(" GiB would be migrated or dropped")
    assert describe_cache([planned])[0].endswith(" (1 200 files)")


def test_the_screen_of_many_hosts_folds_them() -> None:
    hosts = [entry(f"gh200-{n:02d}", plan()) for n in range(1, 17)]
    lost = env.new_host("gh200-17", "unreachable", {"code": "connect_timeout", "message": "no",
                                                      "hint": None})  # fmt: skip
    lines = [plain(line) for line in cache_result_lines([*hosts, lost])]
    assert lines[0].startswith("– unreachable")
    assert lines[1].startswith("! planned     gh200-[01-16]: 2 files, 0.6 GiB")
    assert max(map(cells, lines[:2])) <= WIDTH


@pytest.mark.parametrize(
    ("options", "stored", "said"),
    [
        (ReclaimOptions(cache=("/x",), gpu="0"), False, "cannot be combined with --gpu"),
        (ReclaimOptions(cache=(), pids=(1,)), False, "cannot be combined with --gpu"),
        (ReclaimOptions(cache=("/x",)), True, "are not stored"),
    ],
)
def test_one_line_for_what_does_not_go_together(
    options: ReclaimOptions, stored: bool, said: str
) -> None:
    with pytest.raises(UsageError) as caught:
        check_options(options, stored)
    assert said in caught.value.message


def test_a_recorded_run_is_shown_as_it_was() -> None:
    end = done(
        [row("/models/a/1.bin", "dropped", 600, 0), row("/models/a/4.bin", "dropped", 40, 0)]
    )
    found = entry("h1", plan(), end)
    rung = {"rung": "cache", "outcome": "ok", "seconds": 0.2, "signalled": [], "why": None}
    found["reclaim"]["rungs"] = [{**rung, "freed_bytes": 640 * MIB}]
    whole = env.finish(env.new_envelope(env.new_run("reclaim"), ["h1"], [found]), 0)
    lines = [plain(line) for line in recorded_lines(whole)]
    assert any(line.startswith("/models/a/*.bin") for line in lines)
    assert any(
        "✓ reclaimed   h1: 0.6 GiB of file pages dropped in 0.20 s" in line for line in lines
    )
    assert not any("nothing has been changed" in line for line in lines)
