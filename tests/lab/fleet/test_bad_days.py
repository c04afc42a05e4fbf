"""Every bad day of a host at once: one clear line each, and nothing lost elsewhere."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.lab import api, bad_days
from tests.lab.bad_days import FAILED, FINE, NOT_REACHED, Day
from tests.lab.desk import Desk, Said, inside, inventory
from tests.lab.fixtures import wait_until
from tests.lab.reclaim_stage import Answer

pytestmark = pytest.mark.lab

ABSURD = Day("absurd-pids", bad_days.absurd_pids, "partial")
DAYS = (*NOT_REACHED, *FAILED, *FINE, ABSURD)
HOLDING = (*FINE, ABSURD)
"""Each of these has a leftover, which must be found whatever else is wrong."""


@dataclass(frozen=True)
class Fleet:
    """Hosts on their bad days, the desk that asks them, and what it heard."""

    lab: api.Lab
    desk: Desk
    at: dict[str, str]
    hogs: dict[str, api.Hog]
    said: Said
    nvml_children: set[str]

    @property
    def answer(self) -> Answer:
        """The dry run over all of them."""
        return self.said.answer


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("desk")
    own = [*FAILED, *FINE, ABSURD]
    with api.lab(n=len(own) + 1) as lab:
        names = list(lab.hosts)
        at = {day.name: host for day, host in zip(own, names[1:], strict=True)}
        at |= {day.name: names[0] for day in NOT_REACHED}

        def prepare(day: Day) -> dict[str, Any]:
            return {"at": at[day.name], **day.prepare(lab, at[day.name], folder)}

        with ThreadPoolExecutor(4) as pool:
            hogs = dict(
                zip(
                    [day.name for day in HOLDING],
                    pool.map(lambda day: lab.hog(at[day.name], "retitled", 1, 5000), HOLDING),
                    strict=True,
                )
            )
        settings = {day.name: prepare(day) for day in DAYS}
        desk = Desk(folder, folder / "none").with_inventory(inventory(lab, settings))
        seen: set[str] = set()
        with _watch_nvml(lab, at["nvml-hangs"], seen):
            said = desk.run("reclaim", "-H", "@all", "--dry-run", "-o", "json")
        yield Fleet(lab, desk, at, hogs, said, seen)


class _watch_nvml:
    """Collects the pids of all NVML children that a host ever had while the block runs."""

    def __init__(self, lab: api.Lab, host: str, seen: set[str]) -> None:
        self._space = os.readlink(f"/proc/{lab.hosts[host].init}/ns/pid")
        self._seen, self._end = seen, threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._end.wait(0.2):
            for pid in filter(str.isdigit, os.listdir("/proc")):
                try:
                    name = Path(f"/proc/{pid}/comm").read_text().strip()
                    if name == "fleetmem-nvml" and self._is_there(pid):
                        self._seen.add(pid)
                except OSError:
                    continue

    def _is_there(self, pid: str) -> bool:
        return os.readlink(f"/proc/{pid}/ns/pid") == self._space


@pytest.mark.parametrize("day", DAYS, ids=str)
def test_each_host_has_its_own_clear_line(fleet: Fleet, day: Day) -> None:
    entry = fleet.answer.host(day.name)
    error = entry["error"]
    assert entry["outcome"] == day.outcome, entry
    assert (error["code"] if error else None) == day.code
    if error:
        message = error["message"]
        assert "\n" not in message
        assert message.isprintable()
        assert len(message) < 500
        for word in day.words:
            assert word in message
        assert error["hint"]


@pytest.mark.parametrize("day", HOLDING, ids=str)
def test_the_others_are_whole(fleet: Fleet, day: Day) -> None:
    hog = fleet.hogs[day.name]
    assert fleet.answer.targets(day.name) == {hog.holders[0]: "leftover"}
    section = fleet.answer.reclaim(day.name)
    assert section["verdict"] == ("cannot_attribute" if day is ABSURD else "planned")
    rows = {row["index"]: row for row in section["gpus"]}
    assert rows[1]["before_bytes"] >= 5000 << 20


def test_the_run_says_that_some_failed(fleet: Fleet) -> None:
    assert fleet.said.code == 5  # nobody has the memory that absurd pids are said to hold
    summary = fleet.answer.envelope["summary"]
    assert summary["unreachable"] == len(NOT_REACHED)
    assert summary["failed"] == sum(day.outcome == "failed" for day in FAILED)


def test_nvml_that_hangs_is_asked_once(fleet: Fleet) -> None:
    assert len(fleet.nvml_children) == 1, fleet.nvml_children
    readings = fleet.answer.host("nvml-hangs")["readings"]
    assert readings["gpu.devices"]["outcome"] == "timed_out"
    assert readings["gpu.processes"]["outcome"] == "failed"
    assert readings["gpu.holders"]["outcome"] == "ok"  # the rest of the host is complete
    assert readings["host.facts"]["outcome"] == "ok"


def test_absurd_pids_are_nobody(fleet: Fleet) -> None:
    entry = fleet.answer.host("absurd-pids")
    found = entry["readings"]["gpu.processes"]["reading"]["gpus"][0]
    states = {row["pid"]: row["state"] for row in found["processes"]}
    assert set(states.values()) == {"implausible"}
    assert all(row["gpus"] == [1] for row in entry["reclaim"]["targets"])


@pytest.mark.parametrize(
    ("days", "status"), [(NOT_REACHED, 4), (FAILED, 3), (FINE[:2], 0)], ids=["4", "3", "0"]
)
def test_the_status_of_a_run_over_one_kind(
    fleet: Fleet, days: tuple[Day, ...], status: int
) -> None:
    names = ",".join(day.name for day in days)
    said = fleet.desk.run("hosts", "--check", "-H", names, "-o", "json")
    codes = {day.name: fleet_code(said.answer, day) for day in days}
    if days is FAILED:  # a check can do without the GPU's readings, and says what is missing
        reached = {name: code for name, code in codes.items() if code is None}
        assert {*reached} == {day.name for day in FAILED if (day.code or "").startswith("nvml")}
        for name in reached:
            reading = said.answer.host(name)["readings"]["gpu.devices"]
            code = next(day.code for day in FAILED if day.name == name)
            assert reading["code"] == code
    else:
        assert codes == {day.name: day.code for day in days}
    assert said.code == status


def fleet_code(answer: Answer, day: Day) -> str | None:
    error = answer.host(day.name)["error"]
    return error["code"] if error else None


def test_a_screen_has_every_host_and_no_escape(fleet: Fleet) -> None:
    said = fleet.desk.run("reclaim", "-H", "@all,!nvml-hangs,!absurd-pids", "--dry-run")
    assert said.code == 3
    for text in (said.out, said.err):
        assert not [char for char in text if not char.isprintable() and char != "\n"]
    for day in (*NOT_REACHED, *FAILED):
        if day.name != "nvml-hangs":
            assert day.code in said.out, day.code


NOWHERE = ("full-disk", "noexec", "read-only", "no-home")


def test_where_nothing_can_be_kept_memory_comes_back_all_the_same(fleet: Fleet) -> None:
    before = {name: _files(fleet, name) for name in NOWHERE}
    answer = fleet.desk.reclaim(",".join(NOWHERE))
    assert answer.code == 0, answer.stderr
    for name in NOWHERE:
        assert answer.reclaim(name)["verdict"] == "reclaimed"
        kept = set(_files(fleet, name)) - set(before[name])
        allowed = {"/root/.cache", "/root/.cache/fleetmem"} if name == "noexec" else set()
        assert {path for path in kept if not path.startswith("/root/.cache/fleetmem/")} <= allowed
        assert name == "noexec" or not kept, kept


def _files(fleet: Fleet, name: str) -> list[str]:
    look = "find /root /tmp /var/tmp /dev/shm /home /nowhere 2>/dev/null || true"
    return inside(fleet.lab, fleet.at[name], look).split("\n")


def test_a_full_run_directory_stops_before_any_signal(fleet: Fleet) -> None:
    host = fleet.at["good-b"]
    hog = fleet.hogs["good-b"]
    fill = "mkdir -m 700 /run/fleetmem; mount -t tmpfs -o size=16k,mode=700 tmpfs /run/fleetmem; "
    inside(fleet.lab, host, fill + "cat /dev/zero >/run/fleetmem/full 2>/dev/null || true")
    answer = fleet.desk.reclaim("good-b")
    error = answer.host("good-b")["error"]
    assert error["code"] == "remote_disk_full", error
    assert "/run/fleetmem" in error["message"]
    assert answer.code == 3
    assert fleet.lab.signals(host, hog.holders[0]) == []
    inside(fleet.lab, host, f"test -d /proc/{hog.holders[0]}; umount /run/fleetmem")
    assert fleet.desk.reclaim("good-b").reclaim("good-b")["verdict"] == "reclaimed"


def test_nothing_is_left_running(fleet: Fleet) -> None:
    look = "cat /proc/[0-9]*/comm 2>/dev/null || true"
    for host in set(fleet.at.values()):
        wait_until(host, lambda at=host: "fleetmem" not in inside(fleet.lab, at, look), pause=0.3)  # type: ignore[misc]
