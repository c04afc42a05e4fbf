"""The host's own records: the lock, the epoch, one intent for each identity and signal."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleetmem.agent import ledger, trail
from fleetmem.agent.kernel import identity
from fleetmem.agent.model import Trouble

EVENT = {"action": "signal", "signal": "TERM", "pid": 7, "comm": "x", "operation": "op"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The place of records, in a scratch folder."""
    path = tmp_path / "fleetmem"
    monkeypatch.setattr(ledger, "state_dir", lambda: (str(path), None))
    monkeypatch.setattr(trail, "JOURNAL", str(tmp_path / "journal"))
    return path


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


def key(process: subprocess.Popen[bytes]) -> tuple[int, int]:
    start = identity.start_time(process.pid)
    assert start is not None
    return process.pid, start


# --- where ---------------------------------------------------------------------------------


def test_the_folder_is_private(folder: Path) -> None:
    assert ledger.open_dir() == str(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    folder.chmod(0o750)
    with pytest.raises(Trouble, match="is not a private folder") as caught:
        ledger.open_dir()
    assert caught.value.code == "no_state_dir"


def test_a_link_is_no_folder(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Trouble, match="is not a private folder") as caught:
        ledger.open_dir()
    assert caught.value.code == "no_state_dir"


def test_a_user_without_runtime_folder_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "absent"))
    assert ledger.state_dir() == (None, f"{tmp_path}/absent: No such file or directory")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert ledger.state_dir() == (None, f"{tmp_path} is not a private folder of this user")


# --- lock and epoch ------------------------------------------------------------------------


def test_reading_creates_nothing(folder: Path) -> None:
    assert ledger.operations() == {"epoch": 0, "locked_by": None, "signals": []}
    assert not folder.exists()


def test_the_lock_counts_and_names_its_holder(folder: Path) -> None:
    first, epoch = ledger.lock("ab12 me@desk")
    assert (epoch, ledger.read_epoch()) == (1, 1)
    assert ledger.locked_by() == "ab12 me@desk"
    with pytest.raises(Trouble) as caught:
        ledger.lock("cd34 you@desk")
    assert (caught.value.outcome, caught.value.code) == ("denied", "locked")
    assert str(caught.value) == "held by ab12 me@desk"
    assert ledger.read_epoch() == 1
    ledger.unlock(first)
    assert ledger.locked_by() is None
    second, epoch = ledger.lock("cd34 you@desk")
    assert epoch == 2
    ledger.unlock(second)
    assert sorted(os.listdir(folder)) == ["epoch", "lock"]


def test_the_lock_ends_with_its_process(folder: Path) -> None:
    code = (
        "import os, sys, time; sys.path.insert(0, sys.argv[2])\n"
        "from fleetmem.agent import ledger\n"
        "ledger.state_dir = lambda: (sys.argv[1], None)\n"
        "ledger.lock('other'); print('held', flush=True); time.sleep(600)"
    )
    root = str(Path(__file__).parents[3])
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(folder), root], stdout=subprocess.PIPE, text=True
    )
    assert other.stdout is not None
    try:
        assert other.stdout.readline() == "held\n"
        assert ledger.locked_by() == "other"
    finally:
        other.kill()
        other.communicate()
    assert ledger.locked_by() is None
    number, epoch = ledger.lock("mine")
    assert epoch == 2
    ledger.unlock(number)


def test_a_damaged_epoch_is_zero(folder: Path) -> None:
    ledger.unlock(ledger.lock("a")[0])
    (folder / "epoch").write_text("nonsense")
    assert ledger.read_epoch() == 0


# --- intents -------------------------------------------------------------------------------


def test_one_intent_for_each_identity_and_signal(folder: Path) -> None:
    number = ledger.intend(7, 70, "TERM", EVENT)
    assert number is not None
    assert ledger.intend(7, 70, "TERM", EVENT) is None
    undone = {"operation": "op", "pid": 7, "start_time": 70, "signal": "TERM"}
    assert ledger.records() == [{**undone, "done": False, "result": None}]
    ledger.done(number, "sent")
    assert ledger.records() == [{**undone, "done": True, "result": "sent"}]
    assert ledger.intend(7, 70, "TERM", EVENT) is None
    for other in ((7, 70, "KILL"), (7, 71, "TERM"), (8, 70, "TERM")):
        again = ledger.intend(*other, EVENT)
        assert again is not None, other
        os.close(again)


