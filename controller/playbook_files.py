"""Any file of ``playbooks/``, checked as what it says it is."""

from __future__ import annotations

from fleetmem.controller import playbook, yaml_nodes
from fleetmem.controller.yaml_nodes import Problem

_OTHER = ("protect", "workers")
"""Lists of names that the reclaim rules read; they hold no rules to check here."""


def problems_of(path: str) -> list[Problem]:
    """The mistakes in the file at *path*, in its order; none for a sound one."""
    document = yaml_nodes.read(path)
    value = document.value if isinstance(document.value, dict) else {}
    if document.problems:
        return document.sorted_problems()
    if value.get("playbook") == playbook.LOGS:
        from fleetmem.controller.startup.rule_schema import RuleFile

        yaml_nodes.check(document, RuleFile)
    elif "engine" in value and "patterns" in value:
        from fleetmem.controller.startup.patterns import read_file

        return read_file(path)[1]
    elif any(key in value for key in _OTHER) and "playbook" not in value:
        return []
    else:
        document, _ = playbook.read(path)
    return document.sorted_problems()
