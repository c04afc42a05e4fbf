"""A GPU that uses the host's memory, as a GB10: NVML tells of none, its lists have sizes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab import api, desk
from tests.lab.reclaim_stage import MIB, Desk, own_holder

pytestmark = pytest.mark.lab

HOST = "gh200-01"


@pytest.fixture
def lab() -> Iterator[api.Lab]:
    """One host with one such GPU."""
    with api.lab(gpus=1) as running:
        running.exec(HOST, "sh", "-c", "echo memory.0=3 >/run/nvml-sim/faults")
        yield running


def test_its_host_is_complete_and_it_is_called_integrated(lab: api.Lab, tmp_path: Path) -> None:
    found = desk.Desk(tmp_path, lab.inventory).run("snapshot", "-H", HOST, "-o", "json")
    entry = found.answer.host(HOST)
    assert entry["outcome"] == "ok"
    assert entry["snapshot"]["gpus"][0]["same_as"] == "numa:0"
    assert "hbm-page-cache/integrated-memory" in [
        one["rule"] for one in found.answer.envelope["findings"]
    ]


def test_a_reclaim_goes_by_its_lists(lab: api.Lab, tmp_path: Path) -> None:
    at = Desk(lab.inventory, tmp_path)
    assert at.reclaim("--dry-run").verdicts(HOST) == {0: "nothing_to_do"}
    pid = own_holder(lab, HOST, "python3 serve.py", 600 * MIB)
    found = at.reclaim("--gpu", "0", "--yes")
    assert set(found.targets(HOST)) == {pid}
    assert found.verdicts(HOST) == {0: "reclaimed"}, found.reclaim(HOST)
    assert lab.exec(HOST, "test", "-d", f"/proc/{pid}").returncode == 1
    own_holder(lab, HOST, "python3 stuck.py", 600 * MIB, "sticky")
    found = at.reclaim("--gpu", "0", "--yes", "--release-timeout", "2s")
    assert found.verdicts(HOST) == {0: "releasing"}, found.reclaim(HOST)
