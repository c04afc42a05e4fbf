"""Who has the memory of each GPU: processes of one host, or folded over several. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fleetmem.controller.answer.envelope import HostEntry, reading_of
from fleetmem.controller.answer.fold import fold_hosts, fold_names, fold_numbers, template
from fleetmem.controller.memory.abandoned import abandoned
from fleetmem.controller.memory.parts import Process, Snapshot
from fleetmem.controller.render.kit.line import WIDTH, Line, Span, cells, clip, left, right, wrap
from fleetmem.controller.text.safe import safe
from fleetmem.controller.text.sizes import GIB, NONE, gib, span

_ROWS = 16
_SHARE = 20
"""One part in twenty (5 %) of a GPU makes its holders worth showing."""
_OWNER = 43
_HOSTS = 18
_GPUS = 8
_SIZE = 14
_NO_PROCESS = "no process here"


@dataclass(frozen=True)
class Holder:
    """Somebody with memory of GPUs; sizes are bytes, ``None`` is not known.

    ``pid`` is ``None`` for memory that no process of this host is named for. ``cuda`` is what
    NVML's lists say, ``managed`` is managed memory besides, at most. ``note`` says that nobody
    who started it is left, so a reclaim may find it left over.
    """

    pid: int | None
    name: str
    note: str
    gpus: tuple[int, ...]
    cuda: int | None
    managed: int
    pinned: int | None
    anon: int | None

    @property
    def who(self) -> str:
        """Its name and what is to be noted about it."""
        return " · ".join(text for text in (self.name, self.note) if text)

    @property
    def held(self) -> int:
        """What is known of its memory on GPUs."""
        return (self.cuda or 0) + self.managed


def holders(entry: HostEntry, section: Snapshot) -> list[Holder]:
    """Who holds 5 % of a GPU or more: by GPU, the largest first."""
    found = [*_processes(entry, section), *_without_process(entry, section)]
    return sorted(found, key=lambda one: (one.gpus, -one.held))


def _processes(entry: HostEntry, section: Snapshot) -> Iterator[Holder]:
    places = {gpu["uuid"]: (gpu["index"], gpu["total_bytes"]) for gpu in section["gpus"]}
    reading = reading_of(entry, "processes.identity")
    notes = {one["pid"]: abandoned(one) for one in reading["processes"]} if reading else {}
    for process in section["processes"]:
        sizes = {uuid: size for uuid, size in process["gpus"].items() if uuid in places}
        if not any(
            _large((size or 0) + _managed(process, uuid), places[uuid][1])
            for uuid, size in sizes.items()
        ):
            continue
        known = [size for size in sizes.values() if size is not None]
        yield Holder(
            pid=process["pid"],
            name=_name(process),
            note=notes.get(process["pid"]) or "",
            gpus=tuple(sorted(places[uuid][0] for uuid in sizes)),
            cuda=sum(known) if len(known) == len(sizes) else None,
            managed=sum(_managed(process, uuid) for uuid in sizes),
            pinned=process["pinned_bytes"],
            anon=process["anon_bytes"],
        )


def _name(process: Process) -> str:
    name = process["name"]
    text = f"{process['owner']} · {name}" if process["owner"] else name
    return text if process["user"] in (None, "root") else f"{text} ({process['user']})"


def _without_process(entry: HostEntry, section: Snapshot) -> Iterator[Holder]:
    """Memory of a GPU that is somebody's, but of no process that was seen here."""
    gone = _gone(entry)
    for gpu in section["gpus"]:
        for row in section["table"]:
            mine = row["location"] == (gpu["same_as"] or f"gpu:{gpu['uuid']}")
            if not mine or row["backing"] != "device" or row["owner"] is not None:
                continue
            size = row["bytes"]
            if size is None or not _large(size, gpu["total_bytes"]):
                continue
            managed = all(text.startswith("managed") for text in row["evidence"])
            pids = gone.get(gpu["index"])
            dead = f"{_NO_PROCESS} has pid {fold_numbers(pids)}" if pids else _NO_PROCESS
            yield Holder(
                pid=None,
                name="; ".join(row["evidence"]) if managed else "",
                note="" if managed else dead,
                gpus=(gpu["index"],),
                cuda=None if managed else size,
                managed=size if managed else 0,
                pinned=None,
                anon=None,
            )


def _gone(entry: HostEntry) -> dict[int, list[int]]:
    """The pids on NVML's lists that no process has, by GPU index."""
    reading = reading_of(entry, "gpu.processes")
    return {
        gpu["index"]: [row["pid"] for row in gpu["processes"] if row["state"] == "dead"]
        for gpu in (reading["gpus"] if reading else ())
    }


def _large(size: int, total: int | None) -> bool:
    return size * _SHARE >= (total or 1)


def _managed(process: Process, uuid: str) -> int:
    """Managed memory it could have there; snapshots of an older history do not say."""
    return process.get("managed_by_gpu", {}).get(uuid, 0)


