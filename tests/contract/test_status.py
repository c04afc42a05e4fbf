"""A run has one exit status: the process's, the one in its answer, and the recorded one.

Real commands as processes, over this machine (only read) and over hosts that never answer.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from fleetmem.controller.record.history import open_history

PROGRAM = str(Path(sys.executable).parent / "fleetmem")
NOWHERE = "nobody@127.0.0.1:1"
INVENTORY = r"""
hosts:
  localhost: {transport: local}
  counted:
    transport: command
    command: [sh, -c, 'echo x >>contacts; exec sh -c "$0"', "{command}"]
  "chatty-[1-3]":
    transport: command
    command: [sh, -c, 'printf "Hi \e[31m\n"; echo "disk is old" >&2; exec sh -c "$0"', "{command}"]
  "silent-[1-2]": {transport: command, command: [sh, -c, "sleep 600", "{command}"]}
"""
PLAYBOOK = """
playbook: always
about: A rule that always holds.
probes: [host.facts, numa.nodes]
rules:
  - id: has-memory
    each: numa.nodes
    field: total_bytes
    above: 1MiB
    severity: warn
    say: "it has {total_bytes}"
"""
LOG = "INFO 07-01 10:00:00 [core.py:1] torch.OutOfMemoryError: CUDA out of memory.\n"


@dataclass(frozen=True)
class Desk:
    """A home of its own, with an inventory, a playbook and a log."""

    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        """Nothing of ours but the path."""
        home, state = str(self.folder), str(self.folder / "state")
        return {"PATH": os.environ["PATH"], "HOME": home, "XDG_STATE_HOME": state,
                "LANG": "C.UTF-8"}  # fmt: skip

    def start(
        self, words: str, nohup: bool = False, stdout: Any = subprocess.PIPE
    ) -> subprocess.Popen[str]:
        """The program at work."""
        return subprocess.Popen(
            [*(["nohup"] if nohup else []), PROGRAM, *words.split()],
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment,
            cwd=self.folder,
            start_new_session=True,
        )

    def run(self, words: str) -> tuple[int, dict[str, Any], str]:
        """Status, envelope and stderr of a command that ends by itself."""
        with self.start(f"{words} -i inventory.yaml -o json") as running:
            out, err = running.communicate(timeout=120)
        assert "Traceback" not in err, err
        return running.returncode, json.loads(out), err

    def recorded(self, run: str) -> dict[str, Any]:
        """The run as the history has it."""
        history = open_history(directory=self.folder / "state" / "fleetmem")
        try:
            return dict(history.load(run))
        finally:
            history.close()

    def runs(self) -> list[Any]:
        """All recorded runs, newest first."""
        history = open_history(directory=self.folder / "state" / "fleetmem")
        try:
            return history.runs(100)
        finally:
            history.close()


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """A desk with nothing recorded yet."""
    (tmp_path / "inventory.yaml").write_text(INVENTORY)
    (tmp_path / "always.yaml").write_text(PLAYBOOK)
    (tmp_path / "engine.log").write_text(LOG)
    with open(tmp_path / "pages", "wb") as file:
        file.write(b"x" * (1 << 20))
        file.flush()
        os.fsync(file.fileno())  # a file that is still to be written is spared
    return Desk(tmp_path)


ENDINGS = [
    ("hosts --check -H localhost", 0),
    (f"hosts --check -H {NOWHERE}", 4),
    ("snapshot -H localhost --no-files", 0),
    (f"snapshot -H localhost,{NOWHERE} --no-files", 3),
    ("run always.yaml -H localhost", 0),
    ("run always.yaml -H localhost --fail-on critical", 0),
    ("run always.yaml -H localhost --fail-on warn", 5),
    ("audit always.yaml -H localhost --fail-on info", 5),
    ("audit startup -H localhost --file engine.log", 0),
    ("audit startup -H localhost --file nosuch.log", 3),
    ("audit always.yaml startup -H localhost --file engine.log --fail-on warn", 5),
    ("audit always.yaml startup -H localhost --file nosuch.log", 3),
    ("logs -H localhost --file engine.log", 0),
    ("logs -H localhost -u nosuchunit", 3),
    (f"logs -H {NOWHERE} -u nosuchunit", 4),
    ("reclaim -H localhost --dry-run", 3),
    (f"reclaim -H {NOWHERE} --dry-run", 4),
    ("reclaim -H localhost --cache pages --dry-run", 0),
    ("reclaim -H localhost --cache pages --dry-run --detailed-exitcode", 6),
    ("reclaim -H localhost --cache pages", 6),
    (f"reclaim -H {NOWHERE} --cache pages --dry-run", 4),
    ("snapshot -H localhost --follow-start nosuchunit --follow-timeout 1s", 3),
]


@pytest.mark.parametrize(("words", "status"), ENDINGS)
def test_every_ending_has_one_status(desk: Desk, words: str, status: int) -> None:
    """What the shell sees, what the answer says and what ``runs list`` says are one number."""
    words = words.replace("engine.log", str(desk.folder / "engine.log"))
    words = words.replace("nosuch.log", str(desk.folder / "nosuch.log"))
    words = words.replace(" pages", f" {desk.folder / 'pages'}")
    seen, envelope, err = desk.run(words)
    assert seen == status, err
    assert envelope["run"]["exit_code"] == status
    found = desk.recorded(envelope["run"]["id"])
    assert found["run"] == envelope["run"]
    assert len(desk.runs()) == 1
    assert [entry["host"] for entry in found["hosts"]] == envelope["targeted"]
    for told, kept in zip(envelope["hosts"], found["hosts"], strict=True):
        for name in ("outcome", "seconds", "readings"):
            assert kept[name] == told[name]


@pytest.mark.parametrize("names", ["always.yaml memory", "always.yaml memory startup", "startup"])
def test_one_contact_serves_all_playbooks(desk: Desk, names: str) -> None:
    """One connection, one run, and all readings in it, each taken once."""
    words = f"audit {names} -H counted --file {desk.folder / 'engine.log'}"
    status, envelope, err = desk.run(words if "startup" in names else f"audit {names} -H counted")
    assert status == 0, err
    assert (desk.folder / "contacts").read_text() == "x\n"
    assert len(desk.runs()) == 1
    (host,) = desk.recorded(envelope["run"]["id"])["hosts"]
    assert host["readings"] == envelope["hosts"][0]["readings"]
    assert ("journal.read" in host["readings"]) == ("startup" in host) == ("startup" in names)
    assert ("numa.nodes" in host["readings"]) == ("memory" in names)
    assert ("always/has-memory" in {one["rule"] for one in envelope["findings"]}) == (
        "always" in names
    )


def test_a_part_that_fails_leaves_the_others_their_readings(desk: Desk) -> None:
    """The log is not there; the memory was read, and its findings stand beside that."""
    words = f"audit startup always.yaml -H counted --file {desk.folder / 'nosuch'}"
    status, envelope, err = desk.run(words)
    assert status == 3, err
    (host,) = envelope["hosts"]
    assert (host["outcome"], host["error"]["code"]) == ("failed", "log_unreadable")
    assert host["readings"]["numa.nodes"]["outcome"] == "ok"
    assert [one["rule"] for one in envelope["findings"]] == ["always/has-memory"]
    assert (desk.folder / "contacts").read_text() == "x\n"


@pytest.mark.parametrize(
    ("words", "where", "status"),
    [
        ("hosts --check -H localhost -o json", "/dev/full", 1),
        ("snapshot -H localhost --no-files -o csv", "/dev/full", 1),
        (f"reclaim -H {NOWHERE} --dry-run --plan-out /nosuch/plan", "/dev/null", 2),
    ],
)
def test_an_answer_that_could_not_be_written_changes_the_record_too(
    desk: Desk, words: str, where: str, status: int
) -> None:
    """The work was done; the process did not end well, and ``runs list`` says so."""
    with open(where, "w") as out, desk.start(words, stdout=out) as running:
        _, err = running.communicate(timeout=60)
    assert (running.returncode, [row.exit_code for row in desk.runs()]) == (status, [status]), err


def test_what_hosts_print_is_shown_once(desk: Desk) -> None:
    """Login noise and stderr of equal hosts: one line beside the answer, escaped."""
    words = "hosts --check -H chatty-[1-3],localhost"
    status, _, err = desk.run(words)
    assert status in (0, 3), err
    said = [line for line in err.splitlines() if "printed" in line]
    assert said == [r"warning: chatty-[1-3] printed: Hi \x1b[31m disk is old"]
    assert "printed" not in desk.run(f"{words} -q")[2]


HANGING = [
    "hosts --check",
    "snapshot --no-files",
    "snapshot --follow-start unit",
    "run always.yaml",
    "audit startup -u unit",
    "audit always.yaml startup -u unit",
    "logs -u unit",
    "reclaim --dry-run",
    "reclaim --yes",
    "reclaim --cache /nosuch --dry-run",
]


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_ends_every_run_with_its_own_status(
    desk: Desk, number: signal.Signals, status: int
) -> None:
    """Interrupted while it connects: an answer, a record, and the signal's status in each."""
    fixed = "-H silent-[1-2] --fanout 1 -i inventory.yaml -o json"
    with ExitStack() as stack:
        started = {words: stack.enter_context(desk.start(f"{words} {fixed}")) for words in HANGING}
        for running in started.values():
            stack.callback(running.kill)
        ways = [connecting(running) for running in started.values()]
        for running in started.values():
            running.send_signal(number)
        for words, running in started.items():
            out, err = running.communicate(timeout=60)
            assert running.returncode == status, (words, err)
            assert "Traceback" not in err, (words, err)
            assert "ending the run" in err, words
            envelope = json.loads(out)
            assert envelope["run"]["exit_code"] == status, words
            first, second = envelope["hosts"]
            assert (first["outcome"], first["error"]["code"]) == ("failed", "interrupted"), words
            follows = "follow" in words  # over all hosts at once
            assert second["outcome"] == ("failed" if follows else "not_attempted"), words
            assert desk.recorded(envelope["run"]["id"])["run"] == envelope["run"], words
    assert len(desk.runs()) == len(HANGING)
    assert members(ways) == []  # nothing is left behind


def test_nohup_is_respected(desk: Desk) -> None:
    """A run that was started with SIGHUP ignored outlives its terminal."""
    with desk.start("hosts --check -H silent-[1-2] -i inventory.yaml -o json", nohup=True) as one:
        try:
            connecting(one)
            one.send_signal(signal.SIGHUP)
            one.send_signal(signal.SIGTERM)
            out, err = one.communicate(timeout=60)
        finally:
            one.kill()
    assert (one.returncode, json.loads(out)["run"]["exit_code"]) == (143, 143), err


def members(sessions: list[int]) -> list[int]:
    """The processes of *sessions* that still run."""
    found = []
    for one in psutil.process_iter(["pid", "status"]):
        try:
            if os.getsid(one.pid) in sessions and one.info["status"] != psutil.STATUS_ZOMBIE:
                found.append(one.pid)
        except ProcessLookupError:
            continue
    return found


def connecting(running: subprocess.Popen[str]) -> int:
    """Wait until the run has a child of its own, the way to the silent host; its pid."""
    children = Path(f"/proc/{running.pid}/task/{running.pid}/children")
    deadline = time.monotonic() + 60
    while not (found := children.read_text().split()):
        assert running.poll() is None, running.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return int(found[0])
