"""``playbooks list``, ``show`` and ``check``. Pure."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from fleetmem.controller.render.kit.line import WIDTH, Line, block
from fleetmem.controller.render.kit.signs import SEVERITIES
from fleetmem.controller.render.kit.table import Column, Row, table_lines
from fleetmem.controller.rules.book import Condition, Playbook, Rule
from fleetmem.controller.rules.playbook import Listed
from fleetmem.controller.rules.wording import shown_value
from fleetmem.controller.text.safe import safe
from fleetmem.controller.text.sizes import count
from fleetmem.controller.text.yaml_nodes import Problem


def listed_lines(found: Sequence[Listed], width: int = WIDTH) -> list[Line]:
    """A row a playbook."""
    columns = [
        Column("PLAYBOOK"),
        Column("RULES", right=True),
        Column("JUDGES"),
        Column("ABOUT", least=30, place="below"),
    ]
    rows = [
        Row([safe(one.name), str(one.rules), safe(one.over), safe(" ".join(one.about.split()))])
        for one in found
    ]
    return table_lines(columns, rows, width)


def shown_lines(found: Playbook, width: int = WIDTH) -> list[Line]:
    """What is read, then each rule in words."""
    lines: list[Line] = [((safe(found.name), "bold"),)]
    lines += block(safe(found.about), width, indent=2)
    reads = ", ".join(
        name + (f" ({', '.join(f'{k}={v}' for k, v in args.items())})" if args else "")
        for name, args in found.probes.items()
    )
    lines += block(f"reads {safe(reads)}", width, "dim", 2)
    for rule in found.rules:
        glyph, style = SEVERITIES[rule.severity]
        lines += [(), ((f"{glyph} {safe(rule.id)}", style),)]
        lines += block(safe(_when(rule)), width, "dim", 4)
        lines += block(safe(rule.say), width, indent=4)
    return lines


def _when(rule: Rule) -> str:
    where = "".join(f" where {_condition(one)}" for one in rule.where)
    total = "the sum of " if rule.total else ""
    return f"each {rule.each}{where}: {total}{_condition(rule.condition)}"


def _condition(one: Condition) -> str:
    word = one.comparator.replace("_", " ")
    limit = one.limit
    if one.comparator == "share_above":
        return f"{one.field} above {limit[1]:g} % of {limit[0]}"
    if one.comparator == "unlike_group":
        return f"{one.field} unlike most of the group"
    if one.comparator == "present":
        return f"{one.field} {'is known' if limit else 'is not known'}"
    if isinstance(limit, list):
        said = " or ".join(str(value).lower() if value in (True, False) else str(value)
                           for value in limit)  # fmt: skip
        return f"{one.field} {'is' if one.comparator == 'one_of' else 'is not'} {said}"
    return f"{one.field} {word} {shown_value(one.field, limit)}"


def checked_lines(found: Mapping[str, Sequence[Problem]], width: int = WIDTH) -> list[Line]:
    """Every mistake on one line of its own, as editors read them, then how many files are valid."""
    lines: list[Line] = []
    for problems in found.values():
        lines += [((safe(str(one)), "bad"),) for one in problems]
    sound = [os.path.basename(path) for path, problems in found.items() if not problems]
    if sound:
        text = f"{count(len(sound), 'file')} valid: {', '.join(sound)}"
        lines += block(safe(text), width, "good", first="✓ ")
    return lines
