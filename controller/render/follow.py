"""``snapshot --follow-start``: the last look, the marks, what changed between them. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from fleetmem.controller.answer.envelope import Envelope, HostEntry, new_envelope
from fleetmem.controller.answer.fold import fold_hosts, template
from fleetmem.controller.answer.step import folded
from fleetmem.controller.memory.snapshot_shapes import PhaseMark, PhaseTaken
from fleetmem.controller.render.diff import diff_lines
from fleetmem.controller.render.kit.findings import finding_lines
from fleetmem.controller.render.kit.line import WIDTH, Line, block
from fleetmem.controller.render.kit.next_steps import next_lines
from fleetmem.controller.render.kit.signs import OUTCOMES
from fleetmem.controller.render.kit.table import Column, Row, hosts_column, table_lines
from fleetmem.controller.render.snapshot.snapshot import look_lines
from fleetmem.controller.startup.read.prefix import pieces, split_head
from fleetmem.controller.text.safe import safe

ORDER = ("before-load", "after-load", "after-init", "failed")


def follow_lines(envelope: Envelope, asked: bool = False, width: int = WIDTH) -> list[Line]:
    """The whole screen; *asked*: files were named."""
    quiet: Envelope = {**envelope, "findings": []}
    lines = look_lines(quiet, asked, width) if _looked(envelope) else _not_looked(envelope, width)
    marks = _marks(envelope, width)
    lines += [(), *marks] if marks else []
    for before, after in _pairs(envelope):
        lines += [(), *diff_lines(_changed(envelope, before, after), before, after, width)]
    if envelope["findings"]:
        lines += [(), *finding_lines(envelope["findings"], width)]
    return [*lines, *_next(envelope, width)]


def _looked(envelope: Envelope) -> bool:
    return any("snapshot" in entry for entry in envelope["hosts"])


def _not_looked(envelope: Envelope, width: int) -> list[Line]:
    """Nothing was taken: only who was asked, and what went wrong."""
    lines: list[Line] = []
    for entry in envelope["hosts"]:
        error = entry["error"]
        if error is not None:
            glyph, style = OUTCOMES[entry["outcome"]]
            text = f"{entry['host']}: {error['code']}: {error['message']}"
            lines += block(safe(text), width, style, first=f"{glyph} ")
    return lines


def _marks(envelope: Envelope, width: int) -> list[Line]:
    """A row for each phase that was taken, hosts folded; then what is missing, and why."""
    entries = [entry for entry in envelope["hosts"] if "follow" in entry]
    several = len(envelope["hosts"]) > 1
    lines: list[Line] = []
    ends: dict[str, list[str]] = {}
    for entry in entries:
        section = entry["follow"]
        if section["invocation"] is None and entry["error"] is not None:
            continue
        text = f"{section['unit']}: {section['status']}"
        if section["restarts"]:
            text += f", restarted {section['restarts']} ×"
        ends.setdefault(text, []).append(entry["host"])
    for text, hosts in ends.items():
        where = f" on {fold_hosts(hosts)}" if several else ""
        lines += block(safe(text + where), width, "bold")
    columns = [
        *([hosts_column(width)] if several else []),
        Column("PHASE"),
        Column("RUN"),
        Column("LINE AT (UTC)"),
        Column("TAKEN", right=True),
        Column("LINE", least=24, lines=2, place="below"),
    ]
    rows = [row for phase in ORDER for row in _phase(phase, entries, several)]
    lines += table_lines(columns, rows, width)
    lines += _missing(entries, several, width)
    if len(envelope["hosts"]) == 1 and _looked(envelope):
        error = envelope["hosts"][0]["error"]
        if error is not None:
            glyph, style = OUTCOMES[envelope["hosts"][0]["outcome"]]
            text = safe(f"{error['code']}: {error['message']}")
            lines += block(text, width, style, first=f"{glyph} ")
    return lines


def _phase(phase: str, entries: Sequence[HostEntry], several: bool) -> list[Row]:
    groups: dict[str, list[tuple[str, PhaseTaken]]] = {}
    for entry in entries:
        for one in entry["follow"]["phases"]:
            if one["phase"] == phase:
                same = template(f"{one['mark']['pattern']} {one['mark']['note']}")
                groups.setdefault(same, []).append((entry["host"], one))
    found: list[Row] = []
    for rows in groups.values():
        marks = [one["mark"] for _, one in rows]
        delays = [mark["delay_seconds"] for mark in marks]
        low, high = f"{min(delays):.1f}", f"{max(delays):.1f}"
        note = marks[0]["note"]
        cells: list[str | Line] = [
            phase,
            safe(rows[0][1]["run"]),
            min(safe(mark["time"]) for mark in marks)[11:23],
            f"+{low} s" if low == high else f"+{low}-{high} s",
            ((safe(_message(marks[0])), "dim"),),
        ]
        where = [safe(fold_hosts(host for host, _ in rows))] if several else []
        found.append(Row([*where, *cells], notes=((f"! {safe(note)}", "warn"),) if note else ()))
    return found


def _message(mark: PhaseMark) -> str:
    """The line without the clocks and names before it; of a rank, the rank."""
    if mark["text"] is None:
        return "the unit's start"
    text = split_head(pieces(mark["text"])[-1]).text.strip() or mark["text"]
    return f"{mark['rank']}: {text}" if mark["rank"] not in (None, "_") else text


def _missing(entries: Sequence[HostEntry], several: bool, width: int) -> list[Line]:
    reasons: dict[str, list[str]] = {}
    for entry in entries:
        for missed in entry["follow"]["missed"]:
            text = f"{missed['phase']} was missed: {missed['why']}"
            reasons.setdefault(text, []).append(entry["host"])
        for failed in entry["follow"]["failed"]:
            text = f"an earlier start failed: {failed['text'] or 'the log does not say why'}"
            reasons.setdefault(text, []).append(entry["host"])
    lines: list[Line] = []
    for text, hosts in reasons.items():
        where = f"{fold_hosts(hosts)}: " if several else ""
        lines += block(safe(f"{where}{text}"), width, "warn", first="! ")
    return lines


def _pairs(envelope: Envelope) -> list[tuple[str, str]]:
    """The phases that some host took one after the other, in the order of a start."""
    found = {
        (str(one["before_phase"]), str(one["after_phase"]))
        for entry in envelope["hosts"]
        for one in (entry["follow"]["changes"] if "follow" in entry else ())
    }
    return sorted(found, key=lambda pair: (ORDER.index(pair[0]), ORDER.index(pair[1])))


def _changed(envelope: Envelope, before: str, after: str) -> Envelope:
    """The comparison of two phases as ``diff`` shows it, over the hosts that took both in turn."""
    entries: list[HostEntry] = []
    for entry in envelope["hosts"]:
        for one in entry["follow"]["changes"] if "follow" in entry else ():
            if (one["before_phase"], one["after_phase"]) == (before, after):
                bare: HostEntry = {**entry, "error": None, "diff": one}
                entries.append(bare)
    return new_envelope(envelope["run"], [entry["host"] for entry in entries], entries)


def _next(envelope: Envelope, width: int) -> list[Line]:
    """The commands of the findings, then each host's own, equal ones of several hosts folded."""
    said = [step for one in envelope["findings"] for step in one["next"]]
    own = [
        (entry["host"], step)
        for entry in envelope["hosts"]
        for step in (entry["follow"]["next"] if "follow" in entry else ())
        if step not in said
    ]
    return next_lines([*said, *(step for step, _ in folded(own))], width)
