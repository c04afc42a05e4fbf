"""The table: rows that add up to each place, nothing twice, unknown is not zero."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetmem.controller.memory.account import gaps, snapshot
from fleetmem.controller.memory.table import closes
from tests.unit.memory.memory_samples import (
    MIB,
    UUID,
    cached,
    gpu,
    node,
    process,
    readings,
    segment,
    share,
)


def rows(section: Any, **match: Any) -> list[Any]:
    return [row for row in section["table"] if all(row[k] == v for k, v in match.items())]


def mib(found: list[Any]) -> list[float]:
    return [row["bytes"] / MIB for row in found]


def test_the_gh200_case_in_one_table() -> None:
    """800 MiB of file pages on HBM: 700 of nobody, 90 mapped, 10 not traced."""
    section = snapshot(readings(), "before-load")
    on_hbm = rows(section, backing="file", location="numa:1")
    assert [(row["owner"], row["bytes"] // MIB, row["lifetime"]) for row in on_hbm] == [
        ("nobody", 700, "cache"),
        ("python3 41", 90, "cache"),
        (None, 10, "cache"),
    ]
    assert on_hbm[0]["evidence"] == ["/models/a/*.safetensors"]
    assert section["phase"] == "before-load"
    assert section["boot_id"] == "boot-1"
    assert section["page_size_bytes"] == 65536
    assert gaps(section) == []


def test_a_gpu_whose_memory_is_a_node_is_a_view_of_it() -> None:
    """NVML's 200 MiB are taken out of the kernel's remainder, and there is no second pile."""
    section = snapshot(readings())
    hbm = section["numa_nodes"][1]
    assert hbm["gpu_uuid"] == UUID
    assert hbm["device_bytes"] == 200 * MIB
    assert hbm["unaccounted_bytes"] == (2048 - 900 - 800 - 100 - 40 - 200) * MIB
    assert section["gpus"][0]["same_as"] == "numa:1"
    assert not rows(section, location=f"gpu:{UUID}")
    parts = ("free", "file", "anon", "shmem", "slab", "hugetlb", "kernel", "device", "unaccounted")
    assert sum(hbm[f"{part}_bytes"] or 0 for part in parts) == hbm["total_bytes"]  # type: ignore[literal-required]


def test_driver_memory_that_the_kernel_counts_is_not_counted_again() -> None:
    """A kernel that counts 150 MiB for drivers: NVML's 200 add the 50 that are missing."""
    nodes = [
        node(0, "cpu", "0", total=1000, free=1000),
        node(1, "gpu", "", total=2048, free=1000, device=150),
    ]
    hbm = snapshot(readings(nodes, files=[]))["numa_nodes"][1]
    assert hbm["device_bytes"] == 200 * MIB
    assert hbm["unaccounted_bytes"] == (2048 - 1000 - 200) * MIB


def test_nvml_never_takes_more_than_is_unexplained() -> None:
    nodes = [
        node(0, "cpu", "0", total=1000, free=1000),
        node(1, "gpu", "", total=2048, free=2000, file=38),
    ]
    section = snapshot(readings(nodes, files=[], listed={0: {41: 500}}))
    assert section["numa_nodes"][1]["device_bytes"] == 10 * MIB
    assert section["numa_nodes"][1]["unaccounted_bytes"] == 0
    assert gaps(section) == []


