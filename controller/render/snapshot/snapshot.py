"""``snapshot``: one host as places, files and findings; several folded. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from fleetmem.controller.answer.envelope import Envelope, HostEntry, absent, hosts_of, reading_of
from fleetmem.controller.answer.fold import fold_hosts, fold_names
from fleetmem.controller.answer.step import DIRECT, Reach, Step, complete, next_step, read
from fleetmem.controller.memory.snapshot_shapes import Snapshot
from fleetmem.controller.render.kit.findings import finding_lines
from fleetmem.controller.render.kit.line import WIDTH, Line, block, joined
from fleetmem.controller.render.kit.next_steps import next_lines
from fleetmem.controller.render.kit.signs import OUTCOMES
from fleetmem.controller.render.kit.table import Column, Row, hosts_column, needed, table_lines
from fleetmem.controller.render.snapshot.file_table import file_lines, wants_files
from fleetmem.controller.render.snapshot.holder_table import (
    folded_holder_lines,
    holder_lines,
    orphaned,
)
from fleetmem.controller.render.snapshot.places import (
    COLUMNS,
    Place,
    in_tenths,
    place_lines,
    place_notes,
    places,
)
from fleetmem.controller.text.safe import safe
from fleetmem.controller.text.sizes import GIB, NONE, count

_WIDE_ENOUGH = 80


def head_lines(entry: HostEntry, section: Snapshot, run: str, width: int = WIDTH) -> list[Line]:
    """Who and what: the host, its GPUs, its pages."""
    parts = [safe(entry["host"]), subject(entry)]
    parts += _facts(entry, section)
    if section["phase"]:
        parts.append(f"phase {safe(section['phase'])}")
    parts += ["GiB", f"run {run}"]
    return [((piece, "bold"),) for piece in joined(f"{parts[0]}  {parts[1]}", parts[2:], width)]


def subject(entry: HostEntry) -> str:
    """The GPUs of a host and its driver."""
    devices = reading_of(entry, "gpu.devices")
    if not devices:
        reading = entry["readings"].get("gpu.devices")
        word = reading["outcome"] if reading else "not asked"
        return "no GPU" if word == "unsupported" else f"GPUs unknown ({word})"
    names = [str(gpu["name"] or "GPU") for gpu in devices["gpus"]]
    if not names:
        return "no GPU"
    driver = devices["driver_version"] or NONE
    names_text = safe(fold_names(dict.fromkeys(names)), 32)
    return f"{len(names)} × {names_text} · driver {safe(driver, 20)}"


def _facts(entry: HostEntry, section: Snapshot) -> list[str]:
    page = section["page_size_bytes"]
    parts = [f"{page // 1024}K pages"] if page else []
    if any(node["kind"] == "gpu" for node in section["numa_nodes"]):
        parts.append("HBM is NUMA memory")
    elif any(node["gpu_uuid"] for node in section["numa_nodes"]):
        parts.append("integrated memory")
    return parts


def host_lines(entry: HostEntry, section: Snapshot, run: str, width: int = WIDTH) -> list[Line]:
    """The head and the table of places."""
    lines = [*head_lines(entry, section, run, width), ()]
    lines += place_lines(places(section), width)
    for note in place_notes(section):
        lines += block(note, width, "dim", 22 if width >= _WIDE_ENOUGH else 2)
    return lines


def below_lines(
    envelope: Envelope, entry: HostEntry, section: Snapshot, asked: bool, width: int = WIDTH
) -> list[Line]:
    """What comes below the places: holders, files, findings, gaps."""
    blocks = [
        holder_lines(entry, section, width),
        file_lines(section, width) if wants_files(section, asked) else [],
        finding_lines(envelope["findings"], width),
        _unread(entry, width),
    ]
    lines: list[Line] = []
    for part in blocks:
        if part:
            lines += [(), *part]
    return lines


def _unread(entry: HostEntry, width: int) -> list[Line]:
    lines: list[Line] = []
    for name, reading in entry["readings"].items():
        if reading["outcome"] == "ok" or absent(name, reading):
            continue
        text = f"{name} {reading['outcome']}: {reading['reason'] or 'no reason given'}"
        glyph, style = OUTCOMES["partial"]
        lines += block(safe(text), width, style, first=f"{glyph} ")
    return lines


# --- several hosts -------------------------------------------------------------------------


def snapshot_lines(
    envelope: Envelope,
    asked: bool = False,
    width: int = WIDTH,
    *,
    places_shown: bool = False,
    reach: Reach = DIRECT,
) -> list[Line]:
    """The whole screen. *places_shown*: the first part of one host is on the screen already."""
    lines = look_lines(envelope, asked, width, places_shown=places_shown)
    return [*lines, *next_lines(_steps(envelope, reach), width)]


def _steps(envelope: Envelope, reach: Reach) -> list[str]:
    """What findings lead to, and one dry run for all holders whose launcher is gone."""
    hosts = orphaned(envelope["hosts"])
    if not hosts:
        return [step for one in envelope["findings"] for step in one["next"]]
    steps = []
    for one in envelope["findings"]:
        same = _dry_run(one["hosts"]) if {*hosts_of(one, envelope)} <= {*hosts} else None
        steps += [text for text in one["next"] if not (same and _bare(text) == same)]
    return [*steps, str(complete(_dry_run(fold_hosts(hosts)), reach))]


def _dry_run(hosts: str) -> Step:
    return next_step("reclaim", hosts, dry_run=True)


def _bare(text: str) -> Step | None:
    found = read(text)
    return found.bare if found else None


def look_lines(
    envelope: Envelope, asked: bool = False, width: int = WIDTH, *, places_shown: bool = False
) -> list[Line]:
    """The screen without the commands at its end."""
    entries = envelope["hosts"]
    run = envelope["run"]["id"]
    if len(entries) == 1 and "snapshot" in entries[0]:
        entry, section = entries[0], entries[0]["snapshot"]
        first = [] if places_shown else host_lines(entry, section, run, width)
        return [*first, *below_lines(envelope, entry, section, asked, width)]
    return _several(envelope, width)


def _several(envelope: Envelope, width: int) -> list[Line]:
    entries = envelope["hosts"]
    summary = envelope["summary"]
    said = ", ".join(f"{n} {word}" for word, n in summary.items() if word != "targeted" and n)
    title = f"{count(summary['targeted'], 'host')}: {said} · GiB · run {envelope['run']['id']}"
    lines = block(title, width, "bold")
    groups: dict[tuple[str, int, int], list[tuple[str, Place]]] = {}
    for entry in entries:
        if "snapshot" not in entry:
            continue
        rows = places(entry["snapshot"])
        classes = Counter(_class(row) for row in rows)
        for row in rows:
            key = (_class(row), classes[_class(row)], round((row.total or 0) / GIB))
            groups.setdefault(key, []).append((entry["host"], row))
    order = ("GPU HBM", "GPU", "GPU memory", "CPU DRAM", "memory")

    def rank(key: tuple[str, int, int]) -> tuple[int, float]:
        known = order.index(key[0]) if key[0] in order else len(order)  # a host may say anything
        return known, -_filled(groups[key])

    ordered = sorted(groups, key=rank)
    if groups:
        lines += [(), *_class_table([(key, groups[key]) for key in ordered], width)]
    held = folded_holder_lines(entries, width)
    lines += [(), *held] if held else []
    lines += failed_lines(entries, width)
    if envelope["findings"]:
        lines.append(())
        for one in envelope["findings"]:
            shown = {**one, "evidence": {"say": f"{one['hosts']}: {one['evidence']['say']}"}}
            lines += finding_lines([shown], width)  # type: ignore[list-item]  # the same keys
    return lines


def _class(row: Place) -> str:
    return (
        row.name
        if row.name in ("memory", "GPU memory")
        else " ".join(word for word in row.name.split() if not word.isdigit())
    )


def _filled(rows: Sequence[tuple[str, Place]]) -> float:
    return max(1 - (row.parts["FREE"] or 0) / (row.total or 1) for _, row in rows)


def _class_table(
    groups: Sequence[tuple[tuple[str, int, int], Sequence[tuple[str, Place]]]], width: int
) -> list[Line]:
    """A row a class of places; ranges lose their tenths where room is short."""
    drops = {"SHMEM": 2, "KERNEL": 1}
    columns = [
        hosts_column(width),
        Column("WHERE"),
        *(Column(name, right=True, drop=drops.get(name, 0)) for name in COLUMNS),
    ]
    rows: list[Row] = []
    for tenths in (True, False):
        rows = [_class_row(*group, tenths) for group in groups]
        if needed(columns, rows) <= width:
            break
    return table_lines(columns, rows, width)


def _class_row(key: tuple[str, int, int], rows: Sequence[tuple[str, Place]], tenths: bool) -> Row:
    name, each, _ = key
    shown = [in_tenths(row) for _, row in rows]
    figures = [_range([row[column] for row in shown], tenths) for column in COLUMNS]
    hosts = safe(fold_hosts(host for host, _ in rows))
    return Row([hosts, safe(f"{each} × {name}" if each > 1 else name), *figures])


def _range(sizes: Sequence[int | None], tenths: bool) -> str:
    """From the least to the most of *sizes*, in tenths of GiB."""
    known = [size for size in sizes if size is not None]
    if not known:
        return NONE
    low, high = min(known), max(known)
    if low == high:
        return f"{low / 10:.1f}"
    first, last = (f"{size / 10:.{int(tenths)}f}" for size in (low, high))
    return first if first == last else f"{first}-{last}"


def failed_lines(entries: Sequence[HostEntry], width: int = WIDTH) -> list[Line]:
    """Hosts without a table, by their reason."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for entry in entries:
        if entry["error"] is not None:
            text = f"{entry['error']['code']}: {entry['error']['message']}"
            reasons.setdefault((entry["outcome"], text), []).append(entry["host"])
        elif "snapshot" not in entry:
            unread = [
                f"{name}: {row['reason'] or row['outcome']}"
                for name, row in entry["readings"].items()
                if row["outcome"] != "ok"
            ]
            said = "; ".join(unread) or "not read"
            reasons.setdefault((entry["outcome"], said), []).append(entry["host"])
    lines: list[Line] = []
    for (outcome, reason), hosts in reasons.items():
        glyph, style = OUTCOMES[outcome]
        text = f"{safe(fold_hosts(hosts))}: {outcome}: {safe(reason)}"
        lines += block(text, width, style, indent=2, first=f"{glyph} ")
    return lines
