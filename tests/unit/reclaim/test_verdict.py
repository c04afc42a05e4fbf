"""What became of each GPU, in words and with the next step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fleetmem.controller.answer.envelope import VERDICTS, Verdict
from fleetmem.controller.reclaim.classify import classify
from fleetmem.controller.reclaim.law.rules import rules
from fleetmem.controller.reclaim.options import ReclaimOptions
from fleetmem.controller.reclaim.plan import Plan, make_plan
from fleetmem.controller.reclaim.survey import Survey
from fleetmem.controller.reclaim.verdict.gpus import judge, planned
from fleetmem.controller.reclaim.verdict.judgement import (
    ADVICE,
    Climbed,
    GpuJudgement,
    Refusal,
    worst,
)
from fleetmem.controller.reclaim.verdict.untouched import pending, untouched
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
)

GONE = owner("unit", "a.service", "gone")
TARGET = identity(50, owner=GONE)
BEFORE = holding(TARGET)
EMPTY = survey()
END = "; --gpu would stop it even if it is working"


def plan(found: Survey, **options: Any) -> Plan:
    return make_plan(found, classify(found, rules()), ReclaimOptions(**options), {})


def climbed(
    after: Survey, before: Survey = BEFORE, how: Climbed | None = None, **options: Any
) -> GpuJudgement:
    """The verdict over GPU 0 after a climb."""
    made = plan(before, **({"gpu": "0"} | options))
    how = how or Climbed(waited_seconds=1.0)
    (row,) = judge(made, after, classify(after, rules()), how, "h1")
    return row


def dead(used: int = 90 * GIB, **more: Any) -> Survey:
    """The target is gone and its memory is not."""
    return survey(lists={0: [listed(50, used, "dead")]}, **more)


def test_back_is_reclaimed() -> None:
    row = climbed(EMPTY)
    assert (row.verdict, row.after_bytes, row.next) == ("reclaimed", IDLE, ())


def test_64_mib_are_tolerated() -> None:
    assert climbed(survey(used={0: IDLE + 64 * MIB})).verdict == "reclaimed"
    assert climbed(survey(used={0: IDLE + 64 * MIB + 1})).verdict == "releasing"


def test_what_spared_ones_keep_is_no_failure() -> None:
    other = identity(51, launcher_alive=True)
    both = survey(
        TARGET,
        other,
        holders=(holder(50), holder(51)),
        lists={0: [listed(50, 60 * GIB), listed(51, 20 * GIB)]},
    )
    after = survey(other, holders=(holder(51),), lists={0: [listed(51, 20 * GIB)]})
    assert climbed(after, both, pids=(50,), gpu=None).verdict == "reclaimed"


@pytest.mark.parametrize(
    ("seconds", "falling", "verdict"),
    [
        (1.0, False, "releasing"),
        (30.0, False, "releasing"),  # public cases came back after over 30 s
        (59.9, False, "releasing"),
        (60.0, False, "kernel_pinned"),
        (300.0, False, "kernel_pinned"),
        (300.0, True, "releasing"),
    ],
)
def test_when_memory_counts_as_pinned(seconds: float, falling: bool, verdict: str) -> None:
    how = Climbed(waited_seconds=seconds, falling=frozenset({0} if falling else ()))
    row = climbed(dead(), how=how)
    assert row.verdict == verdict
    assert f"{seconds:.0f} s" in row.why


def test_much_pinned_memory_is_given_more_time() -> None:
    """650 GiB at 6.5 GiB/s are 100 s; four times that counts."""
    before = holding(identity(50, owner=GONE, pinned_bytes=650 * GIB))
    assert climbed(dead(), before, Climbed(waited_seconds=390.0)).verdict == "releasing"
    assert climbed(dead(), before, Climbed(waited_seconds=410.0)).verdict == "kernel_pinned"


def test_pages_of_a_numa_gpu() -> None:
    after = dead()
    gpus = {**after.gpus, 0: device(0, 90 * GIB, numa_node=2)}
    row = climbed(replace(after, gpus=gpus), how=Climbed(waited_seconds=61.0))
    assert (row.verdict, row.why) == ("host_pages", "host pages lie in NUMA node 2")


def test_a_killed_target_that_lives_is_unkillable() -> None:
    how = Climbed(killed=frozenset({(50, 500)}), stuck={(50, 500): "D in nv_wait"})
    row = climbed(BEFORE, how=how)
    assert row.verdict == "unkillable"
    assert row.why == "python3 50: SIGKILL is pending, kernel state D in nv_wait"


def test_a_kill_that_nobody_saw_is_unknown() -> None:
    how = Climbed(unclear={(50, 500): "operation ab was about to send it SIGKILL"})
    row = climbed(BEFORE, how=how)
    assert (row.verdict, row.why) == (
        "unknown",
        "python3 50: operation ab was about to send it SIGKILL",
    )


@pytest.mark.parametrize(
    ("code", "why", "verdict"),
    [
        ("not_permitted", "Operation not permitted", "not_permitted"),
        ("changed", "its user changed", "held_by"),
        ("changed", "permitted by nobody", "held_by"),
        (None, "not permitted", "held_by"),
    ],
)
def test_a_refused_target(code: str | None, why: str, verdict: str) -> None:
    row = climbed(BEFORE, how=Climbed(refused={(50, 500): Refusal(code, why)}))
    assert row.verdict == verdict
    assert row.why.startswith("python3 50")
    assert row.why.endswith(f": {why}")


def test_a_refused_target_has_its_own_words() -> None:
    """Nobody outside the plan holds it."""
    texts = {}
    for code in ("changed", "remote_disk_full", "no_trail", "no_state_dir"):
        row = climbed(BEFORE, how=Climbed(refused={(50, 500): Refusal(code, "/run/x: full")}))
        assert "outside the plan" not in (row.advice or "outside the plan")
        texts[code] = (row.why, row.advice)
    assert texts["remote_disk_full"] == (
        "python3 50 was not signalled: the host could not record it first (/run/x: full)",
        "Make room below /run on the host, then run it again.",
    )
    assert texts["no_trail"] == texts["no_state_dir"] == texts["remote_disk_full"]
    assert texts["changed"][0] == "python3 50 was not signalled: /run/x: full"


def test_a_target_that_was_only_termed_and_lives() -> None:
    row = climbed(BEFORE, how=Climbed(up_to="term"))
    assert row.verdict == "held_by"
    assert row.why == "python3 50 still runs; --up-to term allowed nothing harder"
    assert row.next == ("fleetmem reclaim -H h1 --pid 50 --up-to heirs --dry-run",)


def test_a_reused_number_is_not_the_target() -> None:
    """Another process of that number, without the GPU: the target is gone."""
    assert climbed(survey(identity(50, start_time=7))).verdict == "reclaimed"


@pytest.mark.parametrize(
    ("new", "verdict", "why"),
    [
        (
            {"ppid": 40, "title": "b", "ancestors": [{"pid": 40, "start_time": 1, "comm": "sup"}]},
            "respawned",
            "new since the plan: python3 70 (parent sup 40)",
        ),
        (
            {"owner": owner("container", "c", "live"), "title": "b"},
            "respawned",
            "new since the plan: python3 70 (parent systemd 1)",
        ),
        ({}, "respawned", "new since the plan: python3 70 (parent systemd 1)"),
        ({"title": "b"}, "held_by", "python3 70 came after the plan" + END),
        ({"uid": 7}, "held_by", "python3 70 came after the plan" + END),
    ],
)
def test_somebody_new(new: dict[str, Any], verdict: str, why: str) -> None:
    """The same starter, unit or command is a respawn; anybody else has just come."""
    old = identity(50, ppid=40, launcher_alive=True)
    if "owner" in new:
        old = identity(50, owner=owner("container", "c", "gone"))
    row = climbed(holding(identity(70, **new)), holding(old))
    assert (row.verdict, row.why) == (verdict, why)


def test_a_respawning_unit_is_stopped_by_its_command() -> None:
    unit = owner("unit", "a.service", "live")
    row = climbed(holding(identity(70, owner=unit)), BEFORE)
    assert (row.verdict, row.next) == ("respawned", ("systemctl stop a.service",))


def test_an_heir_that_the_plan_did_not_name() -> None:
    after = survey(
        identity(60), holders=(fork_files(60),), lists={0: [listed(50, 90 * GIB, "dead")]}
    )
    row = climbed(after)
    assert (row.verdict, row.why) == (
        "held_by",
        "python3 60 inherited the files of a dead process and is not in this plan",
    )


def test_the_other_of_two_unclear_heirs_afterwards() -> None:
    """One was named with --pid and is gone; the other one was spared and has the rest."""
    other = identity(61, exe="/bin/b")
    before = survey(
        identity(60),
        other,
        holders=(fork_files(60), fork_files(61)),
        lists={0: [listed(50, 45 * GIB, "dead"), listed(51, 45 * GIB, "dead")]},
    )
    after = survey(other, holders=(fork_files(61),), lists={0: [listed(51, 45 * GIB, "dead")]})
    row = climbed(after, before, pids=(60,), gpu=None)
    assert (row.verdict, row.why) == (
        "held_by",
        "python3 61 inherited the files of a dead process and is not in this plan",
    )


def test_unrelated_heirs_afterwards() -> None:
    after = survey(
        identity(60),
        identity(61, exe="/bin/b"),
        holders=(fork_files(60), fork_files(61)),
        lists={0: [listed(50, 90 * GIB, "dead")]},
    )
    row = climbed(after)
    assert row.verdict == "held_by"
    assert row.next == (
        "fleetmem reclaim -H h1 --pid 60 --dry-run",
        "fleetmem reclaim -H h1 --pid 61 --dry-run",
    )


def test_memory_that_an_importer_has() -> None:
    importer = identity(60, launcher_alive=True)
    before = survey(
        TARGET,
        importer,
        holders=(holder(50), holder(60)),
        lists={0: [listed(50, 90 * GIB), listed(60, GIB)]},
    )
    after = survey(importer, holders=(holder(60),), lists={0: [listed(60, 91 * GIB)]})
    row = climbed(after, before, pids=(50,), gpu=None)
    assert (row.verdict, row.why) == (
        "held_by",
        "the memory moved to python3 60: it imported it over CUDA IPC",
    )


def test_memory_that_a_process_without_files_has() -> None:
    row = climbed(survey(identity(60), lists={0: [listed(60, 90 * GIB)]}))
    assert (row.verdict, row.why) == (
        "held_by",
        "the memory moved: NVML names process 60, which shows no file of the driver",
    )


@pytest.mark.parametrize(
    ("code", "action", "verdict", "why"),
    [
        (15, "none", "driver_wedged", "memory: failed (15)"),
        (
            16,
            "reset",
            "driver_wedged",
            "memory: failed (16); the driver asks for: reset",
        ),
        (999, None, "cannot_attribute", "memory: failed (999)"),
        (None, None, "cannot_attribute", "NVML gave no figure"),
    ],
)
def test_no_figure(code: int | None, action: str | None, verdict: str, why: str) -> None:
    errors = [] if code is None else [f"memory: failed ({code})"]
    codes = {} if code is None else {"memory": code}
    gpus = {
        0: device(0, None, errors=errors, error_codes=codes, recovery_action=action),
        1: device(1, IDLE),
    }
    row = climbed(replace(EMPTY, gpus=gpus))
    assert (row.verdict, row.why, row.after_bytes) == (verdict, why, None)


def test_refused_drain_and_lost_sight() -> None:
    assert climbed(BEFORE, how=Climbed(drain_refused="busy")).verdict == "drain_refused"
    assert climbed(BEFORE, how=Climbed(unknown="session lost")).verdict == "unknown"


# --- GPUs without targets ------------------------------------------------------------------


def alone(found: Survey, seconds: float = 0.0, **options: Any) -> GpuJudgement:
    made = plan(found, **options)
    how = Climbed(waited_seconds=seconds)
    rows = judge(made, found, classify(found, rules()), how, "h1")
    return next(row for row in rows if row.index == 0)


def test_held_by_somebody_who_is_spared() -> None:
    row = alone(holding(identity(50)))
    assert row.verdict == "nothing_to_do"
    assert row.why.startswith("held by python3 50: launcher dead")
    assert row.why.endswith("; --gpu would stop it even if it is working")
    assert row.next == ("fleetmem reclaim -H h1 --gpu 0 --dry-run",)


def test_held_by_a_live_unit() -> None:
    row = alone(holding(identity(50, owner=owner("unit", "a.service", "live"))))
    steps = ("fleetmem reclaim -H h1 --gpu 0 --dry-run", "systemctl stop a.service")
    assert (row.verdict, row.next) == ("nothing_to_do", steps)


def test_a_command_that_would_end_a_working_process_says_so() -> None:
    two = survey(
        identity(50, launcher_alive=True),
        identity(60, launcher_alive=True),
        holders=(holder(50), holder(60)),
        lists={0: [listed(50, GIB), listed(60, GIB)]},
    )
    assert (alone(two).why or "").endswith("; --gpu would stop them even if they are working")


def test_idle() -> None:
    assert (alone(EMPTY).verdict, alone(EMPTY).why) == ("nothing_to_do", "at its baseline")


def test_memory_of_the_dead_is_watched_before_it_is_called_pinned() -> None:
    assert alone(dead()).verdict == "releasing"
    assert alone(dead(), 59.0).verdict == "releasing"
    row = alone(dead(), 61.0)
    assert (row.verdict, row.why) == (
        "kernel_pinned",
        "NVML names dead 50, and no process has its files, and it is not back after 61 s",
    )
    assert pending(plan(dead()), dead()) == [0]
    assert pending(plan(EMPTY), EMPTY) == []


def test_a_neighbour_on_another_gpu_explains_nothing_and_hides_nothing() -> None:
    """Every CUDA process has every GPU's node open."""
    found = survey(
        identity(60, launcher_alive=True),
        holders=(holder(60),),
        lists={0: [listed(50, 90 * GIB, "dead")], 1: [listed(60, GIB)]},
    )
    assert alone(found, 61.0).verdict == "kernel_pinned"
    unlisted = survey(
        identity(60, launcher_alive=True),
        holders=(holder(60),),
        lists={0: [listed(50, 90 * GIB, "dead")]},
    )
    assert alone(unlisted, 61.0).verdict == "cannot_attribute"


