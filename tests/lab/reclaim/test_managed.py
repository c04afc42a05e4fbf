"""Managed (unified) memory on a GPU: on no list of NVML, as an H200 has it (docs/gpu-h200.md)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab import api, desk
from tests.lab.reclaim_stage import MIB, Desk, own_holder

pytestmark = pytest.mark.lab

HOST = "gh200-01"
CONTEXT = 612 * MIB
MANAGED = 4096 * MIB


@pytest.fixture
def lab() -> Iterator[api.Lab]:
    """One host."""
    with api.lab() as running:
        yield running


def test_managed_memory_is_its_holders_in_a_snapshot(lab: api.Lab, tmp_path: Path) -> None:
    pid = own_holder(lab, HOST, "python3 serve.py", CONTEXT, more=f"managed={MANAGED}")
    found = desk.Desk(tmp_path, lab.inventory).run("snapshot", "-H", HOST, "-o", "json")
    section = found.answer.host(HOST)["snapshot"]
    gpu = section["gpus"][0]
    (row,) = [
        row
        for row in section["table"]
        if row["location"] == f"gpu:{gpu['uuid']}" and row["owner"] == f"python3 {pid}"
    ]
    assert row["backing"] == "device"
    assert 0 <= row["bytes"] - CONTEXT - MANAGED <= 4 * MIB  # what is used when idle, at most
    assert gpu["processes_bytes"] == CONTEXT
    assert 0 <= gpu["unaccounted_bytes"] <= 64 * MIB
    assert not found.answer.envelope["findings"]


def test_managed_memory_of_a_working_process_is_explained(lab: api.Lab, tmp_path: Path) -> None:
    """Nothing to do; and when another one is ended, what stays is the first one's."""
    at = Desk(lab.inventory, tmp_path)
    mine = own_holder(lab, HOST, "python3 serve.py", CONTEXT, more=f"managed={MANAGED}")
    found = at.reclaim("--dry-run")
    assert found.verdicts(HOST)[0] == "nothing_to_do", found.reclaim(HOST)
    other = own_holder(lab, HOST, "python3 train.py", 8192 * MIB)
    found = at.reclaim("--pid", str(other), "--yes")
    assert found.verdicts(HOST) == {0: "reclaimed"}, found.reclaim(HOST)
    assert set(found.targets(HOST)) == {other}
    assert set(found.spared(HOST)) == {mine}
    assert lab.exec(HOST, "test", "-d", f"/proc/{mine}").returncode == 0


def test_a_plan_says_what_managed_memory_its_targets_may_have(lab: api.Lab, tmp_path: Path) -> None:
    """At most what they have mapped: their contexts map 1 MiB more over uvm."""
    at = Desk(lab.inventory, tmp_path)
    own_holder(lab, HOST, "python3 serve.py", CONTEXT, more=f"managed={MANAGED}")
    own_holder(lab, HOST, "python3 train.py", CONTEXT)
    found = at.reclaim("--gpu", "0", "--dry-run")
    assert sum(row["held_bytes"] for row in found.reclaim(HOST)["targets"]) == 2 * CONTEXT
    gpus = found.reclaim(HOST)["gpus"]
    assert [0 <= row["managed_bytes"] - MANAGED <= 2 * MIB for row in gpus] == [True]
    screen = desk.Desk(tmp_path, lab.inventory).run(
        "reclaim", "-H", HOST, "--gpu", "0", "--dry-run"
    )
    assert "2 processes would be stopped, 1.2 GiB; plus at most 4.0 GiB of managed" in screen.out


def test_managed_memory_that_stays_behind_is_not_the_spared_ones(
    lab: api.Lab, tmp_path: Path
) -> None:
    """Memory that nobody has mapped is no managed memory of the process beside it."""
    at = Desk(lab.inventory, tmp_path)
    own_holder(lab, HOST, "python3 serve.py", CONTEXT, more=f"managed={256 * MIB}")
    own = own_holder(lab, HOST, "python3 train.py", CONTEXT, "sticky", more=f"managed={MANAGED}")
    found = at.reclaim("--pid", str(own), "--yes", "--release-timeout", "3s")
    assert found.verdicts(HOST)[0] not in ("reclaimed", "nothing_to_do"), found.reclaim(HOST)
