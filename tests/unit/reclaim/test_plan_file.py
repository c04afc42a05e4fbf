"""Plan files: for their owner's eyes, whole, and no more than that."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from fleetmem.controller.reclaim import plan_file


@pytest.mark.parametrize("before", [None, 0o644, 0o666])
def test_only_the_owner_can_read_a_plan(tmp_path: Path, before: int | None) -> None:
    path = tmp_path / "plan.json"
    if before is not None:
        path.write_text("old")
        path.chmod(before)
    old = os.umask(0)
    try:
        plan_file.keep(path, "new")
    finally:
        os.umask(old)
    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["plan.json"]


def test_a_reader_of_the_old_file_never_sees_the_new_one(tmp_path: Path) -> None:
    """It is another file by then: whoever had the old one open has the old text."""
    path = tmp_path / "plan.json"
    path.write_text("old")
    with path.open() as reader:
        plan_file.keep(path, "new")
        assert reader.read() == "old"


def test_a_link_is_followed_and_a_pipe_is_written(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "real").write_text("old")
    plan_file.keep(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"
    plan_file.keep(Path("/dev/null"), "new")
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)
    with pytest.raises(FileNotFoundError):
        plan_file.keep(tmp_path / "no" / "plan", "new")
