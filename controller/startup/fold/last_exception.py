"""Which exception ended a start: the last of the process that failed first, with its causes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

MAX_EXCEPTIONS = 200
# What a process raises because another one failed. Told only where nothing else is.
_WRAPPERS = re.compile(
    r"(?:SystemExit|KeyboardInterrupt|BrokenPipeError|EOFError|ConnectionResetError"
    r"|ConnectionRefusedError|CancelledError|EngineDeadError|ProcessExitedException"
    r"|ChildFailedError|GeneratorExit|QueueEmpty|Empty)$"
)
_WRAPPING = re.compile(
    r"Engine core initialization failed|WorkerProc initialization failed|Executor failed"
    r"|EngineCore encountered an issue|Failed core proc|initialization failed due to"
    r"|died unexpectedly|subprocess exited|scheduler died|[Cc]ancelled"
    r"|Engine process failed to start|See stack trace|See root cause|raised error:|Shard 0 failed"
)


def exception_of(found: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The exception that ended a start. ``causes`` come first to last.

    *found* are the exceptions in log order, each with ``process`` (who raised it), ``first``
    (it began a traceback of its own) and its text.
    """
    own = [one for one in found if not _wraps(one)]
    if not own:
        own = list(found)
    if not own:
        return None
    process = own[0]["process"]
    mine = [one for one in own if one["process"] == process]
    last = mine[-1]
    chain = [one for one in mine if one["chain"] == last["chain"] and one is not last]
    causes: list[dict[str, Any]] = []
    for one in chain:
        row = {"type": one["type"], "message": one["message"]}
        same = (last["type"], last["message"]) == (one["type"], one["message"])
        if row not in causes and not same:
            causes.append(row)
    return {
        "type": last["type"],
        "message": last["message"],
        "rank": last["rank"],
        "process": process,
        "time": last["time"],
        "causes": causes,
    }


def _wraps(one: dict[str, Any]) -> bool:
    name = str(one["type"]).rpartition(".")[2]
    return bool(_WRAPPERS.match(name) or _WRAPPING.search(str(one["message"])))