def test_unexplained() -> None:
    used: dict[int, int | None] = {0: 90 * GIB}
    found = survey(used=used)
    idle = "; the GPU is idle (0 % busy)"
    assert alone(found).why == "no visible process accounts for it" + idle
    inside = survey(used=used, facts=facts(init_pid_namespace=False))
    assert alone(inside).why == "held outside this container" + idle
    assert alone(inside).verdict == "cannot_attribute"
    user = survey(used=used, facts=facts(uid=1000), holders_denied=12)
    assert (alone(user).verdict, alone(user).next) == ("not_permitted", ())
    assert ADVICE["not_permitted"] == "Connect as root, or set sudo: true for the host."
    numa = replace(found, gpus={**found.gpus, 0: device(0, 90 * GIB, numa_node=2)})
    assert alone(numa).verdict == "host_pages"
    named = survey(identity(60), lists={0: [listed(60, 90 * GIB)]})
    assert alone(named).why == "NVML names process 60, which shows no file of the driver" + idle


def test_memory_without_a_holder_comes_with_how_busy_the_gpu_is() -> None:
    """80 % busy and nobody to be seen: somebody works there, out of sight."""
    used: dict[int, int | None] = {0: 90 * GIB}
    found = survey(used=used)
    for percent, said in (
        (80, "; the GPU is 80 % busy, so somebody works on it"),
        (None, "; its utilization is not known"),
    ):
        busy = replace(
            found, gpus={**found.gpus, 0: {**found.gpus[0], "utilization_percent": percent}}
        )
        assert alone(busy).why.endswith(said)
        assert alone(busy).verdict == "cannot_attribute"


