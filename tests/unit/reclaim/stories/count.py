"""Histories told, judged and counted."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from fleetmem.controller.reclaim.classify import classify
from fleetmem.controller.reclaim.law.rules import rules
from fleetmem.controller.reclaim.options import ReclaimOptions
from fleetmem.controller.reclaim.plan import make_plan
from tests.unit.reclaim.stories.reading import survey
from tests.unit.reclaim.stories.tales import tell


@dataclass
class Count:
    """``wrong``: seeds with a wanted process among the default targets, and which one.
    ``left`` and ``found``: bytes by kind of history, where everything can be read."""

    told: int = 0
    wrong: list[tuple[int, str]] = field(default_factory=list)
    left: Counter[str] = field(default_factory=Counter)
    found: Counter[str] = field(default_factory=Counter)
    lost: int = 0

    @property
    def share(self) -> float:
        """Of the memory that is left over and shows it, how much the default finds."""
        return sum(self.found.values()) / max(1, sum(self.left.values()))

    def __str__(self) -> str:
        rows = [
            f"{kind}: {self.found[kind] / size:.1%} of {size >> 30} GiB"
            for kind, size in sorted(self.left.items())
        ]
        return (
            f"{self.told} histories, {len(self.wrong)} wanted processes among the targets; "
            f"{self.share:.1%} of leftover memory found ({'; '.join(rows)}; "
            f"{self.lost >> 30} GiB that nothing tells from nohup)"
        )


def one(seed: int, count: Count) -> None:
    """Tell the history of *seed*, judge it as the unscoped default does, and count."""
    host, truth, readable = tell(seed)
    seen = survey(host)
    plan = make_plan(seen, classify(seen, rules()), ReclaimOptions(), {})
    targets = {t.member.pid: t for t in plan.targets if not t.conditional}
    count.told += 1
    for process in truth.wanted:
        if process.pid in targets and process.alive:
            member = targets[process.pid].member
            count.wrong.append((seed, f"{member.name} {member.pid}: {member.why}"))
    kinds = {p: kind for kind, rows in truth.left.items() for p in rows}
    for charge in host.charges:
        having = host.holders(charge.files)
        if any(p in truth.wanted for p in having):
            continue
        if any(p in truth.lost for p in having):
            count.lost += charge.size
        kind = next((kinds[p] for p in having if p in kinds), None)
        if kind is None or not readable:
            continue
        count.left[kind] += charge.size
        if all(p.pid in targets for p in having):
            count.found[kind] += charge.size


def many(seeds: range) -> Count:
    """All of *seeds*."""
    count = Count()
    for seed in seeds:
        one(seed, count)
    return count
