"""A budget identity: signed terms that must give the pool, each printed, derived or unknown.

A sum is judged only where every term is known. What is missing is named with the line that
would show it, and nothing is concluded from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from fleetmem.controller.startup.starts import GIB, Invocation

How = Literal["printed", "derived", "unknown"]
SLACK = 0.03 * GIB
"""What roundings of inputs that are not printed themselves may add."""


@dataclass(frozen=True, slots=True)
class Summand:
    """One term of a sum. ``needs`` says which line of the log would show an unknown one."""

    name: str
    sign: int
    bytes: int | None
    how: How
    needs: str = ""
    off: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "sign": self.sign, "bytes": self.bytes, "how": self.how}


@dataclass(frozen=True, slots=True)
class Equation:
    """``terms`` add up to the pool of *rank*; ``source`` names the function that computes it.

    ``share`` of ``base_bytes`` is what the setting ``setting`` (of ``setting_flag`` on the
    command line) asks for. ``room_bytes`` is the largest pool that the GPU had room for when
    the engine measured, ``room_share`` the largest share it could be asked for; None where the
    log does not tell. ``pool_bytes`` is what the engine gave. ``fixed`` names a setting that
    replaces the sum.
    """

    family: str
    versions: str
    source: str
    rank: str
    terms: tuple[Summand, ...]
    pool: Summand
    setting: str
    setting_flag: str
    share: float | None = None
    base_bytes: int | None = None
    room_bytes: int | None = None
    room_share: float | None = None
    room_needs: str = ""
    figures: dict[str, Any] = field(default_factory=dict)


def known(name: str, sign: int, value: Any, needs: str, off: float = 0.0) -> Summand:
    """A printed term, or an unknown one; a size below nothing was never a size."""
    if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0:
        return Summand(name, sign, int(value), "printed", needs, off)
    return Summand(name, sign, None, "unknown", needs)


def derived(name: str, sign: int, value: float | None, needs: str, off: float = 0.0) -> Summand:
    """A term computed from others, or an unknown one."""
    if value is None:
        return Summand(name, sign, None, "unknown", needs)
    return Summand(name, sign, round(value), "derived", needs, off)


def total(identity: Equation) -> int | None:
    """What the terms add up to; None where one of them is unknown."""
    sizes = [one.bytes for one in identity.terms]
    if any(size is None for size in sizes):
        return None
    return sum(one.sign * (one.bytes or 0) for one in identity.terms)


def unknown(identity: Equation) -> list[Summand]:
    """The terms that the log does not show."""
    return [one for one in identity.terms if one.bytes is None]


def closes(identity: Equation) -> bool | None:
    """Whether the terms give the printed pool; None where one side is unknown."""
    gives = total(identity)
    if gives is None or identity.pool.bytes is None:
        return None
    off = SLACK + identity.pool.off + sum(one.off for one in identity.terms)
    return abs(gives - identity.pool.bytes) <= off


def with_share(identity: Equation, share: float) -> int | None:
    """The pool that another share would give, by the same sum; None where it is unknown."""
    gives = total(identity) if total(identity) is not None else identity.pool.bytes
    if gives is None or identity.share is None or identity.base_bytes is None:
        return None
    return round(gives + (share - identity.share) * identity.base_bytes)


def share_for(identity: Equation, pool_bytes: float) -> float | None:
    """The share that gives a pool of *pool_bytes*; None where it is unknown."""
    gives = total(identity) if total(identity) is not None else identity.pool.bytes
    if gives is None or identity.share is None or not identity.base_bytes:
        return None
    return identity.share + (pool_bytes - gives) / identity.base_bytes


def largest_share(identity: Equation) -> float | None:
    """The largest share for which this start would fit; None where the log does not tell."""
    bounds = [identity.room_share] if identity.room_share is not None else []
    if identity.room_bytes is not None:
        fits = share_for(identity, identity.room_bytes)
        if fits is not None:
            bounds.append(fits)
    return min([*bounds, 0.99]) if bounds else None


def without(identity: Equation, name: str) -> Equation:
    """*identity* with the term *name* at nothing."""
    terms = tuple(replace(t, bytes=0) if t.name == name else t for t in identity.terms)
    return replace(identity, terms=terms)


def off_of(values: Mapping[str, Any], name: str) -> float:
    """Half the last printed digit of a figure that is printed in GiB with two decimals."""
    return 0.0 if values.get(name) is None else 0.006 * GIB


def setting(inv: Invocation, *names: str) -> Any:
    """The first of the settings *names* that the log shows with a value."""
    for name in names:
        if inv.config.get(name) is not None:
            return inv.config[name]
    return None


def smallest(inv: Invocation, field: str) -> tuple[str, int] | None:
    """The rank with the smallest *field* of those that show it, and the value."""
    found = [(values[field], key) for key, values in inv.ranks.items() if field in values]
    if not found:
        return None
    value, key = min(found)
    return key, value


def of_all(inv: Invocation, field: str) -> bool:
    """Whether every rank that there is shows *field*: only then is its smallest the smallest."""
    shown = [key for key, values in inv.ranks.items() if field in values]
    sizes = [inv.config.get(name) for name in ("tp_size", "tensor_parallel_size")]
    wanted = max((one for one in sizes if isinstance(one, int)), default=1)
    return len(shown) == len(inv.ranks) and len(shown) >= wanted
