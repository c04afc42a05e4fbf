"""Who holds, who inherited, who merely looks, and whose it is."""

from __future__ import annotations

from typing import Any

import pytest

from fleetmem.controller.reclaim.classify import Ambiguity, classify
from fleetmem.controller.reclaim.law.rules import engine, rules
from tests.unit.reclaim.reclaim_world import (
    GIB,
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

NOTHING = "launcher dead, nothing more is proved (nohup looks like this)"
LEFT = "vLLM worker, launcher dead, 2 of its pipes are held by nobody else"
BASH_41 = [{"pid": 41, "start_time": 1, "comm": "bash"}]
WORKER: dict[str, Any] = {"title": "VLLM::Worker_TP0", "comm": "VLLM::Worker_TP"}


@pytest.mark.parametrize(
    ("more", "kind", "why"),
    [
        ({}, "detached", NOTHING),
        (
            {"launcher_alive": True, "ppid": 41, "ancestors": BASH_41},
            "in_use",
            "<- launcher bash 41 alive",
        ),
        ({"group_leader_alive": True, "pgid": 41}, "detached", NOTHING),
        (
            {"owner": owner("unit", "a.service", "live")},
            "in_use",
            "main process of unit a.service, which is live",
        ),
        (
            {"owner": owner("container", "c1", "live")},
            "in_use",
            "main process of container c1, which is live",
        ),
        (
            {"owner": owner("unit", "a.service", "gone")},
            "leftover",
            "its unit a.service has ended (over)",
        ),
        ({"owner": owner("job", "77", "gone")}, "leftover", "its job 77 has ended, says systemd"),
        (
            {"owner": owner("container", "c1", None)},
            "detached",
            "nobody could say whether its container c1 lives",
        ),
        (
            {"owner": owner("session", "4", "gone")},
            "detached",
            NOTHING,
        ),
        (
            {
                "owner": owner("unit", "a.service", "gone"),
                "listening": True,
                "listening_ports": [8000],
            },
            "in_use",
            "listens on *:8000",
        ),
        (
            {**WORKER, "orphaned_pipes": 2},
            "leftover",
            LEFT,
        ),
        (
            {**WORKER, "orphaned_pipes": 0},
            "detached",
            NOTHING,
        ),
        (
            {**WORKER, "orphaned_pipes": 2, "live_peers": [55]},
            "detached",
            LEFT + ", but <- pipe <-  55 alive",
        ),
        (
            {**WORKER, "orphaned_pipes": 2, "live_peers": None},
            "detached",
            LEFT + ", but <- pipe, whose other end was not read",
        ),
        (
            {**WORKER, "orphaned_pipes": None},
            "detached",
            "<- pipe, whose other end was not read",
        ),
        (
            {**WORKER, "orphaned_pipes": 2, "listening": True, "listening_ports": [5000]},
            "in_use",
            "listens on *:5000",
        ),
        (
            {**WORKER, "orphaned_pipes": 2, "launcher_alive": True, "ppid": 41, "live_peers": [41]},
            "in_use",
            "<- launcher  41 alive",
        ),
        (  # a subreaper took it over: whoever launched it would have a pipe to it
            {**WORKER, "orphaned_pipes": 2, "launcher_alive": True, "ppid": 41},
            "leftover",
            LEFT,
        ),
        ({"comm": "sshd"}, "protected", "login and sessions"),
        ({"comm": "nvidia-cuda-mps"}, "protected", "MPS control"),
        ({"comm": "nv-hostengine"}, "protected", "DCGM and exporters"),
        ({"kernel_thread": True}, "protected", "a kernel thread"),
    ],
)
def test_classes(more: dict[str, Any], kind: str, why: str) -> None:
    found = classify(holding(identity(50, **more)), rules())
    assert (found.members[50].kind, found.members[50].why) == (kind, why)
    assert found.members[50].held == {0: 90 * GIB}
    assert found.ambiguous == ()


def test_the_agent_protects_itself() -> None:
    found = classify(holding(identity(901)), rules())
    assert found.members[901].kind == "protected"
    assert found.members[901].why == "fleetmem's own agent or an ancestor of it"


def test_what_others_own_is_foreign_to_a_user() -> None:
    mine = identity(50, uid=1000, user="ops")
    theirs = identity(51, uid=1001, user="bob", owner=owner("unit", "a.service", "gone"))
    found = classify(
        survey(
            mine,
            theirs,
            holders=(holder(50), holder(51)),
            lists={0: [listed(50, GIB), listed(51, GIB)]},
            facts=facts(uid=1000),
        ),
        rules(),
    )
    assert found.members[50].kind == "detached"
    assert (found.members[51].kind, found.members[51].why) == ("foreign", "belongs to user bob")


def test_a_number_of_nvml_without_files_holds_nothing() -> None:
    """The lists may be scrambled, or name another namespace's process."""
    found = classify(survey(identity(50), lists={0: [listed(50, 90 * GIB)]}), rules())
    assert found.members[50].held == {}
    assert found.members[50].evidence == ("nvml",)


def test_an_implausible_number_holds_nothing() -> None:
    lists = {0: [listed(50, 90 * GIB, "implausible")]}
    found = classify(survey(identity(50), holders=(holder(50),), lists=lists), rules())
    assert found.members[50].held == {}


def test_files_alone_hold_nothing() -> None:
    """Every CUDA process opens every GPU's node."""
    found = classify(
        survey(identity(50), holders=(holder(50),), lists={1: [listed(50, GIB)]}), rules()
    )
    assert found.members[50].held == {1: GIB}
    assert found.members[50].open_gpus == (0, 1)
    assert found.members[50].evidence == ("nvml", "fd", "mapping")


def test_a_zombie_that_holds_nothing_is_no_member() -> None:
    found = classify(
        survey(identity(50, alive=False, state="Z"), lists={0: [listed(50, GIB)]}), rules()
    )
    assert found.members == {}


# --- heirs ---------------------------------------------------------------------------------


def heirs(*processes: Any, files: tuple[Any, ...], **more: Any) -> Any:
    lists = {0: [listed(40, 90 * GIB, "dead")]}
    return classify(survey(*processes, holders=files, lists=lists, **more), rules())


def test_the_fork_of_a_dead_process_is_its_heir() -> None:
    found = heirs(identity(50), files=(fork_files(50),))
    member = found.members[50]
    assert (member.kind, member.why) == ("leftover", "inherited the files of dead process 40")
    assert (member.held, member.heir_of) == ({0: 90 * GIB}, (40,))
    assert member.evidence == ("fd", "mapping", "heir")


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        (holder(50), "a uvm mapping is not copied by fork"),
        (holder(50, uvm_map_bytes=0, ctl_map_bytes=4096), "monitoring maps a page at most"),
        (fork_files(50, (1,)), "files of another GPU only"),
    ],
)
def test_who_is_no_heir(files: Any, reason: str) -> None:
    found = heirs(identity(50), files=(files,))
    assert found.members[50].held == {}, reason
    assert found.members[50].kind == "detached"


