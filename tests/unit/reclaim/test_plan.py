"""From classes and scope to a plan: who is a target, who is spared and why, what must return."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fleetmem.controller.answer.envelope import new_host
from fleetmem.controller.errors import StalePlan, UsageError
from fleetmem.controller.reclaim.classify import classify
from fleetmem.controller.reclaim.ladder import topmost
from fleetmem.controller.reclaim.law.rules import rules
from fleetmem.controller.reclaim.options import ReclaimOptions
from fleetmem.controller.reclaim.plan import Plan, expected_seconds, make_plan, refuse_expired
from fleetmem.controller.reclaim.section import section
from fleetmem.controller.reclaim.survey import Survey
from fleetmem.controller.reclaim.verdict.gpus import planned
from fleetmem.controller.render.kit.line import plain
from fleetmem.controller.render.reclaim.plan import plan_lines
from fleetmem.controller.render.reclaim.verdict_text import text_of
from tests.unit.reclaim.reclaim_world import (
    GIB,
    IDLE,
    MIB,
    device,
    facts,
    fork_files,
    holder,
    holding,
    identity,
    listed,
    owner,
    survey,
    ties_of,
)

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
NOTHING = "launcher dead, nothing more is proved (nohup looks like this)"
GONE = owner("unit", "a.service", "gone")


def plan(
    found: Survey, options: ReclaimOptions | None = None, recorded: dict[str, int] | None = None
) -> Plan:
    return make_plan(
        found, classify(found, rules()), options or ReclaimOptions(), recorded or {}, NOW
    )


def targets(made: Plan) -> dict[int, bool]:
    """pid: conditional."""
    return {t.member.pid: t.conditional for t in made.targets}


def spared(made: Plan) -> dict[int, tuple[str, str]]:
    """pid: (why, reach)."""
    return {s.member.pid: (s.why, s.reach) for s in made.spared}


def several() -> Survey:
    """50 is a leftover on GPU 0, 51 in use on GPU 0, 52 detached on GPU 1 and another user's."""
    return survey(
        identity(50, owner=GONE),
        identity(51, launcher_alive=True, ppid=9),
        identity(52, uid=1000, user="ops"),
        holders=(holder(50), holder(51), holder(52)),
        lists={0: [listed(50, 50 * GIB), listed(51, 20 * GIB)], 1: [listed(52, 10 * GIB)]},
    )


@pytest.mark.parametrize(
    ("options", "pids"),
    [
        (ReclaimOptions(user="ops"), {52}),
        (ReclaimOptions(user="0,nobody"), {50, 51}),
        (ReclaimOptions(units=("a",)), {50}),
        (ReclaimOptions(units=("a.service", "b")), {50}),
        (ReclaimOptions(units=("b",)), set()),
        (ReclaimOptions(containers=("c",), pids=(52,)), {52}),
        (ReclaimOptions(host_pids=(("h", 51), ("i", 52))).on_host("h"), {51}),
        (ReclaimOptions(host_pids=(("h", 51),)).on_host("i"), set()),
    ],
)
def test_scope_options_add_up_and_reach_nobody_else(
    options: ReclaimOptions, pids: set[int]
) -> None:
    assert set(targets(plan(several(), options))) == pids


def test_without_scope_leftovers_only() -> None:
    made = plan(several())
    assert targets(made) == {50: False}
    assert spared(made) == {
        51: ("<- launcher  9 alive", "--gpu 0"),
        52: ("launcher dead, nothing more is proved (nohup looks like this)", "--gpu 1"),
    }
    assert made.scope == (0, 1)
    assert made.bounds[0].before_bytes == 70 * GIB + IDLE
    assert made.bounds[0].kept_bytes == 20 * GIB
    assert made.bounds[0].bound_bytes == 20 * GIB + IDLE + 64 * MIB
    assert made.bounds[0].baseline.source == "assumed"


