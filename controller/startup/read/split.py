"""A log that several engines share, engine by engine (pure)."""

from __future__ import annotations

from dataclasses import replace

from fleetmem.controller.startup.starts import Invocation, Startup

_ONE = {"ollama": "llamacpp"}  # Ollama runs llama.cpp


def by_engine(startup: Startup) -> list[Startup]:
    """*startup* alone, or one for each of its engines, the one that started last first.

    A start that names no engine belongs to the one before it.
    """
    names = [_ONE.get(one.engine_name or "", one.engine_name) for one in startup.invocations]
    known = list(dict.fromkeys(name for name in reversed(names) if name is not None))
    if len(known) < 2:
        return [startup]
    parts: dict[str, list[Invocation]] = {name: [] for name in known}
    owner = next(name for name in names if name is not None)
    for name, one in zip(names, startup.invocations, strict=True):
        owner = name or owner
        parts[owner].append(one)
    return [
        replace(
            startup,
            engine=next(one.engine_name for one in reversed(part) if one.engine_name),
            invocations=tuple(
                replace(one, index=index, age=len(part) - 1 - index)
                for index, one in enumerate(part)
            ),
            unmatched_count=startup.unmatched_count if name == known[0] else 0,
            unmatched=startup.unmatched if name == known[0] else (),
        )
        for name, part in parts.items()
    ]
