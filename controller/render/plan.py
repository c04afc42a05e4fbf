"""The plan of a reclaim, folded over processes and hosts: what would be stopped, what not.

Rows fold by (name pattern, owner, class); memory is shown once a GPU, ``"`` below it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from fleetmem.controller.aggregate import fold_names, fold_numbers, template
from fleetmem.controller.envelope import HostEntry, Spared, Target, reading_of
from fleetmem.controller.nodeset import fold
from fleetmem.controller.reclaim.options import ReclaimOptions
from fleetmem.controller.render.line import WIDTH, Line, cells, left, right, wrap
from fleetmem.controller.render.safe import safe
from fleetmem.controller.render.size import NONE, age, count, mib_span, seconds_span

CLASS_STYLES = {
    "leftover": "good",
    "detached": "warn",
    "in_use": "dim",
    "protected": "dim",
    "foreign": "foreign",
}
_HOSTS = 16
_MAX_SPARED = 24


def plan_lines(entries: Sequence[HostEntry], options: ReclaimOptions | None) -> list[Line]:
    """The plan block; without *options* (a recorded run) it has no ``steps`` line.

    Empty where neither a target nor a spared process is known.
    """
    shown = [entry for entry in entries if "reclaim" in entry]
    targets = [(entry, target) for entry in shown for target in entry["reclaim"]["targets"]]
    spared = [(entry, row) for entry in shown for row in entry["reclaim"]["spared"]]
    if not targets and not spared:
        return []
    many = len(shown) > 1
    lines = _title(shown, len(targets))
    if targets:
        lines.append(_header(many))
        lines.extend(_target_rows(targets, many))
    if spared:
        lines.append((("SPARED", "dim"),))
        lines.extend(_spared_rows(spared, many))
    if targets and options is not None:
        lines.extend(_steps(shown, options))
    return lines


def _title(entries: Sequence[HostEntry], targets: int) -> list[Line]:
    """One host by name and plan; several by their number, the rows below name them."""
    if len(entries) == 1:
        plan = entries[0]["reclaim"]["plan"]
        name = f"PLAN {safe(plan['id'], 40)}" if plan else "PLAN"
        parts = [safe(entries[0]["host"]), _gpus(entries)]
    else:
        name = "PLAN"
        hosts = sum(bool(entry["reclaim"]["targets"]) for entry in entries)
        what = f"{count(targets, 'process', 'processes')} on {hosts}"
        parts = [count(len(entries), "host"), _gpus(entries), what]
    indent = len(name) + 2
    first, *more = wrap(" · ".join([*parts, "nothing has been changed"]), WIDTH - indent)
    return [
        ((f"{name}  ", "bold"), (first, "")),
        *(((" " * indent + piece, ""),) for piece in more),
    ]


def _gpus(entries: Iterable[HostEntry]) -> str:
    total, names = 0, set()
    for entry in entries:
        total += len(entry["reclaim"]["gpus"])
        devices = reading_of(entry, "gpu.devices")
        for gpu in devices["gpus"] if devices else ():
            names.add(safe(gpu["name"] or "GPU", 30))
    return f"{total} × {names.pop()}" if len(names) == 1 else count(total, "GPU")


def _header(many: bool) -> Line:
    if many:
        text = (
            f"{'HOSTS':<{_HOSTS}} {'GPU':<5} {'USED MiB':>12}  {'HOLDER':<24} {'PID':>7}  "
            f"{'OWNER':<18}  CLASS"
        )
    else:
        text = (
            f"{'GPU':<7} {'USED MiB':>12}  {'HOLDER':<26} {'PID':>7}  {'AGE':>5}  "
            f"{'OWNER':<24}  CLASS"
        )
    return ((text, "dim"),)


def _owner(target: Target) -> str:
    return target.get("why") or target["unit"] or target["container"] or target["user"] or NONE


def _target_rows(rows: Sequence[tuple[HostEntry, Target]], many: bool) -> list[Line]:
    groups: dict[tuple[str, ...], list[tuple[HostEntry, Target]]] = {}
    for entry, target in rows:
        key = (template(target["name"]), template(_owner(target)), target["class"])
        groups.setdefault(key, []).append((entry, target))
    lines: list[Line] = []
    told: set[tuple[str, int]] = set()
    ordered = sorted(groups.values(), key=lambda group: (group[0][1]["conditional"], -len(group)))
    for group in ordered:
        lines.extend(_target_row(group, told, many))
    return lines


def _target_row(
    group: Sequence[tuple[HostEntry, Target]], told: set[tuple[str, int]], many: bool
) -> list[Line]:
    targets = [target for _, target in group]
    gpus = fold_numbers(gpu for target in targets for gpu in target["gpus"])
    used = _used(group, told)
    name = safe(fold_names(target["name"] for target in targets))
    pids = sorted({target["pid"] for target in targets})
    pid = str(pids[0]) if len(targets) == 1 else f"{len(targets)} pids"
    owner = safe(fold_names(map(_owner, targets)))
    kind = targets[0]["class"]
    tail = (kind.replace("_", " "), CLASS_STYLES.get(kind, ""))
    names = wrap(name, 24 if many else 26)
    owners = wrap(owner, 18 if many else 24)
    if many:
        first = f" {left(gpus, 5)} {right(used, 12)}  {left(names[0], 24)} {right(pid, 7)}  "
        first += f"{left(owners[0], 18)}  "
        hosts = (entry["host"] for entry, _ in group)
        lines = hosts_first(hosts, _HOSTS, ((first, ""), tail))
        indents = (_HOSTS + 21, 24 + 10)
    else:
        first = f"{left(gpus, 7)} {right(used, 12)}  {left(names[0], 26)} {right(pid, 7)}  "
        first += f"{right(_oldest(targets), 5)}  {left(owners[0], 24)}  "
        lines = [((first, ""), tail)]
        indents = (22, 26 + 17)
    for more, owned in zip_longest(names[1:], owners[1:], fillvalue=""):
        lines.append(((" " * indents[0] + left(more, indents[1]) + owned, ""),))
    return lines


def _oldest(targets: Iterable[Target]) -> str:
    ages = (target.get("age_seconds") for target in targets)
    return age(max((value for value in ages if value is not None), default=None))


def hosts_first(hosts: Iterable[str], width: int, rest: Line) -> list[Line]:
    """A row that begins with a node set; a set longer than its column has lines of its own."""
    folded = safe(fold(hosts))
    if cells(folded) <= width:
        return [((left(folded, width), ""), *rest)]
    lines: list[Line] = [((piece, ""),) for piece in wrap(folded, WIDTH)]
    return [*lines, ((" " * width, ""), *rest)]


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


def _spared_rows(rows: Sequence[tuple[HostEntry, Spared]], many: bool) -> list[Line]:
    groups: dict[tuple[str, ...], list[tuple[HostEntry, Spared]]] = {}
    for entry, row in rows:
        key = (row["class"] or "", template(row["name"]), template(row["why"]))
        groups.setdefault(key, []).append((entry, row))
    lines: list[Line] = []
    for group in list(groups.values())[:_MAX_SPARED]:
        lines.extend(_spared_row(group, many))
    if len(groups) > _MAX_SPARED:
        lines.append(((f"… {len(groups) - _MAX_SPARED} more kinds; -o json lists all", "dim"),))
    return lines


def _spared_row(group: Sequence[tuple[HostEntry, Spared]], many: bool) -> list[Line]:
    spared = [row for _, row in group]
    gpus = fold_numbers(gpu for row in spared for gpu in row["gpus"]) or NONE
    used = mib_span(row["held_bytes"] for row in spared)
    names = fold_names(row["name"] for row in spared)
    who = f"{names} {spared[0]['pid']}" if len(spared) == 1 else f"{names} × {len(spared)}"
    user = spared[0].get("user")
    if user and len({row.get("user") for row in spared}) == 1:
        who += f" ({user})"
    text = safe(f"{who}: {fold_names(row['why'] for row in spared)}")
    kind = spared[0]["class"] or "unclear"
    wide = 52 if many else 67
    first, *more = wrap(text, wide)
    head = f"{left(gpus, 5 if many else 7)} {right(used, 12)}  {left(first, wide)}  "
    indent = " " * (20 + _HOSTS + 1 if many else 22)
    under: list[Line] = [((indent + piece, "dim"),) for piece in more]
    tail = (kind.replace("_", " "), CLASS_STYLES.get(kind, ""))
    if not many:
        return [((head, "dim"), tail), *under]
    hosts = (entry["host"] for entry, _ in group)
    return [*hosts_first(hosts, _HOSTS, ((" " + head, "dim"), tail)), *under]


def _steps(entries: Sequence[HostEntry], options: ReclaimOptions) -> list[Line]:
    targets = [target for entry in entries for target in entry["reclaim"]["targets"]]
    heirs = sum(target["conditional"] for target in targets)
    words = {
        "drain": "drain",
        "owner": "owner",
        "term": f"TERM {len(targets) - heirs}",
        "kill": f"KILL after {options.grace_period_seconds:g} s",
        "heirs": f"heirs {heirs}" if heirs else "rescan",
    }
    steps = " → ".join(words[rung] for rung in options.rungs if rung != "owner")
    expected = [entry["reclaim"].get("expect_seconds") for entry in entries]
    text = f"steps   {steps}"
    if any(value is not None for value in expected):
        text += f" · expect {seconds_span(expected)} after KILL"
    return [((piece, ""),) for piece in wrap(text, WIDTH)]


def plan_hashes(entries: Iterable[HostEntry], limit: int = 8) -> list[str]:
    """One line a host: the plan's id, hash and expiry, so that it can be told apart later."""
    plans = [
        (entry["host"], entry["reclaim"]["plan"])
        for entry in entries
        if "reclaim" in entry and entry["reclaim"]["targets"]
    ]
    lines = [
        f"plan {safe(plan['id'])} of {safe(host)}: hash {safe(plan['hash'])}, "
        f"expires {safe(plan['expires'])}"
        for host, plan in plans[:limit]
        if plan
    ]
    if len(plans) > limit:
        lines.append(f"… and {len(plans) - limit} more plans; -o json lists all")
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
