"""Start-ups to findings: runs the checks and puts them into the playbook's words (pure)."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from fleetmem.controller.answer.step import next_step
from fleetmem.controller.startup.judge.checks.change import check_change
from fleetmem.controller.startup.judge.checks.errors import check_errors
from fleetmem.controller.startup.judge.checks.memory import check_memory, foreign
from fleetmem.controller.startup.judge.figures import Found
from fleetmem.controller.startup.judge.levers import levers
from fleetmem.controller.startup.judge.phrases import fill
from fleetmem.controller.startup.starts import Invocation, Startup

Severity = Literal["info", "warn", "critical"]
ORDER = {"critical": 0, "warn": 1, "info": 2}
_HOLDER_RULES = ("free-below-requested", "foreign-at-start", "ranks-differ")
PLAYBOOK = os.path.normpath(
    os.path.join(os.path.dirname(__file__), "..", "..", "..", "playbooks", "startup.yaml")
)


@dataclass(frozen=True, slots=True)
class StartupRule:
    """A rule's words: one sentence, or one for each cause."""

    id: str
    severity: Severity
    say: dict[str, str]
    advice: dict[str, str]
    levels: dict[str, Severity]

    def words(self, cause: str | None) -> tuple[str, str | None]:
        """(sentence, advice) for *cause*; the last form stands for causes not named."""
        return _pick(self.say, cause) or "", _pick(self.advice, cause)


def _pick(forms: dict[str, str], cause: str | None) -> str | None:
    if not forms:
        return None
    if cause is not None and cause in forms:
        return forms[cause]
    return forms[list(forms)[-1]]


@functools.cache
def rules(path: str = PLAYBOOK) -> dict[str, StartupRule]:
    """The rules of the playbook at *path*; raises ``PlaybookInvalid`` with every mistake."""
    from fleetmem.controller.errors import PlaybookInvalid
    from fleetmem.controller.startup.judge.rule_schema import RuleFile
    from fleetmem.controller.text import yaml_nodes

    document = yaml_nodes.read(path)
    model = None if document.problems else yaml_nodes.check(document, RuleFile)
    if document.problems or model is None:
        raise PlaybookInvalid("\n".join(str(one) for one in document.sorted_problems()))
    return {
        one.id: StartupRule(one.id, one.severity, _forms(one.say), _forms(one.advice), one.levels)
        for one in model.rules
    }


def _forms(value: str | dict[str, str] | None) -> dict[str, str]:
    if value is None:
        return {}
    return {"": value} if isinstance(value, str) else dict(value)


def judge(
    startup: Startup,
    host: str,
    *,
    free_now_bytes: int | None = None,
    host_memory_bytes: int | None = None,
    subject: str | None = None,
) -> list[dict[str, Any]]:
    """The findings of one log, headline first, in the envelope's shape.

    ``subject`` is the unit or the log unless given.
    ``free_now_bytes`` is what NVML says is free on the worst GPU, ``host_memory_bytes`` the
    host's RAM; both only sharpen the levers.
    """
    newest = startup.newest
    if newest is None:
        return []
    older = startup.invocations[:-1]
    errors = list(check_errors(newest, older))
    change = list(check_change(newest, older))
    found = [*change, *errors, *check_memory(newest)]
    subject = subject or startup.unit or startup.source or startup.engine or "log"
    out = [finding(one, host, subject) for one in found]
    for one in out:
        if one["rule"] == "startup/capped-by":
            one["evidence"]["levers"] = levers(newest, free_now_bytes, host_memory_bytes)
    return _ranked(out, newest)


_HEADLINES = ("startup/same-pool", "startup/pool-shrank")
_HOLDERS = ("startup/foreign-at-start", "startup/free-below-requested", "startup/ranks-differ")
_TELLS = ("startup/held-then", "startup/crash-loop", *_HOLDERS)
"""Findings whose advice is about the host, not about a setting: it never contradicts."""


def _ranked(out: list[dict[str, Any]], inv: Invocation) -> list[dict[str, Any]]:
    """One diagnosis: how the start ended first, then what else is worst.

    Where it failed, or where a GPU was partly taken, advice about settings that rests on
    another reading of the start is left out.
    """
    head = [one for one in out[:1] if one["rule"] in _HEADLINES]
    rest = sorted(out[len(head) :], key=lambda one: ORDER[one["severity"]])
    first = rest[0] if rest and rest[0]["severity"] == "critical" else None
    shared = foreign(inv) is not None or (
        first is not None and first["rule"] == "startup/free-below-requested"
    )
    lost = first is not None and inv.status in ("failed", "unknown")
    for one in out:
        own = one is first or (head and one is head[0]) or one["rule"] in _TELLS
        if (lost or shared) and not own:
            one["advice"] = None
            one["evidence"].pop("levers", None)
    ended = inv.status == "failed" and first is not None
    if head and (ended or (head[0]["severity"] == "info" and first is not None)):
        return [*rest[:1], *head, *rest[1:]]
    return [*head, *rest]


def finding(found: Found, host: str, subject: str) -> dict[str, Any]:
    """*found* as an entry of the envelope's ``findings``; the sentence is ``evidence.say``."""
    rule = rules()[found.rule]
    say, advice = rule.words(found.cause)
    evidence = {**found.evidence, "say": fill(say, found.evidence), "lines": found.lines}
    return {
        "rule": f"startup/{rule.id}",
        "severity": rule.levels.get(found.cause or "", rule.severity),
        "hosts": host,
        "subject": subject,
        "evidence": evidence,
        "advice": fill(advice, found.evidence) if advice else None,
        "next": _next(found, host),
    }


def _next(found: Found, host: str) -> list[str]:
    """Whole commands for a person; none for a saved log, which has no host behind it."""
    holder = found.rule in _HOLDER_RULES or found.cause in ("foreign_process", "foreign")
    if host.startswith("file:") or not holder:
        return []
    return [str(next_step("snapshot", host)), str(next_step("reclaim", host, dry_run=True))]


def worst_severity(findings: Sequence[dict[str, Any]]) -> Severity | None:
    """The worst severity among *findings*."""
    found = sorted((one["severity"] for one in findings), key=lambda name: ORDER[name])
    return found[0] if found else None
