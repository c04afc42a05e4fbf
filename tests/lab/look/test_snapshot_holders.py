"""Who has the memory of each GPU, in a snapshot of hosts where engines were killed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab import api
from tests.lab.desk import Desk, unbroken

pytestmark = pytest.mark.lab


@pytest.fixture(scope="module")
def lab() -> Iterator[api.Lab]:
    """A worker whose launcher was killed, and a fork that has a dead process's files."""
    with api.lab(n=2) as running:
        yield running


def test_a_snapshot_names_who_has_each_gpu(lab: api.Lab, tmp_path: Path) -> None:
    (worker,) = lab.hog("gh200-01", "retitled", gpu=0, mib=92_000).holders
    (dead,) = lab.hog("gh200-02", "forked-holder", gpu=1, mib=50_000).dead
    desk = Desk(tmp_path, lab.inventory)
    lines = desk.run("snapshot", "-H", "gh200-01").out.splitlines()
    row = next(line.split() for line in lines if "launcher dead" in line)
    assert row[:9] == f"{worker} VLLM::Worker_TP0 · launcher dead 0 89.8 0 0.0".split()
    assert lines[-1] == f"  next   fleetmem reclaim -i {lab.inventory} -H gh200-01 --dry-run"
    lines = desk.run("snapshot", "-H", "gh200-02").out.splitlines()
    assert any(line.split()[:9] == ["–", *f"no visible process has PID {dead} 1 48.8".split()]
               for line in lines if line)  # fmt: skip
    assert any(line.startswith("! held-by-no-process  48.8 GiB") for line in lines)
    assert lines[-1] == f"  next   fleetmem reclaim -i {lab.inventory} -H gh200-02 --dry-run"
    lines = unbroken(desk.run("snapshot", "-H", "gh200-*").out).splitlines()
    assert [line.split(maxsplit=3) for line in lines if line.startswith("gh200-0")] == [
        ["gh200-01", "0", "89.8", "VLLM::Worker_TP0 · launcher dead"],
        ["gh200-02", "1", "48.8", f"no visible process has PID {dead}"],
    ]
    assert lines[-1] == f"  next   fleetmem reclaim -i {lab.inventory} -H 'gh200-[01-02]' --dry-run"
    said = " ".join(desk.run("logs", "-H", "gh200-01").out.split())
    assert f"VLLM::Worker_TP0 {worker} holds a GPU, but its log cannot be found" in said