@pytest.mark.parametrize(
    ("options", "wanted", "scope"),
    [
        ({"gpu": "0"}, {50, 51}, (0,)),
        ({"gpu": "1"}, {52}, (1,)),
        ({"gpu": "all"}, {50, 51, 52}, (0, 1)),
        ({"gpu": "GPU-1"}, {52}, (1,)),
        ({"pids": (51,)}, {51}, (0,)),
        ({"pids": (52, 51)}, {51, 52}, (0, 1)),
        ({"user": "ops"}, {52}, (1,)),
        ({"user": "1000"}, {52}, (1,)),
        ({"user": "root"}, {50, 51}, (0,)),
        ({"gpu": "0", "user": "ops"}, set(), (0,)),
        ({"gpu": "0", "pids": (51,)}, {51}, (0,)),
        ({"pids": (999,)}, set(), ()),
    ],
)
def test_scope(options: dict[str, Any], wanted: set[int], scope: tuple[int, ...]) -> None:
    made = plan(several(), ReclaimOptions(**options))
    assert set(targets(made)) == wanted
    assert made.scope == scope


def test_what_another_gpu_holds_is_not_in_scope() -> None:
    made = plan(several(), ReclaimOptions(gpu="0"))
    assert spared(made) == {52: ("holds GPU 1 only, which is not in scope", "")}


def test_a_gpu_that_the_host_has_not_got() -> None:
    assert plan(several(), ReclaimOptions(gpu="7")).absent == ("7",)
    with pytest.raises(UsageError):
        plan(several(), ReclaimOptions(gpu="zero"))


def test_protected_only_by_its_number() -> None:
    found = holding(identity(50, comm="nv-hostengine"))
    everything = ReclaimOptions(gpu="all")
    assert spared(plan(found, everything)) == {50: ("DCGM and exporters", "")}
    assert targets(plan(found, replace(everything, override_protected=(50,)))) == {50: False}
    assert targets(plan(found, replace(everything, override_protected=(51,)))) == {}


def test_a_scope_reaches_what_it_names_inside_a_live_unit() -> None:
    found = holding(identity(50, owner=owner("unit", "vllm.service", "live")))
    why = "main process of unit vllm.service, which is live"
    assert spared(plan(found)) == {50: (why, "--gpu 0")}
    assert targets(plan(found, ReclaimOptions(gpu="0"))) == {50: False}
    assert targets(plan(found, ReclaimOptions(pids=(50,)))) == {50: False}
    assert targets(plan(found, ReclaimOptions(units=("vllm",)))) == {50: False}
    assert targets(plan(found, ReclaimOptions(units=("other",)))) == {}


def test_who_is_left_over_with_a_holder_goes_with_it() -> None:
    """A coordinator has no file of the driver; it is the same family, and an engine's worker."""
    core = {"title": "VLLM::EngineCore", "orphaned_pipes": 2, "live_peers": [51]}
    beside = {"title": "VLLM::DPCoordinator", "orphaned_pipes": 1, "live_peers": [50]}
    found = holding(identity(50, **core))
    people = (identity(50, **core), identity(51, **beside))
    found = replace(found, processes={p["pid"]: p for p in people}, ties=ties_of(people))
    assert targets(plan(found)) == {50: False, 51: False}
    assert targets(plan(found, ReclaimOptions(gpu="1"))) == {}
    assert targets(plan(found, ReclaimOptions(pids=(50,)))) == {50: False}


def test_bytes_of_heirs_count_once() -> None:
    """Of 126 heirs each was given all that a dead process had."""
    people = tuple(identity(pid, sid=7) for pid in range(50, 176))
    lists = {0: [listed(40, 90 * GIB, "dead")]}
    found = survey(*people, holders=tuple(fork_files(p["pid"]) for p in people), lists=lists)
    made = plan(found)
    assert len(made.targets) == 126
    assert sum(t.member.held[0] or 0 for t in made.targets) == 90 * GIB


def test_an_open_handle_may_keep_exported_memory_and_a_pid_reaches_it() -> None:
    bare = holder(50, (), ctl_map_bytes=0, uvm_fds=0, uvm_map_bytes=0)
    found = survey(identity(50), holders=(bare,), used={0: 4 * GIB, 1: 3 * MIB})
    why = f"{NOTHING}; it may keep memory that no list names"
    assert spared(plan(found)) == {50: (why, "--pid 50")}
    assert targets(plan(found, ReclaimOptions(gpu="0"))) == {}
    (target,) = plan(found, ReclaimOptions(pids=(50,))).targets
    assert target.member.held == {0: None}


