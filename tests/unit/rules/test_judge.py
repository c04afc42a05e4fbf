"""Readings and rules to findings: what is judged, what is not, how it is said and folded."""

from __future__ import annotations

from typing import Any

import pytest

from fleetmem.controller.rules import playbook
from fleetmem.controller.rules.judge import Case, judge, worst
from fleetmem.controller.rules.views import Look
from tests.unit.memory.memory_samples import (
    MIB,
    cached,
    gpu,
    group,
    groups,
    node,
    process,
    readings,
    segment,
)
from tests.unit.reclaim.reclaim_world import identity, owner

SHIPPED = ("hbm-page-cache", "memory")


def book(**rule: Any) -> playbook.Playbook:
    """A playbook of one rule, given as Condition parts and words."""
    field = rule.pop("field")
    comparator, limit = rule.pop("test")
    words = {"severity": "warn", "say": "{value}", **rule}
    where = tuple(playbook.Condition(*one) for one in words.pop("where", ()))
    return playbook.Playbook(
        "b",
        "",
        "b",
        rules=(
            playbook.Rule(
                playbook="b",
                id="r",
                where=where,
                condition=playbook.Condition(field, comparator, limit),
                **words,
            ),
        ),
    )


def case(found: dict[str, Any], host: str = "h1", before: dict[str, Any] | None = None) -> Case:
    return Case(host, Look(found), Look(before) if before else None)


def nodes_of(file_mib: int, **more: int) -> list[dict[str, Any]]:
    """A CPU node and an HBM node with that much file cache."""
    return [
        node(0, "cpu", "0", total=200_000, free=100_000, anon=100_000),
        node(1, "gpu", "", total=100_000, free=100_000 - file_mib, file=file_mib, **more),
    ]


@pytest.fixture(scope="module")
def shipped() -> list[playbook.Playbook]:
    return [playbook.load(name) for name in SHIPPED]


def rules(findings: list[Any]) -> list[str]:
    return [one["rule"] for one in findings]


# --- comparators ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("test", "hit"),
    [
        (("above", 800 * MIB - 1), True),
        (("above", 800 * MIB), False),
        (("at_least", 800 * MIB), True),
        (("below", 800 * MIB), False),
        (("at_most", 800 * MIB), True),
        (("equals", 800 * MIB), True),
        (("one_of", [1, 800 * MIB]), True),
        (("none_of", [1, 800 * MIB]), False),
        (("share_above", ("total_bytes", 39.0)), True),
        (("share_above", ("total_bytes", 40.0)), False),
        (("present", True), True),
        (("present", False), False),
    ],
)
def test_each_comparator(test: tuple[str, Any], hit: bool) -> None:
    one = book(each="numa.nodes", field="file_bytes", test=test, where=[("id", "equals", 1)])
    assert bool(judge([one], [case(readings())])) is hit


@pytest.mark.parametrize("word", ["above", "below", "at_most", "equals", "one_of", "none_of"])
def test_nothing_is_concluded_from_what_is_unknown(word: str) -> None:
    """The CPU node's device memory is not known: no comparator matches it."""
    nodes = [node(0, "cpu", "0", total=100, free=100, device=None)]
    limit: Any = [None] if word.endswith("of") else 0
    one = book(each="numa.nodes", field="device_bytes", test=(word, limit))
    assert judge([one], [case(readings(nodes, [], [], {}))]) == []


def test_text_is_matched_as_a_pattern_or_by_a_part() -> None:
    found = case(readings())
    one = book(each="gpu.devices", field="name", test=("matches", "NVIDIA GH200*"))
    assert len(judge([one], [found])) == 1
    one = book(each="gpu.devices", field="name", test=("contains", "480GB"))
    assert len(judge([one], [found])) == 1
    one = book(each="gpu.devices", field="name", test=("matches", "GH200*"))
    assert judge([one], [found]) == []


def test_a_reading_that_is_missing_is_not_judged() -> None:
    found = readings()
    found["numa.nodes"] = None
    one = book(each="numa.nodes", field="file_bytes", test=("present", False))
    assert judge([one], [case(found)]) == []


def test_rows_inside_a_reading_are_judged_by_their_path() -> None:
    one = book(
        each="gpu.processes.gpus.processes",
        field="used_bytes",
        test=("above", 1),
        say="{pid} keeps {used_bytes}",
        subject="process {pid}",
    )
    found = judge([one], [case(readings())])
    assert found[0]["evidence"]["say"] == "41 keeps 200 MiB"
    assert found[0]["subject"] == "process 41"


