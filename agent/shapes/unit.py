"""Shapes of ``unit.state``."""

from __future__ import annotations

from typing_extensions import TypedDict


class UnitState(TypedDict):
    """Reading of ``unit.state``: systemd's own words. ``restarts`` and ``result`` are ``None``
    where this systemd does not tell them."""

    name: str
    load: str
    active: str
    sub: str
    result: str | None
    restarts: int | None
