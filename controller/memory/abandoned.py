"""Who is left of those who started a process: the same words on screens and in rules. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fleetmem.agent.shapes import Identity


def abandoned(process: Identity) -> str | None:
    """What became of those who started *process* where none of them is left, else ``None``.

    It proves nothing: a ``nohup`` job looks the same. What is left over a reclaim judges.
    """
    if process["launcher_alive"] or process["group_leader_alive"]:
        return None
    owner = process["owner"]
    if owner["kind"] in ("none", "session"):
        return "launcher dead"
    return f"{owner['kind'].replace('_', ' ')} is gone" if owner["state"] == "gone" else None