def test_a_sum_over_rows() -> None:
    """Three segments of 400 MiB are above 1 GiB together, and none is alone."""
    segments = [segment(f"/dev/shm/s{n}", 400) for n in range(3)]
    segments.append(segment("/dev/shm/live", 4000, owner_state="live"))
    one = book(
        each="shm.segments",
        where=[("owner_state", "equals", "dead")],
        field="resident_bytes",
        test=("above", 1024 * MIB),
        total=True,
        say="{resident_bytes} in {count}",
    )
    found = judge([one], [case(readings(segments=segments))])
    assert found[0]["evidence"]["say"] == "1.2 GiB in 3"
    assert judge([one], [case(readings(segments=segments[:2]))]) == []


def test_only_the_largest_rows_become_findings() -> None:
    many = [process(n, "p", n) for n in range(1, 20)]
    one = book(each="processes.memory", field="anon_bytes", test=("above", 0), most=2, say="{pid}")
    found = judge([one], [case(readings(processes=many, listed={}))])
    assert sorted(row["evidence"]["say"] for row in found) == ["18", "19"]


# --- comparing runs and hosts --------------------------------------------------------------


def test_growth_needs_the_same_row_before() -> None:
    old = readings(nodes_of(0), [], [], {})
    new = readings(nodes_of(0), [], [], {})
    new["numa.nodes"]["nodes"][1]["unaccounted_bytes"] = 3000 * MIB
    one = book(each="numa.nodes", field="unaccounted_bytes", test=("grows", 1024 * MIB),
               say="{unaccounted_bytes}, {expected} before")  # fmt: skip
    found = judge([one], [case(new, before=old)])
    assert [row["evidence"]["say"] for row in found] == ["2.9 GiB, 0 bytes before"]
    assert judge([one], [case(new)]) == []
    assert judge([one], [case(old, before=new)]) == []


def test_one_host_is_unlike_its_group() -> None:
    """Two GPUs on four hosts, one on the fifth, none known on the sixth."""
    two = [gpu(0), gpu(1, None, "GPU-b")]
    cases = [case(readings(gpus=two), f"h{n}") for n in range(1, 5)]
    cases.append(case(readings(gpus=two[:1]), "h5"))
    unread = readings()
    unread["gpu.devices"] = None
    cases.append(case(unread, "h6"))
    one = book(each="host.facts", field="gpu_count", test=("unlike_group", True),
               say="{gpu_count} GPUs, the group has {expected}")  # fmt: skip
    found = judge([one], cases)
    assert [(row["hosts"], row["evidence"]["say"]) for row in found] == [
        ("h5", "1 GPUs, the group has 2")
    ]


def test_two_hosts_are_no_group() -> None:
    cases = [case(readings(), "h1"), case(readings(gpus=[]), "h2")]
    one = book(each="host.facts", field="gpu_count", test=("unlike_group", True))
    assert judge([one], cases) == []


def test_equal_findings_of_hosts_are_one_worst_first() -> None:
    cases = [case(readings(), f"gh200-{n:02d}") for n in range(1, 4)]
    warn = book(each="numa.nodes", field="file_bytes", test=("above", 0), say="{file_bytes}")
    crit = book(each="host.facts", field="gpu_count", test=("present", True), say="x",
                severity="critical")  # fmt: skip
    found = judge([warn, crit], cases)
    assert [(row["severity"], row["subject"], row["hosts"]) for row in found] == [
        ("critical", "host", "gh200-[01-03]"),
        ("warn", "NUMA node 0", "gh200-[01-03]"),
        ("warn", "NUMA node 1", "gh200-[01-03]"),
    ]
    assert worst(found) == "critical"
    assert worst([]) is None


# --- what the shipped playbooks say --------------------------------------------------------


def test_the_gh200_case(shipped: list[playbook.Playbook]) -> None:
    """61 GiB of checkpoint on HBM that nobody maps: what is seen, and the whole command."""
    files = [cached("/models/ds v4/1.safetensors", {"1": 61 * 1024}),
             cached("/models/small/1.bin", {"1": 100}, mapped_by=[41])]  # fmt: skip
    found = judge(shipped, [case(readings(nodes_of(62 * 1024), files), "gh200-01")])
    one = next(row for row in found if row["rule"] == "hbm-page-cache/file-pages-on-gpu")
    assert one["evidence"]["say"] == (
        "62.0 GiB of file pages on NUMA node 1: 61.0 GiB not mapped by any process, "
        "100 MiB mapped by 41"
    )
    assert one["next"] == ["fleetmem reclaim -H gh200-01 --cache '/models/ds v4' --dry-run"]
    assert one["evidence"]["file_bytes"] == 62 * 1024 * MIB


