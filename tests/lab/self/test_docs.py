"""Every fleetmem command that the documents print is run, and ends as a working one does."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab import api

ROOT = Path(__file__).parents[3]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])
FENCE = re.compile(r"^```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^(?:\$ |  )?(?:\.venv/bin/)?(fleetmem .*?)(?:\s{2,}#.*)?$", re.MULTILINE)
NO_TERMINAL = 6
UNIT = re.compile(r" (?:-u|--unit|--follow-start) (\S+)")
JOURNAL = re.compile(UNIT.pattern + r"| --kernel\b")
"""Such a command needs a host with a journal, and the unit: tests/systemd/test_docs.py and
test_follow.py run it."""
EXAMPLE = re.compile(r" busy\b")
"""About the playbook that CONTRIBUTING writes: tests/unit/house/test_worked_example.py runs it."""


def commands(journal: bool = False) -> list[str]:
    """The fleetmem commands in fenced blocks, comments cut off: those that need a journal, or the
    others."""
    found = {}
    for page in PAGES:
        for block in FENCE.findall(page.read_text("utf-8")):
            for command in COMMAND.findall(block):
                if bool(JOURNAL.search(command)) == journal and not EXAMPLE.search(command):
                    found[command.strip()] = None
    return list(found)


def test_there_are_commands_to_run() -> None:
    """The pattern finds what the README prints."""
    assert "fleetmem reclaim -H 'gh200-*' --dry-run" in commands()
    assert len(commands()) >= 6


@pytest.mark.parametrize("command", commands())
def test_documented_command(shared_lab: api.Lab, tmp_path: Path, command: str) -> None:
    """Runs against a lab without a terminal: 0, or 6 for a plan that nobody agreed to."""
    environment = {
        **os.environ,
        "FLEETMEM_INVENTORY": str(shared_lab.inventory),
        "XDG_STATE_HOME": str(tmp_path),
    }
    words = [str(Path(sys.executable).parent / "fleetmem"), *shlex.split(command)[1:]]
    done = subprocess.run(
        words,
        env=environment,
        capture_output=True,
        text=True,
        timeout=90,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert done.returncode in (0, NO_TERMINAL), done.stderr
    assert "Traceback" not in done.stderr
