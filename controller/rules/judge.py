"""Readings and rules to findings. Pure: old runs can be judged by new rules.

What is unknown (``None``) matches no comparator but ``present: false``: nothing is concluded
from what was not seen.
"""

from __future__ import annotations

import fnmatch
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from fleetmem.controller.answer.fold import fold_hosts
from fleetmem.controller.answer.step import read
from fleetmem.controller.rules.reading_paths import value_of
from fleetmem.controller.rules.views import VIEWS, Look
from fleetmem.controller.rules.wording import fill, is_number, placeholders, plain_format

if TYPE_CHECKING:
    from fleetmem.controller.answer.envelope import Finding
    from fleetmem.controller.rules.book import Condition, Playbook, Rule

Row = Mapping[str, Any]
ORDER = {"critical": 0, "warn": 1, "info": 2}
_NUMBERS: dict[str, Callable[[float, float], bool]] = {
    "above": lambda value, limit: value > limit,
    "below": lambda value, limit: value < limit,
    "at_least": lambda value, limit: value >= limit,
    "at_most": lambda value, limit: value <= limit,
}
_MIN_GROUP = 3
"""Fewer hosts have no majority that one of them could be unlike."""


@dataclass(frozen=True)
class Case:
    """One host's readings, and those of an earlier run to compare with."""

    host: str
    readings: Look
    before: Look | None = None


@dataclass(frozen=True)
class _Match:
    host: str
    rule: Rule
    row: Row
    value: Any
    count: int = 1
    expected: Any = None
    """What the row had before, or what the group has."""


def judge(playbooks: Sequence[Playbook], cases: Sequence[Case]) -> list[Finding]:
    """The findings over all *cases*, equal ones of several hosts folded, worst first."""
    matches: list[_Match] = []
    for playbook in playbooks:
        for rule in playbook.rules:
            if rule.condition.comparator == "unlike_group":
                matches += _unlike(rule, cases)
            else:
                for case in cases:
                    matches += _on_host(rule, case)
    return _fold(matches)


def worst(findings: Sequence[Mapping[str, Any]]) -> str | None:
    """The worst severity among *findings*."""
    return min((one["severity"] for one in findings), key=lambda word: ORDER[word], default=None)


# --- one rule on one host ------------------------------------------------------------------


def _on_host(rule: Rule, case: Case) -> list[_Match]:
    rows = _chosen(rule, case.readings)
    condition = rule.condition
    if rule.total:
        return _totalled(rule, case, rows)
    before = _before(rule, case) if condition.comparator == "grows" else {}
    found = []
    for row in rows:
        value = value_of(row, condition.field)
        old = before.get(_key(rule.each, row)) if before else None
        if condition.comparator == "grows":
            grown = is_number(value) and is_number(old) and value - old > condition.limit
            if grown:
                found.append(_Match(case.host, rule, row, value, expected=old))
        elif holds(condition, row):
            found.append(_Match(case.host, rule, row, value))
    found.sort(key=lambda one: -one.value if is_number(one.value) else 0)
    return found[: rule.most]


def _totalled(rule: Rule, case: Case, rows: Sequence[Row]) -> list[_Match]:
    """The field added up over all rows; nothing is concluded where no value is known."""
    field = rule.condition.field
    values = [value_of(row, field) for row in rows]
    known = [value for value in values if is_number(value)]
    if not known:
        return []
    largest = max(rows, key=lambda row: value_of(row, field) or 0)
    row = {**largest, field: sum(known)}
    if not holds(rule.condition, row):
        return []
    return [_Match(case.host, rule, row, row[field], count=len(known))]


def _chosen(rule: Rule, readings: Look) -> list[Row]:
    return [
        row
        for row in readings.rows(rule.each)
        if all(holds(condition, row) for condition in rule.where)
    ]


def _before(rule: Rule, case: Case) -> dict[tuple[Any, ...], Any]:
    if case.before is None:
        return {}
    rows = _chosen(rule, case.before)
    return {_key(rule.each, row): value_of(row, rule.condition.field) for row in rows}


def _key(each: str, row: Row) -> tuple[Any, ...]:
    return tuple(value_of(row, name) for name in VIEWS[each].key)


