"""What a rule may look at: the lists inside readings and the fields of their rows.

``each`` is a probe (``host.facts``: the reading itself is the one row; ``numa.nodes``: the rows
of its view) or a path to a list in a reading (``gpu.processes.gpus.processes``). The fields
are those of the declared shapes, so a rule over a field that no host sends is found before
any host is asked.
"""

from __future__ import annotations

import types
import typing
from functools import cache
from typing import Any, Union, get_args, get_origin

from fleetmem.agent.declare import CALLS, shape_at
from fleetmem.controller.rules.reading_paths import prefixes, reading_of
from fleetmem.controller.rules.views import VIEWS


@cache
def fields_of(each: str) -> dict[str, Any] | None:
    """Field paths of the rows of *each* with their types; ``None`` where there are no such rows.

    A path into a mapping with free keys ends at the mapping.
    """
    if each in VIEWS:
        return _fields(VIEWS[each].row)
    shape, path = _split(each)
    if shape is None:
        return None
    kind: Any = shape
    for part in path:
        if not _is_shape(kind):
            return None
        kind = typing.get_type_hints(kind).get(part)
        kind = _row(kind)
    return _fields(kind) if _is_shape(kind) else None


def probe_of(each: str) -> str:
    """The probe that *each* looks at; *each* itself where it names none."""
    if each in VIEWS:
        return VIEWS[each].probes[0]
    return reading_of(each)


def sources() -> list[str]:
    """Everything that ``each`` may be, short ones only: views and probes."""
    return sorted({*VIEWS, *CALLS})


def _split(each: str) -> tuple[Any, list[str]]:
    for name in prefixes(each):
        if name in CALLS:
            rest = each[len(name) + 1 :]
            return shape_at(CALLS[name].shape), rest.split(".") if rest else []
    return None, []


def _is_shape(kind: Any) -> bool:
    return (isinstance(kind, type) and typing.is_typeddict(kind)) or hasattr(
        kind, "__required_keys__"
    )


def _fields(kind: Any, before: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, hint in typing.get_type_hints(kind).items():
        found[before + name] = hint
        inner = _bare(hint)
        if _is_shape(inner):
            found.update(_fields(inner, f"{before}{name}."))
    return found


def _bare(hint: Any) -> Any:
    """*hint* without ``| None``."""
    if get_origin(hint) in (Union, types.UnionType):
        rest = [arg for arg in get_args(hint) if arg is not type(None)]
        return rest[0] if len(rest) == 1 else hint
    return hint


def _row(hint: Any) -> Any:
    """The type of a list's items, or of the value itself."""
    bare = _bare(hint)
    return get_args(bare)[0] if get_origin(bare) is list else bare
