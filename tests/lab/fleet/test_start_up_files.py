"""What a host's start-up files leave running is the host's: the agent's end leaves it alone."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab import api
from tests.lab.desk import Desk
from tests.lab.fixtures import wait_until

pytestmark = pytest.mark.lab

HOST = "gh200-01"
MONITOR = "/run/monitor"
SCRIPT = """#!/bin/sh
# A monitor that starts another one and leaves it behind while the agent works.
(sleep 0.2; setsid sleep 4242 &) &
echo $$ >/run/monitor.pid
exec sleep 4141
"""
WAYS = {
    "quiet": "nohup setsid /run/monitor >/dev/null 2>&1 </dev/null &",
    "keeps-the-channel": "nohup setsid /run/monitor &",
    "stays-a-child": "/run/monitor >/dev/null 2>&1 </dev/null & disown;",
}


@pytest.fixture(scope="module")
def lab() -> Iterator[api.Lab]:
    with api.lab(n=1) as running:
        made = running.exec(HOST, "sh", "-c", f"cat >{MONITOR}; chmod +x {MONITOR}", stdin=SCRIPT)
        assert made.returncode == 0, made.stderr
        yield running


def running(lab: api.Lab, command: str) -> list[str]:
    return lab.exec(HOST, "pgrep", "-f", f"^{command}$").stdout.split()


@pytest.mark.parametrize("way", WAYS)
def test_a_monitor_that_bashrc_starts_outlives_a_snapshot(
    lab: api.Lab, way: str, tmp_path: Path
) -> None:
    once = f"[ -e /run/monitor.pid ] || {{ {WAYS[way]} }}\n"
    lab.exec(HOST, "sh", "-c", "cat >/root/.bashrc", stdin=once)
    try:
        desk = Desk(tmp_path, lab.inventory)
        begun = time.monotonic()
        said = desk.run("snapshot", "-H", HOST, "-o", "json")
        assert said.answer.envelope["hosts"][0]["outcome"] == "ok", said.err
        assert time.monotonic() - begun < 15
        assert lab.exec(HOST, "test", "-s", "/run/monitor.pid").returncode == 0, "did not start"
        wait_until("the orphan lives", lambda: running(lab, "sleep 4242"), 10)
        wait_until("the agent is gone", lambda: not running(lab, "fleetmem-.*"), 10)
        assert running(lab, "sleep 4141"), "the monitor was ended"
        assert running(lab, "sleep 4242"), "what the monitor started was ended"
    finally:
        lab.exec(HOST, "rm", "-f", "/root/.bashrc", "/run/monitor.pid")
        for pid in running(lab, "sleep 4141") + running(lab, "sleep 4242"):
            lab.exec(HOST, "kill", "-9", pid)
