"""A playbook checked in full before any host is asked: every mistake as ``file:line:column``."""

from __future__ import annotations

import string
from typing import TYPE_CHECKING, Any

from fleetmem.controller.rules.book import Condition, Playbook, Rule
from fleetmem.controller.text import yaml_nodes

if TYPE_CHECKING:
    from fleetmem.controller.rules.schema import RuleModel
    from fleetmem.controller.text.yaml_nodes import Document

_EXTRA = ("host", "count", "value", "limit", "expected")
"""Names that every ``say`` may use beside the row's fields."""


def read(path: str) -> tuple[Document, Playbook | None]:
    """The file at *path* and its playbook; ``None`` where the document lists mistakes."""
    document = yaml_nodes.read(path)
    return document, None if document.problems else _check(document)


def check(data: bytes, file: str = "playbook.yaml") -> tuple[Document, Playbook | None]:
    """The same for text that is at hand."""
    document = yaml_nodes.parse(data, file)
    return document, None if document.problems else _check(document)


def _check(document: Document) -> Playbook | None:
    from fleetmem.controller.rules.schema import PlaybookModel

    if not isinstance(document.value, dict) or "playbook" not in document.value:
        document.add((), 'no playbook: the key "playbook" is missing')
        return None
    model: PlaybookModel | None = yaml_nodes.check(document, PlaybookModel)
    if model is None:
        return None
    probes: dict[str, dict[str, Any]] = {}
    for number, call in enumerate(model.probes):
        for probe, arguments in call.items():
            _check_call(document, number, probe, arguments)
            if probe in probes:
                document.add(("probes", number), f"{probe} stands here twice")
            probes[probe] = dict(arguments)
    seen: dict[str, int] = {}
    rules = []
    for number, one in enumerate(model.rules):
        if one.id in seen:
            document.add(("rules", number, "id"), f'the id "{one.id}" is used before')
        seen[one.id] = number
        rules.append(_rule(document, number, one, model.playbook, probes))
    if document.problems:
        return None
    good = tuple(rule for rule in rules if rule is not None)
    return Playbook(model.playbook, " ".join(model.about.split()), document.file, probes, good)


def _check_call(document: Document, number: int, probe: str, arguments: dict[str, Any]) -> None:
    from fleetmem.controller.rules.probe_options import mistake

    wrong = mistake(probe, arguments)
    if wrong is not None:
        path: tuple[str | int, ...] = ("probes", number)
        if wrong.key is not None:
            path = ("probes", number, probe, wrong.key)
        document.add(path, wrong.message, wrong.hint, at_key=wrong.key is not None)


def _rule(
    document: Document,
    number: int,
    model: RuleModel,
    playbook: str,
    probes: dict[str, dict[str, Any]],
) -> Rule | None:
    from fleetmem.controller.rules import fields as playbook_fields
    from fleetmem.controller.rules.views import VIEWS

    at: tuple[str | int, ...] = ("rules", number)
    known = playbook_fields.fields_of(model.each)
    if known is None:
        hint = yaml_nodes.did_you_mean(model.each, playbook_fields.sources())
        document.add((*at, "each"), f'no reading has rows called "{model.each}"', hint)
        return None
    needed = VIEWS[model.each].probes if model.each in VIEWS else None
    for probe in needed or (playbook_fields.probe_of(model.each),):
        if probe not in probes:
            document.add((*at, "each"), f"needs {probe}, which this playbook does not call")
    where = tuple(
        _condition(document, (*at, "where", name), name, one, known)
        for name, one in model.where.items()
    )
    condition = _condition(document, at, model.field, model, known)
    if condition is None or None in where:
        return None
    if condition.comparator == "grows" and model.each not in VIEWS:
        document.add((*at, "grows"), f"rows of {model.each} have no name to find them again by")
    if model.total and not model.field.endswith(("_bytes", "count")):
        document.add((*at, "total"), "only fields in bytes can be added up")
    for key, texts in (("say", [model.say]), ("subject", [model.subject or ""]),
                       ("advice", [model.advice or ""]), ("next", model.next)):  # fmt: skip
        for text in texts:
            _check_names(document, (*at, key), text, known)
    return Rule(
        playbook=playbook,
        id=model.id,
        each=model.each,
        where=tuple(one for one in where if one is not None),
        condition=condition,
        severity=model.severity,
        say=" ".join(model.say.split()),
        total=model.total,
        most=model.most,
        subject=model.subject,
        advice=" ".join(model.advice.split()) if model.advice else None,
        next=tuple(model.next),
    )


def _condition(
    document: Document, at: tuple[str | int, ...], name: str, model: Any, known: dict[str, Any]
) -> Condition | None:
    from fleetmem.controller.rules.schema import COMPARATORS

    in_rule = "where" not in at
    if name not in known:
        hint = yaml_nodes.did_you_mean(name, known)
        document.add((*at, "field") if in_rule else at, f'the rows have no field "{name}"', hint)
    given = [word for word in COMPARATORS if getattr(model, word) is not None]
    if len(given) != 1:
        said = "one comparator is needed" if not given else f"{' and '.join(given)}: keep one"
        document.add(at, said, "" if given else "known: " + " ".join(COMPARATORS))
        return None
    limit = getattr(model, given[0])
    if given[0] == "share_above":
        if limit.of not in known:
            hint = yaml_nodes.did_you_mean(limit.of, known)
            document.add((*at, "share_above", "of"), f'the rows have no field "{limit.of}"', hint)
        limit = (limit.of, limit.percent)
    if not in_rule and given[0] in ("grows", "unlike_group"):
        document.add(at, f"{given[0]} belongs to the rule itself, not to where")
    return Condition(name, given[0], limit)


def _check_names(
    document: Document, at: tuple[str | int, ...], text: str, known: dict[str, Any]
) -> None:
    """Every ``{name}`` must be a field, or one of the names that rules always have."""
    try:
        parts = list(string.Formatter().parse(text))
    except ValueError as error:
        document.add(at, f"braces: {error}")
        return
    for _, name, spec, conversion in parts:
        if name is None:
            continue
        if spec or conversion or "[" in name:
            document.add(at, f"{{{name}}}: a plain name is expected, without formatting")
        elif name not in known and name not in _EXTRA:
            hint = yaml_nodes.did_you_mean(name, [*known, *_EXTRA])
            document.add(at, f'the rows have no field "{name}"', hint)