DRIFT = "80 MiB above its baseline and held by nobody: drift of the driver, not a leak"


def recorded(found: Survey) -> GpuJudgement:
    """The verdict over GPU 0 without targets, where a run has recorded its baseline."""
    known = {found.gpus[0]["uuid"]: IDLE}
    made = make_plan(found, classify(found, rules()), ReclaimOptions(), known)
    return untouched(made, found, 0, "h1")


def test_some_mib_beside_any_process_are_drift() -> None:
    some = survey(used={0: IDLE + 80 * MIB})
    assert (recorded(some).verdict, recorded(some).why) == ("nothing_to_do", DRIFT)
    assert recorded(survey(used={0: IDLE + 300 * MIB})).verdict == "cannot_attribute"
    works = replace(some, gpus={**some.gpus, 0: {**some.gpus[0], "utilization_percent": 5}})
    partly = replace(some, complete={**some.complete, 0: False})
    inside = replace(some, facts=facts(init_pid_namespace=False))
    for unseen in (works, partly, inside):
        assert recorded(unseen).verdict == "cannot_attribute"


def test_drift_after_the_ladder_asks_for_no_reset() -> None:
    after = survey(used={0: IDLE + 80 * MIB})
    row = climbed(after, how=Climbed(waited_seconds=6.0))
    assert (row.verdict, row.why) == ("cannot_attribute", DRIFT)
    assert "no reset" in (row.advice or "")
    assert climbed(after, how=Climbed(waited_seconds=1.0)).verdict == "releasing"
    falls = Climbed(waited_seconds=6.0, falling=frozenset([0]))
    assert climbed(after, how=falls).verdict == "releasing"
    late = climbed(survey(used={0: IDLE + 9 * GIB}), how=Climbed(waited_seconds=61.0))
    assert late.verdict == "kernel_pinned"
    assert late.why.endswith("; the GPU is idle (0 % busy)")


