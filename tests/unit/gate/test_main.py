"""The gate's own options, and the standalone file."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from fleetmem.agent.gate import main
from fleetmem.controller.gate.emit import standalone
from tests.contract.test_probes_on_old_python import HERE

COMMAND = "from fleetmem.controller.cli import main; raise SystemExit(main())"


@pytest.mark.parametrize(
    ("text", "size"),
    [("80GiB", 80 << 30), ("80 GB", 80 * 10**9), ("1024", 1024), ("0.5mib", 1 << 19)],
)
def test_sizes(text: str, size: int) -> None:
    assert main.size(text) == size


@pytest.mark.parametrize(("text", "span"), [("60s", 60), ("500ms", 0.5), ("2m", 120), ("7", 7)])
def test_durations(text: str, span: float) -> None:
    assert main.seconds(text) == span


@pytest.mark.parametrize(
    "words",
    [
        ["--need", "x"],
        ["--need", "-1GiB"],
        ["--timeout", "soon"],
        ["--timeout"],
        ["--gpus", "0"],
        ["-o", "xml"],
        ["all"],
    ],
)
def test_a_bad_option_is_one_line(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(words) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert said.err.startswith("gate: ")


def test_names_of_processes_reach_the_screen_harmless() -> None:
    assert main.clean("a\x1b[31mb\u202ec\nd") == "a?[31mb?c?d"


@pytest.mark.parametrize("version", HERE)
def test_the_standalone_file_runs_on_every_python(version: str, tmp_path: Path) -> None:
    """No GPU here: it says what it could not read, in the same words as the command."""
    file = tmp_path / "gate.py"
    file.write_text(standalone("0"))
    command = [str(HERE[version]), "-I", "-S", "-W", "error", str(file), "-o", "json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (3, ""), done.stderr
    own = subprocess.run(
        [sys.executable, "-c", COMMAND, "gate", "-o", "json"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert own.returncode == 3
    assert json.loads(done.stdout)["gate"]["problem"] == json.loads(own.stdout)["gate"]["problem"]


def test_the_standalone_file_is_the_same_each_time() -> None:
    assert standalone("1") == standalone("1")
