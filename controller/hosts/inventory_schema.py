"""The keys of an inventory file and what may stand in them.

Loaded only when a file is read: pydantic costs more than everything else at the desk.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from fleetmem.controller.errors import UsageError
from fleetmem.controller.hosts.nodeset import expand

MAX_HOPS = 2
_SPAN = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(ms|s|m)\Z")
_SPAN_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0}


def _wrong(message: str) -> PydanticCustomError:
    return PydanticCustomError("fleetmem", "{message}", {"message": message})


def _word(value: str) -> str:
    if not value or value[0] == "-" or any(char.isspace() or ord(char) < 32 for char in value):
        raise _wrong("one word is expected, without spaces and not starting with a dash")
    return value


def _line(value: str) -> str:
    if not value.strip() or any(ord(char) < 32 or ord(char) == 127 for char in value):
        raise _wrong("one line of text is expected")
    return value


def _address(value: str) -> str:
    value = _word(value)
    if value.startswith("[") and value.endswith("]"):
        value = value[1:-1]
    if re.match(r"[^:]+:[0-9]+\Z", value):
        raise _wrong("the port stands in a key of its own: port")
    if "@" in value:
        raise _wrong("the user stands in a key of its own: user")
    if any(char in value for char in "[],*?/"):
        raise _wrong("one host name or IP address is expected")
    return value


def _texts(value: Any) -> Any:
    """One text or a list of them, as a list."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and value:
        return value
    raise _wrong("text or a list of texts is expected")


def _node_set(value: str) -> str:
    if "*" in value or "?" in value:
        raise _wrong(f'"{value[:60]}": patterns belong into -H, an inventory lists names')
    if value.isdigit():
        raise _wrong(f'"{value[:60]}": a host name is more than a number')
    try:
        expand(value)
    except UsageError as error:
        raise _wrong(error.message) from None
    return value


def _group_name(value: str) -> str:
    if not re.match(r"[A-Za-z0-9_.\-]+\Z", value) or value in ("all", "file", "run"):
        raise _wrong("a group name is made of letters, digits, - _ . and is not all, file or run")
    return value


def _hops(value: Any) -> Any:
    if value == []:
        return value
    value = _texts(value)
    if len(value) > MAX_HOPS:
        raise _wrong(f"at most {MAX_HOPS} hops are possible")
    return value


def _hop(value: str) -> str:
    if "," in value:
        raise _wrong("write several hops as a list: [first, second]")
    return _word(value)


def _span(value: Any) -> float:
    """Seconds, from a number or from text such as 10s."""
    if isinstance(value, str) and (match := _SPAN.match(value)):
        value = float(match[1]) * _SPAN_SECONDS[match[2]]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong("seconds are expected, such as 10 or 10s")
    if not 0.01 <= value <= 3600:
        raise _wrong("seconds between 0.01 and 3600 are expected")
    return float(value)


def _labels(value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise _wrong("keys and values are expected")
    for key, item in value.items():
        if isinstance(item, dict | list) or item is None:
            raise _wrong(f'the label "{str(key)[:60]}" needs one word')
    return {
        key: str(item).lower() if isinstance(item, bool) else str(item)
        for key, item in value.items()
    }


def _command(value: list[str]) -> list[str]:
    if not value or not any("{command}" in item for item in value):
        raise _wrong('one of the words must contain "{command}"')
    return value


Word = Annotated[str, AfterValidator(_word)]
Line = Annotated[str, AfterValidator(_line)]
Lines = Annotated[list[Line], BeforeValidator(_texts)]
NodeSets = Annotated[list[Annotated[str, AfterValidator(_node_set)]], BeforeValidator(_texts)]
Hops = Annotated[list[Annotated[str, AfterValidator(_hop)]], BeforeValidator(_hops)]


class Keys(BaseModel):
    """What can be set in defaults, in a group and for a host; null unsets."""

    model_config = ConfigDict(extra="forbid", strict=True)

    user: Word | None = None
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    identity: Lines | None = None
    known_hosts: Line | None = None
    jump: Hops | None = None
    python: Line | None = None
    sudo: bool | None = None
    transport: Literal["ssh", "local", "command"] | None = None
    command: Annotated[list[str], AfterValidator(_command)] | None = None
    connect_timeout: Annotated[float, BeforeValidator(_span)] | None = None
    labels: Annotated[dict[str, str], BeforeValidator(_labels)] | None = None


class GroupKeys(Keys):
    """A group: its hosts, the model they serve together, and any of the common keys."""

    hosts: NodeSets
    serves: Line | None = None


class HostKeys(Keys):
    """One host or node set: the common keys and where it answers."""

    address: Annotated[str, AfterValidator(_address)] | None = None


class File(BaseModel):
    """The whole file."""

    model_config = ConfigDict(extra="forbid", strict=True)

    defaults: Keys | None = None
    groups: dict[Annotated[str, AfterValidator(_group_name)], GroupKeys] | None = None
    hosts: dict[Annotated[str, AfterValidator(_node_set)], HostKeys | None] | None = None
