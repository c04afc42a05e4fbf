"""What was read of a start beside its sizes, and what changed since the start before (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fleetmem.controller.render.kit.line import WIDTH, Line, left, wrap
from fleetmem.controller.render.startup.table import when
from fleetmem.controller.text.safe import safe

GIB = 2**30
_ALWAYS = (
    ("max_tokens", "tokens"),
    ("max_total_num_tokens", "tokens"),
    ("max_concurrency", "requests of full length at once"),
    ("max_model_len", "context"),
    ("context_len", "context"),
    ("max_running_requests", "requests at most"),
    ("requested_max_model_len", "context asked for"),
    ("requested_max_running_requests", "requests asked for"),
)
_SUMS = (
    ("host_weights_bytes", "parameters offloaded to RAM"),
    ("host_kv_bytes", "host KV pool"),
    ("host_pinned_bytes", "pinned in RAM"),
    ("lmcache_host_bytes", "LMCache in RAM"),
)
_SHOWN = frozenset(name for name, _ in _ALWAYS) | {"layers_offloaded", "layers_total"}


def detail_lines(invocations: Sequence[Mapping[str, Any]], wide: bool) -> list[Line]:
    """One line of the newest start; with *wide* everything of each start."""
    if not wide:
        said = list(_short(invocations[0]))
        return _wrapped("about", " · ".join(said)) if said else []
    out: list[Line] = []
    for inv in invocations:
        out.append(((f"ABOUT  {when(inv)}", "dim"),))
        for label, text in _all(inv):
            out += _wrapped(label, text)
    return out


def _short(inv: Mapping[str, Any]) -> Iterator[str]:
    """What people come for, each said once."""
    engine, seen = inv.get("engine") or {}, set()
    ranks = list((inv.get("ranks") or {}).values())
    for name, word in _ALWAYS:
        value = engine.get(name)
        if isinstance(value, int | float) and (value, word) not in seen:
            seen.add((value, word))
            yield f"{_figure(value)} {word}"
    if isinstance(engine.get("layers_offloaded"), int):
        yield f"{engine['layers_offloaded']} of {engine.get('layers_total', '–')} layers on GPUs"
    asked = next(
        (r["requested_max_total_tokens"] for r in ranks if "requested_max_total_tokens" in r), None
    )
    held = next((r["profiled_max_tokens"] for r in ranks if "profiled_max_tokens" in r), None)
    if held is not None:
        yield f"{_figure(held)} tokens profiled"
    if asked is not None:
        yield f"{_figure(asked)} tokens asked for"
    for name, word in _SUMS:
        sizes = [values[name] for values in ranks if isinstance(values.get(name), int)]
        if sizes:
            yield f"{max(sizes) / GIB:.2f} GiB {word}" + (" a rank" if len(sizes) > 1 else "")


def _all(inv: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    version = " ".join(str(p) for p in (inv.get("engine_name"), inv.get("engine_version")) if p)
    if version:
        yield "engine", version
    said = list(_short(inv))
    if said:
        yield "about", " · ".join(said)
    more = {k: v for k, v in (inv.get("engine") or {}).items() if k not in _SHOWN}
    if more:
        yield "also read", _pairs(more)
    if inv.get("config"):
        yield "settings", _pairs(inv["config"])
    if inv.get("derived"):
        yield "derived", ", ".join(inv["derived"])
    if inv.get("notes"):
        yield "notes", _pairs(inv["notes"])


def changed_lines(invocations: Sequence[Mapping[str, Any]]) -> list[Line]:
    """Settings and versions that differ from the start before, where both are in the log."""
    if len(invocations) < 2:
        return []
    new, old = invocations[0], invocations[1]
    pairs = []
    if new.get("engine_version") and old.get("engine_version"):
        pairs.append(("version", old["engine_version"], new["engine_version"]))
    shown = set(new.get("config") or {}) & set(old.get("config") or {})
    pairs += [(name, old["config"][name], new["config"][name]) for name in sorted(shown)]
    told = [f"{name} {_figure(a)} → {_figure(b)}" for name, a, b in pairs if a != b]
    return _wrapped("changed", " · ".join(told)) if told else []


def _pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {_size(name, value)}" for name, value in sorted(values.items()))


def _size(name: str, value: Any) -> str:
    if name.endswith("_bytes") and isinstance(value, int | float):
        return f"{value / GIB:.2f} GiB"
    return _figure(value)


def _figure(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}".replace(",", " ")
    return "not set" if value is None else str(value)


def _wrapped(label: str, text: str) -> list[Line]:
    pieces = wrap(safe(text, 4000), WIDTH - 15)
    heads = [left(f"  {label}", 15), *[" " * 15] * (len(pieces) - 1)]
    return [((head, "dim"), (piece, "")) for head, piece in zip(heads, pieces, strict=True)]
