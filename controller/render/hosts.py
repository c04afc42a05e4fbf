"""``hosts``: what a selector resolves to, and what each host can do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fleetmem.controller.answer.envelope import Envelope, HostEntry, Resolved, reading_of
from fleetmem.controller.answer.fold import fold_equal, fold_hosts, fold_names
from fleetmem.controller.render.kit.line import WIDTH, Line, block
from fleetmem.controller.render.kit.signs import OUTCOMES
from fleetmem.controller.render.kit.table import Column, Row, hosts_column, table_lines
from fleetmem.controller.text.safe import safe
from fleetmem.controller.text.sizes import NONE, count, gib


def resolved_lines(envelope: Envelope, width: int = WIDTH) -> list[Line]:
    """One row a host, as it would be contacted; nothing was."""
    columns = [
        Column("HOST", least=16),
        Column("ADDRESS", least=16),
        Column("USER", least=8),
        Column("VIA", least=8),
        Column("GROUPS", least=12, drop=1),
    ]
    rows = [_resolved(entry["host"], entry["resolved"]) for entry in envelope["hosts"]]
    folded = safe(fold_hosts(entry["host"] for entry in envelope["hosts"]))
    total = f"{count(len(envelope['hosts']), 'host')}: {folded}"
    return [*table_lines(columns, rows, width), *block(total, width, "dim")]


def _resolved(host: str, to: Resolved) -> Row:
    address = to["address"] or host
    if to["port"]:
        address = f"[{address}]" if ":" in address else address
        address = f"{address}:{to['port']}"
    groups: Line = ((safe(" ".join(to["groups"]) or NONE), "dim"),)
    return Row([safe(host), safe(address), safe(to["user"] or NONE), _way(to), groups])


def _way(to: Resolved) -> str:
    """``ssh``, or ``ssh over bastion → gate``."""
    hops = to.get("jump")
    return safe(f"{to['transport']} over {' → '.join(hops)}" if hops else to["transport"])


def checked_lines(envelope: Envelope, width: int = WIDTH) -> list[Line]:
    """Equal hosts folded, troubled ones first: who they are and what works there."""
    ranks = list(OUTCOMES)
    groups = fold_equal(
        ((entry["host"], _abilities(entry)) for entry in envelope["hosts"]),
        rank=lambda value: ranks.index(value["outcome"]),
    )
    columns = [
        Column(""),
        Column("N", right=True),
        hosts_column(width),
        Column("WHAT IT IS AND WHAT WORKS", least=40, place="below"),
    ]
    rows = [_row(group.hosts, group.value) for group in groups]
    summary = envelope["summary"]
    parts = [
        f"{number} {word}" for word, number in summary.items() if word != "targeted" and number
    ]
    total = f"{count(summary['targeted'], 'host')}: {', '.join(parts)}"
    return [*table_lines(columns, rows, width), *block(total, width)]


def _row(hosts: Sequence[str], value: dict[str, Any]) -> Row:
    glyph, style = OUTCOMES[value["outcome"]]
    first, *more = map(safe, value["said"])
    said: Line = ((first, ""), *((f"\n{text}", "dim") for text in more))
    return Row([((glyph, style),), str(len(hosts)), safe(fold_hosts(hosts)), said])


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
    return f"{len(names)} × {fold_names(dict.fromkeys(names))} · driver {driver}"
