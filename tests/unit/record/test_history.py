"""The run history: many writers, full disks, a trail that nobody can shorten."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fleetmem.controller.answer.envelope import PlanHead, new_envelope, new_host, new_run
from fleetmem.controller.errors import HistoryUnavailable, UsageError
from fleetmem.controller.record import database as database_module
from fleetmem.controller.record.history import History, open_history, open_or_warn
from fleetmem.controller.record.history_schema import MIGRATIONS
from fleetmem.controller.record.state_directory import file_system, state_directory
from tests.unit.reclaim.reclaim_samples import eight_gpus, envelope, idle, unreachable


@pytest.fixture
def said() -> list[str]:
    """Warnings of the history under test."""
    return []


@pytest.fixture
def history(tmp_path: Path, said: list[str]) -> Iterator[History]:
    """A fresh history."""
    opened = open_history(said.append, tmp_path / "state")
    yield opened
    opened.close()


def record(history: History, *hosts: Any) -> str:
    """Record a whole reclaim over *hosts*; its id."""
    run = envelope(*hosts)
    history.begin(run["run"], run["targeted"])
    for entry in hosts:
        history.record_host(run["run"]["id"], entry)
    history.finish(run)
    return run["run"]["id"]


def test_a_run_comes_back_as_it_was(history: History) -> None:
    """The envelope that was recorded is the one that is loaded, by the start of its id."""
    run = envelope(eight_gpus("a"), unreachable("b"), exit_code=3)
    history.begin(run["run"], run["targeted"])
    for entry in run["hosts"]:
        history.record_host(run["run"]["id"], entry)
    history.finish(run)
    assert history.load(run["run"]["id"][:5]) == run
    listed = history.runs()[0]
    assert (listed.exit_code, listed.targeted, listed.outcomes, listed.verdicts) == (
        3,
        2,
        {"ok": 1, "unreachable": 1},
        {"reclaimed": 1},
    )


def test_a_run_that_was_cut_off(history: History) -> None:
    """Hosts that never reported are unknown, and the sums still hold."""
    run = new_run("reclaim")
    history.begin(run, ["a", "b"])
    history.record_host(run["id"], idle("a"))
    loaded = history.load(run["id"])
    assert [entry["outcome"] for entry in loaded["hosts"]] == ["ok", "unknown"]
    assert loaded["run"]["finished"] is None
    assert history.runs()[0].finished is None


def planned(host: str) -> Any:
    """A host whose plan was recorded, and nothing after it."""
    entry = eight_gpus(host)
    entry["reclaim"]["verdict"] = "planned"
    entry["reclaim"]["rungs"] = []
    for row in entry["reclaim"]["gpus"]:
        row["verdict"] = "planned"
    return entry


TERM = {"action": "signal", "signal": "TERM", "targets": [[7, 70, "serve"], [8, 80, "worker"]]}
TERM_DONE = {
    "action": "signal_done",
    "signal": "TERM",
    "results": [
        {"pid": 7, "start_time": 70, "result": "sent"},
        {"pid": 8, "start_time": 80, "result": "gone"},
    ],
}
KILL = {"action": "signal", "signal": "KILL", "targets": [[7, 70, "serve"]]}
DROP = {"action": "pagecache.drop", "files": ["/m/a", "/m/b"], "bytes": 9}


@pytest.mark.parametrize(
    ("events", "why", "sent"),
    [
        ([TERM], "SIGTERM was about to be sent to serve 7, worker 8", []),
        ([TERM, TERM_DONE], "SIGTERM was sent to serve 7", [(7, "TERM")]),
        (
            [TERM, TERM_DONE, KILL],
            "SIGTERM was sent to serve 7; SIGKILL was about to be sent to serve 7",
            [(7, "TERM")],
        ),
        ([DROP], "pages of 2 files were about to leave memory", []),
    ],
)
def test_a_run_without_an_end_is_told_by_its_trail(
    history: History, events: list[Any], why: str, sent: list[Any]
) -> None:
    """The controller died: what was sent, to whom, outcome unknown; never "planned"."""
    run = new_run("reclaim")
    history.begin(run, ["a", "b", "c"])
    for host in ("a", "b", "c"):
        history.record_host(run["id"], planned(host))
    for event in events:
        history.trail("op", "a", {**event, "run": run["id"]})
        history.trail("op", "b", {**event, "run": "other"})
    (told, other, third) = history.load(run["id"])["hosts"]
    assert told["outcome"] == "unknown"
    error, section = told["error"], told["reclaim"]
    assert error is not None
    assert (error["code"], error["message"].split("; the run recorded")[0]) == (
        "outcome_unknown",
        why,
    )
    assert section["verdict"] == "unknown"
    assert {row["verdict"] for row in section["gpus"]} == {"unknown"}
    found = [(one["pid"], one["signal"]) for rung in section["rungs"] for one in rung["signalled"]]
    assert found == sent
    assert section["next"] == ["fleetmem reclaim -H a --dry-run"]
    assert [other["reclaim"]["verdict"], third["reclaim"]["verdict"]] == ["planned"] * 2
    (listed,) = history.runs()
    assert (listed.outcomes, listed.verdicts) == (
        {"unknown": 1, "ok": 2},
        {"unknown": 1, "planned": 2},
    )
    assert history.hosts_by(run["id"], "unknown") == ["a"]


def test_a_trail_from_before_it_named_runs_still_counts(history: History) -> None:
    """An older version's events have the operation of the run's plan, and nothing else."""
    run = new_run("reclaim")
    entry = planned("a")
    plan = entry["reclaim"]["plan"]
    history.begin(run, ["a"])
    history.record_host(run["id"], entry)
    history.save_plan(run["id"], "a", plan, {})
    history.trail(plan["id"], "a", KILL)
    assert history.load(run["id"])["hosts"][0]["outcome"] == "unknown"


def test_a_recorded_end_stays_what_it_is(history: History) -> None:
    """A host that ended, of a run that did not; and a whole run, whatever its trail has."""
    run = new_run("reclaim")
    history.begin(run, ["a"])
    history.record_host(run["id"], eight_gpus("a"))
    history.trail("op", "a", {**KILL, "run": run["id"]})
    assert history.load(run["id"])["hosts"][0]["reclaim"]["verdict"] == "reclaimed"
    whole = record(history, planned("a"))
    history.trail("op", "a", {**KILL, "run": whole})
    assert history.load(whole)["hosts"][0]["reclaim"]["verdict"] == "planned"


def test_hosts_of_a_run_by_how_they_ended(history: History) -> None:
    """``@run:ID:OUTCOME`` takes outcomes and verdicts; anything else is a mistake."""
    run = record(history, eight_gpus("a"), idle("b"), unreachable("c"))
    assert history.hosts_by(run[:6], "unreachable") == ["c"]
    assert history.hosts_by(run, "nothing_to_do") == ["b"]
    assert history.hosts_by(run, "ok") == ["a", "b"]
    assert history.hosts_by(run, "") == history.hosts_by(run, "all") == ["a", "b", "c"]
    assert history.hosts_by(run, "failed") == []
    with pytest.raises(UsageError, match="not an outcome"):
        history.hosts_by(run, "bad")


def test_run_ids_must_be_clear(history: History) -> None:
    """Unknown, empty and ambiguous prefixes are mistakes; wildcards have no meaning."""
    for name in ("aa11", "aa22"):
        history.begin({**new_run("reclaim"), "id": name}, [])
    assert history.find_run("aa1") == "aa11"
    for prefix in ("zz", "", "aa", "%", "_"):
        with pytest.raises(UsageError):
            history.find_run(prefix)


def test_the_trail_only_grows(history: History) -> None:
    """Events keep their order; neither an update nor a delete gets through."""
    for number in range(3):
        history.trail("op1", "a", {"event": "intent", "number": number})
    history.trail("op1", "b", {"event": "intent", "number": 9})
    history.trail("op2", "a", {"event": "done"})
    assert [event["number"] for event in history.trail_of("op1", "a")] == [0, 1, 2]
    assert len(history.trail_of("op1")) == 4
    other = sqlite3.connect(history.path)
    for statement in ("DELETE FROM trail", "UPDATE trail SET event = '{}'"):
        with pytest.raises(sqlite3.DatabaseError, match="append-only"):
            other.execute(statement)
    other.close()


def test_the_trail_is_synced_before_it_returns(tmp_path: Path) -> None:
    """The kernel is asked to write the trail to the disk, and not for ordinary rows."""
    script = (
        "import sys; from pathlib import Path\n"
        "from fleetmem.controller.record.history import open_history\n"
        "from fleetmem.controller.answer.envelope import new_run\n"
        "import sqlite3\n"
        "history = open_history(directory=Path(sys.argv[1]))\n"
        "seen = []\n"
        "history._database.connection.set_trace_callback(seen.append)\n"
        "history.trail('op', 'a', {})\n"
        "history.begin(new_run('x'), [])\n"
        "print([text for text in seen if 'synchronous' in text or 'INSERT' in text])\n"
    )
    out = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "s")],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    full, trail, normal, runs = (
        out.index(word)
        for word in (
            "synchronous=FULL",
            "INTO trail",
            "synchronous=NORMAL",
            "INTO runs",
        )
    )
    assert full < trail < normal < runs


def test_private_to_its_owner(tmp_path: Path) -> None:
    """Directory 0700, file 0600, whatever the umask; an open directory is closed."""
    old = os.umask(0)
    try:
        (tmp_path / "s").mkdir(mode=0o777)
        opened = open_history(directory=tmp_path / "s")
        opened.trail("op", "a", {})
        modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "s").iterdir()}
        assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o700
        assert modes == {0o600}
        opened.close()
    finally:
        os.umask(old)


def test_a_directory_that_is_not_ours(tmp_path: Path) -> None:
    """A link in its place, or a file, is refused with the reason."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "file").write_text("")
    for name in ("link", "file", "file/below"):
        with pytest.raises(HistoryUnavailable):
            open_history(directory=tmp_path / name)


