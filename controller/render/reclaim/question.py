"""What is said around the question whether a plan may be applied. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fleetmem.controller.answer.envelope import HostEntry
from fleetmem.controller.text.safe import safe
from fleetmem.controller.text.sizes import count


def plan_hashes(entries: Iterable[HostEntry], limit: int = 8) -> list[str]:
    """One line a host: the plan's id, hash and expiry, so that it can be told apart later."""
    plans = [
        (entry["host"], entry["reclaim"]["plan"])
        for entry in entries
        if "reclaim" in entry and entry["reclaim"]["targets"]
    ]
    lines = [
        f"plan {safe(plan['id'], 40)} of {safe(host)}: hash {safe(plan['hash'], 17)}, "
        f"expires {safe(plan['expires'], 40)}"
        for host, plan in plans[:limit]
        if plan
    ]
    if len(plans) > limit:
        lines.append(f"… and {count(len(plans) - limit, 'more plan')}; -o json lists all")
    return lines


def describe(entries: Iterable[HostEntry]) -> tuple[str, int]:
    """What would be stopped, in words, and on how many hosts."""
    classes: dict[str, int] = {}
    hosts = 0
    for entry in entries:
        targets: Sequence[Mapping[str, Any]] = (
            entry["reclaim"]["targets"] if "reclaim" in entry else ()
        )
        hosts += bool(targets)
        for target in targets:
            word = str(target["class"]).replace("_", " ")
            classes[word] = classes.get(word, 0) + 1
    total = sum(classes.values())
    if len(classes) == 1:
        word = next(iter(classes))
        return f"{total} {word} {'process' if total == 1 else 'processes'}", hosts
    parts = ", ".join(f"{number} {word}" for word, number in sorted(classes.items()))
    return f"{count(total, 'process', 'processes')} ({parts})", hosts
