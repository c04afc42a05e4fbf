"""What a pattern is made of: what its line may mean, and the template that must match.

Line templates are expressions with typed holes, such as ``avail mem=<free_bytes:size>``.

A hole names the figure and its type, so that the unit a line prints and the unit it means
stand in one place. Every type is bounded, which keeps matching linear.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

Step = Literal[
    "set", "add", "load_begin", "load_end", "pool", "pool_draft", "pool_end", "graph_begin",
    "graph_end", "start", "ready", "stopped", "failed", "exit", "restart", "error", "phase",
    "presence", "config", "window_total", "gpu_list", "breakdown", "count", "least",
    "ignore",
]  # fmt: skip
"""What a pattern's line does to the budget that is being read."""

Phase = Literal["before-load", "after-load", "kv-pool", "after-init", "failed", "stopped"]
"""The moment of a start that a line marks, for ``snapshot --follow-start``."""

_HOLE = re.compile(r"<(?P<name>[a-z][a-z0-9_.]*):(?P<type>[A-Za-z]+)>")
_WHOLE = r"-?(?:\d{1,3}(?:,\d{3}){1,6}|\d{1,19})(?!\d)"
_NUMBER = rf"{_WHOLE}(?:\.\d{{1,20}})?"
MOST = 1 << 64
"""No size is as large, whatever a line says."""
IMPLIED = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "kB": 1000, "MB": 10**6, "GB": 10**9}
_TYPES = {
    "int": _WHOLE,
    "bytes": r"-?\d{1,19}(?!\d)",
    "num": r"-?\d{1,12}(?:\.\d{1,9})?",
    "word": r"[\w.\-/+]{1,200}",
    "dtype": r"\w{1,40}",
    "text": r"[^\n]{1,200}",
    **dict.fromkeys(IMPLIED, _NUMBER),
}
TYPES = ("size", *_TYPES)
_BARE = frozenset(("int", "bytes", "num", *IMPLIED))


class TemplateError(ValueError):
    """A template that cannot be used, in one line."""


@dataclass(frozen=True, slots=True)
class Hole:
    """One hole: the figure's name, its type, and its group in the expression."""

    name: str
    type: str
    group: str


@dataclass(frozen=True, slots=True)
class Template:
    """A compiled template. ``units`` maps printed units to bytes."""

    regex: re.Pattern[str]
    holes: tuple[Hole, ...]
    units: dict[str, float]

    def read(
        self,
        found: re.Match[str],
        values: dict[str, Any],
        spread: dict[str, float],
        cut: bool = False,
    ) -> bool:
        """Put the figures of *found* into *values*; half the last printed digit into *spread*.

        False where one is not to be believed, and is left out: a size beyond every memory, or
        the last number of a text that is *cut*.
        """
        whole = True
        for hole in self.holes:
            text = found[hole.group]
            if text is None:
                continue
            if cut and hole.type in _BARE and found.end(hole.group) == len(found.string):
                whole = False
                continue
            if hole.type == "size" or hole.type in IMPLIED:
                size = hole.type == "size"
                unit = self.units[found[f"u{hole.group}"]] if size else IMPLIED[hole.type]
                value, off = _size(text, unit)
                if abs(value) >= MOST:
                    whole = False
                    continue
                values[hole.name], spread[hole.name] = value, off
            elif hole.type in ("int", "bytes"):
                values[hole.name] = int(text.replace(",", ""))
                spread[hole.name] = 0.5
            elif hole.type == "num":
                values[hole.name] = float(text)
            else:
                values[hole.name] = text.strip()
        return whole


def _size(text: str, unit: float) -> tuple[int, float]:
    plain = text.replace(",", "")
    decimals = len(plain) - plain.find(".") - 1 if "." in plain else 0
    value = round(float(plain) * unit)
    if 1 << 63 <= value < MOST:  # a negative size that was printed without its sign
        value -= 1 << 64
    return value, max(0.5 * unit * 10.0**-decimals, 0.5)


def compile_template(source: str, units: dict[str, float]) -> Template:
    """Compile *source*; raises ``TemplateError`` with what is wrong in it."""
    holes: list[Hole] = []
    pieces: list[str] = []
    last = 0
    words = "|".join(re.escape(unit) for unit in sorted(units, key=len, reverse=True))
    for found in _HOLE.finditer(source):
        kind, group = found["type"], f"g{len(holes)}"
        if kind not in TYPES:
            raise TemplateError(f'unknown type "{kind}", known: {", ".join(TYPES)}')
        holes.append(Hole(found["name"], kind, group))
        pieces.append(source[last : found.start()])
        if kind == "size":
            if not units:
                raise TemplateError("a size needs units")
            pieces.append(rf"(?P<{group}>{_NUMBER}) ?(?P<u{group}>{words})(?![A-Za-z])")
        else:
            prefix = r"(?:torch\.)?" if kind == "dtype" else ""
            pieces.append(f"{prefix}(?P<{group}>{_TYPES[kind]})")
        last = found.end()
    pieces.append(source[last:])
    text = "".join(pieces)
    if re.search(r"(?<!\\)\.[*+]", text):
        raise TemplateError("an unbounded .* can take quadratic time, write [^\\n]{0,200}?")
    try:
        regex = re.compile(text)
    except re.error as error:
        raise TemplateError(f"not an expression: {error}") from None
    if len({hole.name for hole in holes}) != len(holes):
        raise TemplateError("a figure stands twice in one template")
    return Template(regex, tuple(holes), units)