def test_a_file_that_is_no_file_of_ours(tmp_path: Path) -> None:
    """A link, a directory or a FIFO in the place of the history is refused, and not opened."""
    makers = (lambda path: path.symlink_to("other"), Path.mkdir, os.mkfifo)
    for number, make in enumerate(makers):
        (tmp_path / str(number)).mkdir()
        make(tmp_path / str(number) / "history.sqlite")
        with pytest.raises(HistoryUnavailable, match="not a regular file"):
            open_history(directory=tmp_path / str(number))
    assert not list(tmp_path.rglob("other"))


def test_a_run_that_reads_goes_on_without(tmp_path: Path, said: list[str]) -> None:
    """One warning, no history, no error."""
    (tmp_path / "file").write_text("")
    assert open_or_warn(said.append, tmp_path / "file") is None
    assert len(said) == 1
    assert "not recorded" in said[0]


def test_a_full_disk(history: History, said: list[str]) -> None:
    """Describing rows are given up with one warning; the trail is an error."""
    history._database.connection.execute("PRAGMA max_page_count=1")
    big = {"event": "x" * 500_000}
    with pytest.raises(HistoryUnavailable, match="full"):
        history.trail("op", "a", big)
    assert said == []
    long = [f"host-{number}" for number in range(50_000)]
    history.begin(new_run("reclaim"), long)
    history.begin(new_run("reclaim"), long)
    assert len(said) == 1
    assert "full" in said[0]
    assert history.runs() == []


