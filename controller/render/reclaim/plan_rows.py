"""Targets and spared processes of a plan, folded to the rows that the screen shows. Pure.

Rows fold by (name pattern, owner, class); memory is shown once a GPU, ``"`` below it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from fleetmem.controller.answer.envelope import HostEntry, Spared, Target, reading_of
from fleetmem.controller.answer.fold import fold_hosts, fold_names, fold_numbers, template
from fleetmem.controller.text.safe import safe
from fleetmem.controller.text.sizes import NONE, age, mib_span


@dataclass(frozen=True, slots=True)
class PlanRow:
    """One row's texts. ``owner``, ``pid`` and ``age`` are empty for spared processes."""

    hosts: str
    gpus: str
    used: str
    text: str
    kind: str
    pid: str = ""
    age: str = ""
    owner: str = ""
    user: str = ""
    command: str = ""


def target_rows(entries: Iterable[HostEntry]) -> list[PlanRow]:
    """Targets folded; the largest groups first, those signalled last at the end."""
    groups: dict[tuple[str, ...], list[tuple[HostEntry, Target]]] = {}
    for entry in entries:
        for target in entry["reclaim"]["targets"]:
            key = (template(target["name"]), template(_owner(target)), target["class"])
            groups.setdefault(key, []).append((entry, target))
    told: set[tuple[str, int]] = set()
    ordered = sorted(groups.values(), key=lambda group: (group[0][1]["conditional"], -len(group)))
    return [_target_row(group, told) for group in ordered]


def _owner(target: Target) -> str:
    return (
        target.get("owner")
        or target.get("why")
        or target["unit"]
        or target["container"]
        or target["user"]
        or NONE
    )


def _target_row(group: Sequence[tuple[HostEntry, Target]], told: set[tuple[str, int]]) -> PlanRow:
    targets = [target for _, target in group]
    ages = (target.get("age_seconds") for target in targets)
    return PlanRow(
        hosts=safe(fold_hosts(entry["host"] for entry, _ in group)),
        gpus=fold_numbers(gpu for target in targets for gpu in target["gpus"]),
        used=_used(group, told),
        text=safe(fold_names(target["name"] for target in targets)),
        kind=targets[0]["class"],
        pid=str(targets[0]["pid"]) if len(targets) == 1 else f"{len(targets)} pids",
        age=age(max((value for value in ages if value is not None), default=None)),
        owner=safe(fold_names(map(_owner, targets))),
        user=safe(", ".join(sorted({target["user"] or NONE for target in targets}))),
        command=safe(fold_names(dict.fromkeys(_commands(group)))),
    )


def _commands(group: Sequence[tuple[HostEntry, Target]]) -> Iterator[str]:
    """Command lines of the group's processes, as far as their readings have them."""
    for entry, target in group:
        reading = reading_of(entry, "processes.identity")
        for one in reading["processes"] if reading else ():
            if (one["pid"], one["start_time"]) == (target["pid"], target["start_time"]):
                yield one["title"]


def _used(group: Sequence[tuple[HostEntry, Target]], told: set[tuple[str, int]]) -> str:
    """What the group holds; where only its GPUs' use is known, that, once a GPU."""
    places = {(entry["host"], gpu) for entry, target in group for gpu in target["gpus"]}
    held = [target["held_bytes"] for _, target in group]
    repeated = places <= told
    told |= places
    if any(value is not None for value in held):
        return mib_span(held)
    if repeated:
        return '"'
    return mib_span(
        gpu["before_bytes"]
        for entry in {id(entry): entry for entry, _ in group}.values()
        for gpu in entry["reclaim"]["gpus"]
        if (entry["host"], gpu["index"]) in places
    )


def spared_rows(entries: Iterable[HostEntry]) -> list[PlanRow]:
    """Processes left alone, folded."""
    groups: dict[tuple[str, ...], list[tuple[HostEntry, Spared]]] = {}
    for entry in entries:
        for row in entry["reclaim"]["spared"]:
            key = (row["class"] or "", template(row["name"]), template(row["why"]))
            groups.setdefault(key, []).append((entry, row))
    return [_spared_row(group) for group in groups.values()]


def _spared_row(group: Sequence[tuple[HostEntry, Spared]]) -> PlanRow:
    spared = [row for _, row in group]
    names = fold_names(row["name"] for row in spared)
    who = f"{names} {spared[0]['pid']}" if len(spared) == 1 else f"{names} × {len(spared)}"
    users = {row.get("user") for row in spared}
    user = users.pop()
    if user and not users:
        who += f" ({user})"
    return PlanRow(
        hosts=safe(fold_hosts(entry["host"] for entry, _ in group)),
        gpus=fold_numbers(gpu for row in spared for gpu in row["gpus"]) or NONE,
        used=mib_span(row["held_bytes"] for row in spared),
        text=safe(f"{who}: {fold_names(row['why'] for row in spared)}"),
        kind=spared[0]["class"] or "unclear",
    )