# --- managed memory, which is on no list ------------------------------------------------------

SPARED = identity(51, launcher_alive=True)
MUCH = holder(51, uvm_map_bytes=30 * GIB)


def beside(used: int, *rows: Any, target: bool = False) -> Survey:
    """51 has 30 GiB of managed memory mapped, and NVML charges it 1 GiB; *rows* are of others."""
    who = (TARGET, SPARED) if target else (SPARED,)
    holders = (holder(50), MUCH) if target else (MUCH,)
    return survey(*who, holders=holders, lists={0: [*rows, listed(51, GIB)]}, used={0: used})


BOTH = beside(8 * GIB, listed(50, 3 * GIB), target=True)
"""4 GiB are on no list: 50's or 51's."""

MAY_BE = "on no list and may be managed memory, of which process 51 has mapped 30.0 GiB"


def managed(after: Survey, before: Survey = BOTH, seconds: float = 1.0) -> GpuJudgement:
    """The verdict over GPU 0 once 50 was ended; idle, it uses nothing."""
    options = ReclaimOptions(gpu="0", pids=(50,))
    made = make_plan(before, classify(before, rules()), options, {"GPU-0": 0})
    how = Climbed(waited_seconds=seconds)
    (row,) = judge(made, after, classify(after, rules()), how, "h1")
    return row


