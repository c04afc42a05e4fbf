"""Many hosts' start-ups in few rows: findings, what is odd, and what "equal" means (pure)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from fleetmem.controller.answer import fold as aggregate
from fleetmem.controller.answer.envelope import Envelope, HostEntry, hosts_of
from fleetmem.controller.hosts.nodeset import split
from fleetmem.controller.text.sizes import GIB, thousands

_ORDER = {"critical": 0, "warn": 1, "info": 2, "none": 3}
NEAR_SHARE, NEAR_BYTES = 0.02, 0.1 * GIB
"""Pools as near as that to the median are called equal."""


@dataclass(frozen=True, slots=True)
class FoldedRow:
    """One row: ``kind`` is a severity, ``none`` or ``equal``."""

    kind: str
    hosts: tuple[str, ...]
    rule: str
    text: str


def finding_rows(envelope: Envelope) -> list[FoldedRow]:
    """One row for each finding with equal words, worst first, then fewest hosts."""
    grouped: dict[tuple[str, str, str], list[str]] = {}
    for found in envelope["findings"]:
        if found["severity"] == "info":
            continue
        key = (found["severity"], found["rule"], str(found["evidence"].get("say") or ""))
        hosts = grouped.setdefault(key, [])
        for host in hosts_of(found, envelope):
            if host not in hosts:
                hosts.append(host)
    rows = [
        FoldedRow(kind, tuple(hosts), rule, say) for (kind, rule, say), hosts in grouped.items()
    ]
    return sorted(rows, key=lambda row: (_ORDER[row.kind], len(row.hosts), row.rule))


def rest_rows(
    envelope: Envelope,
    rows: Sequence[FoldedRow],
    equal: Sequence[str],
    reasons: Callable[[HostEntry], list[str]],
) -> list[FoldedRow]:
    """Rows for hosts that no other row shows, and for what could not be read."""
    shown = {host for row in rows for host in row.hosts} | set(equal)
    grouped: dict[tuple[str, str, str], list[str]] = {}
    for entry in envelope["hosts"]:
        error, said = entry["error"], reasons(entry)
        if error is not None:
            text = f"{entry['outcome']}: {error['code']}: {error['message']}"
            key = ("none", "–", text)
        elif said:
            key = ("info", "startup", said[0])
        elif entry["host"] in shown:
            continue
        elif entry["outcome"] == "not_attempted":
            key = ("none", "–", "not attempted")
        else:
            key = ("info", "startup", _summary(entry))
        grouped.setdefault(key, []).append(entry["host"])
    found = [
        FoldedRow(kind, tuple(hosts), rule, text) for (kind, rule, text), hosts in grouped.items()
    ]
    return sorted(found, key=lambda row: (_ORDER[row.kind], len(row.hosts), row.text))


def equal_row(envelope: Envelope) -> tuple[list[str], str]:
    """The largest set of hosts whose newest start agrees, and its medians in words."""
    groups: dict[tuple[Any, ...], list[tuple[str, dict[str, Any]]]] = {}
    bad = {
        host
        for one in envelope["findings"]
        if one["severity"] == "critical" or one["rule"].endswith("-below-group")
        for host in hosts_of(one, envelope)
    }
    for entry in envelope["hosts"]:
        newest = newest_of(entry)
        if newest is None or entry["host"] in bad:
            continue
        key = (newest["engine_name"], newest["status"], len(newest["ranks"]))
        groups.setdefault(key, []).append((entry["host"], _figures(newest)))
    if not groups:
        return [], ""
    members = max(groups.values(), key=len)
    pools = [values["kv"] for _, values in members if values["kv"] is not None]
    middle = median(pools) if pools else None
    near = [(host, values) for host, values in members if _near(values["kv"], middle)]
    if len(near) < 2:
        return [], ""
    return [host for host, _ in near], _words([values for _, values in near])


def _near(value: int | None, middle: float | None) -> bool:
    if value is None or middle is None:
        return value is None and middle is None
    return abs(value - middle) <= max(NEAR_SHARE * middle, NEAR_BYTES)


def newest_of(entry: HostEntry) -> dict[str, Any] | None:
    """The newest start of the host's first log that has one."""
    for one in entry.get("startup") or []:
        for inv in one["invocations"]:
            if inv["age"] == 0:
                found: dict[str, Any] = inv
                return found
    return None


def _figures(inv: Mapping[str, Any]) -> dict[str, Any]:
    """The worst rank's pool and what stands beside it."""
    ranks = list(inv["ranks"].values())
    pools = [r["kv_cache_bytes"] for r in ranks if r.get("kv_cache_bytes") is not None]
    tokens = [r["max_tokens"] for r in ranks if r.get("max_tokens") is not None]
    rest = [r["unaccounted_bytes"] for r in ranks if r.get("unaccounted_bytes") is not None]
    free = [r["available_final_bytes"] for r in ranks if r.get("available_final_bytes") is not None]
    whole = (inv.get("engine") or {}).get("max_tokens")
    return {
        "kv": min(pools) if pools else None,
        "tokens": min(tokens) if tokens else whole,
        "rest": max(rest) if rest else None,
        "free": min(free) if free else None,
        "ranks": len(ranks),
        "status": inv["status"],
    }


def _words(rows: Sequence[Mapping[str, Any]]) -> str:
    parts = [f"{rows[0]['status']} · {rows[0]['ranks']} rank" + "s" * (rows[0]["ranks"] != 1)]
    pools = [row["kv"] for row in rows if row["kv"] is not None]
    if pools:
        middle = median(pools)
        spread = median(abs(pool - middle) for pool in pools)
        parts.append(f"KV {middle / GIB:.2f} ±{spread / GIB:.2f} GiB a rank")
    for name, word in (("tokens", "tokens"),):
        values = [row[name] for row in rows if row[name] is not None]
        if values:
            parts.append(f"{thousands(round(median(values)))} {word}")
    for name, word in (("rest", "unaccounted"), ("free", "free when ready")):
        values = [row[name] for row in rows if row[name] is not None]
        if values:
            parts.append(f"{word} {median(values) / GIB:.2f}")
    return " · ".join(parts)


def _summary(entry: HostEntry) -> str:
    newest = newest_of(entry)
    if newest is None:
        return "no start-up was found"
    return _words([_figures(newest)])


def fold_hosts(hosts: Sequence[str]) -> str:
    """One node set; logs (``file:NAME``) fold by their names where these end alike."""
    if len(hosts) > 1 and all(host.startswith("file:") for host in hosts):
        names = [host[5:].rpartition(".") for host in hosts]
        if len({end for _, _, end in names}) == 1 and all(head for head, _, _ in names):
            folded = aggregate.fold_hosts(head for head, _, _ in names)
            return ",".join(f"{part}.{names[0][2]}" for part in split(folded))
    return aggregate.fold_hosts(host.removeprefix("file:") for host in hosts)