def test_inside_another_pid_namespace_numbers_of_nvml_are_other_peoples() -> None:
    """A visible context is a holder of unknown size; a scope names it, its bytes are unknown."""
    lists = {0: [listed(50, 9 * GIB), listed(41, GIB, "dead")]}
    found = survey(
        identity(50),
        identity(60),
        holders=(holder(60, (0,)), fork_files(50, (0,))),
        lists=lists,
        facts=facts(init_pid_namespace=False),
    )
    assert targets(plan(found)) == {}
    made = plan(found, ReclaimOptions(gpu="0"))
    assert {t.member.pid: t.member.held for t in made.targets} == {50: {0: None}, 60: {0: None}}


def test_what_others_own_is_never_a_target() -> None:
    found = holding(identity(50, uid=1001, user="bob"), facts=facts(uid=1000))
    made = plan(found, ReclaimOptions(gpu="0", pids=(50,)))
    assert targets(made) == {}
    assert spared(made) == {50: ("belongs to user bob", "")}


def test_a_number_without_files_is_listed_and_left() -> None:
    """NVML names it; as an ordinary user its files may just not be seen."""
    made = plan(survey(identity(50), lists={0: [listed(50, 90 * GIB)]}), ReclaimOptions(gpu="0"))
    assert targets(made) == {}
    ((pid, (why, reach)),) = spared(made).items()
    assert (pid, reach) == (50, "")
    assert why.endswith("NVML names its number, but no file of the driver is seen in it")


def test_forks_of_a_target_are_conditional() -> None:
    up = [{"pid": 50, "start_time": 500, "comm": "python3"}]
    found = survey(
        identity(50, owner=GONE),
        identity(51, ancestors=up),
        identity(60),
        holders=(holder(50), fork_files(51), holder(60, ctl_map_bytes=4096)),
        lists={0: [listed(50, 50 * GIB)]},
    )
    made = plan(found)
    assert targets(made) == {50: False, 51: True}
    assert [t.member.pid for t in made.first] == [50]
    assert spared(made)[60][0].endswith("; open files only, no memory")
    alone = plan(
        survey(
            identity(50, launcher_alive=True),
            identity(51, ancestors=up),
            holders=(holder(50), fork_files(51)),
            lists={0: [listed(50, 50 * GIB)]},
        )
    )
    assert targets(alone) == {}
    assert spared(alone)[51] == ("a fork of process 50; holds no memory itself", "")


def test_one_of_two_unclear_heirs_by_its_number() -> None:
    found = survey(
        identity(50),
        identity(51, exe="/bin/b"),
        holders=(fork_files(50), fork_files(51)),
        lists={0: [listed(40, 90 * GIB, "dead")]},
    )
    assert targets(plan(found)) == {}
    assert targets(plan(found, ReclaimOptions(gpu="0"))) == {}
    assert spared(plan(found))[51][1] == "--pid 51"
    made = plan(found, ReclaimOptions(pids=(51,)))
    assert targets(made) == {51: False}
    assert made.scope == (0,)


# --- what must come back -------------------------------------------------------------------


def test_a_recorded_baseline_is_taken() -> None:
    made = plan(several(), recorded={"GPU-0": 5 * MIB})
    assert (made.bounds[0].baseline.used_bytes, made.bounds[0].baseline.source) == (
        5 * MIB,
        "recorded",
    )
    assert made.bounds[0].bound_bytes == 20 * GIB + 69 * MIB


@pytest.mark.parametrize(
    ("used", "assumed"),
    [
        (90 * GIB + 3 * MIB, 3 * MIB),
        (90 * GIB + 400 * MIB, 400 * MIB),
        (90 * GIB + 9 * GIB, 500 * MIB),  # at most the reserve
        (89 * GIB, 0),
    ],
)
def test_an_assumed_baseline_is_at_most_the_reserve(used: int, assumed: int) -> None:
    made = plan(holding(identity(50), used={0: used}))
    assert made.bounds[0].baseline.used_bytes == assumed


@pytest.mark.parametrize(
    ("used", "verdict"),
    [
        (90 * GIB + 105 * MIB, "nothing_to_do"),  # 105 MiB beside 48 GiB pinned, on an H200
        # 1 % of 90 GiB is 921.6 MiB, and a context maps 2 MiB over uvm
        (90 * GIB + 64 * MIB + 924 * MIB, "cannot_attribute"),
    ],
)
def test_what_the_driver_charges_to_nobody_is_the_spared_holders(used: int, verdict: str) -> None:
    """Up to 1 % of what they hold; with a recorded baseline of an idle GPU nothing hides it."""
    found = holding(identity(50, launcher_alive=True), used={0: used})
    made = plan(found, recorded={"GPU-0": 0})
    assert planned(made, found, "a")[0].verdict == verdict