def test_who_is_on_a_list_is_no_heir() -> None:
    lists = {0: [listed(40, GIB, "dead")], 1: [listed(50, GIB)]}
    found = classify(survey(identity(50), holders=(fork_files(50),), lists=lists), rules())
    assert found.members[50].held == {1: GIB}


def test_a_protected_process_is_no_heir() -> None:
    found = heirs(identity(50, comm="sshd"), files=(fork_files(50),))
    assert (found.members[50].kind, found.members[50].held) == ("protected", {})


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"sid": 7}, {"sid": 7, "exe": "/bin/b", "uid": 4}),
        ({"exe": "/bin/a"}, {"exe": "/bin/a"}),
        (
            {"cgroup": "/u", "owner": owner("unit", "u", "gone"), "exe": "/bin/a"},
            {"cgroup": "/u", "owner": owner("unit", "u", "gone"), "exe": "/bin/b"},
        ),
    ],
)
def test_one_family_inherits_together(first: dict[str, Any], second: dict[str, Any]) -> None:
    found = heirs(
        identity(50, **first), identity(51, **second), files=(fork_files(50), fork_files(51))
    )
    assert {pid: m.kind for pid, m in found.members.items()} == {50: "leftover", 51: "leftover"}
    assert found.ambiguous == ()


@pytest.mark.parametrize(
    "second",
    [
        {"exe": "/bin/b"},
        {"uid": 1000},
        {"exe": None},
        {"title": "python3 serve.py"},
        {"cgroup": "/", "exe": "/bin/b"},
    ],
)
def test_two_families_are_a_persons_decision(second: dict[str, Any]) -> None:
    found = heirs(identity(50), identity(51, **second), files=(fork_files(50), fork_files(51)))
    assert found.ambiguous == (Ambiguity(0, (40,), (50, 51)),)
    assert [(m.kind, m.held, m.may_hold) for m in found.members.values()] == [
        (None, {}, (0,)),
        (None, {}, (0,)),
    ]


