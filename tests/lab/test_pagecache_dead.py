"""pagecache.files and pagecache.drop beside a file system whose server no longer answers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fleetmem.agent import apart
from tests.lab import api, inside
from tests.lab.test_probes import HERE, HOST, Host

pytestmark = pytest.mark.lab

MIB = 1 << 20
DEAD = "/tmp/dead-fuse/file"


@pytest.fixture
def host() -> Iterator[Host]:
    with api.lab(n=1) as running:
        yield Host(running)


def test_a_dead_mount_is_one_problem_and_the_rest_is_known(host: Host) -> None:
    started = host.lab.exec(HOST, "python3", "-", stdin=(HERE / "dead_fuse.py").read_text("utf-8"))
    assert started.returncode == 0, started.stderr
    server = int(started.stdout.split()[3])
    host.lab.exec(HOST, "sh", "-c", "head -c 2M /dev/zero >/run/host/alive; sync /run/host/alive")
    try:
        found = host.probe("pagecache.files", paths=[DEAD, "/run/host/alive"], walk="never")
        assert found["outcome"] == "partial"
        assert "does not answer" in found["reason"]
        reading = found["reading"]
        assert {"path": DEAD, "problem": apart.SILENT} in reading["problems"]
        alive = next(row for row in reading["files"] if row["path"] == "/run/host/alive")
        # cachestat passes over a page that the kernel is moving at that moment
        assert 0 <= 2 * MIB - alive["resident_bytes"] <= 64 * 1024

        dropped = host.probe(
            "pagecache.drop", paths=["/run/host/alive"], mode="drop", spare_dirty=0
        )
        assert [row["result"] for row in dropped["reading"]["files"]] == ["dropped"]
    finally:
        inside.kill(host.lab, HOST, "KILL", server)
