"""How a reclaim ended: worst first, equal hosts folded, every target in a row, ``next`` last."""

from __future__ import annotations

from collections.abc import Sequence

from fleetmem.controller.answer.envelope import VERDICTS, Envelope, HostEntry
from fleetmem.controller.answer.fold import fold_hosts, template
from fleetmem.controller.render.kit.line import WIDTH, Line, clip, left, right, wrap
from fleetmem.controller.render.kit.next_steps import next_of_hosts
from fleetmem.controller.render.reclaim.plan import hosts_first
from fleetmem.controller.render.reclaim.verdict_text import counts, evidence, judged, text_of
from fleetmem.controller.text.safe import safe
from fleetmem.controller.text.sizes import count

_GOOD = {"reclaimed": ("✓", "good"), "nothing_to_do": ("·", "dim"), "planned": ("!", "warn")}
_ENDED = {
    "ok": ("·", "dim"),
    "partial": ("·", "dim"),
    "not_attempted": ("–", "dim"),
    "unreachable": ("–", "bad"),
}
_HOSTS = 20


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
        glyph, style = _GOOD.get(word, ("✗", "bad"))
    else:
        word = entry["outcome"]
        glyph, style = _ENDED.get(word, ("✗", "bad"))
    return glyph, style, word


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
    lines: list[Line] = [((f"  {'N':>4}  {'HOSTS':<{_HOSTS}} {'VERDICT':<17} EVIDENCE", "dim"),)]
    for _, group in sorted(groups.items(), key=lambda item: (item[0][0], len(item[1]))):
        lines += _group(group, width)
    words = [_mark(entry)[2] for entry in envelope["hosts"]]
    ordered = [*VERDICTS, *envelope["summary"]]
    tally = sorted(set(words), key=ordered.index)
    parts = ", ".join(f"{words.count(word)} {word}" for word in tally)
    lines += [((piece, ""),) for piece in wrap(f"{count(len(words), 'host')}: {parts}", width)]
    return [*lines, *(((piece, "dim"),) for piece in wrap(counts(envelope["hosts"]), width))]


def _key(entry: HostEntry) -> tuple[object, ...]:
    """What makes two hosts equal on the screen; the first part is how bad it is."""
    word = _mark(entry)[2]
    if not judged(entry):
        code = entry["error"]["code"] if entry["error"] else ""
        return (0 if word == "unknown" else 3, word, code)
    section = entry["reclaim"]
    bad = word not in _GOOD
    reason = template(evidence(section)) if bad else ""
    rank = {"planned": 4, "reclaimed": 5, "nothing_to_do": 6}.get(word, 1)
    return (rank, word, reason, entry["outcome"])


def _group(group: Sequence[HostEntry], width: int) -> list[Line]:
    glyph, style, word = _mark(group[0])
    limit = 2 if word in ("reclaimed", "planned") else 12 if word == "nothing_to_do" else 6
    first, *more = _evidence_lines(text_of(group), width - _HOSTS - 27, limit)
    rest: Line = ((f" {left(word, 17)} ", style), (first, ""))
    folded = safe(fold_hosts(entry["host"] for entry in group))
    rows = hosts_first(folded, _HOSTS, rest, width)
    number = right(str(len(group)), 4)
    if len(rows) == 1:
        rows = [((f"{glyph} {number}  ", style), *rows[0])]
    else:
        names = wrap(folded, width - 8)
        rows = [((f"{glyph} {number}  ", style), (names[0], ""))]
        rows += [((" " * 8 + name, ""),) for name in names[1:]]
        rows.append(((" " * (8 + _HOSTS), ""), *rest))
    indent = " " * (_HOSTS + 27)
    return [*rows, *(((indent + piece, ""),) for piece in more)]


def _evidence_lines(text: str, width: int, limit: int) -> list[str]:
    """*text* in at most *limit* lines; the last then ends in ``…``, since json has it all."""
    pieces = wrap(text, width)
    if len(pieces) <= limit:
        return pieces
    return [*pieces[: limit - 1], clip(" ".join(pieces[limit - 1 :]), width)]
