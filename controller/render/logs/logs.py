"""``logs``: the events of one host, or equal events of many folded. Pure.

Two events are equal when only host names, times, pids, ranks, addresses and ids differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fleetmem.controller.answer.envelope import Envelope, HostEntry
from fleetmem.controller.answer.fold import fold_hosts
from fleetmem.controller.logs.blocks import Block, blocks
from fleetmem.controller.render.kit.line import WIDTH, Line, cells, left, right, wrap
from fleetmem.controller.render.logs.normal import names_of, normal
from fleetmem.controller.text.safe import safe
from fleetmem.controller.text.sizes import count

_HOSTS = 20
_MOST_PIECES = 12
"""So many screen lines of one log line are shown without ``--full``."""

_LEFT_OUT = {
    "lines": "-n sets how many are shown",
    "bytes": "size limit reached; narrow it with -g",
    "time": "time limit reached; see --timeout",
}


@dataclass(frozen=True, slots=True)
class Shown:
    """How lines are shown: ``raw`` every event, else equal ones folded; ``oldest`` turns the
    order of events round; ``full`` cuts nothing; ``asked`` is the pattern, for an empty answer."""

    raw: bool = False
    oldest: bool = False
    full: bool = False
    asked: str | None = None


def log_lines(envelope: Envelope, shown: Shown) -> list[Line]:
    """The screen of a ``logs`` run: events whole, the newest first unless told otherwise."""
    entries = envelope["hosts"]
    lines = _raw(entries, shown) if shown.raw else _folded(entries, shown)
    if any(text.endswith("…") for line in lines for text, _ in line) and not shown.full:
        lines.append((("… more of these lines: --full shows them whole", "dim"),))
    if not lines:
        lines.append(((_nothing(entries, shown), "dim"),))
    return lines + troubles(entries)


def _nothing(entries: list[HostEntry], shown: Shown) -> str:
    scanned = [one["scanned"] for entry in entries for one in sections(entry) if one["scanned"]]
    looked = f" among {sum(scanned):,} that were read".replace(",", " ") if scanned else ""
    if shown.asked is not None:
        return f"no line matches {safe(shown.asked)!r}{looked}"
    return f"no line{looked}"


def sections(entry: HostEntry) -> list[dict[str, Any]]:
    """The host's ``logs`` section; empty where it has none."""
    found: list[dict[str, Any]] = entry.get("logs") or []
    return found


def _raw(entries: list[HostEntry], shown: Shown) -> list[Line]:
    lines: list[Line] = []
    several = len(entries) > 1
    for entry in entries:
        for section in sections(entry):
            found = blocks(section["lines"])
            if not found:
                continue
            head = f"{safe(entry['host'])}  {safe(section['name'])}{_which(section)}"
            lines += [((head, "bold"),)]
            for block in reversed(found) if shown.oldest else found:
                for row in block.rows:
                    lines += _row(row, entry["host"] if several else None, shown)
    return lines


def _which(section: Mapping[str, Any]) -> str:
    ages = [one for one in section["invocations"] if one["entries"]]
    if len(ages) == 1:
        word = "newest start" if ages[0]["age"] == 0 else f"start -{ages[0]['age']}"
        return f" · {word} {ages[0]['id'][:8]}"
    if ages:
        return f" · {len(ages)} starts"
    return f" · {safe(section['files'][0])}" if section["files"] else ""


def _row(row: Mapping[str, Any], host: str | None, shown: Shown) -> list[Line]:
    stamp = str(row["time"] or "")[5:19].replace("T", " ")
    who = f"{row['name'] or ''}[{row['pid']}]" if row["pid"] else str(row["name"] or "")
    head = f"{left(stamp, 14)} " if stamp else ""
    if host is not None:
        head = f"{safe(host)}  {head}"
    if who:
        head += f"{safe(who, 40)} "
    said = _pieces(row, WIDTH - min(cells(head), 40), shown)
    lines: list[Line] = [((head, "dim"), (said[0], _style(row)))]
    lines += [((" " * min(cells(head), 40), ""), (piece, _style(row))) for piece in said[1:]]
    return lines


def _style(row: Mapping[str, Any]) -> str:
    return "dim" if not row["hit"] else "bad" if (row["priority"] or 6) <= 3 else ""


def _pieces(row: Mapping[str, Any], room: int, shown: Shown) -> list[str]:
    """A message on as many screen lines as it needs; what is left out ends in an ellipsis."""
    text = safe(row["message"])
    lead = len(text) - len(text.lstrip(" "))
    found = [" " * min(lead, 20) + piece for piece in wrap(text.strip(), max(room - lead, 20))]
    if not shown.full and len(found) > _MOST_PIECES:
        found = [*found[: _MOST_PIECES - 1], found[_MOST_PIECES - 1][: room - 1] + "…"]
    return found