def test_newer_tables_are_left_alone(tmp_path: Path) -> None:
    """A history of a newer version is neither changed nor misread."""
    opened = open_history(directory=tmp_path)
    opened.close()
    database = sqlite3.connect(tmp_path / "history.sqlite")
    database.execute(f"PRAGMA user_version={len(MIGRATIONS) + 1}")
    database.close()
    with pytest.raises(HistoryUnavailable, match="newer"):
        open_history(directory=tmp_path)


def test_migrations_run_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second version adds to what the first one kept; a failing step changes nothing."""
    opened = open_history(directory=tmp_path)
    run = record(opened, idle("a"))
    opened.close()
    more = (*MIGRATIONS, ("CREATE TABLE extra (x INTEGER) STRICT",))
    monkeypatch.setattr(
        database_module, "MIGRATIONS", (*more, ("CREATE TABLE half (x INTEGER) STRICT", "nonsense"))
    )
    with pytest.raises(HistoryUnavailable):
        open_history(directory=tmp_path)
    monkeypatch.setattr(database_module, "MIGRATIONS", more)
    for _ in range(2):
        opened = open_history(directory=tmp_path)
        assert opened.load(run)["targeted"] == ["a"]
        tables = opened._rows("SELECT name FROM sqlite_master WHERE type = 'table'", ())
        assert ("extra",) in tables
        assert ("half",) not in tables
        opened.close()


def test_damaged_file(tmp_path: Path) -> None:
    """Something else under that name is an error with the path, not a traceback."""
    (tmp_path / "history.sqlite").write_bytes(b"not a database" * 100)
    with pytest.raises(HistoryUnavailable, match=r"history\.sqlite"):
        open_history(directory=tmp_path)


def test_network_file_systems_have_no_wal(
    tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shared memory does not work there: the plain journal, with a note."""
    monkeypatch.setattr(database_module, "on_network", lambda directory: True)
    opened = open_history(said.append, tmp_path)
    assert opened._rows("PRAGMA journal_mode", ()) == [("delete",)]
    assert "network" in said[0]
    opened.close()
    monkeypatch.undo()
    opened = open_history(said.append, tmp_path)
    assert opened._rows("PRAGMA journal_mode", ()) == [("wal",)]
    opened.close()


def test_file_system_of_a_directory() -> None:
    """The innermost mount counts."""
    assert file_system(Path("/proc/self")) == "proc"
    assert file_system(Path("/")) != ""


def test_where_the_state_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """XDG says where; a relative path there is ignored."""
    monkeypatch.setenv("HOME", "/home/x")
    assert state_directory({"XDG_STATE_HOME": "/s"}) == Path("/s/fleetmem")
    assert state_directory({"XDG_STATE_HOME": "s"}) == Path("/home/x/.local/state/fleetmem")
    assert state_directory({}) == Path("/home/x/.local/state/fleetmem")


