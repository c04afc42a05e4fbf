"""A full or closed stdout is one line and a status, never a traceback, and ends no run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(sys.executable).parent / "fleetmem"


def run(tmp_path: Path, redirections: str, *words: str) -> subprocess.CompletedProcess[str]:
    line = f'exec "$0" "$@" {redirections}'
    return subprocess.run(
        ["sh", "-c", line, str(PROGRAM), *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path)},
    )


@pytest.mark.parametrize("output", ["json", "jsonl", "table"])
def test_a_full_stdout_is_one_line_and_status_1(tmp_path: Path, output: str) -> None:
    done = run(tmp_path, ">/dev/full", "hosts", "-H", "localhost", "-o", output)
    assert done.returncode == 1
    assert done.stderr == "fleetmem: stdout: No space left on device\n"


def test_an_error_keeps_its_status(tmp_path: Path) -> None:
    done = run(tmp_path, ">/dev/full", "hosts", "-o", "json", "--nonsense")
    assert done.returncode == 2
    assert done.stderr.endswith("fleetmem: stdout: No space left on device\n")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("redirections", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
def test_closed_streams_are_nobodys(tmp_path: Path, redirections: str) -> None:
    done = run(tmp_path, redirections, "hosts", "-H", "localhost", "-o", "json")
    assert done.returncode == 0
    assert done.stderr == ""
    assert ('"localhost"' in done.stdout) == (">&-" not in redirections.replace("2>&-", ""))
