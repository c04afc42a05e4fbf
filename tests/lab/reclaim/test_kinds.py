"""One host for every way in which GPU memory is left held: who is touched, who is not.

Two runs, as a person would do them: first without a scope, then with ``--gpu 0``. On every
host there are bystanders and somebody who is logged in; none of them may notice anything.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from tests.lab import api
from tests.lab.fixtures import wait_until
from tests.lab.inside import asking as inside
from tests.lab.reclaim_stage import (
    MIB,
    Answer,
    Desk,
    answers,
    at_most_once,
    login,
    no_agents,
    traces,
    untouched,
)

pytestmark = pytest.mark.lab

# kind: class, verdict over GPU 0 without scope, with --gpu 0, last signal needed
TABLE: dict[str, tuple[str | None, str, str, str]] = {
    "plain": ("in_use", "nothing_to_do", "reclaimed", "TERM"),
    "mapped": ("in_use", "nothing_to_do", "reclaimed", "TERM"),
    "second-node": ("in_use", "nothing_to_do", "reclaimed", "TERM"),
    "pinned": ("in_use", "nothing_to_do", "reclaimed", "TERM"),
    "term-ignorer": ("in_use", "nothing_to_do", "reclaimed", "KILL"),
    "orphan": ("detached", "nothing_to_do", "reclaimed", "TERM"),
    "leader-zombie": ("detached", "nothing_to_do", "reclaimed", "TERM"),
    "retitled": ("leftover", "reclaimed", "nothing_to_do", "KILL"),
    "forked-holder": ("leftover", "reclaimed", "nothing_to_do", "TERM"),
    "ambiguous-heirs": (None, "held_by", "held_by", ""),
    "unreaped": (None, "nothing_to_do", "nothing_to_do", ""),
    "bystander": (None, "nothing_to_do", "nothing_to_do", ""),
}
SIZE = 92000
GRACE = "4s"


@dataclass(frozen=True)
class Row:
    """One host: the hog under test, bystanders without and with a charge on GPU 1, a login."""

    kind: str
    host: str
    hog: api.Hog
    nameless: api.Hog
    neighbour: api.Hog
    login: subprocess.Popen[str]


@dataclass(frozen=True)
class Stage:
    lab: api.Lab
    desk: Desk
    rows: dict[str, Row]
    dry: Answer
    before_dry: dict[str, list[str]]
    unscoped: Answer
    scoped: Answer


def place(lab: api.Lab, kind: str, host: str, open_until: contextlib.ExitStack) -> Row:
    """Start everything on one host."""
    session = open_until.enter_context(login(lab, host))
    hog = api.Hog([], [], []) if kind == "bystander" else lab.hog(host, kind, 0, SIZE)
    nameless = lab.hog(host, "bystander", 0, 0, title="VLLM::Worker_TP0")
    neighbour = lab.hog(host, "bystander", 1, 3000)
    return Row(kind, host, hog, nameless, neighbour, session)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with api.lab(n=len(TABLE)) as lab, contextlib.ExitStack() as stack:
        with ThreadPoolExecutor(4) as pool:
            found = pool.map(
                lambda pair: place(lab, pair[0], pair[1], stack), zip(TABLE, lab.hosts, strict=True)
            )
            rows = {row.kind: row for row in found}
        desk = Desk(lab.inventory, tmp_path_factory.mktemp("state"))
        dry = desk.reclaim("--gpu", "0", "--dry-run", "--detailed-exitcode")
        after_dry = {host: traces(lab, host).folder for host in lab.hosts}
        signals = {
            host: [
                str(path)
                for path in (lab.directory / host / "hogs").glob("*.log*")
                if path.read_text()
            ]
            for host in lab.hosts
        }
        before = {host: after_dry[host] + signals[host] for host in lab.hosts}
        first = desk.reclaim("--yes", "--grace-period", GRACE)
        second = desk.reclaim("--gpu", "0", "--yes", "--grace-period", GRACE)
        yield Stage(lab, desk, rows, dry, before, first, second)


def test_dry_run_has_the_same_targets_and_leaves_no_trace(stage: Stage) -> None:
    """Against the second run: what the first one took is gone by then."""
    assert stage.before_dry == {host: [] for host in stage.lab.hosts}
    assert stage.dry.code == 5  # one host is held_by already
    for row in stage.rows.values():
        planned = stage.dry.targets(row.host)
        applied = {**stage.unscoped.targets(row.host), **stage.scoped.targets(row.host)}
        assert (row.kind, planned) == (row.kind, applied)
        wanted = "planned" if planned else TABLE[row.kind][2]
        assert (row.kind, stage.dry.verdicts(row.host)) == (row.kind, {0: wanted})
        assert stage.dry.reclaim(row.host)["rungs"] == []


@pytest.mark.parametrize("kind", TABLE)
def test_without_scope_only_leftovers(stage: Stage, kind: str) -> None:
    row, (cls, verdict, _, _) = stage.rows[kind], TABLE[kind]
    found = stage.unscoped
    assert found.verdicts(row.host) == {0: verdict, 1: "nothing_to_do"}
    assert found.reclaim(row.host)["verdict"] == verdict
    assert found.host(row.host)["outcome"] == "ok"
    if verdict == "reclaimed":
        assert found.targets(row.host) == dict.fromkeys(row.hog.holders, cls)
        spared = found.spared(row.host)
    else:
        assert found.targets(row.host) == {}
        spared = found.spared(row.host)
        for pid in row.hog.holders:
            assert spared[pid][0] == cls
            assert spared[pid][1]
    assert spared[row.neighbour.holders[0]][0] == "in_use"


@pytest.mark.parametrize("kind", TABLE)
def test_with_gpu_0(stage: Stage, kind: str) -> None:
    row, (cls, first, verdict, last) = stage.rows[kind], TABLE[kind]
    found = stage.scoped
    assert found.verdicts(row.host) == {0: verdict}
    if verdict == "reclaimed":
        assert found.targets(row.host) == dict.fromkeys(row.hog.holders, cls)
    else:
        assert found.targets(row.host) == {}
    cls_of_neighbour, why = found.spared(row.host)[row.neighbour.holders[0]]
    assert (cls_of_neighbour, why) == ("in_use", "holds GPU 1 only, which is not in scope")
    run = stage.unscoped if first == "reclaimed" else found
    signals = [name for _, pid, name in run.signalled(row.host) if pid in row.hog.holders]
    assert signals == {"TERM": ["TERM"], "KILL": ["TERM", "KILL"], "": []}[last]


def test_next_says_how_to_reach_what_was_spared(stage: Stage) -> None:
    plain = stage.unscoped.reclaim(stage.rows["plain"].host)
    assert any("--gpu 0" in step for step in plain["next"])
    unclear = stage.unscoped.reclaim(stage.rows["ambiguous-heirs"].host)
    for pid in stage.rows["ambiguous-heirs"].hog.holders:
        assert any(f"--pid {pid} " in step for step in unclear["next"])


def test_exit_codes(stage: Stage) -> None:
    """held_by on one host is what decides."""
    assert (stage.unscoped.code, stage.scoped.code) == (5, 5)


def test_memory_is_really_back(stage: Stage) -> None:
    for row in stage.rows.values():
        kept = SIZE if row.kind == "ambiguous-heirs" else 0
        used = [inside.used(stage.lab, row.host, gpu) for gpu in (0, 1)]
        assert (row.kind, used) == (row.kind, [kept, 3000])
        for gpu in stage.scoped.reclaim(row.host)["gpus"]:
            assert gpu["after_bytes"] == (kept + 3) * MIB


def test_bystanders_and_logins_notice_nothing(stage: Stage) -> None:
    for row in stage.rows.values():
        untouched(stage.lab, row.host, row.nameless)
        untouched(stage.lab, row.host, row.neighbour)
        answers(row.login)
    unclear = stage.rows["ambiguous-heirs"]
    untouched(stage.lab, unclear.host, unclear.hog)


def test_launchers_that_are_no_target_get_no_signal(stage: Stage) -> None:
    """The parent of a target is not signalled, only what was proved."""
    for row in stage.rows.values():
        untouched(stage.lab, row.host, api.Hog([], [], row.hog.helpers))


def test_signals_are_what_the_trail_says(stage: Stage) -> None:
    for row in stage.rows.values():
        trail = at_most_once(stage.lab, row.host)
        told = [
            (pid, name)
            for run in (stage.unscoped, stage.scoped)
            for _, pid, name in run.signalled(row.host)
        ]
        assert [(pid, name) for pid, _, name in trail] == told
        for pid in row.hog.holders:
            seen = [one.name for one in stage.lab.signals(row.host, pid)]
            assert seen == [name for other, name in told if other == pid and name != "KILL"]
        ids = {run.reclaim(row.host)["plan"]["id"] for run in (stage.unscoped, stage.scoped)}
        assert {line["operation"] for line in traces(stage.lab, row.host).audit} <= ids


def test_no_agent_is_left(stage: Stage) -> None:
    no_agents(stage.lab, list(stage.lab.hosts))


# --- what people do today ------------------------------------------------------------------

CHAIN = """
pkill -9 -f 'train[.]py'
fuser -k -9 /dev/nvidia* 2>/dev/null
"""


def test_the_classic_chain_leaves_memory_held() -> None:
    """pkill by the name people know, fuser over the device nodes, then a look.

    The reason to exist: a process without a main thread and one with other device nodes
    keep their memory, and both are reclaimed afterwards without a word about their names.
    """
    with api.lab(n=3) as lab:
        hosts = dict(zip(("plain", "leader-zombie", "second-node"), lab.hosts, strict=True))
        for kind, host in hosts.items():
            title = "python3 train.py" if kind == "plain" else "model worker 0"
            lab.hog(host, kind, 0, SIZE, title=title)
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(lambda host: lab.exec(host, "sh", "-c", CHAIN), lab.hosts))
        wait_until("the plain one is gone", lambda: inside.used(lab, hosts["plain"]) == 0)
        left = {kind: inside.used(lab, host) for kind, host in hosts.items()}
        assert left == {"plain": 0, "leader-zombie": SIZE, "second-node": SIZE}
        desk = Desk(lab.inventory, lab.directory / "state")
        found = desk.reclaim("--gpu", "0", "--yes", "--grace-period", GRACE)
        assert [found.verdicts(host)[0] for host in hosts.values()] == [
            "nothing_to_do",
            "reclaimed",
            "reclaimed",
        ]
        assert found.code == 0
        assert [inside.used(lab, host) for host in hosts.values()] == [0, 0, 0]


def test_unclear_heirs_one_by_one() -> None:
    """A person names one; what the other one has is said, and it lives until it is named."""
    with api.lab(n=1) as lab:
        (host,) = lab.hosts
        first, second = lab.hog(host, "ambiguous-heirs", 0, SIZE).holders
        desk = Desk(lab.inventory, lab.directory / "state")
        words = ("--yes", "--grace-period", GRACE)
        found = desk.reclaim("--pid", str(first), *words)
        assert found.targets(host) == {first: "unclear"}
        assert found.verdicts(host) == {0: "held_by"}
        assert str(second) in found.reclaim(host)["gpus"][0]["why"]
        assert inside.used(lab, host) == SIZE / 2
        assert lab.signals(host, second) == []
        found = desk.reclaim(*words)  # now it is clear who has the rest
        assert found.targets(host) == {second: "leftover"}
        assert found.verdicts(host) == {0: "reclaimed", 1: "nothing_to_do"}
        assert inside.used(lab, host) == 0
