"""Frozen, dead, slow and lying hosts among many: each spoils its own row and no other."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.lab import api
from tests.lab.bad_days import Day, late, liar, refused, session_process
from tests.lab.desk import OUTCOMES, Desk, Said, inside, inventory
from tests.lab.fixtures import wait_until

pytestmark = pytest.mark.lab

DEADLINE = 45.0
"""Seconds for one host on a machine on which the well ones need a small part of it."""

HOSTS = 64
FROZEN = session_process("STOP")
SICK = (
    *(Day(f"frozen-{n}", FROZEN, "timed_out", "timed_out", ("starting the agent",)) for n in "abc"),
    *(Day(f"late-{n}", late(300), "timed_out", "timed_out", ("starting the agent",)) for n in "ab"),
    *(Day(f"dead-{n}", refused, "unreachable", "connect_refused") for n in "ab"),
    Day("killed", session_process("KILL"), "failed", "session_lost"),
    Day("flood", liar("flood"), "failed", "protocol_mismatch", ("1 MiB",)),
    Day("garbage", liar("garbage"), "failed", "protocol_mismatch"),
    Day("huge", liar("huge"), "failed", "protocol_mismatch", ("4294967295",)),
    Day("deep", liar("deep"), "failed", "protocol_mismatch"),
    Day("bulk", liar("bulk"), "timed_out", "timed_out", ("reading",)),
    Day("beats", liar("beats"), "timed_out", "timed_out", ("reading",)),
    Day("silent", liar("silent"), "failed", "session_lost", ("no message",)),
    Day("leave", liar("leave"), "failed", "agent_failed", ("status 0",)),
    Day("protocol", liar("protocol"), "failed", "protocol_mismatch"),
    Day("shapes", liar("shapes"), "failed", "untrusted_output", ("is missing",)),
    Day("outcome", liar("outcome"), "failed", "untrusted_output", ("unknown outcome",)),
    Day("code", liar("code"), "failed", "probe_failed", ("by the host",)),
    Day("infinite", liar("infinite"), "failed", "protocol_mismatch", ("1e999",)),
    Day("names", liar("names"), "ok"),
)


@dataclass(frozen=True)
class Fleet:
    """The hosts, and what a dry run over all of them said."""

    lab: api.Lab
    desk: Desk
    hogs: dict[str, api.Hog]
    said: Said
    deadline: float


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("desk")
    with api.lab(n=HOSTS, gpus=1) as lab:
        names = list(lab.hosts)
        sick = dict(zip([day.name for day in SICK], names, strict=False))
        well = names[len(SICK) :]
        settings: dict[str, dict[str, Any]] = {host: {} for host in well}
        for day in SICK:
            settings[day.name] = {
                "at": sick[day.name],
                **day.prepare(lab, sick[day.name], folder),
            }
        with ThreadPoolExecutor(4) as pool:
            places = [*well[:6], sick["names"]]
            made = list(pool.map(lambda host: lab.hog(host, "retitled", 0, 5000), places))
        hogs = dict(zip([*well[:6], "names"], made, strict=True))
        desk = Desk(folder, folder / "none").with_inventory(inventory(lab, settings))
        words = ("reclaim", "--dry-run", "-o", "json")
        pace = seconds(desk.run(*words, "-H", ",".join(well), "--timeout", "10m"))
        deadline = max(DEADLINE, round(10 * pace))  # a slow machine gets more
        said = desk.run(*words, "-H", "@all", "--timeout", f"{deadline:g}s", timeout=2000)
        yield Fleet(lab, desk, hogs, said, deadline)


def seconds(said: Said) -> float:
    """How long a run took."""
    run = said.answer.envelope["run"]
    started, finished = (datetime.fromisoformat(run[key]) for key in ("started", "finished"))
    return (finished - started).total_seconds()


def test_it_ends_within_the_deadline_of_one_host(fleet: Fleet) -> None:
    assert seconds(fleet.said) < 1.8 * fleet.deadline  # two one after another would need twice


def test_frozen_hosts_are_named_while_it_runs(fleet: Fleet) -> None:
    """Without a terminal a line every 10 s: how far, and who is slowest at what."""
    lines = [line for line in fleet.said.err.splitlines() if "slowest" in line]
    assert lines
    slow = "|".join(day.name for day in SICK if day.outcome == "timed_out" or day.name == "silent")
    assert re.fullmatch(rf"\d+/64 · slowest .*({slow}) [a-z ]+ \d+ s.*", lines[-1]), lines
    for day in SICK:
        if day.outcome == "timed_out":  # and at the end: at what, and for how long
            message = fleet.said.answer.host(day.name)["error"]["message"]
            assert re.search(r", at [a-z ]+ for \d+ s$", message), message


def test_every_host_is_accounted_for_once(fleet: Fleet) -> None:
    envelope = fleet.said.answer.envelope  # which checks names and sums
    assert len(envelope["hosts"]) == HOSTS
    outcomes = [day.outcome for day in SICK]
    summary = envelope["summary"]
    assert summary["ok"] == HOSTS - len(SICK) + outcomes.count("ok")
    for word in OUTCOMES[1:]:
        assert summary[word] == outcomes.count(word), word
    assert fleet.said.code == 3


@pytest.mark.parametrize("day", SICK, ids=str)
def test_each_sick_host_has_its_own_line(fleet: Fleet, day: Day) -> None:
    entry = fleet.said.answer.host(day.name)
    error = entry["error"]
    assert (entry["outcome"], error and error["code"]) == (day.outcome, day.code), entry
    if error:
        assert len(error["message"]) < 500
        assert "\n" not in error["message"]
        for word in day.words:
            assert word in error["message"]


def test_the_well_hosts_are_whole(fleet: Fleet) -> None:
    sick = {day.name for day in SICK} - {"names"}
    for entry in fleet.said.answer.envelope["hosts"]:
        if entry["host"] in sick:
            continue
        assert (entry["outcome"], entry["error"]) == ("ok", None)
        held = {row["pid"]: row["class"] for row in entry["reclaim"]["targets"]}
        hog = fleet.hogs.get(entry["host"])
        assert held == ({hog.holders[0]: "leftover"} if hog else {})


def test_the_envelope_stays_small(fleet: Fleet) -> None:
    for entry in fleet.said.answer.envelope["hosts"]:
        assert len(json.dumps(entry)) < 200_000, entry["host"]


def test_sets_of_a_run_are_selectors(fleet: Fleet) -> None:
    run = fleet.said.answer.envelope["run"]["id"]
    for word in ("failed", "unreachable", "timed_out", "ok"):
        said = fleet.desk.run("hosts", "-H", f"@run:{run}:{word}", "-o", "json")
        named = {row["host"] for row in said.answer.envelope["hosts"]}
        entries = fleet.said.answer.envelope["hosts"]
        assert named == {row["host"] for row in entries if row["outcome"] == word}
    said = fleet.desk.run("hosts", "-H", f"@run:{run},!@run:{run}:ok,&@all", "-o", "json")
    assert {row["host"] for row in said.answer.envelope["hosts"]} == {
        day.name for day in SICK if day.outcome != "ok"
    }
    none = fleet.desk.run("hosts", "-H", f"@run:{run}:unknown", "-o", "json")
    assert (none.code, none.error["code"]) == (2, "no_hosts_match")


def test_nothing_of_a_host_reaches_the_terminal_raw(fleet: Fleet) -> None:
    hosts = "names,shapes,outcome,code,infinite,garbage," + ",".join(list(fleet.hogs)[:2])
    said = fleet.desk.run("reclaim", "-H", hosts, "--dry-run")
    again = fleet.desk.run("hosts", "--check", "-H", hosts)
    shown = fleet.desk.run("runs", "show", fleet.said.answer.envelope["run"]["id"])
    for text in (said.out, said.err, again.out, again.err, shown.out, shown.err):
        raw = [char for char in text if not char.isprintable() and char != "\n"]
        assert not raw, raw
    assert "VLLM::Worker" in said.out
    assert "\\x1b" in said.out
    for form in ("json", "jsonl", "csv"):
        text = fleet.desk.run("reclaim", "-H", hosts, "--dry-run", "-o", form).out
        assert not [char for char in text if ord(char) < 32 and char not in "\r\n"]


def test_true_in_shape_and_false_in_fact_is_never_our_mistake(fleet: Fleet, tmp_path: Path) -> None:
    """Numbers of any size, rows twice or missing: judged or refused, for that host alone."""
    hosts = list(fleet.lab.hosts)[-12:]
    settings: dict[str, dict[str, Any]] = {}
    for host in hosts[:-1]:
        settings[host] = {"at": host, **liar("numbers")(fleet.lab, host, tmp_path)}
    settings[hosts[-1]] = {"at": hosts[-1]}
    for host in hosts[:6]:
        fleet.lab.hog(host, "orphan", 0, 3000)
    desk = fleet.desk.with_inventory(inventory(fleet.lab, settings), "numbers.yaml")
    for words in (
        ("reclaim", "--gpu", "0", "--dry-run"),
        ("reclaim", "--gpu", "0", "--dry-run"),
        ("snapshot",),
        ("snapshot",),
    ):
        answer = desk.run(*words, "-H", "@all", "-o", "json").answer
        for entry in answer.envelope["hosts"]:
            code = entry["error"]["code"] if entry["error"] else None
            assert code not in ("internal", "interrupted"), entry["error"]
        assert answer.host(hosts[-1])["outcome"] == "ok"
        assert answer.code not in (1, 2)


def test_no_agent_of_ours_is_left(fleet: Fleet) -> None:
    look = "cat /proc/[0-9]*/comm 2>/dev/null || true"
    for host in list(fleet.lab.hosts)[len(SICK) :: 7]:
        wait_until(host, lambda at=host: "fleetmem" not in inside(fleet.lab, at, look), pause=0.3)  # type: ignore[misc]
