"""Pages that are made from code say what the code says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from fleetmem.controller.answer.envelope import VERDICTS
from fleetmem.controller.cli import main

ROOT = Path(__file__).parents[3]


def test_errors_page_is_made_from_the_code() -> None:
    """docs/errors.md equals what its script prints."""
    made = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "make_errors.py")],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert (ROOT / "docs" / "errors.md").read_text("utf-8") == made


def test_reclaim_page_lists_every_verdict_in_order() -> None:
    """The table of verdicts is the code's list, worst first."""
    page = (ROOT / "docs" / "reclaim.md").read_text("utf-8").split("## Verdicts")[1]
    assert tuple(re.findall(r"^\| ([a-z_]+) \|", page, re.MULTILINE)[1:]) == VERDICTS


def test_architecture_names_only_rooms_that_exist() -> None:
    """Every path in the first column of ARCHITECTURE's table is there."""
    text = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    for row in re.findall(r"^\| (`.*?) \|", text, re.MULTILINE):
        folder = ""
        for name in re.findall(r"`([^`]+)`", row):
            path = name if "/" in name else folder + name
            folder = path.rpartition("/")[0] + "/" if "/" in path else folder
            for one in expand(path):
                assert list(ROOT.glob(one)), one


def expand(path: str) -> list[str]:
    """``a/{b,c}/`` as two paths."""
    found = re.fullmatch(r"(.*)\{(.*)\}(.*)", path)
    if not found:
        return [path.rstrip("/")]
    return [(found[1] + part + found[3]).rstrip("/") for part in found[2].split(",")]


def test_the_files_that_the_snapshot_page_shows_are_sound(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its engine and its playbook pass the check that it recommends."""
    page = (ROOT / "docs" / "snapshot.md").read_text("utf-8")
    engine, playbook = re.findall(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "nanoserve.yaml").write_text(engine, "utf-8")
    (tmp_path / "mine.yaml").write_text(playbook, "utf-8")
    for name in ("nanoserve.yaml", "mine.yaml"):
        assert main(["playbooks", "check", str(tmp_path / name)]) == 0, capsys.readouterr().out
    (tmp_path / "nanoserve.yaml").write_text(engine.replace("are there'", "were'"), "utf-8")
    assert main(["playbooks", "check", str(tmp_path / "nanoserve.yaml")]) == 2
    assert "nanoserve.yaml:8:13: patterns[0].tests[0]" in capsys.readouterr().out
