"""``hosts``: what a selector resolves to, and what each host can do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fleetmem.controller.answer.envelope import Envelope, HostEntry, Resolved, reading_of
from fleetmem.controller.answer.fold import fold_equal, fold_hosts, fold_names
from fleetmem.controller.render.kit.line import WIDTH, Line, cells, left, right, wrap
from fleetmem.controller.render.reclaim.plan import hosts_first
from fleetmem.controller.text.safe import safe
from fleetmem.controller.text.sizes import NONE, count, gib

_HOSTS = 24
_RANKS = ("failed", "timed_out", "unknown", "partial", "unreachable", "not_attempted", "ok")
_MARKS = {"ok": ("✓", "good"), "partial": ("!", "warn"), "not_attempted": ("–", "dim")}


def resolved_lines(envelope: Envelope) -> list[Line]:
    """One row a host, as it would be contacted; nothing was."""
    ways = [_way(entry["resolved"]) for entry in envelope["hosts"]]
    wide = max([8, *map(cells, ways)])
    head = f"{'HOST':<28} {'ADDRESS':<30} {'USER':<10} {'VIA':<{wide}} GROUPS"
    lines: list[Line] = [((head, "dim"),)]
    for entry, way in zip(envelope["hosts"], ways, strict=True):
        to = entry["resolved"]
        address = to["address"] or entry["host"]
        if to["port"]:
            address = f"[{address}]" if ":" in address else address
            address = f"{address}:{to['port']}"
        lines.append(
            (
                (
                    f"{left(safe(entry['host']), 28)} {left(safe(address), 30)} "
                    f"{left(safe(to['user'] or NONE), 10)} {left(way, wide)} ",
                    "",
                ),
                (safe(" ".join(to["groups"]) or NONE), "dim"),
            )
        )
    folded = safe(fold_hosts(entry["host"] for entry in envelope["hosts"]))
    total = f"{count(len(envelope['hosts']), 'host')}: {folded}"
    return [*lines, *(((piece, "dim"),) for piece in wrap(total, WIDTH))]


def _way(to: Resolved) -> str:
    """``ssh``, or ``ssh over bastion → gate``."""
    hops = to.get("jump")
    return safe(f"{to['transport']} over {' → '.join(hops)}" if hops else to["transport"])


def checked_lines(envelope: Envelope) -> list[Line]:
    """Equal hosts folded, troubled ones first: who they are and what works there."""
    groups = fold_equal(
        ((entry["host"], _abilities(entry)) for entry in envelope["hosts"]),
        rank=lambda value: _RANKS.index(value["outcome"]),
    )
    lines: list[Line] = [((f"  {'N':>4}  {'HOSTS':<{_HOSTS}} WHAT IT IS AND CAN DO", "dim"),)]
    for group in groups:
        lines += _row(group.hosts, group.value)
    summary = envelope["summary"]
    parts = [
        f"{number} {word}" for word, number in summary.items() if word != "targeted" and number
    ]
    return [*lines, ((f"{count(summary['targeted'], 'host')}: {', '.join(parts)}", ""),)]


def _row(hosts: Sequence[str], value: dict[str, Any]) -> list[Line]:
    glyph, style = _MARKS.get(value["outcome"], ("✗", "bad"))
    said = [piece for text in value["said"] for piece in wrap(safe(text), WIDTH - _HOSTS - 10)]
    number = right(str(len(hosts)), 4)
    folded = safe(fold_hosts(hosts))
    rows = hosts_first(folded, _HOSTS, ((" " + said[0], ""),))
    lines: list[Line] = [((f"{glyph} {number}  ", style), *rows[0])]
    if len(rows) > 1:
        names = wrap(folded, WIDTH - 8)
        lines = [((f"{glyph} {number}  ", style), (names[0], ""))]
        lines += [((" " * 8 + name, ""),) for name in names[1:]]
        lines.append(((" " * (_HOSTS + 9) + said[0], ""),))
    return [*lines, *(((" " * (_HOSTS + 9) + piece, "dim"),) for piece in said[1:])]


def _abilities(entry: HostEntry) -> dict[str, Any]:
    """What is compared and shown of one host: JSON data without its name or numbers of its own."""
    said: list[str] = []
    if entry["error"]:
        error = entry["error"]
        said.append(f"{entry['outcome']}: {error['code']}: {error['message']}")
        if error["hint"]:
            said.append(error["hint"])
    facts, devices = reading_of(entry, "host.facts"), reading_of(entry, "gpu.devices")
    if facts:
        who = facts["user"] or f"uid {facts['uid']}"
        memory = gib(facts["total_bytes"])
        said.append(
            f"{who} · Python {facts['python']} · Linux {facts['kernel']} {facts['machine']} · "
            f"{memory} GiB"
        )
        if facts["state_dir"] is None:
            said.append(f"cannot reclaim: {facts['state_dir_reason'] or 'no state directory'}")
    if devices:
        said.append(_gpus(devices))
    said += [
        f"{probe}: {reading['outcome']}: {reading['reason'] or 'no reason given'}"
        for probe, reading in entry["readings"].items()
        if reading["outcome"] != "ok"
    ]
    return {"outcome": entry["outcome"], "said": said or [entry["outcome"]]}


def _gpus(devices: Any) -> str:
    names = [str(gpu["name"] or "GPU") for gpu in devices["gpus"]]
    driver = devices["driver_version"] or NONE
    if not names:
        return f"no GPU · driver {driver}"
    text = f"{len(names)} × {fold_names(dict.fromkeys(names))} · driver {driver}"
    return text if cells(text) < WIDTH else f"{len(names)} GPUs · driver {driver}"