@pytest.mark.parametrize(
    ("used", "verdict"),
    [
        (612 * MIB + 2057 * MIB, "nothing_to_do"),  # 2 GiB that the GPU touched, on an H200
        (612 * MIB + 2200 * MIB, "cannot_attribute"),  # more than it has mapped
    ],
)
def test_managed_memory_is_on_no_list_and_its_holders_own(used: int, verdict: str) -> None:
    found = survey(
        identity(50, launcher_alive=True),
        holders=(holder(50, uvm_map_bytes=2050 * MIB),),
        lists={0: [listed(50, 612 * MIB)]},
        used={0: used},
    )
    made = plan(found, recorded={"GPU-0": 0})
    assert planned(made, found, "a")[0].verdict == verdict


def test_managed_memory_of_a_spared_holder_is_not_asked_back() -> None:
    """Beside a target of 8 GiB; what the spared one has mapped of it bounds what may stay."""
    found = survey(
        identity(50, owner=GONE),
        identity(51, launcher_alive=True),
        holders=(holder(50), holder(51, uvm_map_bytes=4098 * MIB)),
        lists={0: [listed(50, 8 * GIB), listed(51, 612 * MIB)]},
        used={0: 8 * GIB + 612 * MIB + 4106 * MIB},
    )
    made = plan(found, recorded={"GPU-0": 0})
    assert [target.member.pid for target in made.targets] == [50]
    share = (612 * MIB) // 100
    assert made.bounds[0].bound_bytes == 612 * MIB + min(4106 * MIB, 4098 * MIB + share) + 64 * MIB


@pytest.mark.parametrize(
    ("beside", "mapped", "told"),
    [
        (4106, 4098, 4098),  # at most what they have mapped
        (2000, 4098, 2000),  # nor more than is used beside the lists
        (4106, 2, 0),  # a context's own
        (60, 4098, 0),
        (-200, 4098, 0),
    ],
)
@pytest.mark.parametrize("recorded", [{"GPU-0": 0}, {}])
def test_managed_memory_of_targets_is_told_as_a_bound(
    recorded: dict[str, int], beside: int, mapped: int, told: int
) -> None:
    """In MiB. No list has it, so neither have the targets' own sizes; what an idle GPU is assumed
    to use is no part of v2's used."""
    found = survey(
        identity(50, owner=GONE),
        identity(51, launcher_alive=True),
        holders=(holder(50, uvm_map_bytes=mapped * MIB), holder(51, uvm_map_bytes=90 * GIB)),
        lists={0: [listed(50, 612 * MIB)], 1: [listed(51, 612 * MIB)]},
        used={0: (612 + beside) * MIB, 1: (612 + 8192) * MIB},
    )
    made = plan(found, recorded=recorded)
    rows = section(made, found, planned(made, found, "a"))["gpus"]
    assert [row["managed_bytes"] for row in rows] == [told * MIB, 0]


def test_managed_memory_is_told_with_the_plan() -> None:
    found = survey(
        identity(50, owner=GONE),
        holders=(holder(50, uvm_map_bytes=8194 * MIB),),
        lists={0: [listed(50, 612 * MIB)]},
        used={0: (612 + 8192) * MIB},
    )
    made = plan(found)
    entry = new_host("h1", "ok")
    entry["reclaim"] = section(made, found, planned(made, found, "h1"))
    assert plain(plan_lines([entry], None)[3]) == (
        "plus at most 8.0 GiB of managed memory, which NVML does not list"
    )
    assert text_of([entry]) == (
        "1 process would be stopped, 0.6 GiB; plus at most 8.0 GiB of managed memory"
    )


def test_an_unknown_size_of_a_spared_one() -> None:
    """What the others keep is not known, so the targets' own sizes must do."""
    found = survey(
        identity(50, owner=GONE),
        identity(51, launcher_alive=True),
        holders=(holder(50), holder(51)),
        lists={0: [listed(50, 50 * GIB), listed(51, None)]},
        used={0: 70 * GIB},
    )
    made = plan(found)
    assert made.bounds[0].kept_bytes is None
    assert made.bounds[0].bound_bytes == 20 * GIB + 64 * MIB


