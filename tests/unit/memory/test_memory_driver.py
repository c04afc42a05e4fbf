"""The driver's memory: who may be named as its owner, and that nothing is given twice."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetmem.controller.memory.account import gaps, snapshot
from tests.unit.memory.memory_samples import MIB, UUID, gpu, node, process, readings

OTHER = "GPU-22222222-2222-3333-4444-555555555555"
HOST = node(0, "cpu", "0", total=100, free=100)


def mappings(host: int, space: int, driver: int = 0) -> dict[str, Any]:
    """MiB of managed memory in the host's nodes, its address space, the driver's own pages."""
    return {
        "map_bytes": (space + 70) * MIB,
        "pss_bytes": driver * MIB,
        "uvm_map_bytes": space * MIB,
        "uvm_pss_bytes": host * MIB,
        "pinned_resident_bytes": 0,
    }


def managing(pid: int, space: int) -> dict[str, Any]:
    return process(pid, "python3", 0, driver=mappings(0, space))


def own(index: int = 0, uuid: str = UUID, *, held: int, rest: int) -> dict[str, Any]:
    """A GPU of 4096 MiB: so much on its lists, and so much that nothing explains."""
    sizes = {"total": 4096, "reserved": 0, "used": held + rest, "free": 4096 - held - rest}
    return gpu(index, None, uuid, **sizes)


def managed(section: Any, uuid: str = UUID) -> list[tuple[str | None, int]]:
    """(owner, MiB) of each row with managed memory of that GPU."""
    return [
        (row["owner"], row["bytes"] // MIB)
        for row in section["table"]
        if row["location"] == f"gpu:{uuid}" and any("managed" in e for e in row["evidence"])
    ]


def test_one_whose_mappings_were_not_read_could_have_it_too() -> None:
    """42 is on the list and not among the largest processes; of 41's 400 MiB nobody is named."""
    found = readings([HOST], [], [own(held=200, rest=300)], {0: {41: 100, 42: 100}},
                     [managing(41, 400)])  # fmt: skip
    section = snapshot(found)
    assert managed(section) == [(None, 300)]
    evidence = "managed memory of one of pids 41 42 that is not in the host's, at most"
    assert [r["evidence"] for r in section["table"] if evidence in r["evidence"]] == [[evidence]]
    assert {p["pid"]: (p["managed_map_bytes"], p["managed_by_gpu"]) for p in section["processes"]}[
        42
    ] == (None, {})
    assert gaps(section) == []


def test_one_that_was_read_and_maps_nothing_has_none() -> None:
    """0 is known, so 41 is the only one."""
    found = readings([HOST], [], [own(held=200, rest=300)], {0: {41: 100, 42: 100}},
                     [managing(41, 400), process(42, "python3", 0)])  # fmt: skip
    section = snapshot(found)
    assert managed(section) == [("python3 41", 100 + 300)]
    assert section["processes"][1]["managed_map_bytes"] == 0


@pytest.mark.parametrize("state", ["dead", "implausible"])
def test_a_dead_number_on_the_list_could_have_it_too(state: str) -> None:
    """77's fork keeps its memory; 41 beside it has mapped much and may have touched none."""
    found = readings([HOST], [], [own(held=200, rest=300)], {0: {41: 100, 77: 100}},
                     [managing(41, 4000)])  # fmt: skip
    found["gpu.processes"]["gpus"][0]["processes"][1]["state"] = state
    section = snapshot(found)
    assert all(owner is None for owner, _ in managed(section))
    assert section["gpus"][0]["managed_bytes"] == (300 if state == "dead" else 400) * MIB
    assert section["processes"][0]["managed_by_gpu"] == {}
    assert gaps(section) == []


def test_what_went_unnamed_on_one_gpu_is_not_named_on_another() -> None:
    """41 and 42 map 400 each on both GPUs: 500 there and 300 here, whoever has which."""
    two = [own(held=200, rest=500), own(1, OTHER, held=200, rest=300)]
    lists = {0: {41: 100, 42: 100}, 1: {41: 100, 42: 100}}
    section = snapshot(readings([HOST], [], two, lists, [managing(41, 400), managing(42, 400)]))
    assert managed(section) == [(None, 500)]
    assert managed(section, OTHER) == [(None, 300)]
    assert gaps(section) == []


