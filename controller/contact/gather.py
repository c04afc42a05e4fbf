"""From an open session to checked readings, and from those to a :class:`Survey`.

Everything a host says is data: each reading is checked against its shape before anything
looks inside, and one that does not fit is that probe's failure, never the run's.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from fleetmem.agent.model import FAILED, OK, OUTCOMES, PARTIAL
from fleetmem.controller import errors
from fleetmem.controller.contact import door

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from fleetmem.controller.answer.envelope import Reading
    from fleetmem.controller.contact.session import Result, Session

SURVEY = ("host.facts", "host.operations", "gpu.devices", "gpu.processes", "gpu.holders")
PEOPLE = ("processes.identity", "processes.ties")
"""What is asked about those who touch a GPU, in one more round trip."""
UNTRUSTED = errors.UntrustedOutput.code
_SHARE = "survey"


async def ask(
    session: Session, name: str, args: dict[str, Any] | None = None, **options: Any
) -> Reading:
    """One call, checked. SessionLost and its kin pass through."""
    return checked(name, await session.call(name, args, **options), args)


def checked(name: str, result: Result, args: Mapping[str, Any] | None = None) -> Reading:
    """*result* as the envelope keeps it: what no agent of ours sends is ``untrusted_output``.

    A reading that does not fit its shape is not kept. Keys and rows that nobody asked for are
    left out, and the reading is partial.
    """
    outcome, code, reason, reading = result.outcome, result.code, result.reason, result.reading
    if outcome not in OUTCOMES:
        outcome, code, reading = FAILED, UNTRUSTED, None
        reason = "the agent sent an unknown outcome"
    elif reading is not None or outcome == OK:
        notes = door.Notes()
        try:
            reading = door.enter(name, reading, notes)
            strays = None if args is None else door.unasked(name, args, reading)
            left_out = " and ".join(filter(None, (notes.told(), strays)))
        except door.Misfit as found:
            outcome, code, reading = FAILED, UNTRUSTED, None
            reason = f"the agent's reading does not match its schema: {found}"
        else:
            if left_out:
                outcome, code, reason = PARTIAL, UNTRUSTED, f"the agent sent {left_out}; left out"
    return {
        "outcome": outcome,
        "code": code if outcome != OK else None,
        "reason": reason,
        "reading": reading,
        "seconds": round(result.seconds, 4),
    }


async def lock(session: Session, operation: str) -> int:
    """Take the host's lock for *operation*: the new epoch; the error that refused it else."""
    row = checked("lock", await session.lock(operation))
    if row["outcome"] != OK:
        raise probe_error("lock", row)
    return int(row["reading"]["epoch"])


async def readings(session: Session) -> dict[str, Reading]:
    """All that a survey needs: one round trip, and one more for the identities."""
    found = await asyncio.gather(*(ask(session, name, share=_SHARE) for name in SURVEY))
    rows = dict(zip(SURVEY, found, strict=True))
    if _on_numa_nodes(rows):
        rows["numa.nodes"] = await ask(session, "numa.nodes", {"vmalloc": False}, share=_SHARE)
    pids = pids_to_identify(rows)
    if pids:
        found = await asyncio.gather(
            *(ask(session, name, {"pids": pids}, share=_SHARE) for name in PEOPLE)
        )
        rows.update(zip(PEOPLE, found, strict=True))
    else:
        empty = {"processes": [], "gone": [], "denied": 0}
        rows["processes.identity"] = {
            "outcome": "ok",
            "code": None,
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
    """The error a host ends with when *name* gave nothing, by the code of its reason.

    Only codes of trouble on a host count: no host can say that a run was interrupted.
    """
    reason = row["reason"] or "no reading"
    kind = errors.by_code(row.get("code") or "")
    if kind is None or not issubclass(kind, errors.HostFailed | errors.Refused):
        return errors.ProbeFailed(f"{name}: {reason}")
    return kind(reason)


@contextlib.contextmanager
def judging(host: str) -> Iterator[None]:
    """Around a judgement over one host's readings, which have their shape and may still be
    absurd: what it stumbles over is that host's ProbeFailed, and no other's."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        what = f"{type(error).__name__}: {str(error)[:200]}"
        raise errors.ProbeFailed(f"{host}: its readings contradict each other ({what})") from error


def partial_reasons(rows: Mapping[str, Reading]) -> list[str]:
    """Why a host is only partly read: each reading that is not ok, in one line."""
    return [
        f"{name}: {row['outcome']}" + (f" ({row['reason']})" if row["reason"] else "")
        for name, row in rows.items()
        if row["outcome"] != "ok"
    ]
