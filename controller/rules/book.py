"""A checked playbook as values. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Condition:
    """One comparison of a row's field; ``limit`` is what it is compared with."""

    field: str
    comparator: str
    limit: Any


@dataclass(frozen=True)
class Rule:
    """One rule, checked. ``each`` names the rows; all of ``where`` must hold of a row."""

    playbook: str
    id: str
    each: str
    where: tuple[Condition, ...]
    condition: Condition
    severity: str
    say: str
    total: bool = False
    most: int = 8
    subject: str | None = None
    advice: str | None = None
    next: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """``playbook/rule``, as findings carry it."""
        return f"{self.playbook}/{self.id}"


@dataclass(frozen=True)
class Playbook:
    """One playbook. ``probes`` maps a probe to the arguments it is called with."""

    name: str
    about: str
    file: str
    probes: dict[str, dict[str, Any]] = field(default_factory=dict)
    rules: tuple[Rule, ...] = ()