def test_what_a_dead_process_still_has_is_no_managed_memory_of_another() -> None:
    """The 4 GiB are back and 50's own 3 GiB are not: they are on the list, under its number."""
    after = beside(4 * GIB, listed(50, 3 * GIB, "dead"))
    assert managed(after).verdict == "releasing"
    assert managed(after, seconds=61.0).verdict == "kernel_pinned"
    unknown = beside(4 * GIB, listed(50, None, "dead"))
    assert managed(unknown).verdict == "releasing"


def test_what_is_on_no_list_afterwards_is_said() -> None:
    """Nobody can tell whether 4 GiB are the spared one's: it is said who has how much mapped."""
    row = managed(beside(5 * GIB))
    assert row.verdict == "reclaimed"
    assert row.why == f"at most baseline and what spared ones keep; 4.0 GiB are {MAY_BE}"
    assert managed(beside(GIB)).why == "at most baseline and what spared ones keep"


def test_managed_memory_that_moves_to_the_room_that_came_back_is_not_pinned_by_the_kernel() -> None:
    """51 has more on the GPU than before: it was more than the GPU had room for."""
    after = beside(20 * GIB)
    assert managed(after).verdict == "releasing"
    row = managed(after, seconds=61.0)
    assert row.verdict == "held_by"
    assert row.why == f"it is not back after 61 s; 19.0 GiB are {MAY_BE}"
    assert managed(beside(40 * GIB), seconds=61.0).verdict == "kernel_pinned"


