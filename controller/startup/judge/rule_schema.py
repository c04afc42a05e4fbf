"""The shape of ``playbooks/startup.yaml``."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class StartupRuleModel(BaseModel):
    """One rule: the check's id, how grave it is, and its words (one form, or one a cause).

    ``levels`` are severities of single causes.
    """

    model_config = ConfigDict(extra="forbid", strict=True)
    id: str = Field(pattern=r"^[a-z][a-z-]*$")
    severity: Literal["info", "warn", "critical"]
    levels: dict[str, Literal["info", "warn", "critical"]] = Field(default_factory=dict)
    say: str | dict[str, str]
    advice: str | dict[str, str] | None = None


class RuleFile(BaseModel):
    """The playbook."""

    model_config = ConfigDict(extra="forbid", strict=True)
    playbook: str
    about: str
    rules: list[StartupRuleModel]
