"""The shape of an engine pattern file, as pydantic checks it."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from fleetmem.controller.startup.read.template import Phase, Step

Scalar = str | int | float | bool | None
_SIZE = re.compile(r"(-?\d+(?:\.\d+)?) (bytes|KiB|MiB|GiB|TiB|kB|MB|GB)\Z")
_UNITS = {
    "bytes": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9,
    "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
}  # fmt: skip


def expected_value(value: Scalar) -> Scalar:
    """A test's expected figure: ``12.5 GiB`` means bytes, anything else means itself.

    Here GB is 1e9 and GiB is 2**30, whatever the engine prints.
    """
    if isinstance(value, str):
        found = _SIZE.match(value)
        if found:
            return round(float(found[1]) * _UNITS[found[2]])
    return value


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Words = Annotated[list[Annotated[str, Field(min_length=3)]], BeforeValidator(_listed)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class PatternTest(_Strict):
    """One line, and every figure it must give."""

    line: str
    gives: dict[str, Scalar]


class PatternModel(_Strict):
    """One pattern as written."""

    id: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$")
    versions: str | None = None
    find: Words = Field(min_length=1)
    unless: Words = []
    match: str
    also: list[str] = []
    step: Step = "set"
    phase: Phase | None = None
    set: dict[str, Scalar] = {}
    keys: list[str] = []
    units: dict[str, float] = {}
    tests: list[PatternTest] = Field(min_length=1)


class PatternFile(_Strict):
    """One file: the engine it belongs to (``common`` for none) and its patterns."""

    engine: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$")
    about: str
    units: dict[str, float] = {}
    patterns: list[PatternModel]
