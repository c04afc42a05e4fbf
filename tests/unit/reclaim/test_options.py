"""Scope options: what they name, and that a pid belongs to one host."""

from __future__ import annotations

import pytest

from fleetmem.controller.errors import UsageError
from fleetmem.controller.hosts.host import Host
from fleetmem.controller.reclaim.options import ReclaimOptions, for_hosts

ONE = (Host("a1", "10.0.0.1"),)
TWO = (*ONE, Host("root@10.0.0.2:22", "10.0.0.2", 22))
TWINS = (*TWO, Host("ops@10.0.0.2:23", "10.0.0.2", 23))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (ReclaimOptions(), ""),
        (ReclaimOptions(gpu="0"), ""),
        (ReclaimOptions(pids=(1,)), "--pid"),
        (ReclaimOptions(host_pids=(("a1", 1),)), "--pid"),
        (ReclaimOptions(user="bob"), "--user"),
        (
            ReclaimOptions(user="bob", units=("a",), containers=("b",)),
            "--user or --unit or --container",
        ),
    ],
)
def test_which_options_name_processes(options: ReclaimOptions, words: str) -> None:
    assert options.named_by == words
    assert options.names_processes == bool(words)
    assert options.scoped == bool(words or options.gpu)


def test_users_are_joined_by_commas() -> None:
    assert ReclaimOptions(user="bob,1000").users == {"bob", "1000"}
    assert ReclaimOptions().users == set()


def test_a_pid_is_one_host_s() -> None:
    options = ReclaimOptions(
        host_pids=(("a1", 5), ("10.0.0.2", 6)), override_protected_on=(("a1", 7),)
    )
    tied = for_hosts(options, TWO)
    assert tied.host_pids == (("a1", 5), ("root@10.0.0.2:22", 6))
    first, second = tied.on_host("a1"), tied.on_host("root@10.0.0.2:22")
    assert (first.pids, first.override_protected) == ((5,), (7,))
    assert (second.pids, second.override_protected) == ((6,), ())
    assert tied.on_host("other").pids == ()
    alone = ReclaimOptions(pids=(9,), override_protected=(9,))
    assert for_hosts(alone, ONE).on_host("a1") == alone


@pytest.mark.parametrize(
    ("options", "hosts", "words"),
    [
        (ReclaimOptions(pids=(9,)), TWO, "--pid 9: that number is another process on each of 2"),
        (ReclaimOptions(override_protected=(9,)), TWO, "--override-protected 9: that number"),
        (ReclaimOptions(host_pids=(("b", 9),)), TWO, "--pid b:9: b is not among the hosts"),
        (
            ReclaimOptions(host_pids=(("10.0.0.2", 9),)),
            TWINS,
            "may be any of root@10.0.0.2:22, ops",
        ),
        (ReclaimOptions(override_protected_on=(("b", 9),)), ONE, "b is not among the hosts"),
    ],
)
def test_a_pid_without_its_host_is_a_mistake(
    options: ReclaimOptions, hosts: tuple[Host, ...], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        for_hosts(options, hosts)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (ReclaimOptions(), "leftovers"),
        (ReclaimOptions(gpu="0,2-3", user="bob"), "--gpu 0,2-3 --user bob"),
        (ReclaimOptions(host_pids=(("a1", 5), ("b", 6))).on_host("a1"), "--pid 5"),
        (ReclaimOptions(units=("a", "b"), containers=("c",)), "--unit a --unit b --container c"),
        (ReclaimOptions(pids=(5,), override_protected=(5,)), "--pid 5 --override-protected 5"),
    ],
)
def test_the_trail_has_the_scope_as_it_was_asked_for(options: ReclaimOptions, text: str) -> None:
    assert options.scope_text == text
