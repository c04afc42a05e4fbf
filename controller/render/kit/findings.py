"""Findings of playbooks: in words for one host, a folded row each for several. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from fleetmem.controller.answer.envelope import Envelope, Finding, HostEntry
from fleetmem.controller.answer.fold import fold_hosts
from fleetmem.controller.answer.step import DIRECT, Reach, Step, complete, next_step
from fleetmem.controller.hosts.nodeset import expand
from fleetmem.controller.render.kit.line import WIDTH, Line, block, cells, left, plain
from fleetmem.controller.render.kit.next_steps import next_lines
from fleetmem.controller.render.kit.signs import GOOD, OUTCOMES, SEVERITIES, Sign
from fleetmem.controller.render.kit.table import Column, Row, hosts_column, table_lines
from fleetmem.controller.text.safe import safe
from fleetmem.controller.text.sizes import NONE, count

_INDENT = 22
_PROSE = 120
"""Longer lines of prose are hard to read."""
_NARROW = 80
"""Below that many columns a finding's text begins on a line of its own."""


def finding_lines(findings: Sequence[Finding], width: int = WIDTH) -> list[Line]:
    """One block a finding: sign, rule, what is seen, what it means."""
    lines: list[Line] = []
    width = min(width, _PROSE)
    for one in findings:
        glyph, style = SEVERITIES[one["severity"]]
        head = f"{glyph} {safe(one['rule'].rpartition('/')[2])}"
        indent = max(_INDENT, cells(head) + 2) if width >= _NARROW else 4
        said = block(safe(one["evidence"].get("say") or one["subject"]), width, indent=indent)
        if width >= _NARROW:
            first = plain(said.pop(0)).strip()
            lines.append(((left(head, indent), style), (first, "")))
        else:
            lines.append(((head, style),))
        lines += said
        if one["advice"]:
            lines += block(safe(one["advice"]), width, "dim", indent)
    return lines


def folded_lines(
    envelope: Envelope, playbooks: int, reach: Reach = DIRECT, width: int = WIDTH
) -> list[Line]:
    """Many hosts: a row a finding, then hosts without an answer, then those that are equal.

    Every target stands in at least one row.
    """
    columns = [
        Column(""),
        Column("N", right=True),
        hosts_column(width),
        Column("FINDING"),
        Column("EVIDENCE", least=30, lines=3, place="below"),
    ]
    entries = envelope["hosts"]
    rows: list[Row] = []
    found: set[str] = set()
    for one in sorted(envelope["findings"], key=_order):
        names = expand(one["hosts"])
        found.update(names)
        say = f"{one['subject']}: {one['evidence'].get('say') or ''}"
        rows.append(_row(SEVERITIES[one["severity"]], names, one["hosts"], one["rule"], say))
    for (outcome, rule, why), names in _troubles(entries).items():
        found.update(names)
        rows.append(_row(OUTCOMES[outcome], names, fold_hosts(names), rule, why))
    quiet = [entry["host"] for entry in entries if entry["host"] not in found]
    if quiet:
        rows.append(_row(GOOD, quiet, fold_hosts(quiet), NONE, "nothing found"))
    title = block(_title(envelope, playbooks), width)
    return [*title, (), *table_lines(columns, rows, width), (), *_tally(envelope, reach, width)]


def _order(one: Finding) -> tuple[int, int]:
    return (list(SEVERITIES).index(one["severity"]), len(expand(one["hosts"])))


def _title(envelope: Envelope, playbooks: int) -> str:
    summary = envelope["summary"]
    parts = [f"{n} {word}" for word, n in summary.items() if word != "targeted" and n]
    took = [entry["seconds"] for entry in envelope["hosts"] if entry["seconds"] is not None]
    text = f"{count(summary['targeted'], 'host')}: {', '.join(parts)}"
    text += f" · {count(playbooks, 'playbook')} · run {envelope['run']['id']}"
    return text + (f" · {max(took):.1f} s" if took else "")


def _row(sign: Sign, names: Sequence[str], hosts: str, rule: str, say: str) -> Row:
    return Row([(sign,), str(len(names)), safe(hosts), ((safe(rule), sign[1]),), safe(say)])


def _troubles(entries: Sequence[HostEntry]) -> dict[tuple[str, str, str], list[str]]:
    """Hosts by what is missing of them: how they ended, what is not whole, why."""
    found: dict[tuple[str, str, str], list[str]] = {}
    key: tuple[str, str, str]
    for entry in entries:
        if entry["error"] is not None:
            error = entry["error"]
            key = (entry["outcome"], entry["outcome"], f"{error['code']}: {error['message']}")
            found.setdefault(key, []).append(entry["host"])
        elif entry["outcome"] not in ("ok", "partial"):
            key = (entry["outcome"], entry["outcome"], "no answer")
            found.setdefault(key, []).append(entry["host"])
        else:
            for name, reading in entry["readings"].items():
                if reading["outcome"] != "ok":
                    reason = reading["reason"] or "no reason given"
                    key = ("partial", f"{name} {reading['outcome']}", reason)
                    found.setdefault(key, []).append(entry["host"])
    return found


def _tally(envelope: Envelope, reach: Reach, width: int) -> list[Line]:
    counts = {
        word: sum(one["severity"] == word for one in envelope["findings"]) for word in SEVERITIES
    }
    hosts = {name for one in envelope["findings"] for name in expand(one["hosts"])}
    parts = ", ".join(f"{n} {word}" for word, n in counts.items() if n) or "nothing found"
    on = f" on {count(len(hosts), 'host')}" if hosts else ""
    bad = {entry["outcome"] for entry in envelope["hosts"]} - {"ok", "partial"}
    steps: list[str | Step] = [step for one in envelope["findings"] for step in one["next"]]
    if bad:
        selector = ",".join(f"@run:{envelope['run']['id']}:{word}" for word in sorted(bad))
        steps.append(complete(next_step("hosts", selector, check=True), reach))
    return [*block(parts + on, width), *next_lines(steps, width)]