def test_a_gpu_with_memory_of_its_own_closes() -> None:
    """processes + reserve + free + unaccounted = total; pid 77 is named and not measured."""
    own = gpu(numa_node=None, total=1000, reserved=50, used=450, free=500)
    section = snapshot(readings([node(0, "cpu", "0", total=100, free=100)], [], [own],
                                {0: {41: 300, 77: 100}}))  # fmt: skip
    place = f"gpu:{UUID}"
    assert closes(section["table"], place) == 1000 * MIB
    assert [
        (r["backing"], r["owner"], r["bytes"] // MIB) for r in rows(section, location=place)
    ] == [
        ("device", "python3 41", 300),
        ("device", "process 77", 100),
        ("device", "driver", 50),
        ("free", None, 500),
        ("unaccounted", None, 50),
    ]
    assert section["gpus"][0]["unaccounted_bytes"] == 50 * MIB
    assert gaps(section) == []


def mappings(host: float, space: int, driver: float = 0) -> dict[str, Any]:
    """MiB of managed memory in the host's nodes, its address space, and the driver's own pages."""
    return {
        "map_bytes": (space + 70) * MIB,
        "pss_bytes": int(driver * MIB),
        "uvm_map_bytes": space * MIB,
        "uvm_pss_bytes": int(host * MIB),
        "pinned_resident_bytes": 0,
    }


def by_node(**parts: dict[str, int]) -> dict[str, Any]:
    """numa_maps in MiB: kind of pages = {node: MiB}."""
    names = {name for part in parts.values() for name in part}
    each = {
        name: {f"{kind}_bytes": part[name] * MIB for kind, part in parts.items() if name in part}
        for name in names
    }
    return {"by_numa_node": each, "policies": {}}


def test_managed_memory_in_the_hosts_memory_is_its_process_own() -> None:
    """It is in no counter of the kernel: taken out of what is left, never added."""
    nodes = [node(0, "cpu", "0", total=1000, free=300, anon=100)]
    mine = process(41, "python3", 0, driver=mappings(512, 4096))
    section = snapshot(readings(nodes, [], [], {}, [mine]))
    assert [
        (r["owner"], r["bytes"] // MIB, r["lifetime"]) for r in rows(section, backing="device")
    ] == [("python3 41", 512, "process")]
    assert section["numa_nodes"][0]["unaccounted_bytes"] == 88 * MIB
    assert gaps(section) == []


def test_what_the_driver_keeps_in_the_hosts_memory_for_a_process() -> None:
    """An H200's context: 70 MiB over nvidiactl and 2 over uvm. The kernel counts them as file
    pages of the process, and in no counter of the node."""
    nodes = [node(0, "cpu", "0", total=1000, free=300, anon=100)]
    own = {**share(0), "pss_file_bytes": 172 * MIB}
    mine = process(41, "python3", 0, proportional=own, driver=mappings(2, 2, driver=70))
    section = snapshot(readings(nodes, [], [], {}, [mine]))
    (row,) = rows(section, backing="device")
    assert (row["owner"], row["bytes"] // MIB, row["lifetime"]) == ("python3 41", 72, "process")
    assert row["evidence"] == ["driver memory of pid 41", "managed memory of pid 41"]
    assert section["processes"][0]["file_bytes"] == 100 * MIB
    assert gaps(section) == []


def test_managed_memory_of_two_nodes_stands_on_each() -> None:
    """NVML's 200 do not have it in them; pages mapped over the GPU's own node are among them."""
    nodes = [
        node(0, "cpu", "0", total=1000, free=300),
        node(1, "gpu", "", total=2048, free=1000),
    ]
    numa = by_node(managed={"0": 512, "1": 88}, driver={"0": 70, "1": 30})
    mine = process(41, "python3", 0, driver=mappings(600, 600, driver=100), numa=numa)
    section = snapshot(readings(nodes, [], None, {0: {41: 200}}, [mine]))
    assert [
        (r["location"], r["owner"], r["bytes"] // MIB) for r in rows(section, backing="device")
    ] == [("numa:0", "python3 41", 582), ("numa:1", "python3 41", 288)]
    assert [n["unaccounted_bytes"] // MIB for n in section["numa_nodes"]] == [118, 760]
    assert gaps(section) == []


def test_who_has_what_of_a_gpu_whose_memory_is_a_node() -> None:
    """By NVML's lists, as on any GPU; 77 is dead, 150 of the 350 the kernel counts itself."""
    nodes = [
        node(0, "cpu", "0", total=1000, free=1000),
        node(1, "gpu", "", total=2048, free=1000, device=150),
    ]
    found = readings(nodes, [], None, {0: {41: 200, 42: 100, 77: 50}},
                     [process(41, "python3", 0), process(42, "python3", 0)])  # fmt: skip
    found["gpu.processes"]["gpus"][0]["processes"][2]["state"] = "dead"
    section = snapshot(found)
    assert [
        (r["location"], r["owner"], r["bytes"] // MIB) for r in rows(section, backing="device")
    ] == [("numa:1", "python3 41", 200), ("numa:1", "python3 42", 100), ("numa:1", None, 50)]
    assert section["numa_nodes"][1]["unaccounted_bytes"] == 698 * MIB
    assert gaps(section) == []


@pytest.mark.parametrize(
    ("space", "managed"),
    [(2050, 2048), (4098, 2057), (1002, 1000), (2, 0)],  # MiB; 2 of them are in the host's
)
def test_managed_memory_on_a_gpu_is_on_no_list(space: int, managed: int) -> None:
    """An H200 whose process touched 2 GiB from the GPU: NVML charges 612 MiB and 2057 are used
    beside them. At most what is mapped, and not in the host's memory, is the process's."""
    own = gpu(numa_node=None, total=143771, reserved=615, used=2669, free=140487)
    mine = process(41, "python3", 0, driver=mappings(2, space))
    section = snapshot(readings([node(0, "cpu", "0", total=1000, free=900)], [], [own],
                                {0: {41: 612}}, [mine]))  # fmt: skip
    (row,) = rows(section, location=f"gpu:{UUID}", owner="python3 41")
    assert row["bytes"] == (612 + managed) * MIB
    assert "nvml: pid 41" in row["evidence"]
    assert section["gpus"][0]["managed_bytes"] == managed * MIB
    assert section["gpus"][0]["unaccounted_bytes"] == (2057 - managed) * MIB
    assert gaps(section) == []


def test_managed_memory_that_several_could_have_is_nobodys() -> None:
    """500 MiB used on the GPU, and two processes with 400 each that is not in the host's."""
    own = gpu(numa_node=None, total=2000, reserved=0, used=700, free=1300)
    both = [process(pid, "python3", 0, driver=mappings(0, 400)) for pid in (41, 42)]
    found = readings([node(0, "cpu", "0", total=100, free=100)], [], [own],
                     {0: {41: 100, 42: 100}}, both)  # fmt: skip
    section = snapshot(found)
    assert [(r["owner"], r["bytes"] // MIB) for r in rows(section, location=f"gpu:{UUID}")] == [
        (None, 500),
        ("python3 41", 100),
        ("python3 42", 100),
        (None, 1300),
        (None, 0),
    ]
    unclear = rows(section, backing="device", owner=None)[0]
    assert {"41", "42"} <= set(unclear["evidence"][0].split())
    assert all(not one["managed_by_gpu"] for one in section["processes"])
    assert gaps(section) == []


def test_managed_memory_of_several_is_theirs_where_all_of_it_fits() -> None:
    own = gpu(numa_node=None, total=2000, reserved=0, used=1000, free=1000)
    both = [process(pid, "python3", 0, driver=mappings(0, size))
            for pid, size in ((41, 400), (42, 300))]  # fmt: skip
    section = snapshot(readings([node(0, "cpu", "0", total=100, free=100)], [], [own],
                                {0: {41: 100, 42: 100}}, both))  # fmt: skip
    assert {p["pid"]: p["managed_by_gpu"] for p in section["processes"]} == {
        41: {UUID: 400 * MIB},
        42: {UUID: 300 * MIB},
    }
    assert section["gpus"][0]["unaccounted_bytes"] == 100 * MIB


def test_managed_memory_is_not_given_to_two_gpus() -> None:
    """One process with 600 MiB mapped, on two GPUs with 500 and 300 unexplained."""
    other = "GPU-22222222-2222-3333-4444-555555555555"
    two = [gpu(numa_node=None, total=1000, reserved=0, used=600, free=400),
           gpu(1, None, other, total=1000, reserved=0, used=400, free=600)]  # fmt: skip
    mine = process(41, "python3", 0, driver=mappings(0, 600))
    section = snapshot(readings([node(0, "cpu", "0", total=100, free=100)], [], two,
                                {0: {41: 100}, 1: {41: 100}}, [mine]))  # fmt: skip
    assert [one["managed_bytes"] // MIB for one in section["gpus"]] == [500, 100]
    assert [one["unaccounted_bytes"] // MIB for one in section["gpus"]] == [0, 200]
    assert gaps(section) == []


def test_managed_memory_on_a_gpu_whose_memory_is_a_node() -> None:
    nodes = [
        node(0, "cpu", "0", total=1000, free=1000),
        node(1, "gpu", "", total=2048, free=1000),
    ]
    mine = process(41, "python3", 0, driver=mappings(0, 500), numa=by_node())
    section = snapshot(readings(nodes, [], None, {0: {41: 200}}, [mine]))
    (row,) = rows(section, location="numa:1", owner="python3 41")
    assert row["bytes"] == 700 * MIB
    assert section["numa_nodes"][1]["device_bytes"] == 700 * MIB
    assert gaps(section) == []


def test_an_unknown_size_on_a_gpu_stays_unknown() -> None:
    own = gpu(numa_node=None)
    found = readings([node(0, "cpu", "0", total=100, free=100)], [], [own])
    found["gpu.processes"]["gpus"][0]["processes"][0]["used_bytes"] = None
    section = snapshot(found)
    assert section["gpus"][0]["processes_bytes"] is None
    assert section["gpus"][0]["unaccounted_bytes"] is None
    assert rows(section, backing="device", owner="python3 41")[0]["bytes"] is None
    assert closes(section["table"], f"gpu:{UUID}") is None


def test_processes_are_counted_by_their_share_only() -> None:
    """A process without smaps_rollup may share its pages: they stay in the row of nobody seen."""
    nodes = [node(0, "cpu", "0", total=1000, free=300, anon=700)]
    processes = [process(41, "python3", 300), process(42, "bash", 200, proportional=None)]
    section = snapshot(readings(nodes, [], [], {}, processes))
    assert [(r["owner"], r["bytes"] // MIB) for r in rows(section, backing="anon")] == [
        ("python3 41", 300),
        (None, 400),
    ]
    found = {p["pid"]: p for p in section["processes"]}
    assert found[42]["shared"] is True
    assert found[42]["anon_bytes"] == 200 * MIB


def test_shares_by_node_are_scaled_down_to_the_share() -> None:
    """numa_maps counts 400 MiB of whole pages; the share is 100: 3 to 1 over the nodes."""
    numa = {
        "by_numa_node": {"0": {"anon_bytes": 300 * MIB}, "1": {"anon_bytes": 100 * MIB}},
        "policies": {},
    }
    section = snapshot(readings(processes=[process(41, "python3", 100, numa=numa)]))
    mine = [r for r in rows(section, backing="anon") if r["owner"] == "python3 41"]
    assert [(r["location"], r["bytes"] // MIB) for r in mine] == [("numa:0", 75), ("numa:1", 25)]
    assert gaps(section) == []


def test_on_several_nodes_nothing_is_guessed() -> None:
    """Without numa_maps nobody knows which node a process's pages are on."""
    section = snapshot(readings())
    assert [r["owner"] for r in rows(section, backing="anon")] == [None, None]


def test_shared_memory_says_who_keeps_it_and_whether_it_outlives_them() -> None:
    nodes = [node(0, "cpu", "0", total=2000, free=1000, shmem=1000)]
    segments = [
        segment("/dev/shm/left", 400),
        segment("/dev/shm/used", 100, mapped_by=[41], owner_state="live"),
    ]
    pinned = process(41, "python3", 0, proportional=share(0, 500, 400),
                     driver={**mappings(0, 0), "pinned_resident_bytes": 400 * MIB})  # fmt: skip
    section = snapshot(readings(nodes, [], [], {}, [pinned], segments))
    found = [(r["owner"], r["lifetime"], r["bytes"] // MIB) for r in rows(section, backing="shmem")]
    assert found == [
        ("nobody", "persistent", 400),
        ("python3 41", "process", 400),
        ("python3 41", "persistent", 100),
        (None, "process", 100),
    ]
    own = rows(section, backing="shmem", lifetime="process", owner="python3 41")[0]
    assert own["evidence"] == ["pinned host memory of pid 41"]


def test_a_segment_that_one_process_fills_and_others_only_map_is_counted_once() -> None:
    """The one that filled it has all of its pages in its share, and none of them twice."""
    nodes = [node(0, "cpu", "0", total=2000, free=1000, shmem=1000)]
    segments = [segment("/dev/shm/big", 512, mapped_by=[41, 42, 43], owner_state="live")]
    family = [process(41, "python3", 0, proportional=share(0, 512 + 64, 64)),
              process(42, "python3", 0, proportional=share(0, 64, 64)),
              process(43, "python3", 0, proportional=share(0, 0))]  # fmt: skip
    section = snapshot(readings(nodes, [], [], {}, family, segments))
    found = [(r["owner"], r["lifetime"], r["bytes"] // MIB) for r in rows(section, backing="shmem")]
    assert found == [
        ("3 owners", "persistent", 512),
        ("python3 41", "process", 64),
        ("python3 42", "process", 64),
        (None, "process", 360),
    ]


def test_an_ordinary_user_is_told_unknown_not_nobody() -> None:
    """Without a count of mappings, a user who cannot see others' maps knows no mapper."""
    files = [cached("/models/x", {"0": 10}, mapped_elsewhere=None)]
    nodes = [node(0, "cpu", "0", total=100, free=90, file=10)]
    assert snapshot(readings(nodes, files, uid=1000))["page_cache"]["files"][0]["mapped_by"] is None
    assert snapshot(readings(nodes, files, uid=0))["page_cache"]["files"][0]["mapped_by"] == []


def test_a_mapping_that_no_process_here_has_is_not_nobody() -> None:
    files = [cached("/models/x", {"0": 10}, mapped_elsewhere=True)]
    nodes = [node(0, "cpu", "0", total=100, free=90, file=10)]
    section = snapshot(readings(nodes, files, [], {}))
    assert section["page_cache"]["files"][0]["mapped_by"] is None
    assert rows(section, backing="file")[0]["owner"] is None


def test_files_that_moved_while_they_were_counted_do_not_open_the_table() -> None:
    """12 MiB found where the node has 10: cut, and said so."""
    nodes = [node(0, "cpu", "0", total=100, free=90, file=10)]
    section = snapshot(readings(nodes, [cached("/models/x", {"0": 12})], [], {}))
    found = rows(section, backing="file")
    assert mib(found) == [10]
    assert "counted meanwhile" in found[0]["evidence"][-1]
    assert gaps(section) == []


def test_swap_is_a_place_of_its_own() -> None:
    """By shares: two of a family of forks show the same 30 MiB; one may share what it has."""
    family = [process(pid, "python3", 10, swap_bytes=30 * MIB, proportional=share(10, swap=15))
              for pid in (41, 42)]  # fmt: skip
    one = process(43, "bash", 10, swap_bytes=5 * MIB, proportional=None)
    section = snapshot(readings(processes=[*family, one], swap=50))
    assert [(r["owner"], r["bytes"] // MIB) for r in rows(section, location="swap")] == [
        ("python3 41", 15),
        ("python3 42", 15),
        (None, 20),
    ]


def test_a_node_with_cpus_stays_a_cpu_node_though_a_gpu_has_no_other() -> None:
    """GB10: integrated memory is no HBM node."""
    nodes = [node(0, "gpu", "0-19", total=1000, free=500, file=500)]
    section = snapshot(readings(nodes, [], [gpu(numa_node=0)]))
    assert section["numa_nodes"][0]["kind"] == "cpu"
    assert section["numa_nodes"][0]["gpu_uuid"] == UUID
    assert section["gpus"][0]["same_as"] == "numa:0"


def test_owners_are_units_where_processes_belong_to_one() -> None:
    found = readings([node(0, "cpu", "0", total=1000, free=300, anon=700)], [], [], {})
    found["processes.identity"] = {
        "processes": [
            {"pid": 41, "owner": {"kind": "unit", "name": "vllm.service"}, "comm": "python3",
             "title": "", "start_time": 410, "user": "root", "pinned_bytes": None}
        ]
    }  # fmt: skip
    assert rows(snapshot(found), backing="anon")[0]["owner"] == "vllm.service"


def test_a_host_that_answered_little_still_has_a_section() -> None:
    found = dict.fromkeys(readings())
    section = snapshot(found)
    assert section["numa_nodes"] == []
    assert section["table"] == []
    assert section["page_cache"] == {"files": [], "coverage": {}}


sizes = st.integers(0, 300)


@given(
    parts=st.fixed_dictionaries(dict.fromkeys(("free", "file", "anon", "shmem", "slab"), sizes)),
    rest=st.integers(-5, 300),
    files=st.lists(sizes, max_size=5),
    shares=st.lists(sizes, max_size=4),
    listed=sizes,
)
def test_every_place_closes_whatever_is_found(
    parts: dict[str, int], rest: int, files: list[int], shares: list[int], listed: int
) -> None:
    total = sum(parts.values()) + rest
    nodes = [
        node(0, "cpu", "0", total=total, **parts),
        node(1, "gpu", "", total=total, **parts),
    ]
    found = readings(
        nodes,
        [cached(f"/m/{n}", {"0": size, "1": size // 2}) for n, size in enumerate(files)],
        listed={0: {41: listed}},
        processes=[process(40 + n, "p", size) for n, size in enumerate(shares)],
    )
    section = snapshot(found)
    assert gaps(section) == []
    for row in section["table"]:
        assert row["bytes"] is not None
        assert row["bytes"] >= 0 or row["backing"] == "unaccounted"


@pytest.mark.parametrize("missing", ["pagecache.files", "processes.memory", "shm.segments"])
def test_a_missing_reading_changes_no_sum(missing: str) -> None:
    found = readings()
    found[missing] = None
    section = snapshot(found)
    assert gaps(section) == []
    assert closes(section["table"], "numa:1") == 2048 * MIB