def test_unknown_sizes_everywhere_leave_no_bound() -> None:
    found = survey(
        identity(50, owner=GONE),
        identity(51, launcher_alive=True),
        holders=(holder(50), holder(51)),
        lists={0: [listed(50, None), listed(51, None)]},
        used={0: 70 * GIB},
    )
    assert plan(found).bounds[0].bound_bytes is None


def test_file_pages_of_a_numa_gpu_are_no_holders() -> None:
    found = holding(identity(50), used={0: 95 * GIB})
    gpus = {**found.gpus, 0: device(0, 95 * GIB, numa_node=2)}
    made = plan(replace(found, gpus=gpus, numa_file_bytes={2: 4 * GIB}))
    assert made.bounds[0].before_bytes == 91 * GIB


def test_expected_seconds() -> None:
    """0.15 s of teardown, pinned memory at 6.5 GiB/s in sum, device memory once."""

    def members(*processes: Any) -> list[Any]:
        found = [classify(holding(p), rules()).members[p["pid"]] for p in processes]
        return list(found)

    assert expected_seconds([]) == 0.0
    assert expected_seconds(members(identity(50))) == 0.2
    assert expected_seconds(members(identity(50, pinned_bytes=65 * GIB))) == 10.2
    assert expected_seconds(members(identity(50), identity(51))) == 0.2


# --- the plan itself -----------------------------------------------------------------------


def test_it_expires_after_15_minutes_and_is_pinned_to_the_boot() -> None:
    made = plan(several())
    assert made.expires == NOW + timedelta(minutes=15)
    assert (made.boot_id, made.epoch) == ("boot-1", 4)


def test_the_hash_covers_who_where_and_against_what() -> None:
    made = plan(several())
    data = json.loads(json.dumps(made.document))
    assert data == made.document  # the same after a file
    assert [data[key] for key in ("boot_id", "epoch", "scope")] == ["boot-1", 4, [0, 1]]
    assert [(t["member"]["process"]["pid"], t["conditional"]) for t in data["targets"]] == [
        (50, False)
    ]
    assert {gpu: row["bound_bytes"] for gpu, row in data["bounds"].items()} == {
        "0": 20 * GIB + 67 * MIB,
        "1": 10 * GIB + 67 * MIB,
    }
    assert replace(made).hash == made.hash
    assert plan(several()).id != made.id
    assert replace(made, boot_id="boot-2").hash != made.hash
    assert replace(made, scope=(0,)).hash != made.hash
    reused = several()
    other = {**reused.processes, 50: identity(50, owner=GONE, start_time=7)}
    assert replace(plan(replace(reused, processes=other)), id=made.id).hash != made.hash


def test_term_goes_to_the_topmost_target() -> None:
    above = {"pid": 50, "start_time": 500, "comm": "python3"}
    elsewhere = {"pid": 50, "start_time": 1, "comm": "python3"}
    found = survey(
        identity(50),
        identity(51, ppid=50, ancestors=[above]),
        identity(52, ppid=51, ancestors=[{"pid": 51, "start_time": 510, "comm": "x"}, above]),
        identity(53, ancestors=[elsewhere]),
        holders=tuple(holder(pid) for pid in (50, 51, 52, 53)),
        lists={0: [listed(pid, GIB) for pid in (50, 51, 52, 53)]},
    )
    made = plan(found, ReclaimOptions(gpu="0"))
    assert [t.member.pid for t in topmost(made.first)] == [50, 53]


@pytest.mark.parametrize(
    ("age", "word"),
    [
        (timedelta(minutes=15), None),
        (timedelta(minutes=15, seconds=1), "expired at 12:15:00 UTC"),
        (timedelta(seconds=-59), None),
        (timedelta(seconds=-61), "2026-05-04 12:00:00 UTC, which is in the future"),
    ],
)
def test_a_plan_is_good_for_a_quarter_of_an_hour_by_this_clock(
    age: timedelta, word: str | None
) -> None:
    created = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
    if word is None:
        refuse_expired(created, created + age)
    else:
        with pytest.raises(StalePlan, match=word):
            refuse_expired(created, created + age)