# --- one host ------------------------------------------------------------------------------


def holder_lines(entry: HostEntry, section: Snapshot, width: int = WIDTH) -> list[Line]:
    """A row a holder; nothing where nobody holds much. MANAGED only where there is any."""
    found = holders(entry, section)
    if not found:
        return []
    managed = any(one.managed for one in found)
    names = ["CUDA", *(["MANAGED"] if managed else []), "PINNED", "ANON"]
    owner = max(20, min(_OWNER, width - 10 - _GPUS - 9 * len(names)))
    head = f"{right('PID', 8)}  {left('HOLDER', owner)}{left('GPU', _GPUS)}"
    lines: list[Line] = [((head + "".join(right(name, 9) for name in names), "dim"),)]
    largest = sorted(found, key=lambda one: -one.held)[:_ROWS]
    for one in found:
        if one not in largest:
            continue
        pid = NONE if one.pid is None else str(one.pid)
        sizes = [one.cuda, *([one.managed or None] if managed else []), one.pinned, one.anon]
        text = left(fold_numbers(one.gpus), _GPUS) + "".join(right(gib(size), 9) for size in sizes)
        lines.append(((f"{right(pid, 8)}  ", ""), *_who(one, owner - 1), (" " + text, "")))
    if len(found) > _ROWS:
        lines.append(((f"  {len(found) - _ROWS} more; -o json lists all", "dim"),))
    return lines


def _who(one: Holder, width: int) -> list[Span]:
    """Name and note in *width* cells; where they do not fit the name is cut."""
    note = f" · {one.note}" if one.name and one.note else one.note
    name = clip(safe(one.name), max(8, width - cells(note))) if one.name else ""
    return [(name, ""), (left(note, width - cells(name)), "warn" if note else "")]


def orphaned(entries: Sequence[HostEntry]) -> list[str]:
    """Hosts with a holder that nobody who started it is left of: a dry run says which of them
    are left over."""
    return [
        entry["host"]
        for entry in entries
        if "snapshot" in entry and any(one.note for one in holders(entry, entry["snapshot"]))
    ]


# --- several hosts -------------------------------------------------------------------------


@dataclass(frozen=True)
class _Kind:
    """Holders of one host that are alike: the ranks of an engine, say."""

    host: str
    names: tuple[str, ...]
    gpus: str
    held: int | None
    noted: bool


def folded_holder_lines(entries: Sequence[HostEntry], width: int = WIDTH) -> list[Line]:
    """Alike holders of several hosts in one row each, with what they hold on a host."""
    groups: dict[tuple[str, str], list[_Kind]] = {}
    for entry in entries:
        for kind in _kinds(entry):
            groups.setdefault((template(kind.names[0]), kind.gpus), []).append(kind)
    if not groups:
        return []
    head = f"{left('HOSTS', _HOSTS)}{left('GPU', _GPUS)}{left('HELD ON EACH', _SIZE)}HOLDER"
    lines: list[Line] = [((head, "dim"),)]
    rows = sorted(groups.values(), key=lambda kinds: -max(kind.held or 0 for kind in kinds))
    room = width - _HOSTS - _GPUS - _SIZE
    for kinds in rows[:_ROWS]:
        sizes = span(kind.held for kind in kinds)
        who = fold_names(dict.fromkeys(name for kind in kinds for name in kind.names))
        pieces = wrap(safe(who), room)
        text = left(kinds[0].gpus, _GPUS) + left(NONE if sizes is None else _range(*sizes), _SIZE)
        hosts = safe(fold_hosts(kind.host for kind in kinds))
        style = "warn" if kinds[0].noted else ""
        if cells(hosts) < _HOSTS:
            lines.append(((left(hosts, _HOSTS) + text, ""), (pieces[0], style)))
        else:
            lines += [((piece, ""),) for piece in wrap(hosts, width)]
            lines.append(((" " * _HOSTS + text, ""), (pieces[0], style)))
        lines += [((" " * (width - room) + piece, style),) for piece in pieces[1:]]
    if len(rows) > _ROWS:
        lines.append(((f"  {len(rows) - _ROWS} more; -o json lists all", "dim"),))
    return lines


def _kinds(entry: HostEntry) -> Iterator[_Kind]:
    """The holders of one host, those together whose names differ in numbers only."""
    if "snapshot" not in entry:
        return
    alike: dict[str, list[Holder]] = {}
    for one in holders(entry, entry["snapshot"]):
        alike.setdefault(template(one.who), []).append(one)
    for found in alike.values():
        known = all(one.cuda is not None or one.managed for one in found)
        yield _Kind(
            host=entry["host"],
            names=tuple(one.who for one in found),
            gpus=fold_numbers(gpu for one in found for gpu in one.gpus),
            held=sum(one.held for one in found) if known else None,
            noted=bool(found[0].note),
        )


def _range(low: float, high: float) -> str:
    first, last = (f"{size / GIB:.1f}" for size in (low, high))
    return first if first == last else f"{first}–{last}"