def test_file_pages_that_nobody_maps(shipped: list[playbook.Playbook]) -> None:
    files = [cached("/models/a/1.safetensors", {"1": 2048})]
    found = judge(shipped, [case(readings(nodes_of(2048), files))])
    one = next(row for row in found if row["rule"] == "hbm-page-cache/file-pages-on-gpu")
    assert one["evidence"]["say"].endswith("2.0 GiB not mapped by any process, 0 bytes mapped by –")


def test_integrated_memory_gets_no_gh200_advice(shipped: list[playbook.Playbook]) -> None:
    nodes = [node(0, "gpu", "0-19", total=100_000, free=20_000, file=80_000)]
    files = [cached("/models/x", {"0": 70_000})]
    found = judge(shipped, [case(readings(nodes, files, [gpu(numa_node=0)], {}))])
    assert rules(found) == ["hbm-page-cache/integrated-memory"]
    told = dict.fromkeys(("total_bytes", "reserved_bytes", "used_bytes", "free_bytes"))
    gb10 = {
        **gpu(numa_node=None),
        **told,
        "errors": ["memory: Not Supported (3)"],
        "error_codes": {"memory": 3},
    }
    nodes[0].update(kind="cpu", file_bytes=20_000 * MIB)
    found = judge(shipped, [case(readings(nodes, files, [gb10], {0: {41: 60_000}}))])
    assert rules(found) == ["hbm-page-cache/integrated-memory"]


def test_no_command_without_its_path(shipped: list[playbook.Playbook]) -> None:
    """File pages that were not traced: nothing is offered to drop."""
    found = judge(shipped, [case(readings(nodes_of(5000), []))])
    one = next(row for row in found if row["rule"] == "hbm-page-cache/file-pages-on-gpu")
    assert one["next"] == []


def test_leftover_shared_memory_and_pools_larger_than_the_host(
    shipped: list[playbook.Playbook],
) -> None:
    pool = {"kind": "zero", "name": "/dev/zero", "device": "0:1", "inode": 7,
            "map_bytes": 400_000 * MIB}  # fmt: skip
    processes = [process(41, "vllm", 10, shared=[pool, pool], pinned_bytes=2048 * MIB)]
    found = judge(
        shipped,
        [case(readings(nodes_of(0), [], [], {}, processes, [segment("/dev/shm/a", 6554)]))],
    )
    assert rules(found) == [
        "memory/host-pool-too-large",
        "memory/stale-shm",
        "memory/pinned-looks-like-cache",
    ]
    assert found[1]["evidence"]["say"].startswith("6.4 GiB in 1 segments")


def test_a_spill_without_a_policy(shipped: list[playbook.Playbook]) -> None:
    numa = {"by_numa_node": {"1": {"anon_bytes": 900 * MIB}}, "policies": {"default": 1}}
    bound = {**numa, "policies": {"bind:1": 1}}
    processes = [process(41, "a", 900, numa=numa), process(42, "b", 900, numa=bound)]
    found = judge(shipped, [case(readings(nodes_of(0), [], [], {}, processes))])
    assert [row["evidence"]["say"].split(" has")[0] for row in found] == ["a 41"]


def test_a_quiet_host_has_no_finding(shipped: list[playbook.Playbook]) -> None:
    assert judge(shipped, [case(readings(nodes_of(100), [], [gpu()], {}))]) == []


def test_a_path_from_a_host_cannot_become_a_command(shipped: list[playbook.Playbook]) -> None:
    files = [cached("/models/$(reboot);x/1", {"1": 5000})]
    found = judge(shipped, [case(readings(nodes_of(5000), files))])
    one = next(row for row in found if row["rule"] == "hbm-page-cache/file-pages-on-gpu")
    assert one["next"] == ["fleetmem reclaim -H h1 --cache '/models/$(reboot);x' --dry-run"]


# --- control groups ------------------------------------------------------------------------


def of_groups(shipped: list[playbook.Playbook], *rows: Any, version: int = 2) -> list[Any]:
    found = {**readings(), "cgroups.memory": groups(*rows, version=version)}
    return [one for one in judge(shipped, [case(found)]) if "/group-" in one["rule"]]


@pytest.mark.parametrize(
    ("more", "rule"),
    [
        ({"max_bytes": 1000 * MIB}, "memory/group-near-limit"),
        ({"max_bytes": 1001 * MIB}, None),
        ({"max_bytes": None}, None),
        ({"max_bytes": 5000 * MIB, "high_bytes": 950 * MIB}, "memory/group-near-limit"),
        ({"max_bytes": 950 * MIB, "file_bytes": 45 * MIB}, "memory/group-near-limit"),
        ({"max_bytes": 950 * MIB, "file_bytes": 800 * MIB}, "memory/group-full-of-cache"),
        ({"max_bytes": 950 * MIB, "file_bytes": None}, None),
        ({"max_bytes": 0}, None),
    ],
)
def test_a_group_near_its_limit(
    shipped: list[playbook.Playbook], more: dict[str, Any], rule: str | None
) -> None:
    """From 90 % on; file cache makes room by itself, so it is told apart."""
    found = of_groups(shipped, group("/engine.service", 900, **more))
    assert [one["rule"] for one in found] == ([] if rule is None else [rule])