def test_the_smallest_baseline_wins(history: History) -> None:
    """Per host, GPU and state of the driver; the order of the key's fields does not matter."""
    key = {"driver": "570.86", "mig": False}
    for used in (600, 500, 700):
        history.record_baseline("a", "GPU-1", key, used)
    history.record_baseline("a", "GPU-1", {**key, "driver": "580"}, 100)
    assert history.baseline("a", "GPU-1", {"mig": False, "driver": "570.86"}) == 500
    assert history.baseline("a", "GPU-2", key) is None
    assert history.baseline("b", "GPU-1", key) is None


def test_plans_are_kept_by_host(history: History) -> None:
    """By the plan's id or the run's, whole or its beginning; several fits are no fit."""
    plan: PlanHead = {"id": "p1", "created": "c", "expires": "e", "hash": "h", "boot_id": "b"}
    history.save_plan("run7", "a", plan, {"targets": [1]})
    history.save_plan("run7", "b", {**plan, "id": "p2"}, {"targets": [2]})
    assert history.plans("p1") == {"a": ("h", {"targets": [1]})}
    assert history.plans("run") == {"a": ("h", {"targets": [1]}), "b": ("h", {"targets": [2]})}
    assert history.plans("p3") == {}
    with pytest.raises(UsageError, match="fits several"):
        history.plans("p")


def test_several_processes_at_once(tmp_path: Path) -> None:
    """Four processes create, migrate and write the same history; nothing is lost."""
    script = (
        "import sys; from pathlib import Path\n"
        "from fleetmem.controller.record.history import open_history\n"
        "from fleetmem.controller.answer.envelope import new_run, new_host\n"
        "history = open_history(lambda text: sys.exit(text), Path(sys.argv[1]))\n"
        "run = new_run('reclaim')\n"
        "history.begin(run, [f'h{n}' for n in range(25)])\n"
        "for n in range(25):\n"
        "    history.record_host(run['id'], new_host(f'h{n}', 'ok'))\n"
        "    history.trail('op', f'h{n}', {'pid': n})\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "state")]
    running = [subprocess.Popen(command) for _ in range(4)]
    assert [process.wait(60) for process in running] == [0, 0, 0, 0]
    opened = open_history(directory=tmp_path / "state")
    assert [run.outcomes for run in opened.runs()] == [{"ok": 25}] * 4
    assert len(opened.trail_of("op")) == 100
    opened.close()


def test_a_killed_writer_leaves_a_sound_history(tmp_path: Path) -> None:
    """SIGKILL in the middle of writing: what returned is there, the rest is whole."""
    script = (
        "import sys; from pathlib import Path\n"
        "from fleetmem.controller.record.history import open_history\n"
        "history = open_history(directory=Path(sys.argv[1]))\n"
        "for n in range(100000):\n"
        "    history.trail('op', 'a', {'number': n})\n"
        "    print(n, flush=True)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        told = [int(process.stdout.readline()) for _ in range(20)]
        process.kill()
        told += [int(line) for line in process.stdout if line.endswith("\n")]
    opened = open_history(directory=tmp_path)
    kept = [event["number"] for event in opened.trail_of("op")]
    assert kept[: len(told)] == told
    assert opened._rows("PRAGMA integrity_check", ()) == [("ok",)]
    opened.close()


def test_remote_oddities_survive(history: History) -> None:
    """Control characters and lone surrogates in what a host said are kept as they were."""
    entry = new_host("a", "failed", {"code": "x", "message": "\x00\x1b\ud800", "hint": None})
    run = new_envelope(new_run("reclaim"), ["a"], [entry])
    history.begin(run["run"], ["a"])
    history.record_host(run["run"]["id"], entry)
    assert history.load(run["run"]["id"])["hosts"] == [entry]


OTHER = """
import sys
from pathlib import Path
from fleetmem.controller.answer.envelope import new_run
from fleetmem.controller.record.history import open_history
history = open_history(print, Path(sys.argv[1]))
history.begin(new_run("other"), ["a"])
history.close()
"""


def test_a_second_history_of_one_process_keeps_the_first_one_s_locks(
    history: History, said: list[str]
) -> None:
    """A follow opens one for each phase. Another process that ends meanwhile would take itself
    for the last one otherwise, and remove the journal that is still written to."""
    record(history, idle("a"))
    open_history(said.append, history.path.parent).close()
    command = [sys.executable, "-c", OTHER, str(history.path.parent)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    record(history, idle("a"))
    fresh = open_history(said.append, history.path.parent)
    try:
        assert [row.command for row in fresh.runs()] == ["reclaim", "other", "reclaim"]
    finally:
        fresh.close()
    assert said == []