def test_nothing_to_do_says_what_is_on_no_list() -> None:
    row = alone(beside(5 * GIB))
    assert row.verdict == "nothing_to_do"
    assert row.why.endswith(f"; 4.0 GiB are {MAY_BE}")
    left = alone(beside(9 * GIB, listed(50, 4 * GIB, "dead")), 61.0)
    assert left.verdict == "kernel_pinned"


def test_what_a_spared_one_gave_back_hides_nothing_of_a_dead_one() -> None:
    """51 kept 20 GiB and has 15 now; 50's last 3 GiB are still on the list."""
    before = survey(
        TARGET,
        SPARED,
        holders=(holder(50), holder(51)),
        lists={0: [listed(50, 40 * GIB), listed(51, 20 * GIB)]},
    )
    after = survey(
        SPARED,
        holders=(holder(51),),
        lists={0: [listed(50, 3 * GIB, "dead"), listed(51, 15 * GIB)]},
    )
    assert managed(after, before).verdict == "releasing"
    assert managed(after, before, seconds=61.0).verdict == "kernel_pinned"


mibs = st.integers(0, 4000).map(lambda size: size * MIB)


@given(before=mibs, after=mibs, kept=mibs, left=mibs, target=mibs, extra=mibs, dead_=mibs)
# One allowance of 64 MiB covers both: 64 MiB of a dead one and 1 MiB on no list are over it.
@example(before=0, after=MIB, kept=0, left=0, target=0, extra=0, dead_=64 * MIB)
@example(before=0, after=MIB, kept=0, left=0, target=0, extra=0, dead_=63 * MIB)
def test_all_is_well_only_where_live_ones_account_for_it(
    before: int, after: int, kept: int, left: int, target: int, extra: int, dead_: int
) -> None:
    """What is used in the end is on the lists under live numbers, or mapped by them."""
    mapped = holder(51, uvm_map_bytes=extra)
    first = survey(
        TARGET,
        SPARED,
        holders=(holder(50), mapped),
        lists={0: [listed(50, target), listed(51, kept)]},
        used={0: target + kept + before},
    )
    last = survey(
        SPARED,
        holders=(mapped,),
        lists={0: [listed(50, dead_, "dead"), listed(51, left)] if dead_ else [listed(51, left)]},
        used={0: dead_ + left + after},
    )
    row = managed(last, first, seconds=61.0)
    if row.verdict == "reclaimed":
        assert dead_ <= 64 * MIB
        given_back = max(0, kept - left)  # what 51 gave back and somebody may have on no list
        assert after <= extra + kept // 100 + given_back + 64 * MIB
    else:
        assert after + dead_ > 64 * MIB or left > kept
    alike = planned(make_plan(last, classify(last, rules()), ReclaimOptions(), {}), last, "h1")[0]
    if alike.verdict == "nothing_to_do":
        assert dead_ <= 64 * MIB


# --- a GPU that uses the host's memory --------------------------------------------------------


def gb10(found: Survey, code: int = 3, complete: bool = True) -> Survey:
    """NVML tells of no memory of GPU 0; its lists have sizes."""
    none = device(
        0,
        None,
        total_bytes=None,
        memory_version=None,
        errors=[f"memory: no ({code})"],
        error_codes={"memory": code},
    )
    return replace(found, gpus={**found.gpus, 0: none}, complete={0: complete, 1: True})


def test_an_integrated_gpu_is_judged_by_its_lists() -> None:
    before = gb10(BEFORE)
    assert plan(before).bounds[0].before_bytes == 90 * GIB
    assert climbed(gb10(EMPTY), before).verdict == "reclaimed"
    assert climbed(gb10(dead()), before).verdict == "releasing"
    assert alone(gb10(EMPTY)).verdict == "nothing_to_do"
    unknown = gb10(EMPTY, complete=False)
    assert climbed(unknown, before).verdict == "cannot_attribute"
    assert climbed(gb10(EMPTY, 15), before).verdict == "driver_wedged"


