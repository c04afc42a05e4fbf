"""Findings of playbooks: in words for one host, a folded row each for several. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from fleetmem.controller.answer.envelope import Envelope, Finding, HostEntry
from fleetmem.controller.answer.fold import fold_hosts
from fleetmem.controller.answer.step import DIRECT, Reach, Step, complete, next_step
from fleetmem.controller.hosts.nodeset import expand
from fleetmem.controller.render.kit.line import WIDTH, Line, cells, clip, left, right, wrap
from fleetmem.controller.render.kit.next_steps import next_lines
from fleetmem.controller.text.safe import safe
from fleetmem.controller.text.sizes import count

MARKS = {"critical": ("✗", "bad"), "warn": ("!", "warn"), "info": ("·", "dim")}
_HOSTS = 16
_RULE = 28
_LONG_RULE = 36
_LINES = 3


def finding_lines(findings: Sequence[Finding], width: int = WIDTH) -> list[Line]:
    """One block a finding: glyph, rule, what is seen, what it means."""
    lines: list[Line] = []
    for one in findings:
        glyph, style = MARKS[one["severity"]]
        name = one["rule"].rpartition("/")[2]
        indent = max(22, len(name) + 4)
        say = str(one["evidence"].get("say") or one["subject"])
        pieces = wrap(safe(say), width - indent)
        lines.append(((f"{glyph} {left(name, indent - 2)}", style), (pieces[0], "")))
        lines += [((" " * indent + piece, ""),) for piece in pieces[1:]]
        if one["advice"]:
            advice = wrap(safe(one["advice"]), width - indent)
            lines += [((" " * indent + piece, "dim"),) for piece in advice]
    return lines


def folded_lines(envelope: Envelope, playbooks: int, reach: Reach = DIRECT) -> list[Line]:
    """Many hosts: a row a finding, then hosts without an answer, then those that are equal.

    Every target stands in at least one row.
    """
    entries = envelope["hosts"]
    lines: list[Line] = [((piece, ""),) for piece in wrap(_title(envelope, playbooks), WIDTH)]
    ordered = sorted(envelope["findings"], key=_order)
    wide = max([_RULE, *(min(_LONG_RULE, cells(safe(one["rule"]))) for one in ordered)])
    head = f"   {'N':>4}  {left('HOSTS', _HOSTS)} {left('FINDING', wide)} EVIDENCE"
    lines += [(), ((head, "dim"),)]
    found: set[str] = set()
    for one in ordered:
        names = expand(one["hosts"])
        found.update(names)
        glyph, style = MARKS[one["severity"]]
        say = f"{one['subject']}: {one['evidence'].get('say') or ''}"
        lines += _row(glyph, style, len(names), one["hosts"], one["rule"], say, wide)
    for reason, names in _troubles(entries).items():
        found.update(names)
        rule, _, why = reason.partition(": ")
        lines += _row("–", "dim", len(names), fold_hosts(names), rule, why, wide)
    quiet = [entry["host"] for entry in entries if entry["host"] not in found]
    if quiet:
        lines += _row("✓", "good", len(quiet), fold_hosts(quiet), "–", "nothing found", wide)
    return [*lines, (), *_tally(envelope, reach)]


def _order(one: Finding) -> tuple[int, int]:
    return (list(MARKS).index(one["severity"]), len(expand(one["hosts"])))


def _title(envelope: Envelope, playbooks: int) -> str:
    summary = envelope["summary"]
    parts = [f"{n} {word}" for word, n in summary.items() if word != "targeted" and n]
    took = [entry["seconds"] for entry in envelope["hosts"] if entry["seconds"] is not None]
    text = f"{count(summary['targeted'], 'host')}: {', '.join(parts)}"
    text += f" · {count(playbooks, 'playbook')} · run {envelope['run']['id']}"
    return text + (f" · {max(took):.1f} s" if took else "")


def _row(
    glyph: str, style: str, number: int, hosts: str, rule: str, say: str, wide: int
) -> list[Line]:
    indent = 2 + 5 + 2 + _HOSTS + 1 + wide + 1
    pieces = wrap(safe(say), WIDTH - indent)
    if len(pieces) > _LINES:
        rest = clip(" ".join(pieces[_LINES - 1 :]), WIDTH - indent)
        pieces = [*pieces[: _LINES - 1], rest]
    names = wrap(safe(hosts), _HOSTS if cells(safe(hosts)) <= _HOSTS else WIDTH - 9)
    folded = len(names) == 1 and cells(names[0]) <= _HOSTS
    lead = f"{glyph} {right(str(number), 5)}  "
    tail = f" {left(safe(rule), wide)} {pieces[0]}"
    lines: list[Line] = []
    if folded:
        lines.append(((lead, style), (left(names[0], _HOSTS), ""), (tail, "")))
    else:
        lines.append(((lead, style), (names[0], "")))
        lines += [((" " * 9 + name, ""),) for name in names[1:]]
        lines.append(((" " * (9 + _HOSTS), ""), (tail, "")))
    return [*lines, *(((" " * indent + piece, ""),) for piece in pieces[1:])]


def _troubles(entries: Sequence[HostEntry]) -> dict[str, list[str]]:
    """Hosts by what is missing of them: an error, or readings that are not whole."""
    found: dict[str, list[str]] = {}
    for entry in entries:
        if entry["error"] is not None:
            error = entry["error"]
            text = f"{entry['outcome']}: {error['code']}: {error['message']}"
            found.setdefault(text, []).append(entry["host"])
        elif entry["outcome"] not in ("ok", "partial"):
            found.setdefault(f"{entry['outcome']}: no answer", []).append(entry["host"])
        else:
            for name, reading in entry["readings"].items():
                if reading["outcome"] != "ok":
                    reason = reading["reason"] or "no reason given"
                    text = f"{name} {reading['outcome']}: {reason}"
                    found.setdefault(text, []).append(entry["host"])
    return found


def _tally(envelope: Envelope, reach: Reach) -> list[Line]:
    counts = {word: sum(one["severity"] == word for one in envelope["findings"]) for word in MARKS}
    hosts = {name for one in envelope["findings"] for name in expand(one["hosts"])}
    parts = ", ".join(f"{n} {word}" for word, n in counts.items() if n) or "nothing found"
    on = f" on {count(len(hosts), 'host')}" if hosts else ""
    bad = {entry["outcome"] for entry in envelope["hosts"]} - {"ok", "partial"}
    steps: list[str | Step] = [step for one in envelope["findings"] for step in one["next"]]
    if bad:
        selector = ",".join(f"@run:{envelope['run']['id']}:{word}" for word in sorted(bad))
        steps.append(complete(next_step("hosts", selector, check=True), reach))
    return [((parts + on, ""),), *next_lines(steps)]
