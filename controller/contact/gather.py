"""From an open session to checked readings, and from those to a :class:`Survey`.

Everything a host says is data: each reading is checked against its shape before anything
looks inside, and one that does not fit is that probe's failure, never the run's.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from functools import cache
from typing import TYPE_CHECKING, Any

from fleetmem.agent.declare import CALLS
from fleetmem.controller import errors

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pydantic import TypeAdapter

    from fleetmem.controller.answer.envelope import Reading
    from fleetmem.controller.contact.session import Result, Session

SURVEY = ("host.facts", "host.operations", "gpu.devices", "gpu.processes", "gpu.holders")
_OUTCOMES = ("ok", "partial", "unsupported", "denied", "timed_out", "failed")
_SHARE = "survey"
_CODE = re.compile(r"([a-z][a-z0-9_]{2,40}): ")


async def ask(
    session: Session, name: str, args: dict[str, Any] | None = None, **options: Any
) -> Reading:
    """One call, checked. SessionLost and its kin pass through."""
    return checked(name, await session.call(name, args, **options))


def checked(name: str, result: Result) -> Reading:
    """*result* as the envelope keeps it; ``failed`` where it does not have its shape."""
    outcome, reason, reading = result.outcome, result.reason, result.reading
    if outcome not in _OUTCOMES:
        outcome, reason, reading = "failed", "the agent sent an outcome that is none", None
    elif reading is not None or outcome == "ok":
        problem = misfit(name, reading)
        if problem:
            outcome, reading = "failed", None
            reason = f"the agent's reading does not have its shape: {problem}"
    return {
        "outcome": outcome,
        "reason": reason,
        "reading": reading,
        "seconds": round(result.seconds, 4),
    }


def misfit(name: str, reading: Any) -> str | None:
    """Where *reading* differs from the shape of *name*, or None."""
    from pydantic import ValidationError

    try:
        _adapter(name).validate_python(reading, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        return f"{'.'.join(map(str, first['loc'])) or 'top'}: {first['msg']}"
    return None


@cache
def _adapter(name: str) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    from fleetmem.agent import shapes

    return TypeAdapter(getattr(shapes, CALLS[name].shape))


async def readings(session: Session) -> dict[str, Reading]:
    """All that a survey needs: one round trip, and one more for the identities."""
    found = await asyncio.gather(*(ask(session, name, share=_SHARE) for name in SURVEY))
    rows = dict(zip(SURVEY, found, strict=True))
    if _on_numa_nodes(rows):
        rows["numa.nodes"] = await ask(session, "numa.nodes", {"vmalloc": False}, share=_SHARE)
    pids = pids_to_identify(rows)
    if pids:
        rows["processes.identity"] = await ask(
            session, "processes.identity", {"pids": pids}, share=_SHARE
        )
    else:
        empty = {"processes": [], "gone": [], "denied": 0}
        rows["processes.identity"] = {
            "outcome": "ok",
            "reason": None,
            "reading": empty,
            "seconds": 0.0,
        }
    return rows


def _on_numa_nodes(rows: Mapping[str, Reading]) -> bool:
    """Whether a GPU's memory is a NUMA node: NVML then counts the node's file pages as used."""
    devices = rows["gpu.devices"]["reading"]
    return bool(devices) and any(gpu["numa_node"] is not None for gpu in devices["gpus"])


def pids_to_identify(rows: Mapping[str, Reading]) -> list[int]:
    """Holders of driver files, and live pids on NVML's lists."""
    pids: set[int] = set()
    holders, processes = rows["gpu.holders"]["reading"], rows["gpu.processes"]["reading"]
    if holders:
        pids |= {row["pid"] for row in holders["holders"]}
    if processes:
        pids |= {
            p["pid"] for g in processes["gpus"] for p in g["processes"] if p["state"] == "alive"
        }
    return sorted(pids)


def probe_error(name: str, row: Reading) -> errors.FleetError:
    """The error a host ends with when *name* gave nothing; the reason's first word is its code.

    Only codes of trouble on a host count: no host can say that a run was interrupted.
    """
    reason = row["reason"] or f"{name} gave nothing"
    found = _CODE.match(reason)
    code = found[1] if found else ""
    kind = errors.by_code(code)
    if found is None or kind is None or not issubclass(kind, errors.HostFailed | errors.Refused):
        return errors.ProbeFailed(f"{name}: {reason}")
    return kind(reason[found.end() :])


@contextlib.contextmanager
def judging(host: str) -> Iterator[None]:
    """Around a judgement over one host's readings, which have their shape and may still be
    absurd: what it stumbles over is that host's ProbeFailed, and no other's."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        what = f"{type(error).__name__}: {str(error)[:200]}"
        raise errors.ProbeFailed(f"{host}: its readings make no sense together ({what})") from error


def partial_reasons(rows: Mapping[str, Reading]) -> list[str]:
    """Why a host is only partly read: each reading that is not ok, in one line."""
    return [
        f"{name}: {row['outcome']}" + (f" ({row['reason']})" if row["reason"] else "")
        for name, row in rows.items()
        if row["outcome"] != "ok"
    ]
