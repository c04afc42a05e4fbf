"""Node sets: ``gh200-[01-16]`` to names and back.

ClusterShell does the algebra, without its group sources (its wheel ships examples, which
would make ``@all`` mean 131 strangers); ranges are counted from the text before anything
is expanded. Globs, groups, ``!`` and ``&`` are the selector's.
"""

from __future__ import annotations

import re

from fleetmem.controller.errors import RangeTooLarge, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_HOSTS = 100_000
_MAX_TEXT = 4 * 1024 * 1024
_RANGE = re.compile(r"[0-9]{1,18}(?:-[0-9]{1,18}(?:/[0-9]{1,9})?)?\Z")
_TERM = re.compile(r"[A-Za-z0-9_.*?\-\[\],/]+\Z")
_FOLDABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-]*\Z")
_DIGITS = re.compile(r"([0-9]+)")


def expand(text: str, limit: int = MAX_HOSTS) -> list[str]:
    """The names of the node set *text*, natural order within a range, each once.

    RangeTooLarge before expanding more than *limit*, UsageError where it is not a node set.
    """
    if len(text) > _MAX_TEXT:
        raise RangeTooLarge(f"the node set is {len(text)} characters long")
    names: dict[str, None] = {}
    total = 0
    for part in split(text):
        size = _count(part)
        total += size
        if total > limit:
            raise RangeTooLarge(f'"{short(text)}" names {total} hosts, at most {limit} are taken')
        if "[" not in part:
            names[part] = None
        else:
            names.update(dict.fromkeys(_expand_ranges(part)))
    return list(names)


def split(text: str) -> list[str]:
    """*text* cut at the commas outside brackets; UsageError where brackets do not close."""
    parts: list[str] = []
    start = depth = 0
    for at, char in enumerate(text):
        if char == "[":
            depth += 1
        elif char == "]":
            depth -= 1
        elif char == "," and not depth:
            parts.append(text[start:at].strip())
            start = at + 1
        if depth not in (0, 1):
            break
    if depth:
        raise UsageError(f'"{short(text)}": a bracket does not close')
    parts.append(text[start:].strip())
    if not all(parts):
        raise UsageError(f'"{short(text)}": an empty name between commas')
    return parts


def fold(names: Iterable[str]) -> str:
    """*names* as one node set, natural order, the same text for the same set.

    Names that no node set can say (``user@host:port``, addresses) stand as they are.
    """
    plain: dict[str, None] = {}
    others: dict[str, None] = {}
    for name in names:
        (plain if _FOLDABLE.match(name) else others)[name] = None
    folded = []
    if len(plain) == 1:
        folded = list(plain)
    elif plain:
        folded = split(_folded(list(plain)))
    return ",".join(sorted([*folded, *others], key=natural_key))


def natural_key(name: str) -> tuple[list[tuple[int, int, str]], str]:
    """A sort key under which ``h2`` comes before ``h10``."""
    parts = [
        (0, int(part[:4000]), part) if part.isdigit() else (1, 0, part)
        for part in _DIGITS.split(name.translate(_NO_BRACKETS))
        if part
    ]
    return parts, name


_NO_BRACKETS = {ord("["): None, ord("]"): None}


def _count(part: str) -> int:
    """How many names *part* has, from its text alone."""
    if not _TERM.match(part):
        bad = next((char for char in part if not _TERM.match(char)), part)
        raise UsageError(f'"{short(part)}": {bad!r} cannot stand in a host name')
    size = 1
    rest = part
    while "[" in rest:
        inside, closed, rest = rest.partition("[")[2].partition("]")
        if not closed:
            raise UsageError(f'"{short(part)}": a bracket does not close')
        size *= sum(_range_size(piece, part) for piece in inside.split(","))
        if size > 1 << 62:
            break
    if "]" in rest:
        raise UsageError(f'"{short(part)}": a bracket does not open')
    if part[0] == "-" or "/" in re.sub(r"\[[^\]]*\]", "", part):
        raise UsageError(f'"{short(part)}" is not a host name')
    return size


def _range_size(piece: str, part: str) -> int:
    if not _RANGE.match(piece):
        raise UsageError(f'"{short(part)}": "{short(piece)}" is not a range such as 01-16')
    first, _, tail = piece.partition("-")
    if not tail:
        return 1
    last, _, step = tail.partition("/")
    if int(last) < int(first):
        raise UsageError(f'"{short(part)}": the range {piece} runs backwards')
    if step and not int(step):
        raise UsageError(f'"{short(part)}": the range {piece} has no step')
    return (int(last) - int(first)) // int(step or 1) + 1


def _expand_ranges(part: str) -> list[str]:
    """Every name of *part*, whose ranges were counted and checked.

    Range by range: NodeSet itself takes the digits before a bracket for a part of it.
    """
    from itertools import product

    from ClusterShell.RangeSet import RangeSet, RangeSetException

    pieces: list[list[str]] = []
    rest = part
    while rest:
        plain, bracket, rest = rest.partition("[")
        pieces.append([plain])
        if bracket:
            inside, _, rest = rest.partition("]")
            try:
                pieces.append([str(number) for number in RangeSet(inside)])
            except RangeSetException as error:
                raise UsageError(f'"{short(part)}": {error}') from None
    return ["".join(choice) for choice in product(*pieces)]


def _folded(names: list[str]) -> str:
    from ClusterShell.NodeSet import (
        RESOLVER_NOGROUP,
        NodeSet,
    )

    return str(NodeSet.fromlist(names, resolver=RESOLVER_NOGROUP))


def short(text: str) -> str:
    """*text* as a message may quote it: at most 60 characters, all printable."""
    text = text if len(text) <= 60 else text[:57] + "…"
    return "".join(char if char.isprintable() else "�" for char in text)
