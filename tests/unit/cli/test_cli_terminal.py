"""The command line at a real (pseudo-)terminal, and with readers that go away.

A child process runs ``main`` over the fake fleet of ``test_cli``, so that isatty, the
prompt and the event loop are the real ones.
"""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.unit.agent.probe_actors import until

CHILD = """
import asyncio, sys, types
from fleetmem.controller.answer.envelope import new_host
from tests.unit.cli import test_cli
from tests.unit.reclaim.reclaim_samples import eight_gpus
module = types.ModuleType("fleetmem.controller.fleet")
module.Fleet, module.FleetSettings = test_cli.FakeFleet, types.SimpleNamespace
sys.modules["fleetmem.controller.fleet"] = module
test_cli.FakeFleet.entries = [eight_gpus(f"h{n}") for n in range(int(sys.argv[2]))]
original = test_cli.FakeFleet.reclaim
async def reclaim(self, *given):
    beats = 0
    async def beat():
        nonlocal beats
        while True:
            await asyncio.sleep(0.02)
            beats += 1
            with open(sys.argv[1], "a") as file:
                file.write(".")
    task = asyncio.ensure_future(beat())
    answer = await original(self, *given)
    task.cancel()
    print("beats", beats, file=sys.stderr)
    return answer
test_cli.FakeFleet.reclaim = reclaim
from fleetmem.controller.cli import main
code = main(sys.argv[3:])
print("exit", code, file=sys.stderr)
sys.exit(code)
"""
ROOT = Path(__file__).resolve().parents[3]
BEATS = 5
"""How often the event loop must come round while the question stands."""


def wait_beats(pulse: Path, count: int) -> None:
    """Until the child's loop has come round *count* times more."""
    heard = pulse.stat().st_size
    until(lambda: pulse.stat().st_size >= heard + count)


def at_terminal(
    tmp_path: Path, hosts: int, answer: bytes | signal.Signals, early: bytes = b""
) -> tuple[int, str]:
    """Run ``reclaim`` at a terminal; its question is answered some beats of its loop later.

    *early* is typed before the program has shown anything.
    """
    pulse = tmp_path / "beats"
    pulse.touch()
    master, slave = pty.openpty()
    environ = {
        **os.environ,
        "TERM": "xterm",
        "COLUMNS": "80",
        "XDG_STATE_HOME": str(tmp_path),
        "PYTHONPATH": str(ROOT),
    }
    for name in ("CI", "NO_COLOR", "FORCE_COLOR"):
        environ.pop(name, None)
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(pulse), str(hosts), "reclaim", "-H", "h"],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env=environ,
        cwd=ROOT,
        start_new_session=True,
    )
    os.close(slave)
    os.write(master, early)
    seen = b""
    asked = False
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        ready, _, _ = select.select([master], [], [], 0.1)
        if ready:
            try:
                piece = os.read(master, 65536)
            except OSError:  # the other side is closed
                break
            if not piece:
                break
            seen += piece
        if not asked and (b"[y/N] " in seen or b"Enter to stop: " in seen):
            asked = True
            wait_beats(pulse, BEATS)
            if isinstance(answer, signal.Signals):
                os.kill(child.pid, answer)
            else:
                os.write(master, answer)
    os.close(master)
    try:
        return child.wait(60), seen.decode()
    finally:
        child.kill()


@pytest.mark.parametrize(
    ("hosts", "answer", "code"),
    [(1, b"y\n", 0), (1, b"\n", 6), (1, b"\x04", 6), (3, b"3\n", 0), (3, b"y\n", 6), (3, b"\n", 6)],
)
def test_the_question_is_asked(tmp_path: Path, hosts: int, answer: bytes, code: int) -> None:
    """The plan is seen once, above the question; only the right answer applies it."""
    status, seen = at_terminal(tmp_path, hosts, answer)
    assert status == code, seen
    assert seen.count("PLAN") == 1
    assert seen.index("PLAN") < seen.index("Stop these")
    assert ("reclaimed" in seen.split("Stop these")[1]) == (code == 0)


@pytest.mark.parametrize(
    ("hosts", "early"), [(1, b"y\n"), (1, b"y\ny\nyes\n"), (3, b"3\n"), (1, b"y")]
)
def test_what_was_typed_before_the_question_is_no_consent(
    tmp_path: Path, hosts: int, early: bytes
) -> None:
    """A line typed ahead cannot be about a plan that nobody had seen; nor half a line."""
    status, seen = at_terminal(tmp_path, hosts, b"\n", early)
    assert status == 6, seen
    assert "reclaimed" not in seen.split("Stop these")[1]


def test_the_event_loop_goes_on_while_a_person_thinks(tmp_path: Path) -> None:
    """Beats are sent during the prompt; the terminal has colour; control goes back."""
    _, seen = at_terminal(tmp_path, 1, b"y\n")
    beats = int(seen.split("beats ")[1].split()[0])
    assert beats >= BEATS
    assert "\x1b[32mleftover" in seen


def test_rows_fit_the_terminal(tmp_path: Path) -> None:
    """The plan's columns and the rungs' notes end before its eightieth."""
    _, seen = at_terminal(tmp_path, 3, b"3\n")
    lines = re.sub(r"\x1b\[[0-9;]*[mK]", "", seen).splitlines()
    plan = next(at for at, line in enumerate(lines) if line.endswith("CLASS"))
    verdict = next(at for at, line in enumerate(lines) if line.endswith("EVIDENCE"))
    assert lines[plan + 1].endswith("leftover")
    assert max(len(line) for line in (*lines[plan : plan + 4], *lines[verdict : verdict + 4])) <= 80


def test_interrupt_at_the_question(tmp_path: Path) -> None:
    """Ctrl-C at the question ends at once, although a thread waits for the answer."""
    status, seen = at_terminal(tmp_path, 1, signal.SIGINT)
    assert status == 130, seen
    assert "Traceback" not in seen
    assert "exit 130" in seen


def test_a_reader_that_goes_away_does_not_end_the_run(tmp_path: Path) -> None:
    """``| head -1`` gets its line, the run goes on to its own exit code, in silence."""
    environ = {**os.environ, "XDG_STATE_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-c", CHILD, os.devnull, "1", "reclaim", "-H", "h", "--yes"],
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        env=environ,
        cwd=ROOT,
        timeout=60,
        check=False,
    )
    os.close(writing)
    assert done.returncode == 0
    assert "exit 0" in done.stderr
    assert "Error" not in done.stderr
    assert "Traceback" not in done.stderr


def test_glyphs_under_an_ascii_locale(tmp_path: Path) -> None:
    """A terminal that cannot show our signs gets them in ASCII, as wide as they are."""
    environ = {
        **os.environ,
        "XDG_STATE_HOME": str(tmp_path),
        "PYTHONPATH": str(ROOT),
        "PYTHONIOENCODING": "ascii",
    }
    done = subprocess.run(
        [sys.executable, "-c", CHILD, os.devnull, "1", "reclaim", "-H", "h", "--yes"],
        capture_output=True,
        env=environ,
        cwd=ROOT,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0
    assert b"\n+ reclaimed" in done.stdout
    assert b"8 x RTX" in done.stdout
    assert done.stdout.isascii()
