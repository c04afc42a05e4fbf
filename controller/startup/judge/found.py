"""What a check found, before it is put into words."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Found:
    """``rule`` is an id of ``playbooks/startup.yaml``, ``cause`` chooses among its sentences;
    ``lines`` are the log lines it rests on."""

    rule: str
    evidence: dict[str, Any]
    lines: list[dict[str, Any]] = field(default_factory=list)
    cause: str | None = None
