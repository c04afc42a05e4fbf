"""How a reclaim ended: worst first, equal hosts folded, every target in a row, ``next`` last."""

from __future__ import annotations

from collections.abc import Sequence

from fleetmem.controller.answer.envelope import VERDICTS, Envelope, HostEntry
from fleetmem.controller.answer.fold import fold_hosts, template
from fleetmem.controller.render.kit.line import WIDTH, Line, block, wrap
from fleetmem.controller.render.kit.next_steps import next_of_hosts
from fleetmem.controller.render.kit.signs import OUTCOMES, verdict_sign
from fleetmem.controller.render.kit.table import Column, Row, hosts_column, table_lines
from fleetmem.controller.render.reclaim.verdict_text import counts, evidence, judged, text_of
from fleetmem.controller.text.safe import safe
from fleetmem.controller.text.sizes import count


def verdict_lines(envelope: Envelope, width: int = WIDTH) -> list[Line]:
    """The answer of a reclaim; one host in words, several as folded rows and counts."""
    entries = envelope["hosts"]
    lines = _one(entries[0], width) if len(entries) == 1 else _many(envelope, width)
    return [*lines, *reclaim_steps(entries, width)]


def reclaim_steps(entries: Sequence[HostEntry], width: int) -> list[Line]:
    """The commands of all hosts, those of the worst verdicts first."""
    shown = sorted(
        (entry for entry in entries if "reclaim" in entry),
        key=lambda entry: VERDICTS.index(entry["reclaim"]["verdict"]),
    )
    rows = [(entry["host"], step) for entry in shown for step in entry["reclaim"]["next"]]
    return next_of_hosts(rows, len(entries), width)


def _mark(entry: HostEntry) -> tuple[str, str, str]:
    """Glyph, style and the word that says how the host ended."""
    if judged(entry):
        word: str = entry["reclaim"]["verdict"]
        return *verdict_sign(word), word
    return *OUTCOMES[entry["outcome"]], entry["outcome"]


def _one(entry: HostEntry, width: int) -> list[Line]:
    glyph, style, word = _mark(entry)
    indent = max(14, len(word) + 4)
    head = f"{glyph} {word:<{indent - 2}}"
    text = text_of([entry])
    first, *more = wrap(f"{safe(entry['host'])}: {text}", width - indent)
    lines: list[Line] = [((head, style), (first, ""))]
    lines += [((" " * indent + piece, ""),) for piece in more]
    if "reclaim" in entry:
        under = counts([entry])
        lines += [((" " * indent + piece, "dim"),) for piece in wrap(under, width - indent)]
    return lines


def _many(envelope: Envelope, width: int) -> list[Line]:
    groups: dict[tuple[object, ...], list[HostEntry]] = {}
    for entry in envelope["hosts"]:
        groups.setdefault(_key(entry), []).append(entry)
    columns = [
        Column(""),
        Column("N", right=True),
        hosts_column(width),
        Column("VERDICT"),
        Column("EVIDENCE", least=30, lines=12, place="below"),
    ]
    ordered_groups = sorted(groups.items(), key=lambda item: (item[0][0], len(item[1])))
    lines = table_lines(columns, [_group(group) for _, group in ordered_groups], width)
    words = [_mark(entry)[2] for entry in envelope["hosts"]]
    ordered = [*VERDICTS, *envelope["summary"]]
    tally = sorted(set(words), key=ordered.index)
    parts = ", ".join(f"{words.count(word)} {word}" for word in tally)
    lines += block(f"{count(len(words), 'host')}: {parts}", width)
    return [*lines, *block(counts(envelope["hosts"]), width, "dim")]


def _key(entry: HostEntry) -> tuple[object, ...]:
    """What makes two hosts equal on the screen; the first part is how bad it is."""
    word = _mark(entry)[2]
    if not judged(entry):
        code = entry["error"]["code"] if entry["error"] else ""
        return (0 if word == "unknown" else 3, word, code)
    section = entry["reclaim"]
    bad = word not in ("reclaimed", "nothing_to_do", "planned")
    reason = template(evidence(section)) if bad else ""
    rank = {"planned": 4, "reclaimed": 5, "nothing_to_do": 6}.get(word, 1)
    return (rank, word, reason, entry["outcome"])


def _group(group: Sequence[HostEntry]) -> Row:
    glyph, style, word = _mark(group[0])
    hosts = safe(fold_hosts(entry["host"] for entry in group))
    return Row([((glyph, style),), str(len(group)), hosts, ((word, style),), text_of(group)])
