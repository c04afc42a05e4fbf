"""Words of rules with figures in them: sizes with their unit, absent ``–``. Pure."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from typing import Any

_OF_FIELD = ("value", "limit", "expected")


def fill(text: str, values: Mapping[str, Any], field: str = "") -> str:
    """*text* with each ``{name}`` as people read it: sizes with their unit, absent ``–``.

    *field* is what ``{value}``, ``{limit}`` and ``{expected}`` are values of.
    """
    shown = {
        name: shown_value(field if name in _OF_FIELD else name, values.get(name))
        for name in placeholders(text)
    }
    return plain_format(text, shown)


def shown_value(name: str, value: Any) -> str:
    """*value* of the field *name* for people."""
    if value is None or value == []:
        return "–"
    if isinstance(value, list):
        some = ", ".join(str(one) for one in value[:3])
        return some + (f" and {len(value) - 3} more" if len(value) > 3 else "")
    if name.endswith("_bytes") and is_number(value):
        return size(value)
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)


def size(size_bytes: float) -> str:
    """Bytes with the unit that fits: ``61.0 GiB``, ``212 MiB``, ``4 KiB``."""
    for unit, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if abs(size_bytes) >= 1 << power:
            number = size_bytes / (1 << power)
            return f"{number:.1f} {unit}" if power == 30 else f"{number:.0f} {unit}"
    return f"{size_bytes:.0f} bytes"


class _Formatter(string.Formatter):
    """Plain names only, dots included: nothing is ever looked up inside a value."""

    def get_field(self, field_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return kwargs[field_name], field_name


def placeholders(text: str) -> list[str]:
    return [name for _, name, _, _ in string.Formatter().parse(text) if name]


def plain_format(text: str, values: Mapping[str, Any]) -> str:
    """*text* with each ``{name}`` as its value in *values*."""
    return _Formatter().vformat(text, (), values)


def is_number(value: Any) -> bool:
    """Whether *value* is a figure that can be compared."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)
