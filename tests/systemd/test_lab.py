"""Hosts with systemd are private to their lab, and nothing of them is left."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.lab import api
from tests.lab.making import kernel, systemd_host
from tests.systemd.world import FIRST, World

pytestmark = pytest.mark.lab


def test_a_host_sees_and_changes_nothing_of_the_machine(world: World, tmp_path: Path) -> None:
    """Its own root, names, cgroups and /proc/sys; systemd is up with nothing failed."""
    mark = tmp_path / "mark"
    mark.write_text("here")
    assert world.sh("systemctl is-system-running --wait", check=False).strip() == "running"
    assert world.sh("cat /proc/1/comm").strip() == "systemd"
    assert world.sh(f"ls {mark}", check=False) == ""
    assert world.sh("hostname").strip() == FIRST
    assert "ro," in world.sh("grep ' /proc/sys ' /proc/mounts")
    assert world.sh("echo 1 2>/dev/null >/proc/sys/vm/drop_caches && echo wrote", check=False) == ""
    assert world.sh("cat /proc/1/cgroup").splitlines()[-1] == "0::/init.scope"
    machine = Path("/etc/machine-id")
    own = machine.read_text() if machine.exists() else ""
    assert world.sh("cat /etc/machine-id") != own
    assert mark.read_text() == "here"


def test_nothing_is_left_where_the_keeper_was_killed(tmp_path: Path) -> None:
    """Processes, cgroups and files are gone after ``down``, whoever died first."""
    directory = tmp_path / "lab"
    lab = api.up(directory, n=1, systemd=True, while_pid=os.getpid())
    at = lab.hosts[FIRST]
    place = systemd_host.cgroup_root() / f"{systemd_host.CGROUP}-{at.address}"
    assert list(place.glob("system.slice/*"))
    record = json.loads((directory / "lab.json").read_text())
    assert kernel.start_time(record["pid"]) == record["start"]
    os.kill(record["pid"], signal.SIGKILL)
    lab.down()
    assert kernel.start_time(at.init) != at.start
    assert not place.exists()
    assert not directory.exists()
