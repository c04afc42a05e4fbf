"""Fold equal results of many hosts into few rows: worst first, majority last. Pure.

Values are compared by what they hold, never pairwise: ten thousand hosts with fifty fields
each are one pass over the hosts and a sort of the distinct values.
"""

from __future__ import annotations

import json
import marshal
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from fleetmem.controller.hosts.nodeset import fold
from fleetmem.controller.text.sizes import span

_DIGITS = re.compile(r"[0-9]{1,18}")
_COUNTED = re.compile(r" (?:of [0-9]{1,18} )?(?:journal )?(?:process|processes|files?|segments)\b")
"""What follows a number that counts, and is no name's: its values are a span."""


@dataclass(frozen=True, slots=True)
class Group:
    """Hosts that gave an equal value. ``hosts`` keep the order they came in."""

    value: Any
    hosts: tuple[str, ...]


def fold_equal(
    rows: Iterable[tuple[str, Any]], rank: Callable[[Any], Any] | None = None
) -> list[Group]:
    """Group (host, value) rows by equal value.

    Values are JSON data. Sorted by *rank* of the value (lower is worse and comes first),
    then fewest hosts first, so that within a rank the odd ones stand above the majority.
    """
    exact: dict[bytes, tuple[Any, list[str]]] = {}
    for host, value in rows:
        key = marshal.dumps(value, 2)  # version 2 writes no back references: equal is equal
        if key in exact:
            exact[key][1].append(host)
        else:
            exact[key] = (value, [host])
    merged: dict[str, tuple[Any, list[str]]] = {}
    for value, hosts in exact.values():
        canonical = json.dumps(value, sort_keys=True)  # the order of keys is no difference
        if canonical in merged:
            merged[canonical][1].extend(hosts)
        else:
            merged[canonical] = (value, hosts)
    ordered = sorted(
        merged.items(),
        key=lambda item: (rank(item[1][0]) if rank else 0, len(item[1][1]), item[0]),
    )
    return [Group(value, tuple(hosts)) for _, (value, hosts) in ordered]


def fold_hosts(hosts: Iterable[str]) -> str:
    """Host names as one node set. Rows of one screen share their hosts, so the last sets are
    remembered: folding ten thousand names costs more than all the rest of a screen."""
    return _folded(tuple(dict.fromkeys(hosts)))


@lru_cache(maxsize=32)
def _folded(hosts: tuple[str, ...]) -> str:
    return fold(hosts)


def fold_numbers(numbers: Iterable[int]) -> str:
    """Numbers as ranges: ``0-3,7``; empty text for none."""
    ordered = sorted(set(numbers))
    parts: list[str] = []
    start = 0
    for at, number in enumerate(ordered):
        if at + 1 < len(ordered) and ordered[at + 1] == number + 1:
            continue
        parts.append(str(number) if start == at else f"{ordered[start]}-{number}")
        start = at + 1
    return ",".join(parts)


def template(name: str) -> str:
    """*name* with each run of digits as ``*``: what equal names have in common."""
    return _DIGITS.sub("*", name)


def fold_names(names: Iterable[str], limit: int = 24) -> str:
    """Names folded where they differ in one number only: ``TP[0-7]``.

    Where several numbers differ, or the ranges would be longer than *limit* characters,
    ``*`` stands for the number. Numbers that count something are a span, ``2-9 processes``.
    Different templates are joined by a comma.
    """
    shapes: dict[str, set[str]] = {}
    for name in names:
        shapes.setdefault(template(name), set()).add(name)
    return ", ".join(_fold_shape(sorted(members), limit) for members in shapes.values())


def _fold_shape(members: list[str], limit: int) -> str:
    if len(members) == 1:
        return members[0]
    columns = list(zip(*(_DIGITS.findall(member) for member in members), strict=True))
    counts = [bool(_COUNTED.match(members[0], at.end())) for at in _DIGITS.finditer(members[0])]
    differ = [len(set(column)) > 1 for column in columns]
    several = sum(d and not c for d, c in zip(differ, counts, strict=True)) > 1
    left = iter(zip(columns, counts, strict=True))

    def one(_match: re.Match[str]) -> str:
        column, counted = next(left)
        values: set[str] = set(column)
        if len(values) == 1:
            return values.pop()
        if counted:
            return "-".join(map(str, span(map(int, values)) or ()))
        plain = all(value == str(int(value)) for value in values)
        folded = fold_numbers(map(int, values)) if plain else ",".join(sorted(values))
        return "*" if several or len(folded) > limit else f"[{folded}]"

    return _DIGITS.sub(one, members[0])
