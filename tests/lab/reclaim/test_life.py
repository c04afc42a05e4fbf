"""A reclaim that is ended from outside, or whose record fails: real processes, real signals."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fleetmem.controller.record.history import open_history
from tests.lab import api
from tests.lab.desk import PROGRAM, Desk
from tests.lab.fixtures import wait_until
from tests.lab.look.test_snapshot import plant

pytestmark = pytest.mark.lab


@dataclass(frozen=True)
class Place:
    """A lab and a desk in front of it; each test takes a host of its own."""

    lab: api.Lab
    desk: Desk
    free: list[str]

    def hold(self) -> tuple[str, int]:
        """A host whose GPU 0 is held by a process that ignores TERM, and that process."""
        host = self.free.pop()
        return host, self.lab.hog(host, "term-ignorer", 0, 2000).holders[0]

    @contextmanager
    def reclaim(self, host: str, holder: int) -> Iterator[subprocess.Popen[str]]:
        """A reclaim that waits for the holder to take the TERM that it has seen."""
        words = ("--gpu", "0", "--yes", "--grace-period", "60s", "-o", "json")
        with self.desk.running("reclaim", "-H", host, *words) as running:
            wait_until(
                "no signal",
                lambda: running.poll() is not None or self.signals(host, holder) == ["TERM"],
                90,
            )
            assert running.poll() is None, running.communicate()
            yield running

    def signals(self, host: str, holder: int) -> list[str]:
        """The signals that the holder has seen."""
        return [one.name for one in self.lab.signals(host, holder)]

    def shown(self, run: str) -> dict[str, Any]:
        """``runs show`` of *run*."""
        return dict(json.loads(self.runs("show", run, "-o", "json")))

    def newest(self) -> dict[str, Any]:
        """The first row of ``runs list``."""
        return dict(json.loads(self.runs("list", "-o", "json"))["runs"][0])

    def runs(self, *words: str) -> str:
        """What ``fleetmem runs`` prints at this desk."""
        command = [str(PROGRAM), "runs", *words]
        environment = self.desk.environment
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, check=True
        ).stdout


def refuse(desk: Desk, table: str, when: str = "1") -> None:
    """Keep rows of *table* for which *when* holds out of the history, as a full disk would."""
    history = open_history(directory=desk.folder / "state" / "fleetmem")
    history.close()
    with sqlite3.connect(history.path) as database:
        database.execute(
            f"CREATE TRIGGER refused BEFORE INSERT ON {table} WHEN {when} "
            "BEGIN SELECT RAISE (ABORT, 'disk is full'); END"
        )
    database.close()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with api.lab(n=7, gpus=1) as lab:
        desk = Desk(tmp_path_factory.mktemp("desk"), lab.inventory)
        yield Place(lab, desk, list(lab.hosts))


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_in_the_middle_of_a_rung(
    place: Place, number: signal.Signals, status: int
) -> None:
    """The host was sent TERM and its end was not seen: unknown, everywhere, and the same status."""
    host, holder = place.hold()
    with place.reclaim(host, holder) as running:
        running.send_signal(number)
        out, err = running.communicate(timeout=60)
    assert running.returncode == status, err
    envelope = json.loads(out)
    assert envelope["run"]["exit_code"] == status
    (row,) = envelope["hosts"]
    assert (row["outcome"], row["error"]["code"]) == ("unknown", "outcome_unknown")
    assert row["reclaim"]["verdict"] == "unknown"
    recorded = place.shown(envelope["run"]["id"])
    assert recorded["run"] == envelope["run"]
    assert recorded["hosts"][0]["reclaim"]["verdict"] == "unknown"
    assert place.newest()["exit_code"] == status
    assert place.signals(host, holder) == ["TERM"]


def test_a_killed_controller_is_told_by_its_trail(place: Place) -> None:
    """Nobody could record an end: what was sent, to whom, and how to learn what came of it."""
    host, holder = place.hold()
    with place.reclaim(host, holder) as running:
        running.kill()
    newest = place.newest()
    assert (newest["finished"], newest["verdicts"]) == (None, {"unknown": 1})
    (row,) = place.shown(newest["id"])["hosts"]
    assert (row["outcome"], row["error"]["code"]) == ("unknown", "outcome_unknown")
    assert f" {holder}" in row["error"]["message"]
    assert "SIGTERM" in row["error"]["message"]
    assert "journalctl -t fleetmem" in row["error"]["hint"]
    assert row["reclaim"]["verdict"] == "unknown"
    assert row["reclaim"]["next"] == [f"fleetmem reclaim -H {host} --dry-run"]
    screen = place.runs("show", newest["id"])
    assert "SIGTERM" in screen
    assert "nothing has been changed" not in screen
    words = ("-H", f"@run:{newest['id']}:unknown", "-o", "json")
    assert [one["host"] for one in json.loads(place.desk.run("hosts", *words).out)["hosts"]] == [
        host
    ]


@pytest.mark.parametrize("cache", [False, True])
def test_a_plan_that_was_not_recorded_changes_nothing(
    place: Place, tmp_path: Path, cache: bool
) -> None:
    """Processes and file pages alike: no question, no lock, no change, and it is said why."""
    host, holder = place.hold()
    desk = Desk(tmp_path, place.lab.inventory)
    refuse(desk, "plans")
    scope = ["--gpu", "0"]
    if cache:
        scope = ["--cache", plant(place.lab, "kept", 8, host)]
    said = desk.run("reclaim", "-H", host, *scope, "--yes", "-o", "json")
    (row,) = said.answer.envelope["hosts"]
    assert (said.code, row["error"]["code"]) == (7, "history_unavailable")
    assert row["reclaim"]["verdict"] == "planned"
    assert row["reclaim"]["rungs"] == []
    assert place.signals(host, holder) == []
    looked = place.desk.plan(host, *scope)
    before, after = (
        one["readings"]["host.operations"]["reading"]["epoch"] for one in (row, looked.host(host))
    )
    assert before == after  # it was not even locked
    assert looked.reclaim(host)["verdict"] == "planned"  # what was to be reclaimed is there


def test_a_trail_that_fails_after_a_signal_is_no_refusal(place: Place, tmp_path: Path) -> None:
    """TERM was sent; that KILL could not be recorded does not make it "planned"."""
    host, holder = place.hold()
    desk = Desk(tmp_path, place.lab.inventory)
    refuse(desk, "trail", "json_extract(NEW.event, '$.signal') = 'KILL'")
    words = ("--gpu", "0", "--yes", "--grace-period", "1s", "-o", "json")
    said = desk.run("reclaim", "-H", host, *words)
    (row,) = said.answer.envelope["hosts"]
    assert (said.code, row["outcome"], row["reclaim"]["verdict"]) == (8, "unknown", "unknown")
    assert [rung["rung"] for rung in row["reclaim"]["rungs"] if rung["signalled"]] == ["term"]
    assert "disk is full" in row["error"]["message"]
    assert place.signals(host, holder) == ["TERM"]
