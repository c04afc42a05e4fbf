"""What an idle GPU uses: recorded whenever one is seen idle, looked up for every plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fleetmem.controller.reclaim.law.rules import protection, rules

if TYPE_CHECKING:
    from fleetmem.controller.reclaim.classify import Classified
    from fleetmem.controller.reclaim.survey import Survey
    from fleetmem.controller.record.history import History

IDLE_LIMIT_BYTES = 1 << 30
"""More than this is no idle GPU's, whoever is not seen to hold it."""


def key(survey: Survey, gpu: int) -> dict[str, Any]:
    """What a baseline depends on: driver, persistence, MIG and MPS state."""
    device = survey.gpus[gpu]
    mps = any(p["comm"].startswith("nvidia-cuda-mps") for p in survey.processes.values())
    return {
        "driver": survey.driver,
        "persistence": device["persistence"],
        "mig": device["mig_mode"],
        "mps": mps,
    }


def recorded(history: History | None, host: str, survey: Survey) -> dict[str, int]:
    """Recorded used bytes by GPU uuid."""
    found = {}
    for gpu, device in survey.gpus.items():
        known = history.baseline(host, device["uuid"], key(survey, gpu)) if history else None
        if known is not None:
            found[device["uuid"]] = known
    return found


def record(history: History, host: str, survey: Survey, members: Classified) -> None:
    """Record every GPU without any NVML pid whose files only protected processes have open."""
    agent = frozenset(survey.facts["agent_pids"])
    for gpu, device in survey.gpus.items():
        used = survey.used(gpu)
        if used is None or used > IDLE_LIMIT_BYTES or survey.listed[gpu]:
            continue
        if not survey.complete[gpu] or (survey.holders_denied and survey.facts["uid"] != 0):
            continue  # what even root cannot read (it has more capabilities) is no holder
        opened = [
            m.process for m in members.members.values() if gpu in m.open_gpus or gpu in m.held
        ]
        if all(protection(process, agent, rules()) for process in opened):
            history.record_baseline(host, device["uuid"], key(survey, gpu), used)