def test_a_fork_of_a_live_holder_holds_nothing_yet() -> None:
    child = identity(51, ancestors=[{"pid": 50, "start_time": 500, "comm": "python3"}])
    found = classify(
        survey(
            identity(50),
            child,
            holders=(holder(50), fork_files(51)),
            lists={0: [listed(50, GIB)]},
        ),
        rules(),
    )
    assert (found.members[51].held, found.members[51].fork_of) == ({}, 50)


def test_a_fork_of_a_reused_number_is_nobodys() -> None:
    child = identity(51, ancestors=[{"pid": 50, "start_time": 7, "comm": "python3"}])
    found = classify(
        survey(
            identity(50), child, holders=(holder(50), fork_files(51)), lists={0: [listed(50, GIB)]}
        ),
        rules(),
    )
    assert found.members[51].fork_of is None


def adrift(*others: Any, dead: bool = False, like: str = "of 50", **more: Any) -> Any:
    """50 holds GPU 0; 52 has a context's files of it, an address space like that one's, and no
    ancestor that tells why."""
    lists = {0: [listed(50, GIB)], 1: [listed(other["pid"], GIB) for other in others]}
    if dead:
        lists[0].append(listed(40, GIB, "dead"))
    people = (identity(50), *others, identity(52, **more))
    return classify(
        survey(
            *people,
            holders=(holder(50), *(holder(o["pid"]) for o in others), fork_files(52)),
            lists=lists,
            ties=ties_of(people, _52=like),
        ),
        rules(),
    ).members[52]


def test_a_fork_whose_parent_has_ended_belongs_to_a_live_holder() -> None:
    found = adrift()
    assert (found.held, found.fork_of, found.akin, found.origins) == ({}, None, (50,), (50,))


def test_the_address_space_says_whose_fork_it_is() -> None:
    assert adrift(identity(51)).akin == (50,)
    assert adrift(identity(51), like="of 51").akin == (51,)
    assert adrift(like="of 9").akin == ()


def test_a_fork_of_the_living_is_no_heir_of_a_dead_number_beside_it() -> None:
    found = adrift(dead=True)
    assert (found.akin, found.heir_of, found.held) == ((50,), (), {})
    found = adrift(dead=True, like="of 9")
    assert (found.akin, found.heir_of) == ((), (40,))


def test_where_kinship_cannot_be_told_nobody_is_an_heir() -> None:
    people = (identity(50), identity(52))
    ties = ties_of(people)
    ties["processes"][1]["layout"] = None
    lists = {0: [listed(50, GIB), listed(40, GIB, "dead")]}
    seen = survey(*people, holders=(holder(50), fork_files(52)), lists=lists, ties=ties)
    found = classify(seen, rules())
    assert found.members[52].held == {}
    assert found.ambiguous == (Ambiguity(0, (40,), (52,), one_family=True),)


def test_unknown_sizes_stay_unknown() -> None:
    found = classify(holding(identity(50), None), rules())
    assert found.members[50].held == {0: None}
    assert found.members[50].held_bytes is None


# --- the playbooks -------------------------------------------------------------------------


def test_worker_names_match_their_own_examples() -> None:
    from importlib import resources

    import yaml

    text = (resources.files("fleetmem.playbooks") / "workers.yaml").read_text("utf-8")
    for line in yaml.safe_load(text)["workers"]:
        for title in line["tests"]:
            assert engine(identity(1, title=title, comm=title[:15]), rules()) == line["engine"]


def test_other_titles_are_no_workers() -> None:
    from importlib import resources

    import yaml

    text = (resources.files("fleetmem.playbooks") / "workers.yaml").read_text("utf-8")
    others = [title for line in yaml.safe_load(text)["workers"] for title in line["others"]]
    for title in [*others, "python3 train.py", "bash", "jupyter-lab", "webworker", ""]:
        assert engine(identity(1, title=title, comm=title[:15]), rules()) is None, title