def _folded(entries: list[HostEntry], shown: Shown) -> list[Line]:
    names = names_of(entry["host"] for entry in entries)
    found: dict[tuple[str, ...], dict[str, Any]] = {}
    for entry in entries:
        for section in sections(entry):
            for block in blocks(section["lines"]):
                if not block.hit:
                    continue
                key = tuple(normal(row["message"], names) for row in block.rows)
                group = found.setdefault(key, {"hosts": {}, "count": 0, "newest": block})
                group["hosts"][entry["host"]] = None
                group["count"] += 1
                if (block.newest["time"] or "") > (group["newest"].newest["time"] or ""):
                    group["newest"] = block
    if not found:
        return []
    groups = sorted(
        found.values(),
        key=lambda one: one["newest"].newest["time"] or "",
        reverse=not shown.oldest,
    )
    head = f"{'TIMES':>6}  {left('HOSTS', _HOSTS)} {left('NEWEST', 14)} LINE"
    lines: list[Line] = [((head, "dim"),)]
    for group in groups:
        lines += _group(group, shown)
    total = sum(group["count"] for group in groups)
    hosts = {host for group in groups for host in group["hosts"]}
    order = "oldest first" if shown.oldest else "newest first"
    lines.append(((f"{count(total, 'event')} of {count(len(hosts), 'host')}, {order}", "dim"),))
    return lines


def _group(group: Mapping[str, Any], shown: Shown) -> list[Line]:
    names = wrap(safe(fold_hosts(group["hosts"])), _HOSTS)
    block: Block = group["newest"]
    stamp = str(block.newest["time"] or "")[5:19].replace("T", " ")
    said = [
        (piece, _style(row))
        for row in block.rows
        for piece in _pieces(row, WIDTH - _HOSTS - 24, shown)
    ]
    lines: list[Line] = []
    for number in range(max(len(names), len(said))):
        first = number == 0
        piece, style = said[number] if number < len(said) else ("", "")
        lines.append(
            (
                (right(str(group["count"]) if first else "", 6) + "  ", ""),
                (left(names[number] if number < len(names) else "", _HOSTS) + " ", ""),
                (left(stamp if first else "", 14) + " ", "dim"),
                (piece, style),
            )
        )
    return lines


def troubles(entries: list[HostEntry]) -> list[Line]:
    """What was not read, equal reasons folded."""
    said: dict[str, list[str]] = {}
    for entry in entries:
        if entry["error"]:
            error = entry["error"]
            text = f"{entry['outcome']}: {error['code']}: {error['message']}"
            said.setdefault(text, []).append(entry["host"])
        for probe, reading in entry["readings"].items():
            if reading["outcome"] != "ok" and not _said(probe, entry):
                text = f"{probe}: {reading['outcome']}: {reading['reason'] or 'no reason given'}"
                said.setdefault(text, []).append(entry["host"])
        for section in sections(entry):
            if section["truncated"]:
                why = _LEFT_OUT.get(section["truncated"], str(section["truncated"]))
                text = f"{section['name']}: older lines were omitted: {why}"
                said.setdefault(text, []).append(entry["host"])
    lines: list[Line] = []
    for text, hosts in said.items():
        full = f"! {fold_hosts(dict.fromkeys(hosts))}  {text}"
        first, *more = wrap(safe(full), WIDTH - 2)
        lines += [((piece, "warn"),) for piece in (first, *(f"  {piece}" for piece in more))]
    return lines


def _said(probe: str, entry: HostEntry) -> bool:
    """Whether the host's error says it already: it is made of the logs' own reasons."""
    error = entry["error"]
    of_log = probe.partition(":")[0] == "journal.read"
    return of_log and error is not None and error["code"] == "log_unreadable"


def log_rows(envelope: Envelope) -> list[dict[str, Any]]:
    """One flat row a line, for jsonl and csv, newest first on each host."""
    return [
        {
            "run": envelope["run"]["id"],
            "host": entry["host"],
            "log": section["name"],
            **{name: row.get(name) for name in _FIELDS},
        }
        for entry in envelope["hosts"]
        for section in sections(entry)
        for row in section["lines"]
    ]


_FIELDS = (
    "time", "invocation", "age", "pid", "name", "priority", "from", "hit", "message",
    "message_base64",
)  # fmt: skip
