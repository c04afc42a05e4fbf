"""``playbooks list``, ``show`` and ``check``. Pure."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from fleetmem.controller.render.kit.findings import MARKS
from fleetmem.controller.render.kit.line import WIDTH, Line, left, right, wrap
from fleetmem.controller.rules.playbook import Condition, Listed, Playbook, Rule
from fleetmem.controller.rules.wording import shown_value
from fleetmem.controller.text.safe import safe
from fleetmem.controller.text.sizes import count
from fleetmem.controller.text.yaml_nodes import Problem


def listed_lines(found: Sequence[Listed]) -> list[Line]:
    """A row a playbook."""
    lines: list[Line] = [((f"{'PLAYBOOK':<20}{'RULES':>6}  {'JUDGES':<10}ABOUT", "dim"),)]
    for one in found:
        about = wrap(safe(" ".join(one.about.split())), WIDTH - 38)
        head = f"{left(safe(one.name), 20)}{right(str(one.rules), 6)}  {left(one.over, 10)}"
        lines.append(((head, ""), (about[0], "")))
        lines += [((" " * 38 + piece, ""),) for piece in about[1:]]
    return lines


def shown_lines(found: Playbook) -> list[Line]:
    """What is read, then each rule in words."""
    lines: list[Line] = [((safe(found.name), "bold"),)]
    lines += [((f"  {piece}", ""),) for piece in wrap(safe(found.about), WIDTH - 2)]
    reads = ", ".join(
        name + (f" ({', '.join(f'{k}={v}' for k, v in args.items())})" if args else "")
        for name, args in found.probes.items()
    )
    lines += [((f"  {piece}", "dim"),) for piece in wrap(f"reads {safe(reads)}", WIDTH - 2)]
    for rule in found.rules:
        glyph, style = MARKS[rule.severity]
        lines += [(), ((f"{glyph} {safe(rule.id)}", style),)]
        lines += [((f"    {piece}", "dim"),) for piece in wrap(safe(_when(rule)), WIDTH - 4)]
        lines += [((f"    {piece}", ""),) for piece in wrap(safe(rule.say), WIDTH - 4)]
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


def checked_lines(found: Mapping[str, Sequence[Problem]]) -> list[Line]:
    """Every mistake on a line of its own, then how many files are sound."""
    lines: list[Line] = []
    for problems in found.values():
        lines += [((safe(str(one)), "bad"),) for one in problems]
    sound = [os.path.basename(path) for path, problems in found.items() if not problems]
    if sound:
        text = f"✓ {count(len(sound), 'file')} sound: {', '.join(sound)}"
        lines += [((piece, "good"),) for piece in wrap(safe(text), WIDTH)]
    return lines
