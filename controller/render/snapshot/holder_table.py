"""Who has the memory of each GPU: processes of one host, or folded over several. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fleetmem.controller.answer.envelope import HostEntry, reading_of
from fleetmem.controller.answer.fold import fold_hosts, fold_names, fold_numbers, template
from fleetmem.controller.memory.abandoned import abandoned
from fleetmem.controller.memory.snapshot_shapes import Process, Snapshot
from fleetmem.controller.render.kit.line import WIDTH, Line
from fleetmem.controller.render.kit.table import Column, Row, hosts_column, table_lines
from fleetmem.controller.text.safe import safe
from fleetmem.controller.text.sizes import GIB, NONE, gib, span

_ROWS = 16
_SHARE = 20
"""One part in twenty (5 %) of a GPU makes its holders worth showing."""
_NO_PROCESS = "no visible process"


@dataclass(frozen=True)
class HolderRow:
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
    launcher: str = ""
    command: str = ""

    @property
    def who(self) -> str:
        """Its name and what is to be noted about it."""
        return " · ".join(text for text in (self.name, self.note) if text)

    @property
    def held(self) -> int:
        """What is known of its memory on GPUs."""
        return (self.cuda or 0) + self.managed


def holders(entry: HostEntry, section: Snapshot) -> list[HolderRow]:
    """Who holds 5 % of a GPU or more: by GPU, the largest first."""
    found = [*_processes(entry, section), *_without_process(entry, section)]
    return sorted(found, key=lambda one: (one.gpus, -one.held))


def _processes(entry: HostEntry, section: Snapshot) -> Iterator[HolderRow]:
    places = {gpu["uuid"]: (gpu["index"], gpu["total_bytes"]) for gpu in section["gpus"]}
    reading = reading_of(entry, "processes.identity")
    known_by_pid = {one["pid"]: one for one in reading["processes"]} if reading else {}
    for process in section["processes"]:
        sizes = {uuid: size for uuid, size in process["gpus"].items() if uuid in places}
        if not any(
            _large((size or 0) + _managed(process, uuid), places[uuid][1])
            for uuid, size in sizes.items()
        ):
            continue
        known = [size for size in sizes.values() if size is not None]
        identity = known_by_pid.get(process["pid"])
        yield HolderRow(
            pid=process["pid"],
            name=_name(process),
            note=(abandoned(identity) if identity else None) or "",
            gpus=tuple(sorted(places[uuid][0] for uuid in sizes)),
            cuda=sum(known) if len(known) == len(sizes) else None,
            managed=sum(_managed(process, uuid) for uuid in sizes),
            pinned=process["pinned_bytes"],
            anon=process["anon_bytes"],
            launcher=_launcher(identity),
            command=identity["title"] if identity else "",
        )


def _launcher(identity: Any) -> str:
    """Who started it and lives, by name and pid."""
    above = identity["ancestors"] if identity and identity["launcher_alive"] else []
    return f"{above[0]['comm']} {above[0]['pid']}" if above else ""


def _name(process: Process) -> str:
    name = process["name"]
    text = f"{process['owner']} · {name}" if process["owner"] else name
    return text if process["user"] in (None, "root") else f"{text} ({process['user']})"


def _without_process(entry: HostEntry, section: Snapshot) -> Iterator[HolderRow]:
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
            dead = f"{_NO_PROCESS} has PID {fold_numbers(pids)}" if pids else _NO_PROCESS
            yield HolderRow(
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
    columns = [
        Column("PID", right=True),
        Column("HOLDER", least=20),
        Column("GPU"),
        Column("CUDA", right=True),
        *([Column("MANAGED", right=True)] if any(one.managed for one in found) else []),
        Column("PINNED", right=True),
        Column("ANON", right=True),
        Column("LAUNCHER", most=24, least=12, drop=1),
        Column("COMMAND", least=24, lines=2, drop=2),
    ]
    largest = sorted(found, key=lambda one: -one.held)[:_ROWS]
    managed = any(one.managed for one in found)
    rows = [_row(one, managed) for one in found if one in largest]
    lines = table_lines(columns, rows, width)
    if len(found) > _ROWS:
        lines.append(((f"  {len(found) - _ROWS} more; -o json lists all", "dim"),))
    return lines


def _row(one: HolderRow, managed: bool) -> Row:
    note = f" · {one.note}" if one.name and one.note else one.note
    who: Line = ((safe(one.name), ""), (note, "warn"))
    sizes = [one.cuda, *([one.managed or None] if managed else []), one.pinned, one.anon]
    return Row(
        [
            NONE if one.pid is None else str(one.pid),
            who,
            fold_numbers(one.gpus),
            *map(gib, sizes),
            safe(one.launcher),
            safe(one.command),
        ]
    )


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
    rows = sorted(groups.values(), key=lambda kinds: -max(kind.held or 0 for kind in kinds))
    columns = [
        hosts_column(width),
        Column("GPU"),
        Column("HELD ON EACH"),
        Column("HOLDER", least=20),
    ]
    lines = table_lines(columns, [_folded(kinds) for kinds in rows[:_ROWS]], width)
    if len(rows) > _ROWS:
        lines.append(((f"  {len(rows) - _ROWS} more; -o json lists all", "dim"),))
    return lines


def _folded(kinds: Sequence[_Kind]) -> Row:
    sizes = span(kind.held for kind in kinds)
    who = fold_names(dict.fromkeys(name for kind in kinds for name in kind.names))
    return Row(
        [
            safe(fold_hosts(kind.host for kind in kinds)),
            kinds[0].gpus,
            NONE if sizes is None else _range(*sizes),
            ((safe(who), "warn" if kinds[0].noted else ""),),
        ]
    )


def _kinds(entry: HostEntry) -> Iterator[_Kind]:
    """The holders of one host, those together whose names differ in numbers only."""
    if "snapshot" not in entry:
        return
    alike: dict[str, list[HolderRow]] = {}
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
    return first if first == last else f"{first}-{last}"
