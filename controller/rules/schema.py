"""The keys of a playbook, and the closed set of comparators. Loaded only when one is read."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([KMGT]iB|[kMGT]B|B|%)\Z")
_UNITS = {
    "B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "%": 1,
}  # fmt: skip


def _number(value: Any) -> Any:
    """``1GiB`` in bytes, ``5%`` as 5, a number as itself."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    found = _SIZE.match(value) if isinstance(value, str) else None
    if found is None:
        text = "a number or a size such as 64MiB, 1GiB or 5% is expected"
        raise PydanticCustomError("fleetmem", "{message}", {"message": text})
    return float(found[1]) * _UNITS[found[2]]


def _listed(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


def _scalar(value: Any) -> Any:
    if not isinstance(value, (str, int, float, bool)):
        text = "a word, a number, true or false is expected"
        raise PydanticCustomError("fleetmem", "{message}", {"message": text})
    return value


def _where(value: Any) -> Any:
    """A word or a list of words means one of them; else one comparator."""
    return value if isinstance(value, dict) else {"one_of": _listed(value)}


def _call(value: Any) -> Any:
    return {value: {}} if isinstance(value, str) else value


Number = Annotated[float, BeforeValidator(_number)]
Call = Annotated[dict[str, dict[str, Any]], BeforeValidator(_call), Field(max_length=1)]
Texts = Annotated[list[str], BeforeValidator(_listed)]
Scalar = Annotated[Any, BeforeValidator(_scalar)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class ShareModel(_Strict):
    """More than *percent* of another field of the same row."""

    of: str
    percent: Number


class ConditionModel(_Strict):
    """What a field is compared with; exactly one comparator."""

    above: Number | None = None
    below: Number | None = None
    at_least: Number | None = None
    at_most: Number | None = None
    equals: Scalar | None = None
    one_of: list[Scalar] | None = None
    none_of: list[Scalar] | None = None
    contains: str | None = None
    matches: str | None = None
    present: bool | None = None
    share_above: ShareModel | None = None
    grows: Number | None = None
    unlike_group: Literal[True] | None = None


COMPARATORS = tuple(ConditionModel.model_fields)
"""The comparators, all there are."""

Where = Annotated[ConditionModel, BeforeValidator(_where)]


class RuleModel(ConditionModel):
    """One rule: which rows, which field, compared how, and what to say then.

    ``total`` adds the field up over the rows before it is compared; ``most`` is how many
    rows of one host become findings, the largest first.
    """

    id: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$")
    each: str
    where: dict[str, Where] = {}
    field: str
    total: bool = False
    most: int = Field(default=8, ge=1, le=1000)
    severity: Literal["info", "warn", "critical"]
    subject: str | None = None
    say: str
    advice: str | None = None
    next: Texts = []


class PlaybookModel(_Strict):
    """One playbook file."""

    playbook: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$")
    about: str
    probes: list[Call] = Field(min_length=1)
    rules: list[RuleModel] = Field(min_length=1)