# --- GPUs that others work on meanwhile -------------------------------------------------------


def meanwhile(now: Survey, before: Survey) -> GpuJudgement:
    """The verdict over GPU 1, on which nothing was to be done, after GPU 0's target is gone."""
    made = plan(before)
    rows = judge(made, now, classify(now, rules()), Climbed(waited_seconds=1.0), "h1")
    assert [row.verdict for row in rows if row.index == 0] == ["reclaimed"]
    return next(row for row in rows if row.index == 1)


def test_a_job_that_grows_meanwhile_is_no_riddle() -> None:
    before = survey(
        TARGET,
        SPARED,
        holders=(holder(50), holder(51)),
        lists={0: [listed(50, 50 * GIB)], 1: [listed(51, 20 * GIB)]},
    )
    grown = survey(SPARED, holders=(holder(51),), lists={1: [listed(51, 25 * GIB)]})
    row = meanwhile(grown, before)
    assert row.verdict == "nothing_to_do"
    assert row.why.startswith("held by python3 51")
    leaking = survey(
        SPARED, holders=(holder(51),), lists={1: [listed(51, 20 * GIB)]}, used={1: 25 * GIB}
    )
    assert meanwhile(leaking, before).verdict == "cannot_attribute"


def test_a_job_that_starts_meanwhile_is_no_riddle() -> None:
    now = survey(SPARED, holders=(holder(51),), lists={1: [listed(51, 20 * GIB)]})
    row = meanwhile(now, BEFORE)
    assert (row.verdict, row.why) == ("nothing_to_do", "process 51 came after the plan")
    unseen = survey(SPARED, lists={1: [listed(51, 20 * GIB)]})
    assert meanwhile(unseen, BEFORE).verdict == "cannot_attribute"


# --- dry runs and hosts --------------------------------------------------------------------


def test_a_dry_run() -> None:
    rows = planned(plan(BEFORE), BEFORE, "h1")
    assert [(row.index, row.verdict) for row in rows] == [(0, "planned"), (1, "nothing_to_do")]


def test_a_host_has_its_worst_verdict() -> None:
    assert VERDICTS == (
        "unknown",
        "driver_wedged",
        "unkillable",
        "kernel_pinned",
        "respawned",
        "held_by",
        "host_pages",
        "cannot_attribute",
        "not_permitted",
        "protected",
        "drain_refused",
        "releasing",
        "planned",
        "reclaimed",
        "nothing_to_do",
    )
    rows = [
        GpuJudgement(n, cast(Verdict, v), 0, "") for n, v in enumerate(tuple(reversed(VERDICTS)))
    ]
    for count in range(1, len(rows) + 1):
        assert worst(rows[:count]) == rows[count - 1].verdict
    assert worst([]) == "nothing_to_do"
    assert set(ADVICE) == set(VERDICTS) - {"planned", "reclaimed", "nothing_to_do"}


def test_inside_a_container_what_is_left_is_its_providers() -> None:
    """No order that a tenant cannot follow."""
    row = alone(survey(used={0: 9 * GIB, 1: 0}, facts=facts(init_pid_namespace=False)))
    assert row.verdict == "cannot_attribute"
    assert row.why == "held outside this container; the GPU is idle (0 % busy)"
    assert row.advice == "It is held outside this container: its provider must act."


def test_who_may_keep_exported_memory_is_named() -> None:
    bare = holder(50, (), ctl_map_bytes=0, uvm_fds=0, uvm_map_bytes=0)
    row = alone(survey(identity(50), holders=(bare,), used={0: 4 * GIB, 1: 0}))
    assert row.verdict == "cannot_attribute"
    assert row.why.endswith(
        "python3 50 has nvidiactl open and may keep memory that was exported to it"
    )
    assert row.next == ("fleetmem reclaim -H h1 --pid 50 --dry-run",)
