"""Launchers and mere adopters, as a table of cases."""

from __future__ import annotations

import pytest

from fleetmem.agent.kernel.launchers import launcher_alive
from fleetmem.agent.kernel.tasks import Stat


def stat(pid: int, comm: str, ppid: int, pgid: int, sid: int, start: int) -> Stat:
    line = f"{pid} ({comm}) S {ppid} {pgid} {sid} 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 {start} 0 0"
    return Stat(line.encode())


def judged(
    child: Stat,
    parent: Stat | None,
    *,
    parent_alive: bool = True,
    parent_nspids: tuple[int, ...] = (50,),
    child_nspids: tuple[int, ...] = (90,),
    starts_units: bool | None = False,
) -> bool:
    return launcher_alive(
        child,
        parent,
        parent_alive=parent_alive,
        parent_nspids=parent_nspids,
        child_nspids=child_nspids,
        starts_units=lambda: starts_units,
    )


ORPHAN = stat(90, "python3", 50, 80, 80, 900)


@pytest.mark.parametrize(
    "comm",
    ["systemd", "tini", "dumb-init", "containerd-shim", "conmon", "catatonit", "docker-init",
     "fleetmem-guard", "fleetmem-serve"],
)  # fmt: skip
def test_reapers_adopt(comm: str) -> None:
    assert judged(ORPHAN, stat(50, comm, 1, 50, 50, 100)) is False


@pytest.mark.parametrize("comm", ["bash", "python3", "vllm", "slurmstepd", "supervisord"])
def test_others_launched(comm: str) -> None:
    assert judged(ORPHAN, stat(50, comm, 1, 50, 50, 100)) is True


def test_the_first_process_of_a_pid_namespace_adopts() -> None:
    child = stat(90, "python3", 1, 80, 80, 900)
    assert judged(child, stat(1, "sshd", 0, 0, 0, 1), parent_nspids=(1,)) is False
    inner = stat(50, "python3", 1, 50, 50, 100)
    assert judged(ORPHAN, inner, parent_nspids=(50, 1), child_nspids=(90, 7)) is False


def test_a_reaper_launched_what_shares_its_group_or_session() -> None:
    parent = stat(50, "python3", 1, 50, 50, 100)
    same_group = stat(90, "python3", 50, 50, 80, 900)
    same_session = stat(90, "python3", 50, 80, 50, 900)
    for child in (same_group, same_session):
        assert judged(child, parent, parent_nspids=(50, 1), child_nspids=(90, 7)) is True


def test_a_group_or_session_led_from_outside_is_none() -> None:
    parent = stat(1, "init", 0, 0, 0, 1)
    child = stat(90, "python3", 1, 0, 0, 900)
    assert judged(child, parent, parent_nspids=(1,)) is False


def test_a_dead_or_missing_parent_is_dead() -> None:
    parent = stat(50, "bash", 1, 50, 50, 100)
    assert judged(ORPHAN, parent, parent_alive=False) is False
    assert judged(ORPHAN, None) is False


def test_a_parent_younger_than_its_child_adopted_it() -> None:
    assert judged(ORPHAN, stat(50, "bash", 1, 50, 50, 901)) is False


def test_a_parent_outside_the_namespace_is_not_known_to_be_dead() -> None:
    assert judged(stat(90, "python3", 0, 90, 90, 900), None) is True
    assert judged(stat(1, "python3", 0, 1, 1, 900), None) is True


@pytest.mark.parametrize(("started", "leads", "expected"), [
    (True, True, True), (True, False, True), (False, True, False),
    (None, True, True), (None, False, False),
])  # fmt: skip
def test_systemd_launched_the_main_process_of_a_live_unit(
    started: bool | None, leads: bool, expected: bool
) -> None:
    child = stat(90, "python3", 1, 90, 90 if leads else 80, 900)
    parent = stat(1, "systemd", 0, 1, 1, 1)
    assert judged(child, parent, parent_nspids=(1,), starts_units=started) is expected


def test_a_shim_launched_what_lives_in_the_namespace_of_its_container() -> None:
    shim = stat(50, "containerd-shim", 1, 50, 50, 100)
    first = stat(90, "python3", 50, 90, 90, 900)
    assert judged(first, shim, child_nspids=(90, 1)) is True
    assert judged(first, shim, child_nspids=(90, 44)) is True
    assert judged(first, shim, child_nspids=(90,)) is False


def test_a_comm_with_parentheses_is_read_whole() -> None:
    assert stat(5, "a) (b", 1, 5, 5, 7).comm == "a) (b"
    assert stat(5, "a) (b", 1, 5, 5, 7).start_time == 7


def test_a_torn_line_is_no_stat() -> None:
    with pytest.raises(ValueError, match="stat"):
        Stat(b"5 (x) S 1")