def test_the_only_one_on_a_gpu_is_named_though_it_shares_another() -> None:
    """42 alone is on GPU 1: its 300 there first, what is left of both on GPU 0."""
    two = [own(held=200, rest=600), own(1, OTHER, held=100, rest=300)]
    lists = {0: {41: 100, 42: 100}, 1: {42: 100}}
    section = snapshot(readings([HOST], [], two, lists, [managing(41, 600), managing(42, 400)]))
    assert managed(section, OTHER) == [("python3 42", 100 + 300)]
    assert managed(section) == [(None, 600)]
    assert [one["managed_bytes"] for one in section["gpus"]] == [600 * MIB, 300 * MIB]


def test_unknown_sizes_on_a_gpu_that_is_a_node_make_nothing_managed() -> None:
    """1000 MiB are of CUDA, nobody knows whose: what 41 maps of managed memory says nothing."""
    nodes = [node(0, "cpu", "0", total=1000, free=1000),
             node(1, "gpu", "", total=2048, free=1000)]  # fmt: skip
    found = readings(nodes, [], None, {0: {41: 200}}, [managing(41, 500)])
    found["gpu.processes"]["gpus"][0]["processes"][0]["used_bytes"] = None
    section = snapshot(found)
    assert section["numa_nodes"][1]["device_bytes"] is None
    assert section["numa_nodes"][1]["unaccounted_bytes"] == 1048 * MIB
    assert section["processes"][0]["managed_by_gpu"] == {}
    assert gaps(section) == []


def test_a_fork_has_nothing_of_a_gpu_s_node_that_its_parent_is_charged_for() -> None:
    """NVML's 400 MiB are the parent's. Of the 300 that it has mapped its fork shares a half: the
    same pages."""
    nodes = [node(0, "cpu", "0", total=1000, free=1000),
             node(1, "gpu", "", total=2048, free=1000)]  # fmt: skip
    numa = {"by_numa_node": {"1": {"driver_bytes": 300 * MIB}}, "policies": {}}
    family = [process(pid, "python3", 0, driver=mappings(0, 0, driver=150), numa=numa)
              for pid in (41, 42)]  # fmt: skip
    section = snapshot(readings(nodes, [], None, {0: {41: 400}}, family))
    device = [(r["owner"], r["bytes"]) for r in section["table"] if r["backing"] == "device"]
    assert device == [("python3 41", 400 * MIB)]
    assert section["numa_nodes"][1]["unaccounted_bytes"] == 648 * MIB
    unlisted = readings(nodes, [], None, {0: {41: 400}}, family)
    unlisted["gpu.processes"]["gpus"][0]["complete"] = False
    device = [(r["owner"], r["bytes"]) for r in snapshot(unlisted)["table"]
              if r["backing"] == "device"]  # fmt: skip
    assert device == [("python3 41", 150 * MIB), ("python3 42", 150 * MIB)]


def test_forks_have_their_share_of_what_the_driver_keeps_in_the_host_s_memory() -> None:
    """70 MiB over nvidiactl, which three have mapped: 70 of the node, not 210."""
    family = [process(pid, "python3", 0, driver=mappings(0, 0, driver=size))
              for pid, size in ((41, 24), (42, 23), (43, 23))]  # fmt: skip
    section = snapshot(readings([node(0, "cpu", "0", total=1000, free=900)], [], [], {}, family))
    assert section["numa_nodes"][0]["device_bytes"] == 70 * MIB


def test_a_node_without_room_for_them_has_no_driver_memory_known() -> None:
    """Counters of different moments: nothing is left for 41's 70 MiB, which is not "none"."""
    nodes = [node(0, "cpu", "0", total=1000, free=1001)]
    mine = process(41, "python3", 0, driver=mappings(2, 2, driver=70))
    section = snapshot(readings(nodes, [], [], {}, [mine]))
    assert section["numa_nodes"][0]["device_bytes"] is None
    assert section["numa_nodes"][0]["unaccounted_bytes"] == -MIB
    assert gaps(section) == []


def test_a_gpu_is_the_view_of_one_node_only() -> None:
    """Where the driver and NVML name two nodes of one GPU, its lists are counted once."""
    nodes = [node(1, "gpu", "", total=2048, free=1000), node(2, "gpu", "", total=2048, free=1000)]
    nodes[1]["gpu_uuid"] = UUID
    section = snapshot(readings(nodes, [], None, {0: {41: 200}}, [process(41, "python3", 0)]))
    assert sum(n["device_bytes"] or 0 for n in section["numa_nodes"]) == 200 * MIB