def test_what_is_said_of_a_group(shipped: list[playbook.Playbook]) -> None:
    one = group("/a.slice/vllm.service", 62_000, max_bytes=64_000 * MIB, file_bytes=1000 * MIB)
    (found,) = of_groups(shipped, one)
    assert (found["subject"], found["severity"]) == ("/a.slice/vllm.service", "warn")
    assert found["evidence"]["say"] == (
        "/a.slice/vllm.service has 60.5 GiB of 62.5 GiB allowed, 59.6 GiB without file cache"
    )


def test_a_kill_is_told_of_the_group_it_happened_in(shipped: list[playbook.Playbook]) -> None:
    """Version 2 counts it in every group above, too; version 1 does not."""
    rows = [
        group("/kubepods", 90, events={"oom_kill": 5}),
        group("/kubepods/pod1", 80, events={"oom_kill": 3}),
        group("/kubepods/pod1/engine", 70, events={"oom_kill": 3}),
        group("/kubepods/pod2", 60, events={}),
        group("/kubepods/pod3/x", 50, events={"oom_kill": 1}),
    ]
    said = {one["subject"]: one["evidence"]["oom_kills"] for one in of_groups(shipped, *rows)}
    assert said == {"/kubepods/pod1/engine": 3, "/kubepods/pod3/x": 1, "/kubepods": 1}
    said = {
        one["subject"]: one["evidence"]["oom_kills"] for one in of_groups(shipped, *rows, version=1)
    }
    assert said == {
        "/kubepods": 5, "/kubepods/pod1": 3, "/kubepods/pod1/engine": 3, "/kubepods/pod3/x": 1,
    }  # fmt: skip


def test_memory_of_processes_that_have_ended(shipped: list[playbook.Playbook]) -> None:
    """Added up over the GPUs; a fork may keep it, so a dry run is what comes next."""
    found = readings(listed={0: {41: 600, 42: 700}})
    assert judge(shipped, [case(found)]) == []
    rows = found["gpu.processes"]["gpus"][0]["processes"]
    for row in rows:
        row["state"] = "dead"
    (one,) = judge(shipped, [case(found)])
    assert (one["rule"], one["severity"]) == ("memory/held-by-no-process", "warn")
    assert (
        one["evidence"]["say"] == "1.3 GiB of GPU memory are charged to PIDs that no longer exist"
    )
    assert one["next"] == ["fleetmem reclaim -H h1 --dry-run"]
    rows[0]["state"] = "implausible"
    assert judge(shipped, [case(found)]) == []


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({}, "launcher dead"),
        ({"owner": owner("session", "c1", None)}, "launcher dead"),
        ({"owner": owner("unit", "vllm.service", "gone")}, "unit is gone"),
        ({"owner": owner("unit", "vllm.service", "live")}, None),
        ({"owner": owner("job", "77", None)}, None),
        ({"launcher_alive": True}, None),
        ({"group_leader_alive": True}, None),
    ],
)
def test_gpu_memory_of_processes_whose_starters_are_gone(
    shipped: list[playbook.Playbook], more: dict[str, Any], said: str | None
) -> None:
    """Two of them together are above 1 GiB; a dry run judges them, the rule does not."""
    rows = [process(pid, "VLLM::Worker_TP", 1) for pid in (41, 42)]
    found = readings(listed={0: {41: 600, 42: 700}}, processes=rows)
    people = [identity(pid, **more) for pid in (41, 42)]
    found["processes.identity"] = {"processes": people, "gone": [], "denied": 0}
    hits = [one for one in judge(shipped, [case(found)]) if one["rule"] == "memory/launcher-dead"]
    assert bool(hits) is (said is not None)
    for one in hits:
        assert one["evidence"]["say"] == (
            f"1.3 GiB of GPU memory held by VLLM::Worker_TP, {said} (2 in all)"
        )
        assert (one["severity"], one["subject"]) == ("warn", "GPU holders")
        assert one["next"] == ["fleetmem reclaim -H h1 --dry-run"]


@pytest.mark.parametrize("people", [None, {"processes": [], "gone": [41], "denied": 0}])
def test_holders_that_were_not_identified_are_no_finding(
    shipped: list[playbook.Playbook], people: Any
) -> None:
    found = {**readings(listed={0: {41: 1300}}), "processes.identity": people}
    assert judge(shipped, [case(found)]) == []
