"""Figures as people read them: GiB with two decimals, counts with thin spaces."""

from __future__ import annotations

import string
from collections.abc import Mapping
from typing import Any

from fleetmem.controller.startup.starts import GIB


def gib(value: float | None) -> str:
    """``10.42 GiB``, ``32.0 MiB`` below a tenth of one; a dash where unknown."""
    if value is None:
        return "–"
    if 0 < abs(value) < GIB / 10:
        return f"{value / 2**20:.1f} MiB"
    return f"{value / GIB:.2f} GiB"


def decimal_gb(value: float | None) -> str:
    """``358 GB`` of 1e9 bytes, as host memory is sold and SGLang prints it."""
    return "–" if value is None else f"{value / 1e9:.0f} GB"


def count(value: float | None) -> str:
    """``159 277``; a dash where unknown."""
    return "–" if value is None else f"{round(value):,}".replace(",", " ")


def percent(value: float | None) -> str:
    """``-94 %``; a dash where unknown."""
    return "–" if value is None else f"{value:+.0f} %"


_NAMES = frozenset(("pid", "other_pid", "exit_code", "xid"))  # numbers that count nothing


class _Words(string.Formatter):
    """Fills ``{kv_cache_bytes}`` by what the name says about its unit."""

    def get_value(self, key: int | str, args: Any, kwargs: Mapping[str, Any]) -> Any:
        name = str(key)
        value = kwargs.get(name)
        if value is None:
            return "–"
        if name.endswith("_bytes") and isinstance(value, int | float):
            return gib(value)
        if name == "shrunk_percent" and isinstance(value, int | float):
            return f"{value:.0f} %"
        if name.endswith("_percent") and isinstance(value, int | float):
            return percent(value)
        if isinstance(value, int) and not isinstance(value, bool) and name not in _NAMES:
            return count(value)
        return value

    def get_field(self, field_name: str, args: Any, kwargs: Mapping[str, Any]) -> tuple[Any, str]:
        return self.get_value(field_name, args, kwargs), field_name


def fill(text: str, evidence: Mapping[str, Any]) -> str:
    """*text* with its ``{names}`` replaced by figures; unknown ones become a dash."""
    return _Words().vformat(text, (), evidence)