def integrated(index: int = 0, uuid: str = UUID, code: int = 3) -> Any:
    """A GPU as NVML tells of a GB10's: no memory, no NUMA node, but lists with sizes."""
    sizes = dict.fromkeys(("total_bytes", "reserved_bytes", "used_bytes", "free_bytes"))
    return {**gpu(index, None, uuid), **sizes, "memory_version": None,
            "errors": ["numa_node: Not Supported (3)", f"memory: no ({code})"],
            "error_codes": {"numa_node": 3, "memory": code}}  # fmt: skip


def test_a_gpu_without_memory_of_its_own_has_the_only_node() -> None:
    """What its list charges 41 lies there, and no counter of the kernel has it."""
    nodes = [node(0, "cpu", "0-19", total=1000, free=300)]
    section = snapshot(readings(nodes, [], [integrated()], {0: {41: 600}},
                                [process(41, "python3", 0)]))  # fmt: skip
    assert section["gpus"][0]["same_as"] == "numa:0"
    (one,) = section["numa_nodes"]
    assert (one["kind"], one["gpu_uuid"]) == ("cpu", UUID)
    assert (one["device_bytes"], one["unaccounted_bytes"]) == (600 * MIB, 100 * MIB)
    (row,) = [r for r in section["table"] if r["backing"] == "device"]
    assert (row["owner"], row["location"], row["bytes"]) == ("python3 41", "numa:0", 600 * MIB)
    assert gaps(section) == []


@pytest.mark.parametrize("code", [4, 15])
def test_a_gpu_that_does_not_tell_its_memory_is_not_integrated(code: int) -> None:
    nodes = [node(0, "cpu", "0-19", total=1000, free=300)]
    section = snapshot(readings(nodes, [], [integrated(code=code)], {0: {41: 600}}))
    assert section["gpus"][0]["same_as"] is None
    assert section["gpus"][0]["reserved_bytes"] is None
    assert section["numa_nodes"][0]["unaccounted_bytes"] == 700 * MIB


def test_on_several_nodes_nobody_knows_which_is_the_integrated_gpus() -> None:
    nodes = [node(number, "cpu", "0", total=1000, free=300) for number in (0, 1)]
    section = snapshot(readings(nodes, [], [integrated()], {0: {41: 600}}))
    assert section["gpus"][0]["same_as"] is None
    assert all(one["gpu_uuid"] is None for one in section["numa_nodes"])


def test_a_reading_of_an_older_version() -> None:
    """It had resident bytes of managed memory only; diff and audit read it from the history."""
    old = {
        "map_bytes": 600 * MIB,
        "uvm_map_bytes": 500 * MIB,
        "uvm_resident_bytes": 100 * MIB,
        "pinned_resident_bytes": None,
    }
    nodes = [node(0, "cpu", "0", total=1000, free=300)]
    section = snapshot(readings(nodes, [], [], {}, [process(41, "python3", 0, driver=old)]))
    (row,) = [r for r in section["table"] if r["backing"] == "device"]
    assert (row["owner"], row["bytes"]) == ("python3 41", 100 * MIB)
    assert section["processes"][0]["driver_bytes"] is None


# --- whatever is read ------------------------------------------------------------------------

sizes = st.integers(0, 900)
PIDS = (41, 42, 43, 44)

kinds = st.sampled_from(["alive", "dead", "implausible"])
entries = st.fixed_dictionaries({}, optional={
    pid: st.tuples(st.none() | sizes, kinds) for pid in PIDS
})  # fmt: skip


