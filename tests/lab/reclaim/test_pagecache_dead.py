"""pagecache.files and pagecache.drop beside a file system whose server no longer answers."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from typing import Any

import pytest

from fleetmem.agent import isolate as apart
from tests.lab import api
from tests.lab.fixtures import wait_until
from tests.lab.inside import asking as inside
from tests.lab.look.test_probes import HERE, HOST, Host

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


def test_nobody_is_sent_after_a_child_that_the_kernel_does_not_end(host: Host) -> None:
    """The server has taken the question, so not even a kill ends who asked it."""
    source = (HERE / "dead_fuse.py").read_text("utf-8")
    started = host.lab.exec(HOST, "python3", "-", "takes", stdin=source)
    assert started.returncode == 0, started.stderr
    server = int(started.stdout.split()[3])
    try:
        first = answer_of(host, "pagecache.files", paths=[DEAD], walk="never")
        assert {"path": DEAD, "problem": apart.SILENT} in first["reading"]["problems"]
        stays = waiting(host.lab)
        assert stays >= 1
        again = answer_of(host, "pagecache.drop", paths=[DEAD], mode="drop")
        assert again["reading"]["problems"] == [{"path": DEAD, "problem": apart.SILENT}]
        assert waiting(host.lab) == stays
    finally:
        inside.kill(host.lab, HOST, "KILL", server)
    wait_until("it ends with the server", lambda: waiting(host.lab) == 0)


def answer_of(host: Host, name: str, **options: object) -> dict[str, Any]:
    """A probe's or action's answer through a file: a child that stays keeps a pipe open."""
    start = "import sys; sys.path.insert(0, '/run/host/probe'); import call_probes"
    words = shlex.join(["python3", "-I", "-B", "-c", start, name, json.dumps(options)])
    done = host.lab.exec(HOST, "sh", "-c", f"{words} >/run/host/answer 2>/dev/null </dev/null")
    assert done.returncode == 0
    found: dict[str, Any] = json.loads((host.lab.directory / HOST / "answer").read_text())[name]
    return found


def waiting(lab: api.Lab) -> int:
    """How many children of scans are on the host."""
    names = lab.exec(HOST, "sh", "-c", "cat /proc/[0-9]*/comm 2>/dev/null || true").stdout
    return names.count(apart.NAME)
