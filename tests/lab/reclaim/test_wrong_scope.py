"""A GPU that no host has is the mistake of who typed it: what there is stands beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab import api
from tests.lab.desk import Desk

pytestmark = pytest.mark.lab


def test_a_gpu_that_no_host_has(shared_lab: api.Lab, tmp_path: Path) -> None:
    """The lab's hosts have two."""
    desk = Desk(tmp_path, shared_lab.inventory)
    done = desk.run("reclaim", "-H", "gh200-[01-02]", "--gpu", "1,7", "--dry-run")
    assert done.code == 2
    assert done.err.splitlines()[-2:] == [
        "fleetmem: --gpu: no host has 7",
        "hint: there is GPU 0-1",
    ]