@st.composite
def hosts(draw: st.DrawFn) -> dict[str, Any]:
    """A host with up to three GPUs, some of them nodes or without memory, and what processes show
    of them."""
    forms = draw(st.lists(st.sampled_from(["own", "node", "integrated"]), max_size=3))
    free = draw(sizes)
    nodes = [node(0, "cpu", "0-7", total=free + draw(st.integers(-2, 3000)), free=free)]
    gpus = []
    for index, form in enumerate(forms):
        uuid, is_node = f"GPU-{index}", form == "node"
        if form == "integrated":
            gpus.append(integrated(index, uuid))
            continue
        used, reserved, left = draw(sizes), draw(st.integers(0, 90)), draw(sizes)
        gpus.append(gpu(index, index + 1 if is_node else None, uuid,
                        total=used + reserved + left, reserved=reserved, used=used,
                        free=left))  # fmt: skip
        if is_node:
            device = draw(st.none() | sizes)
            total = left + (device or 0) + draw(st.integers(-2, 900))
            one = node(index + 1, "gpu", "", total=total, free=left, device=device)
            nodes.append({**one, "gpu_uuid": uuid})
    processes = []
    for pid in draw(st.sets(st.sampled_from(PIDS))):
        maps = draw(st.none() | st.builds(mappings, sizes, sizes, sizes))
        places = [str(one["id"]) for one in nodes]
        counts = st.dictionaries(
            st.sampled_from(places),
            st.fixed_dictionaries({"managed_bytes": sizes, "driver_bytes": sizes}),
        )
        numa = draw(st.none() | counts)
        if numa is not None:
            numa = {
                "by_numa_node": {
                    place: {name: size * MIB for name, size in found.items()}
                    for place, found in numa.items()
                },
                "policies": {},
            }
        more = {} if draw(st.booleans()) else {"proportional": None}
        processes.append(process(pid, "p", 0, driver=maps, numa=numa, **more))
    found = readings(nodes, [], gpus, {}, processes)
    for row in found["gpu.processes"]["gpus"]:
        row["complete"] = draw(st.booleans() | st.just(True))
        row["processes"] = [
            {"pid": pid, "lists": ["compute"], "gi": None, "ci": None, "why": None,
             "used_bytes": None if size is None else size * MIB, "state": state}
            for pid, (size, state) in draw(entries).items()
        ]  # fmt: skip
    return found


@given(found=hosts())
def test_whatever_is_read_nothing_is_given_twice(found: dict[str, Any]) -> None:
    section = snapshot(found)
    assert gaps(section) == []
    rows = section["table"]
    places = [(r["location"], r["backing"], r["owner"], r["lifetime"]) for r in rows]
    known = [place for place, row in zip(places, rows, strict=True) if row["bytes"] is not None]
    assert len(set(known)) == len(known)
    for row in rows:
        assert row["backing"] == "unaccounted" or row["bytes"] is None or row["bytes"] > 0
    parts = ("free", "file", "anon", "shmem", "slab", "hugetlb", "kernel", "device", "unaccounted")
    for one in section["numa_nodes"]:
        assert sum(one[f"{part}_bytes"] or 0 for part in parts) == one["total_bytes"]  # type: ignore[literal-required]
    for before, one in zip(found["numa.nodes"]["nodes"], section["numa_nodes"], strict=True):
        least = min(0, before["unaccounted_bytes"])
        assert one["unaccounted_bytes"] is not None
        assert least <= one["unaccounted_bytes"] <= before["unaccounted_bytes"]
    given = {p["pid"]: sum(p["managed_by_gpu"].values()) for p in section["processes"]}
    room = {
        p["pid"]: max(0, (p["managed_map_bytes"] or 0) - (p["managed_bytes"] or 0))
        for p in section["processes"]
    }
    assert all(given[pid] <= room[pid] for pid in given)
    assert sum(one["managed_bytes"] or 0 for one in section["gpus"]) <= sum(room.values())
    assert snapshot(found) == section


@given(found=hosts())
def test_nobody_has_more_of_a_gpu_than_the_lists_and_mappings_say(found: dict[str, Any]) -> None:
    section = snapshot(found)
    charged = {one["uuid"]: one["processes_bytes"] for one in section["gpus"]}
    for gpu_ in section["gpus"]:
        same, uuid = gpu_["same_as"], gpu_["uuid"]
        if charged[uuid] is None or same == "numa:0":
            continue  # the host's own node has pages of the driver, too
        for process_ in section["processes"]:
            who, by_node = f"p {process_['pid']}", process_["managed_by_numa_node"] or {}
            most = (process_["gpus"].get(uuid) or 0) + process_["managed_by_gpu"].get(uuid, 0)
            most += by_node.get(same.removeprefix("numa:"), 0) if same else 0
            found_ = [row for row in section["table"] if row["owner"] == who
                      and row["backing"] == "device"
                      and row["location"] == (same or f"gpu:{uuid}")]  # fmt: skip
            assert sum(row["bytes"] or 0 for row in found_) <= most


@given(found=hosts())
def test_no_owner_is_named_beside_one_that_could_have_it(found: dict[str, Any]) -> None:
    """Managed memory has an owner only where no dead or unread number is on that GPU's list."""
    section = snapshot(found)
    unread = {p["pid"] for p in section["processes"] if p["managed_map_bytes"] is None}
    for row in found["gpu.processes"]["gpus"]:
        others = [p for p in row["processes"] if p["state"] != "alive" or p["pid"] in unread]
        if others:
            assert all(row["uuid"] not in p["managed_by_gpu"] for p in section["processes"])
