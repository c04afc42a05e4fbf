"""CONTRIBUTING's worked example is true: a copy of the tree that follows it has a new probe."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "CONTRIBUTING.md").read_text("utf-8").partition("## A new probe")[2]
_BLOCK = re.compile(r"```(\w*)\n(.*?)```", re.DOTALL)
_FILE = re.compile(r"in `([a-z_/]+\.(?:py|yaml))`")


def blocks() -> dict[str, str]:
    """What the example puts into which file, by the file named last before each block."""
    found, at = {}, 0
    for block in _BLOCK.finditer(TEXT):
        before = " ".join(TEXT[at : block.start()].split())
        at = block.end()
        if block[1]:
            found[_place(before)] = block[2]
    return found


def _place(before: str) -> str:
    if "`CALLS` of `agent/declare.py`" in before:
        return "row"
    return _FILE.findall(before)[-1]


def commands() -> list[list[str]]:
    """The commands of its last block."""
    lines = [b[2] for b in _BLOCK.finditer(TEXT) if not b[1]][-1].splitlines()
    return [line.split()[1:] for line in lines if line.startswith("fleetmem ")]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package, changed as the page says: new files, and one row."""
    place = tmp_path_factory.mktemp("example") / "fleetmem"
    shutil.copytree(ROOT / "fleetmem", place)
    for room in ("agent", "controller", "playbooks"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / room, place / room, ignore=ignored)
    for name, text in blocks().items():
        if name == "row":
            declare = place / "agent/declare.py"
            source = declare.read_text("utf-8")
            assert source.count("CALLS = {\n") == 1
            declare.write_text(source.replace("CALLS = {\n", f"CALLS = {{\n{text}"), "utf-8")
            continue
        file = place.parent / name if name.startswith("tests/") else place / name
        assert not file.exists(), name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, "utf-8")
    return place.parent


def run(tree: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environ = {
        **os.environ,
        "PYTHONPATH": str(tree),
        "XDG_STATE_HOME": str(tree / "state"),
        "XDG_CACHE_HOME": str(tree / "cache"),
        "XDG_CONFIG_HOME": str(tree / "config"),
        "COLUMNS": "120",
    }
    command = [sys.executable, *words]
    return subprocess.run(
        command, env=environ, cwd=tree, capture_output=True, text=True, timeout=120, check=False
    )


def fleetmem(tree: Path, *words: str) -> subprocess.CompletedProcess[str]:
    start = "import sys; from fleetmem.controller.cli import main; sys.exit(main())"
    return run(tree, "-c", start, *words)


def test_it_is_three_places_a_test_and_a_rule() -> None:
    assert list(blocks()) == [
        "agent/shapes/load.py",
        "row",
        "agent/probes/load.py",
        "tests/unit/probes/test_probe_load.py",
        "playbooks/busy.yaml",
    ]


def test_its_own_test_passes(tree: Path) -> None:
    done = run(tree, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/unit/probes")
    assert done.returncode == 0, done.stdout + done.stderr


def test_its_commands_show_the_finding(tree: Path) -> None:
    check, shown = commands()
    done = fleetmem(tree, *check)
    assert done.returncode == 0, done.stdout + done.stderr
    done = fleetmem(tree, *shown)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\d+ of \d+ tasks want a processor", done.stdout), done.stdout


def test_its_reading_is_checked_at_the_door(tree: Path) -> None:
    done = fleetmem(tree, *commands()[1], "-o", "json")
    (host,) = json.loads(done.stdout)["hosts"]
    row = host["readings"]["host.load"]
    assert (row["outcome"], row["code"]) == ("ok", None)
    assert row["reading"]["tasks"] >= row["reading"]["running"] >= 1
    script = (
        "from fleetmem.controller.contact.door import misfit\n"
        "print(misfit('host.load', {'load_1m': 0.5, 'running': 1, 'tasks': 10**24}))\n"
    )
    assert "tasks: a number" in run(tree, "-c", script).stdout


def test_a_rule_over_a_field_that_it_does_not_have_is_a_mistake(tree: Path) -> None:
    file = tree / "wrong.yaml"
    rule = blocks()["playbooks/busy.yaml"].replace("field: tasks", "field: task")
    file.write_text(rule, "utf-8")
    done = fleetmem(tree, "playbooks", "check", str(file))
    assert done.returncode == 2
    assert 'did you mean "tasks"?' in done.stdout + done.stderr
