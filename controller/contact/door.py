"""The door: what a host says is checked against its shape before anything looks inside.

One walker for each shape, compiled once from its annotations. It copies what the shape knows
and nothing else: unknown keys are left behind, control characters and bidi marks come out as
visible escapes, and whatever is too long, too large or of another type is a :class:`Misfit`.
A walker costs some 0.1 µs a value and no import, which pydantic's models do not.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin

from fleetmem.agent.declare import CALLS, shape_at
from fleetmem.controller.text.safe import visible

LOCK = "lock"
"""The one question beside the calls of the catalogue."""

MAX_TEXT = 16_384
"""Characters of one text; the longest that an agent sends is a path or a command line."""

MAX_ROWS = 100_000
MAX_KEYS = 4096
MAX_BYTES = 1 << 50
"""Of memory: a PiB. What may be any size on disk or in an address space is listed below."""

_ANY_SIZE = frozenset(
    ("size_bytes", "virtual_bytes", "map_bytes", "ctl_map_bytes", "uvm_map_bytes", "max_bytes",
     "high_bytes", "read_bytes", "disks_read_bytes", "body_bytes", "shared_map_bytes")
)  # fmt: skip
_SIGNED = frozenset(
    ("unaccounted_bytes", "kernel_bytes", "device_bytes", "file_bytes", "files_freed_bytes")
)
"""Differences of counters that are not of one moment."""

_PROCESS_NUMBERS = frozenset(
    ("pid", "ppid", "pgid", "sid", "pids", "nspids", "pids_inside", "agent_pids", "mapped_by",
     "open_by", "live_peers", "gone", "listening", "creator_pid", "attached", "tracer_pid")
)  # fmt: skip
_MAX_PID = 1 << 32
_MAX_INT = 1 << 64
_MIN_INT = -(1 << 63)
_MAX_FLOAT = 1e15


class Misfit(Exception):
    """What a host sent is not what was declared: where, and what was expected there."""

    def __init__(self, what: str, path: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.path = path

    def within(self, part: str) -> Misfit:
        """The same, seen from one level further out."""
        self.path = part + ("" if self.path.startswith("[") or not self.path else ".") + self.path
        return self

    def __str__(self) -> str:
        """``gpus[0].used_bytes: a whole number is expected``."""
        return f"{self.path or 'top'}: {self.what}"


class Notes:
    """What a walker left behind on its way; ``unknown`` counts keys that no shape has."""

    __slots__ = ("unknown",)

    def __init__(self) -> None:
        self.unknown = 0

    def told(self) -> str | None:
        """What was left behind, for people; None where nothing was."""
        if not self.unknown:
            return None
        return f"{self.unknown} unknown key{'s' if self.unknown > 1 else ''}"


Walk = Callable[[Any, Notes], Any]


def enter(name: str, reading: Any, notes: Notes | None = None) -> Any:
    """The reading of the call *name*, cleaned; Misfit where it is not one."""
    return walker(name)(reading, notes or Notes())


def enter_chunk(name: str, data: Any, notes: Notes | None = None) -> Any:
    """One chunk of the call *name*, cleaned; Misfit where it is not one."""
    shape = CALLS[name].chunk
    if shape is None:
        raise Misfit("nothing is expected")
    return _shape_walker(shape)(data, notes or Notes())


def misfit(name: str, reading: Any) -> str | None:
    """Where *reading* differs from the shape of *name*, or None."""
    notes = Notes()
    try:
        enter(name, reading, notes)
    except Misfit as found:
        return str(found)
    return notes.told()


def unasked(name: str, args: Mapping[str, Any], reading: Any) -> str | None:
    """Take rows about what *args* did not ask for out of *reading*; what they were, or None.

    An answer about a process that nobody asked about may neither be counted nor acted on.
    """
    filters = _ASKED.get(name)
    if filters is None:
        return None
    allowed = filters(args)
    count = 0
    for rows_name, keep in allowed.items():
        rows = reading[rows_name]
        kept = [row for row in rows if keep(row)]
        count += len(rows) - len(kept)
        reading[rows_name] = kept
    return f"{count} row{'s' if count > 1 else ''} that nobody asked for" if count else None


Keep = Callable[[Any], bool]


def _identity(args: Mapping[str, Any]) -> dict[str, Keep]:
    pids = frozenset(args.get("pids") or ())
    if not pids:  # all that hold a GPU
        return {}
    return {"processes": lambda row: row["pid"] in pids, "gone": lambda pid: pid in pids}


def _signals(args: Mapping[str, Any]) -> dict[str, Keep]:
    targets = {(one["pid"], one["start_time"]) for one in args.get("targets", ())}
    signal = args.get("signal")
    return {
        "results": lambda row: (
            row["signal"] == signal and (row["pid"], row["start_time"]) in targets
        )
    }


def _waited(args: Mapping[str, Any]) -> dict[str, Keep]:
    gpus = frozenset(args.get("gpus") or ())
    pairs = zip(args.get("pids") or (), args.get("start_times") or (), strict=True)
    processes = frozenset(pairs)
    return {
        "gpus": lambda row: row["index"] in gpus,
        "processes": lambda row: (row["pid"], row["start_time"]) in processes,
    }


_ASKED: dict[str, Callable[[Mapping[str, Any]], dict[str, Keep]]] = {
    "processes.identity": _identity,
    "signal.send": _signals,
    "gpu.wait": _waited,
}
"""Calls that name what they are about, and which rows of the answer are about that."""


def walker(name: str) -> Walk:
    """The walker of the reading of *name*."""
    return _shape_walker("host.Locked" if name == LOCK else CALLS[name].shape)


@cache
def _shape_walker(shape: str) -> Walk:
    return compile_walker(shape_at(shape))


# --- compiling -----------------------------------------------------------------------------


def compile_walker(hint: Any, name: str = "") -> Walk:
    """The walker of one annotation; *name* is the key that it stands under.

    TypeError for an annotation that no reading may have.
    """
    origin = get_origin(hint)
    if hasattr(hint, "__required_keys__"):  # a TypedDict, of typing or typing_extensions
        return _mapping(hint)
    if origin in (Union, types.UnionType):
        return _optional(hint, name)
    if origin is Literal:
        return _word(get_args(hint))
    if origin is list:
        return _list(compile_walker(get_args(hint)[0], name))
    if origin is dict and get_args(hint)[0] is str:
        return _free_keys(compile_walker(get_args(hint)[1], name))
    made = {bool: _bool, int: _int, float: _float, str: _text}.get(hint)
    if made is None:
        raise TypeError(f"{name}: no reading can hold {hint!r}")
    return made(name)


def _mapping(shape: Any) -> Walk:
    fields = []
    for key, hint in typing.get_type_hints(shape).items():
        fields.append((key, compile_walker(hint, key), key in shape.__required_keys__))
    known = tuple(fields)

    def walk(value: Any, notes: Notes) -> Any:
        if type(value) is not dict:
            raise Misfit("keys and values are expected")
        row = {}
        for key, inner, required in known:
            if key in value:
                try:
                    row[key] = inner(value[key], notes)
                except Misfit as found:
                    raise found.within(key) from None
            elif required:
                raise Misfit("is missing", key)
        if len(row) != len(value):
            notes.unknown += len(value) - len(row)
        return row

    return walk


def _optional(hint: Any, name: str) -> Walk:
    inner = [arg for arg in get_args(hint) if arg is not type(None)]
    if len(inner) != 1:
        raise TypeError(f"{name}: no reading can hold {hint!r}")
    only = compile_walker(inner[0], name)
    return lambda value, notes: None if value is None else only(value, notes)


def _list(inner: Walk) -> Walk:
    def walk(value: Any, notes: Notes) -> Any:
        if type(value) is not list:
            raise Misfit("a list is expected")
        if len(value) > MAX_ROWS:
            raise Misfit(f"at most {MAX_ROWS} rows are expected")
        rows: list[Any] = []
        try:
            for item in value:
                rows.append(inner(item, notes))
        except Misfit as found:
            raise found.within(f"[{len(rows)}]") from None
        return rows

    return walk


def _free_keys(inner: Walk) -> Walk:
    key_of = _text("")

    def walk(value: Any, notes: Notes) -> Any:
        if type(value) is not dict:
            raise Misfit("keys and values are expected")
        if len(value) > MAX_KEYS:
            raise Misfit(f"at most {MAX_KEYS} keys are expected")
        row = {}
        for key, item in value.items():
            try:
                row[key_of(key, notes)] = inner(item, notes)
            except Misfit as found:
                raise found.within("*") from None
        return row

    return walk


def _word(words: tuple[Any, ...]) -> Walk:
    known = frozenset(words)
    told = "one of " + " ".join(map(str, words)) + " is expected"

    def walk(value: Any, _notes: Notes) -> Any:
        if type(value) is not str or value not in known:
            raise Misfit(told)
        return value

    return walk


def _bool(_name: str) -> Walk:
    def walk(value: Any, _notes: Notes) -> Any:
        if value is True or value is False:
            return value
        raise Misfit("true or false is expected")

    return walk


def _bounds(name: str) -> tuple[int, int]:
    """What a whole number under the key *name* may be; the upper end is outside."""
    if name in _PROCESS_NUMBERS:
        return 0, _MAX_PID
    if name in _ANY_SIZE:
        return 0, _MAX_INT
    if name.endswith("_bytes") or name == "by_numa_node":
        return (-MAX_BYTES if name in _SIGNED else 0), MAX_BYTES + 1
    return _MIN_INT, _MAX_INT


def _int(name: str) -> Walk:
    least, end = _bounds(name)

    def walk(value: Any, _notes: Notes) -> Any:
        if type(value) is not int:
            raise Misfit("a whole number is expected")
        if not least <= value < end:
            raise Misfit(f"a number from {least} to {end - 1} is expected")
        return value

    return walk


def _float(_name: str) -> Walk:
    def walk(value: Any, _notes: Notes) -> Any:
        if type(value) is not float and type(value) is not int:
            raise Misfit("a number is expected")
        if not -_MAX_FLOAT < value < _MAX_FLOAT:
            raise Misfit("a number of ordinary size is expected")
        return float(value)

    return walk


def _text(_name: str) -> Walk:
    def walk(value: Any, _notes: Notes) -> Any:
        if type(value) is not str:
            raise Misfit("text is expected")
        if len(value) > MAX_TEXT:
            raise Misfit(f"at most {MAX_TEXT} characters are expected")
        return value if value.isprintable() else visible(value)

    return walk