def holds(condition: Condition, row: Row) -> bool:
    """Whether *row* meets *condition*; never for a value that is not known."""
    value, limit = value_of(row, condition.field), condition.limit
    word = condition.comparator
    if word == "present":
        return (value is not None and value != []) is limit
    if value is None:
        return False
    if word in _NUMBERS:
        return is_number(value) and _NUMBERS[word](value, limit)
    if word == "share_above":
        whole = value_of(row, limit[0])
        return is_number(value) and is_number(whole) and value * 100 > whole * limit[1]
    if word == "equals":
        return bool(value == limit)
    if word == "one_of":
        return value in limit
    if word == "none_of":
        return value not in limit
    if word == "contains":
        return limit in (value if isinstance(value, list) else str(value))
    if word == "matches":
        return fnmatch.fnmatchcase(str(value), limit)
    return False


# --- one rule over the group ---------------------------------------------------------------


def _unlike(rule: Rule, cases: Sequence[Case]) -> list[_Match]:
    """Rows whose value differs from what most hosts have under the same key.

    Nothing where fewer than three hosts say it, or no value has more than half of them.
    """
    key = VIEWS[rule.each].key if rule.each in VIEWS else ()
    seen: dict[tuple[Any, ...], list[tuple[str, Row, Any]]] = {}
    for case in cases:
        for row in _chosen(rule, case.readings):
            value = value_of(row, rule.condition.field)
            if value is not None:
                name = tuple(value_of(row, part) for part in key)
                seen.setdefault(name, []).append((case.host, row, value))
    found = []
    for rows in seen.values():
        usual, count = Counter(str(value) for _, _, value in rows).most_common(1)[0]
        if len(rows) < _MIN_GROUP or count * 2 <= len(rows):
            continue
        expected = next(value for _, _, value in rows if str(value) == usual)
        found += [
            _Match(host, rule, row, value, count=count, expected=expected)
            for host, row, value in rows
            if str(value) != usual
        ]
    return found


# --- words ---------------------------------------------------------------------------------


def _fold(matches: Sequence[_Match]) -> list[Finding]:
    groups: dict[tuple[str, str, str], list[_Match]] = {}
    for match in matches:
        say = _say(match, match.rule.say)
        groups.setdefault((match.rule.name, _subject(match), say), []).append(match)
    findings = [_finding(subject, say, group) for (_, subject, say), group in groups.items()]
    findings.sort(key=lambda one: (ORDER[one["severity"]], one["rule"], one["subject"]))
    return findings


def _finding(subject: str, say: str, group: Sequence[_Match]) -> Finding:
    first = group[0]
    hosts = fold_hosts(match.host for match in group)
    rule = first.rule
    names = _names(first)
    used = [name for name in placeholders(rule.say) if name not in ("host", "limit")]
    evidence = {
        "say": say,
        **{name: names[name] for name in dict.fromkeys([*used, rule.condition.field])},
    }
    if first.expected is not None:
        evidence["expected"] = first.expected
    steps = [_step(text, names, hosts) for text in rule.next]
    finding = {
        "rule": rule.name,
        "severity": rule.severity,
        "hosts": hosts,
        "subject": subject,
        "evidence": evidence,
        "advice": _say(first, rule.advice) if rule.advice else None,
        "next": [step for step in steps if step],
    }
    return cast("Finding", finding)


def _say(match: _Match, text: str) -> str:
    return fill(text, _names(match), match.rule.condition.field)


def _names(match: _Match) -> dict[str, Any]:
    """What ``{name}`` may stand for: the row's fields by path, and the rule's own words."""
    rule, names = match.rule, {}
    for text in (rule.say, rule.subject or "", rule.advice or "", *rule.next):
        for name in placeholders(text):
            names[name] = value_of(match.row, name)
    names.update(
        {
            rule.condition.field: match.value,
            "host": match.host,
            "count": match.count,
            "value": match.value,
            "limit": rule.condition.limit,
            "expected": match.expected,
        }
    )
    return names


def _subject(match: _Match) -> str:
    rule = match.rule
    if rule.subject is not None:
        return _say(match, rule.subject)
    if rule.total or rule.each not in VIEWS:
        return rule.each
    text = VIEWS[rule.each].subject
    return fill(text, {name: value_of(match.row, name) for name in placeholders(text)})


def _step(text: str, names: Mapping[str, Any], hosts: str) -> str | None:
    """A whole command, its values quoted; None where one of them is not known."""
    values: dict[str, str] = {}
    for name in placeholders(text):
        value = names[name]
        if value is None or value == []:
            return None
        parts = value if isinstance(value, list) else [value]
        values[name] = " ".join(shlex.quote(str(part)) for part in parts)
    text = plain_format(text, values)
    step = read(text)
    if step is None:
        return text
    return str(step if step.hosts is not None else replace(step, hosts=hosts))
