"""What a run records is what it showed: commands that can be pasted from ``runs show`` too."""

from __future__ import annotations

import asyncio
from pathlib import Path

from fleetmem.controller.answer.step import Reach
from fleetmem.controller.hosts.host import Host
from fleetmem.controller.record.history import History, open_history
from fleetmem.controller.run.life import begin, lived
from fleetmem.controller.run.settings import FleetSettings
from tests.unit.reclaim.reclaim_samples import eight_gpus


def test_recorded_commands_repeat_how_the_hosts_were_reached(tmp_path: Path) -> None:
    settings = FleetSettings(history_dir=tmp_path, reach=Reach("lab.yaml"))
    life = begin("reclaim", [Host("a1", "a1")], settings, lambda event: None)
    step = "fleetmem reclaim -H a1 --dry-run"

    async def body() -> None:
        life.entries["a1"]["reclaim"] = eight_gpus("a1")["reclaim"]
        life.entries["a1"]["reclaim"]["next"] = [step]
        life.record("a1")

    finding = {"rule": "memory/full", "severity": "warn", "hosts": "a1", "subject": "GPU 0",
               "evidence": {"say": "it is full"}, "advice": None, "next": [step]}  # fmt: skip
    answer = asyncio.run(lived(life, body, lambda: [finding]))  # type: ignore[list-item]
    history: History = open_history(directory=tmp_path)
    recorded = history.load(life.id)
    history.close()
    whole = ["fleetmem reclaim -i lab.yaml -H a1 --dry-run"]
    for envelope in (answer, recorded):
        assert envelope["hosts"][0]["reclaim"]["next"] == whole
        assert envelope["findings"][0]["next"] == whole
