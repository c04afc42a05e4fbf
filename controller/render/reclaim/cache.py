"""``reclaim --cache``: the plan, and what became of it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fleetmem.controller.answer.envelope import HostEntry
from fleetmem.controller.answer.fold import fold_hosts, fold_numbers, template
from fleetmem.controller.memory.table import directory
from fleetmem.controller.reclaim.cache.plan import WOULD_BE
from fleetmem.controller.render.kit.line import WIDTH, Line, block, joined, left, wrap
from fleetmem.controller.render.kit.signs import OUTCOMES, verdict_sign
from fleetmem.controller.render.kit.table import Column, Part, Row, table_lines
from fleetmem.controller.render.reclaim.verdicts import reclaim_steps
from fleetmem.controller.text.safe import safe
from fleetmem.controller.text.sizes import (
    GIB,
    NONE,
    count,
    decimals,
    gib,
    gib_column,
    seconds,
    thousands,
)

_MODES = {
    "auto": "migrate where it fits, else drop",
    "migrate": "migrate to a CPU node",
    "drop": "drop",
}
_MAX = 12
_COLUMNS = (
    Column("FILE PAGES", least=24, path=True),
    Column("FILES", right=True),
    Column("GiB", right=True),
    Column("ON", least=12, place="below"),
)
_ORDER = ("reclaimed", "planned", "nothing_to_do")


def cache_plan_lines(entries: Sequence[HostEntry], width: int = WIDTH) -> list[Line]:
    """Files by directory that would leave memory, then what is spared and why."""
    shown = [entry for entry in entries if "reclaim" in entry and "cache" in entry["reclaim"]]
    sections = [entry["reclaim"]["cache"] for entry in shown]
    if not any(section["files"] or section["spared"] for section in sections):
        return []
    mode = _MODES[sections[0]["mode"]]
    who = safe(shown[0]["host"]) if len(shown) == 1 else count(len(shown), "host")
    plan = shown[0]["reclaim"]["plan"]
    name = f"PLAN {safe(plan['id'], 16)}  " if plan and len(shown) == 1 else "PLAN  "
    done = any(entry["reclaim"]["rungs"] for entry in shown)
    parts = [f"page cache: {mode}", "GiB", *([] if done else ["nothing has been changed"])]
    lines: list[Line] = [((piece, "bold"),) for piece in joined(f"{name}{who}", parts, width)]
    files = _rows((entry["host"], one, "") for entry, section in zip(shown, sections, strict=True)
                  for one in section["files"])  # fmt: skip
    spared = _rows((entry["host"], one, one["why"])
                   for entry, section in zip(shown, sections, strict=True)
                   for one in section["spared"])  # fmt: skip
    places = decimals(row["bytes"] for row in (*files[:_MAX], *spared[:_MAX]))
    rows: list[Row | Part] = [_row(row, "", places) for row in files[:_MAX]]
    rows += [Part(_more(files))] if len(files) > _MAX else []
    rows += [Part("SPARED")] if spared else []
    rows += [_row(row, "dim", places) for row in spared[:_MAX]]
    lines += table_lines(_COLUMNS, rows, width)
    if len(spared) > _MAX:
        lines.append(((_more(spared), "dim"),))
    problems = list(dict.fromkeys(text for section in sections for text in section["problems"]))
    for problem in problems[:_MAX]:
        lines += block(safe(problem), width, "warn", first="! ")
    return lines


def _rows(files: Iterable[tuple[str, Mapping[str, Any], str]]) -> list[dict[str, Any]]:
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for host, one, why in files:
        key = (directory(one["path"]), template(why) if "bytes" in why else why)
        empty = {"name": key[0], "why": why, "files": 0, "bytes": 0, "nodes": set(), "hosts": {}}
        row = found.setdefault(key, empty)
        row["files"] += 1
        row["bytes"] += one.get("before_bytes", one.get("resident_bytes")) or 0
        row["nodes"].update(int(node) for node in one["by_numa_node"] or {})
        row["hosts"][host] = None
    return sorted(found.values(), key=lambda row: -row["bytes"])


def _row(row: Mapping[str, Any], style: str, places: int) -> Row:
    nodes = f"NUMA {fold_numbers(row['nodes'])}" if row["nodes"] else NONE
    if len(row["hosts"]) > 1:
        nodes += f" · {safe(fold_hosts(row['hosts']))}"
    cells = [
        safe(row["name"]),
        thousands(row["files"]),
        gib_column(row["bytes"], places),
        nodes,
    ]
    notes = ((safe(row["why"]), style),) if row["why"] else ()
    return Row(cells, style=style, notes=notes)


def _more(rows: Sequence[object]) -> str:
    more = count(len(rows) - _MAX, "more directory", "more directories")
    return f"… {more}; -o json lists all"


def _gib(size: int) -> str:
    return f"{size / GIB:.3f}" if 0 < size < GIB // 20 else gib(size)


def cache_result_lines(entries: Sequence[HostEntry], width: int = WIDTH) -> list[Line]:
    """One block a host or a group of hosts that ended alike, worst first; ``next`` last."""
    groups: dict[tuple[str, str], list[HostEntry]] = {}
    for entry in entries:
        word, text = _said(entry)
        groups.setdefault((word, template(text)), []).append(entry)
    lines: list[Line] = []
    for (word, _), group in sorted(
        groups.items(), key=lambda item: _ORDER.index(item[0][0]) + 1 if item[0][0] in _ORDER else 0
    ):
        glyph, style = OUTCOMES[word] if word in OUTCOMES else verdict_sign(word)
        indent = max(14, len(word) + 4)
        hosts = safe(fold_hosts(entry["host"] for entry in group))
        texts = list(dict.fromkeys(_said(entry)[1] for entry in group))
        more = f" (and {len(texts) - 1} alike)" if len(texts) > 1 else ""
        first, *rest = wrap(f"{hosts}: {safe(texts[0])}{more}", width - indent)
        lines.append(((f"{glyph} {left(word, indent - 2)}", style), (first, "")))
        lines += [((" " * indent + piece, ""),) for piece in rest]
        if len(group) == 1:
            lines += _nodes(group[0], indent, width)
        lines += _checks(group, indent, width)
    return lines + reclaim_steps(entries, width)


def _said(entry: HostEntry) -> tuple[str, str]:
    if "reclaim" not in entry or (entry["error"] and entry["reclaim"]["verdict"] != "unknown"):
        error = entry["error"]
        text = f"{error['code']}: {error['message']}" if error else "no answer"
        return entry["outcome"], text
    section = entry["reclaim"]
    cache = section["cache"]
    word = section["verdict"]
    if word == "planned":
        size = sum(one["before_bytes"] for one in cache["files"])
        files = len(cache["files"])
        said = f"{thousands(files)} {'file' if files == 1 else 'files'}"
        return word, f"{said}, {_gib(size)} GiB would be {WOULD_BE[cache['mode']]}"
    if word == "reclaimed":
        took = section["rungs"][-1]["seconds"] if section["rungs"] else None
        parts = []
        if cache["freed_bytes"]:
            parts.append(f"{_gib(cache['freed_bytes'])} GiB of file pages dropped")
        if cache["moved_bytes"]:
            parts.append(f"{_gib(cache['moved_bytes'])} GiB migrated")
        spared = f", {count(len(cache['spared']), 'file')} spared" if cache["spared"] else ""
        return word, f"{' and '.join(parts) or 'nothing was left'} in {seconds(took)}{spared}"
    return word, cache["why"]


def _nodes(entry: HostEntry, indent: int, width: int) -> list[Line]:
    """What became free where, with the per-CPU lists that hold some of it back."""
    lines: list[Line] = []
    for node in entry["reclaim"]["numa_nodes"] if "reclaim" in entry else ():
        before, after = node["before_free_bytes"], node["after_free_bytes"]
        if after is None or not (node["planned_bytes"] or node["freed_bytes"]):
            continue
        text = f"NUMA {node['id']}: free {gib(before)} → {gib(after)} GiB"
        text += f", file pages {gib(node['before_file_bytes'])} → {gib(node['after_file_bytes'])}"
        lists = (node["before_percpu_bytes"], node["after_percpu_bytes"])
        if None not in lists:
            text += f", per-CPU lists {lists[0] / GIB:+.2f}".replace("+", "") + " → "
            text += f"{lists[1] / GIB:.2f}"
        lines += block(text, width, "dim", indent)
    for gpu in entry["reclaim"]["gpus"] if "reclaim" in entry else ():
        if gpu["after_bytes"] is not None:
            text = f"used {gib(gpu['before_bytes'])} → {gib(gpu['after_bytes'])}"
            if gpu.get("after_free_bytes") is not None:
                free = gib(gpu.get("before_free_bytes")), gib(gpu.get("after_free_bytes"))
                text += f", free {free[0]} → {free[1]}"
            text = f"GPU {gpu['index']}: {text} GiB by NVML"
            lines += block(text, width, "dim", indent)
    return lines


def _checks(group: Sequence[HostEntry], indent: int, width: int) -> list[Line]:
    """What an engine that was asked afterwards did, equal answers of several hosts folded."""
    found: dict[tuple[bool, str], list[tuple[str, str]]] = {}
    for entry in group:
        check = entry["reclaim"]["cache"].get("post_check") if "reclaim" in entry else None
        if check is not None:
            text = _check_text(check)
            rows = found.setdefault((check["answered"], template(text)), [])
            rows.append((entry["host"], text))
    lines: list[Line] = []
    for (answered, _), rows in sorted(found.items(), key=lambda item: item[0][0]):
        who = f"{safe(fold_hosts(host for host, _ in rows))}: " if len(group) > 1 else ""
        texts = list(dict.fromkeys(text for _, text in rows))
        more = f" (and {len(texts) - 1} alike)" if len(texts) > 1 else ""
        text = f"post-check {who}{safe(texts[0])}{more}"
        lines += block(text, width, "" if answered else "bad", indent)
    return lines


def _check_text(check: Mapping[str, Any]) -> str:
    name = f"{check['method']} {check['url']}" if check["method"] else check["url"]
    if check["status"] is None:
        text = f"{name}: {check['problem']}"
    else:
        text = f"{name}: {check['status']} in {seconds(check['seconds'])}"
    if check["processes"] is None:
        return text
    disks = check["disks_read_bytes"]
    whole = f"all disks {_gib(disks)} GiB" if disks is not None else "disks unknown"
    if check["read_bytes"] is None:
        return f"{text}; bytes read by its processes are unknown, {whole}"
    who = f"its {count(check['processes'], 'process', 'processes')}"
    size = f"{_gib(check['read_bytes'])} GiB" if check["read_bytes"] else "nothing"
    return f"{text}; {who} read {size} from disk, {whole}"


def describe_cache(entries: Sequence[HostEntry]) -> tuple[str, int]:
    """What would leave memory, in words, and on how many hosts."""
    files = size = hosts = 0
    for entry in entries:
        rows = entry["reclaim"]["cache"]["files"] if "reclaim" in entry else []
        files += len(rows)
        hosts += bool(rows)
        size += sum(one["before_bytes"] for one in rows)
    many = f"{thousands(files)} {'file' if files == 1 else 'files'}"
    return f"{_gib(size)} GiB of file cache ({many})", hosts
