"""The cheap first look at a log: which lines deserve an expression at all.

A running engine prints the same few shapes of line for ever. A shape is the line without its
digits, taken for a whole block in one pass; a shape that held no
seed once is skipped from then on. Seeds are reduced the same way, so nothing is missed.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate
from typing import Any

_DROP = b"0123456789"
MAX_SHAPES = 60_000

# Short words that many seeds share: one search instead of many. A seed without any of them
# stands for itself.
GATES = (
    "GB", "GiB", "MiB", "emory", "graph begin", "graph end", "oad weight", "oaded", "oading model",
    "llocated", "apturing", "tarted ", "tarting ", "Stopp", "ailed", "apture", "max_total",
    "blocks", "rgs", "complete", "KV cache size", "device=", "_graph_", "_kv_cache", "determine_",
    "load_",
)  # fmt: skip


def _shape(word: str) -> bytes:
    return word.encode().translate(None, _DROP)


class Sieve:
    """Says which lines hold a seed. Memory is bounded by ``MAX_SHAPES`` shapes."""

    def __init__(self, seeds: Iterable[str]) -> None:
        gates: set[bytes] = set()
        for seed in seeds:
            held = [gate for gate in GATES if gate in seed]
            gates.add(_shape(held[0]) if held else _shape(seed))
        self._gates = tuple(sorted(gate for gate in gates if gate))
        self._all = any(not gate for gate in gates)
        self._dull: set[bytes] = set()

    def hits(self, block: bytes, view: bytes | None = None) -> list[bytes]:
        """The lines of *block* (separated by newlines) that hold a seed, in order.

        *view* is looked at in its place where given: the same lines, without their quoting.
        """
        dull = self._dull
        fresh: list[tuple[bytes, bytes]] = []
        shapes = (block if view is None else view).translate(None, _DROP).split(b"\n")
        for line, shape in zip(block.split(b"\n"), shapes, strict=True):
            if shape not in dull:
                fresh.append((line, shape))
        if not fresh:
            return []
        unlike = list(dict.fromkeys(shape for _, shape in fresh))
        bright = self._seeded(unlike)
        if len(dull) + len(unlike) > MAX_SHAPES:
            dull.clear()
        dull.update(shape for shape in unlike if shape not in bright and len(shape) <= 4096)
        return [line for line, shape in fresh if shape in bright]

    def _seeded(self, shapes: list[bytes]) -> set[bytes]:
        """Those of *shapes* that hold a gate: one search of all of them for each gate."""
        if self._all:
            return set(shapes)
        whole = b"\n".join(shapes)
        starts = list(accumulate((len(shape) + 1 for shape in shapes), initial=0))
        found: set[bytes] = set()
        for gate in self._gates:
            at = whole.find(gate)
            while at >= 0:
                number = bisect_right(starts, at) - 1
                found.add(shapes[number])
                at = whole.find(gate, starts[number + 1])
        return found


def any_of(words: Iterable[str]) -> str:
    """An expression that finds any of *words*: one branch a character, so none is tried twice."""
    root: dict[str, Any] = {}
    for word in words:
        node = root
        for char in word:
            node = node.setdefault(char, {})
        node[""] = {}
    return _branches(root)


def _branches(node: dict[str, Any]) -> str:
    if "" in node:  # a word ends here: longer ones hold it
        return ""
    ways = [re.escape(char) + _branches(more) for char, more in sorted(node.items())]
    return ways[0] if len(ways) == 1 else f"(?:{'|'.join(ways)})"