def test_a_withdrawn_intent_may_come_again(folder: Path) -> None:
    number = ledger.intend(7, 70, "TERM", EVENT)
    assert number is not None
    ledger.withdraw(number, 7, 70, "TERM")
    assert ledger.records() == []
    again = ledger.intend(7, 70, "TERM", EVENT)
    assert again is not None
    os.close(again)


def test_the_next_lock_forgets_the_dead(folder: Path, sleeper: subprocess.Popen[bytes]) -> None:
    alive = key(sleeper)
    for pid, start in (alive, (alive[0], alive[1] - 1), (2**22 + 5, 9)):
        number = ledger.intend(pid, start, "KILL", EVENT)
        assert number is not None
        ledger.done(number, "sent")
    (folder / "signals" / "odd").write_text("")
    assert len(ledger.records()) == 3
    ledger.unlock(ledger.lock("next")[0])
    assert [(r["pid"], r["start_time"]) for r in ledger.records()] == [alive]


@pytest.mark.parametrize(
    ("content", "operation"),
    [(b"", ""), (b"\xff\x00 half", ""), (b'{"operation":"op"}\n{"res', "op"), (b"[]\n5\n", "")],
)
def test_a_damaged_record_is_an_intent_without_a_result(
    folder: Path, sleeper: subprocess.Popen[bytes], content: bytes, operation: str
) -> None:
    """Its name says what was meant; hidden it would be taken for never begun."""
    pid, start = key(sleeper)
    for signal in ("TERM", "KILL"):
        number = ledger.intend(pid, start, signal, EVENT)
        assert number is not None
        ledger.done(number, "sent")
    (folder / "signals" / f"{pid}-{start}-TERM").write_bytes(content)
    rows = {row["signal"]: row for row in ledger.records()}
    assert (rows["KILL"]["done"], rows["KILL"]["result"]) == (True, "sent")
    assert (rows["TERM"]["done"], rows["TERM"]["operation"]) == (False, operation)


IGNORES = (
    "import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True); time.sleep(600)"
)


def test_what_the_kernel_shows_settles_an_intent(
    folder: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    """KILL cannot be blocked: whoever lives and has none pending was never sent it."""
    pid, start = key(sleeper)
    for signal in ("TERM", "KILL"):
        number = ledger.intend(pid, start, signal, EVENT)
        assert number is not None
        os.close(number)
    assert {(r["signal"], r["done"], r["result"]) for r in ledger.records()} == {
        ("TERM", False, "not_sent"),
        ("KILL", False, "not_sent"),
    }
    ledger.unlock(ledger.lock("next")[0])
    assert ledger.records() == []
    again = ledger.intend(pid, start, "KILL", EVENT)
    assert again is not None
    os.close(again)


def test_an_intent_in_the_making_is_not_settled(
    folder: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    pid, start = key(sleeper)
    number = ledger.intend(pid, start, "KILL", EVENT)
    assert number is not None
    assert [(row["done"], row["result"]) for row in ledger.records()] == [(False, None)]
    ledger.unlock(ledger.lock("next")[0])
    assert len(ledger.records()) == 1
    os.close(number)


def test_a_pending_signal_was_sent(folder: Path, sleeper: subprocess.Popen[bytes]) -> None:
    """A stopped process keeps TERM pending until it goes on."""
    pid, start = key(sleeper)
    sleeper.send_signal(19)
    while "T" not in (identity.stat(pid) or "T"):
        pass
    os.close(ledger.intend(pid, start, "TERM", EVENT) or -1)
    assert [(row["done"], row["result"]) for row in ledger.records()] == [(False, "not_sent")]
    sleeper.send_signal(15)
    assert [(row["done"], row["result"]) for row in ledger.records()] == [(True, "sent")]
    ledger.unlock(ledger.lock("next")[0])
    assert len(ledger.records()) == 1


def test_a_handled_signal_leaves_no_trace(folder: Path) -> None:
    """Whoever ignores or handles TERM may have been sent it: nobody can say."""
    with subprocess.Popen([sys.executable, "-c", IGNORES], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        os.close(ledger.intend(*key(process), "TERM", EVENT) or -1)
        assert [(row["done"], row["result"]) for row in ledger.records()] == [(False, None)]
        process.kill()
        process.wait()
        assert [(row["done"], row["result"]) for row in ledger.records()] == [(False, "gone")]


def test_a_result_that_finds_no_room_is_no_failure_of_the_signal(folder: Path) -> None:
    number = ledger.intend(7, 70, "TERM", EVENT)
    assert number is not None
    os.close(number)
    full = os.open("/dev/full", os.O_WRONLY)
    ledger.done(full, "sent")
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(full)
