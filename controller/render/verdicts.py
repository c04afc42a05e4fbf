"""How a reclaim ended: worst first, equal hosts folded, every target in a row, ``next`` last."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from fleetmem.controller.aggregate import fold_names, fold_numbers, template
from fleetmem.controller.envelope import (
    VERDICTS,
    Envelope,
    GpuVerdict,
    HostEntry,
    Reclaim,
)
from fleetmem.controller.nodeset import fold
from fleetmem.controller.render.line import WIDTH, Line, cells, clip, left, right, wrap
from fleetmem.controller.render.plan import hosts_first
from fleetmem.controller.render.safe import safe
from fleetmem.controller.render.size import count, gib, mib_span, seconds, seconds_span

TOLERANCE_BYTES = 64 << 20
"""A GPU counts as back at its baseline up to this much above it."""

_GOOD = {"reclaimed": ("✓", "good"), "nothing_to_do": ("·", "dim"), "planned": ("!", "warn")}
_ENDED = {
    "ok": ("·", "dim"),
    "partial": ("·", "dim"),
    "not_attempted": ("–", "dim"),
    "unreachable": ("–", "bad"),
}
_HOSTS = 20
_MAX_NEXT = 8


def verdict_lines(envelope: Envelope) -> list[Line]:
    """The answer of a reclaim; one host in words, several as folded rows and counts."""
    entries = envelope["hosts"]
    lines = _one(entries[0]) if len(entries) == 1 else _many(envelope)
    return [*lines, *next_lines(entries)]


def _judged(entry: HostEntry) -> bool:
    """Whether the verdict is how the host ended; an error after the plan outweighs it."""
    return "reclaim" in entry and (
        entry["outcome"] in ("ok", "partial") or entry["reclaim"]["verdict"] == "unknown"
    )


def _mark(entry: HostEntry) -> tuple[str, str, str]:
    """Glyph, style and the word that says how the host ended."""
    if _judged(entry):
        word: str = entry["reclaim"]["verdict"]
        glyph, style = _GOOD.get(word, ("✗", "bad"))
    else:
        word = entry["outcome"]
        glyph, style = _ENDED.get(word, ("✗", "bad"))
    return glyph, style, word


def _one(entry: HostEntry) -> list[Line]:
    glyph, style, word = _mark(entry)
    indent = max(14, len(word) + 4)
    head = f"{glyph} {word:<{indent - 2}}"
    text = _text([entry])
    first, *more = wrap(f"{safe(entry['host'])}: {text}", WIDTH - indent)
    lines: list[Line] = [((head, style), (first, ""))]
    lines += [((" " * indent + piece, ""),) for piece in more]
    if "reclaim" in entry:
        under = _counts([entry])
        lines += [((" " * indent + piece, "dim"),) for piece in wrap(under, WIDTH - indent)]
    return lines


def _many(envelope: Envelope) -> list[Line]:
    groups: dict[tuple[object, ...], list[HostEntry]] = {}
    for entry in envelope["hosts"]:
        groups.setdefault(_key(entry), []).append(entry)
    lines: list[Line] = [((f"  {'N':>4}  {'HOSTS':<{_HOSTS}} {'VERDICT':<17} EVIDENCE", "dim"),)]
    for _, group in sorted(groups.items(), key=lambda item: (item[0][0], len(item[1]))):
        lines += _group(group)
    words = [_mark(entry)[2] for entry in envelope["hosts"]]
    ordered = [*VERDICTS, *envelope["summary"]]
    tally = sorted(set(words), key=ordered.index)
    parts = ", ".join(f"{words.count(word)} {word}" for word in tally)
    lines += [((piece, ""),) for piece in wrap(f"{count(len(words), 'host')}: {parts}", WIDTH)]
    return [*lines, ((_counts(envelope["hosts"]), "dim"),)]


def _key(entry: HostEntry) -> tuple[object, ...]:
    """What makes two hosts equal on the screen; the first part is how bad it is."""
    word = _mark(entry)[2]
    if not _judged(entry):
        code = entry["error"]["code"] if entry["error"] else ""
        return (0 if word == "unknown" else 3, word, code)
    section = entry["reclaim"]
    bad = word not in _GOOD
    evidence = template(_evidence(section)) if bad else ""
    rank = {"planned": 4, "reclaimed": 5, "nothing_to_do": 6}.get(word, 1)
    return (rank, word, evidence, entry["outcome"])


def _group(group: Sequence[HostEntry]) -> list[Line]:
    glyph, style, word = _mark(group[0])
    first, *more = _evidence_lines(_text(group), WIDTH - _HOSTS - 27, 2 if word in _GOOD else 6)
    rest: Line = ((f" {left(word, 17)} ", style), (first, ""))
    rows = hosts_first((entry["host"] for entry in group), _HOSTS, rest)
    number = right(str(len(group)), 4)
    if len(rows) == 1:
        rows = [((f"{glyph} {number}  ", style), *rows[0])]
    else:
        names = wrap(safe(fold(entry["host"] for entry in group)), WIDTH - 8)
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


def _text(group: Sequence[HostEntry]) -> str:
    """What there is to say about hosts that ended alike, harmless for a terminal."""
    if not _judged(group[0]):
        return _error_text(group)
    sections = [entry["reclaim"] for entry in group]
    verdict = sections[0]["verdict"]
    if verdict == "reclaimed":
        text = _reclaimed_text(sections)
    else:
        said = fold_names(dict.fromkeys(map(_evidence, sections)))
        text = said or {"nothing_to_do": "no leftover memory", "planned": ""}.get(verdict, "")
    reasons = {entry["error"]["message"] for entry in group if entry["error"]}
    if reasons:
        text += f" · {fold_names(sorted(reasons))}"
    elif group[0]["outcome"] == "partial":
        text += " · partial: " + fold_names(sorted(_partial_reasons(group)))
    return safe(text.removeprefix(" · ")) or "–"


def _error_text(group: Sequence[HostEntry]) -> str:
    errors = [entry["error"] for entry in group if entry["error"]]
    if not errors:
        return "no reason is known"
    text = f"{errors[0]['code']}: {fold_names(sorted({error['message'] for error in errors}))}"
    hint = errors[0]["hint"]
    return safe(f"{text} ({hint})" if hint else text)


def _partial_reasons(group: Iterable[HostEntry]) -> set[str]:
    return {
        f"{probe} {reading['reason'] or reading['outcome']}"
        for entry in group
        for probe, reading in entry["readings"].items()
        if reading["outcome"] != "ok"
    }


def _evidence(section: Reclaim) -> str:
    """Why the verdict is what it is, per GPU where that is known, else the advice."""
    by_why: dict[str, list[int]] = {}
    for gpu in section["gpus"]:
        if gpu["verdict"] == section["verdict"] and gpu.get("why"):
            by_why.setdefault(str(gpu["why"]), []).append(gpu["index"])
    parts = [f"GPU {fold_numbers(indexes)}: {why}" for why, indexes in by_why.items()]
    if section["advice"]:
        parts.append(section["advice"])
    if not parts and section["verdict"] == "planned":
        held = sum(target["held_bytes"] or 0 for target in section["targets"])
        parts.append(
            f"{count(len(section['targets']), 'process', 'processes')} would be stopped"
            + (f", {gib(held)} GiB" if held else "")
        )
    return " · ".join(parts)


def _reclaimed_text(sections: Sequence[Reclaim]) -> str:
    gpus = [gpu for section in sections for gpu in section["gpus"]]
    back = [gpu for gpu in gpus if gpu["verdict"] == "reclaimed"]
    freed = sum(max(_freed(gpu), 0) for gpu in back)
    took = [sum(rung["seconds"] or 0 for rung in section["rungs"]) for section in sections]
    text = f"{gib(freed)} GiB on {len(back)} of {count(len(gpus), 'GPU')} in {seconds_span(took)}"
    if back and all(map(_at_baseline, back)):
        sources = {gpu["baseline_source"] or "assumed" for gpu in back}
        base = mib_span(gpu["baseline_bytes"] for gpu in back)
        text += f"; {'every GPU' if len(back) > 1 else 'the GPU'} at baseline ({base} MiB, "
        text += f"{' or '.join(sorted(sources))})"
    else:
        text += f"; used now {mib_span(gpu['after_bytes'] for gpu in back)} MiB"
    return text


def _freed(gpu: GpuVerdict) -> int:
    before, after = gpu["before_bytes"], gpu["after_bytes"]
    return 0 if before is None or after is None else before - after


def _at_baseline(gpu: GpuVerdict) -> bool:
    after, base = gpu["after_bytes"], gpu["baseline_bytes"]
    return after is not None and base is not None and after <= base + TOLERANCE_BYTES


def _counts(entries: Sequence[HostEntry]) -> str:
    """How many processes were stopped and spared, and what the trail calls it."""
    sections = [entry["reclaim"] for entry in entries if "reclaim" in entry]
    stopped = sum(_stopped(section) for section in sections)
    spared = sum(len(section["spared"]) for section in sections)
    unknown = sum(section["verdict"] == "unknown" for section in sections)
    text = f"{stopped} stopped, {spared} spared, {unknown} unknown"
    plans = {section["plan"]["id"] for section in sections if section["plan"]}
    if stopped and len(plans) == 1:
        text += f" · operation {safe(plans.pop())}, in this trail and the host's journal"
    elif len(entries) == 1 and entries[0]["seconds"] is not None:
        text += f" · {seconds(entries[0]['seconds'])}"
    return text


def _stopped(section: Reclaim) -> int:
    """Signalled identities that are gone, as the last rung that counted says."""
    signalled = {
        (one["pid"], one["start_time"]) for rung in section["rungs"] for one in rung["signalled"]
    }
    gone = [value for rung in section["rungs"] if (value := rung.get("gone")) is not None]
    if gone:
        return min(gone[-1], len(signalled))
    return len(signalled) if section["verdict"] == "reclaimed" else 0


def next_lines(entries: Sequence[HostEntry]) -> list[Line]:
    """Whole commands to copy, equal ones of several hosts folded into one."""
    commands: dict[str, list[str]] = {}
    single = len(entries) == 1
    for entry in entries:
        for command in entry["reclaim"]["next"] if "reclaim" in entry else ():
            commands.setdefault(_without_host(command, entry["host"]), []).append(entry["host"])
    lines: list[Line] = []
    for command, hosts in list(commands.items())[:_MAX_NEXT]:
        text = safe(command.replace("\0", shlex.quote(fold(hosts))))
        where = "" if "\0" in command or single else f"    # {safe(fold(hosts))}"
        if cells(text + where) > WIDTH - 14:
            where = ""
        lines.append(
            (("  next        " if not lines else " " * 14, "dim"), (text, "next"), (where, "dim"))
        )
    if len(commands) > _MAX_NEXT:
        lines.append(((f"{' ' * 14}… {len(commands) - _MAX_NEXT} more; -o json lists all", "dim"),))
    return lines


def _without_host(command: str, host: str) -> str:
    """*command* with the host's name as one whole word replaced by a mark."""
    words = command.split(" ")
    return " ".join("\0" if word in (host, shlex.quote(host)) else word for word in words)
