"""``logs``: raw lines of one host, or equal lines of many folded. Pure.

Two lines are equal when only times, pids, addresses, ids and such numbers differ.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from fleetmem.controller.answer.envelope import Envelope, HostEntry
from fleetmem.controller.answer.fold import fold_hosts
from fleetmem.controller.render.kit.line import WIDTH, Line, left, right, wrap
from fleetmem.controller.text.safe import safe
from fleetmem.controller.text.sizes import count

_HOSTS = 20
_MOST_TEXT = 2000
_LONGEST = 4096
_TIMES = re.compile(
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?"
    r"|\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d{1,6})?|\b\d\d:\d\d:\d\d(?:[.,]\d{1,9})?\b"
)
_ADDRESSES = re.compile(
    r"0x[0-9a-fA-F]{4,16}\b|\b\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}(?::\d{1,5})?\b"
    r"|\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"
    r"|\b(?:[0-9a-fA-F]{1,4}:){3,7}[0-9a-fA-F]{1,4}\b|\b[0-9a-f]{12,64}\b"
)
_PIDS = re.compile(
    r"(?i)\b((?:pid|ppid|tid|process|port|task)(?:[= :#]{1,2}|s=))\d{1,10}\b"
    r"|(?<=[A-Za-z0-9)])\[\d{1,10}\]"
)

_LEFT_OUT = {
    "lines": "-n sets how many are shown",
    "bytes": "more text than is taken from a host; -g narrows it",
    "time": "--timeout sets how long is read",
}


def normal(text: str) -> str:
    """*text* with times, addresses, ids and pids as ``*``: equal lines of hosts are equal."""
    text = _TIMES.sub("*", text[:_LONGEST])
    text = _ADDRESSES.sub("*", text)
    return _PIDS.sub(lambda found: f"{found[1]}*" if found[1] else "[*]", text)


def log_lines(envelope: Envelope, *, raw: bool) -> list[Line]:
    """The screen of a ``logs`` run; *raw* shows every line, else equal ones are folded."""
    entries = envelope["hosts"]
    lines = _raw(entries) if raw else _folded(entries)
    lines += troubles(entries)
    if not lines:
        lines.append((("no line", "dim"),))
    return lines


def sections(entry: HostEntry) -> list[dict[str, Any]]:
    """The host's ``logs`` section; empty where it has none."""
    found: list[dict[str, Any]] = entry.get("logs") or []
    return found


def _raw(entries: list[HostEntry]) -> list[Line]:
    lines: list[Line] = []
    several = len(entries) > 1
    for entry in entries:
        for section in sections(entry):
            head = f"{safe(entry['host'])}  {safe(section['name'])}{_which(section)}"
            lines += [((head, "bold"),)]
            for row in section["lines"]:
                lines.append(_row(row, entry["host"] if several else None))
    return lines


def _which(section: Mapping[str, Any]) -> str:
    ages = [one for one in section["invocations"] if one["entries"]]
    if len(ages) == 1:
        word = "newest start" if ages[0]["age"] == 0 else f"start -{ages[0]['age']}"
        return f" · {word} {ages[0]['id'][:8]}"
    if ages:
        return f" · {len(ages)} starts"
    return f" · {safe(section['files'][0])}" if section["files"] else ""


def _row(row: Mapping[str, Any], host: str | None) -> Line:
    stamp = str(row["time"] or "")[5:19].replace("T", " ")
    who = f"{row['name'] or ''}[{row['pid']}]" if row["pid"] else str(row["name"] or "")
    style = "dim" if not row["hit"] else "bad" if (row["priority"] or 6) <= 3 else ""
    head = f"{left(stamp, 14)} " if stamp else ""
    if host is not None:
        head = f"{safe(host)}  {head}"
    if who:
        head += f"{safe(who, 40)} "
    return ((head, "dim"), (safe(row["message"], _MOST_TEXT), style))


def _folded(entries: list[HostEntry]) -> list[Line]:
    found: dict[str, dict[str, Any]] = {}
    for entry in entries:
        for section in sections(entry):
            for row in section["lines"]:
                if not row["hit"]:
                    continue
                group = found.setdefault(
                    normal(row["message"]), {"hosts": {}, "count": 0, "newest": row}
                )
                group["hosts"][entry["host"]] = None
                group["count"] += 1
                if (row["time"] or "") > (group["newest"]["time"] or ""):
                    group["newest"] = row
    if not found:
        return []
    groups = sorted(found.values(), key=lambda one: one["newest"]["time"] or "", reverse=True)
    head = f"{'LINES':>6}  {left('HOSTS', _HOSTS)} {left('NEWEST', 14)} LINE"
    lines: list[Line] = [((head, "dim"),)]
    for group in groups:
        names = wrap(safe(fold_hosts(group["hosts"])), _HOSTS)
        row = group["newest"]
        stamp = str(row["time"] or "")[5:19].replace("T", " ")
        style = "bad" if (row["priority"] or 6) <= 3 else ""
        said = wrap(safe(row["message"], _MOST_TEXT), WIDTH - _HOSTS - 24)[:3]
        for number in range(max(len(names), len(said))):
            first = number == 0
            lines.append(
                (
                    (right(str(group["count"]) if first else "", 6) + "  ", ""),
                    (left(names[number] if number < len(names) else "", _HOSTS) + " ", ""),
                    (left(stamp if first else "", 14) + " ", "dim"),
                    (said[number] if number < len(said) else "", style),
                )
            )
    total = sum(group["count"] for group in groups)
    hosts = {host for group in groups for host in group["hosts"]}
    lines.append(((f"{count(total, 'line')} of {count(len(hosts), 'host')}, newest first", "dim"),))
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
            if reading["outcome"] != "ok" and not _said(reading["reason"], entry):
                text = f"{probe}: {reading['outcome']}: {reading['reason'] or 'no reason given'}"
                said.setdefault(text, []).append(entry["host"])
        for section in sections(entry):
            if section["truncated"]:
                why = _LEFT_OUT.get(section["truncated"], str(section["truncated"]))
                text = f"{section['name']}: older lines were left out: {why}"
                said.setdefault(text, []).append(entry["host"])
    lines: list[Line] = []
    for text, hosts in said.items():
        full = f"! {fold_hosts(dict.fromkeys(hosts))}  {text}"
        first, *more = wrap(safe(full), WIDTH - 2)
        lines += [((piece, "warn"),) for piece in (first, *(f"  {piece}" for piece in more))]
    return lines


def _said(reason: str | None, entry: HostEntry) -> bool:
    """Whether the host's error says it already."""
    error = entry["error"]
    return error is not None and reason is not None and reason in error["message"]


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
