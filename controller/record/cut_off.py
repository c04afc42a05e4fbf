"""A host of a run that never reported its end, as the trail tells of it. Pure.

The trail is on the disk before anything is done, so what does not stand in it was not sent. A
change that does was begun, and nobody recorded what came of it: the host is ``unknown``, never
"planned".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, cast

from fleetmem.controller.answer.step import next_step

if TYPE_CHECKING:
    from fleetmem.controller.answer.envelope import HostEntry, Rung, Signalled

_RUNGS: dict[str, Literal["term", "kill", "cache"]] = {
    "TERM": "term",
    "KILL": "kill",
    "pagecache.drop": "cache",
}
_DONE = {"signal": "signal_done", "pagecache.drop": "pagecache.drop.done"}
_NAMED = 3
_HINT = (
    "look first with --dry-run; the host's own trail has what it did: "
    "journalctl -t fleetmem, or /run/fleetmem/audit.jsonl"
)


def cut_off(entry: HostEntry, events: Sequence[Mapping[str, Any]]) -> HostEntry:
    """*entry* as it was last recorded, with what *events* of the host say was done since."""
    section = entry.get("reclaim")
    if section is not None and section["verdict"] != "planned":
        return entry  # its end was recorded
    changes = [event for event in events if event["action"] in _DONE]
    if not changes:
        return entry
    answers = [event for event in events if event["action"] in _DONE.values()]
    rungs = [_rung(event, _answer(event, answers)) for event in changes]
    why = "; ".join(str(rung.get("why")) for rung in rungs)
    found = cast("HostEntry", dict(entry))
    found["outcome"] = "unknown"
    found["error"] = {
        "code": "outcome_unknown",
        "message": f"{why}; the run recorded no end: it still goes on, or its controller ended",
        "hint": _HINT,
    }
    if section is not None:
        operation = f"operation {section['plan']['id']}" if section["plan"] else "the operation"
        found["reclaim"] = {
            **section,
            "verdict": "unknown",
            "gpus": [
                {**row, "verdict": "unknown", "why": why} if row["verdict"] == "planned" else row
                for row in section["gpus"]
            ],
            "rungs": rungs,
            "advice": f"A change was begun and its end was not recorded. The host's own trail says "
            f"under {operation} what it did; look at the host before anything else.",
            "next": [str(next_step("reclaim", entry["host"], dry_run=True))],
        }
    return found


def _answer(event: Mapping[str, Any], answers: list[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The first answer to *event*, taken out of *answers*; ``None`` where none was recorded."""
    for at, answer in enumerate(answers):
        if answer["action"] == _DONE[event["action"]] and answer.get("signal") == event.get(
            "signal"
        ):
            return answers.pop(at)
    return None


def _rung(event: Mapping[str, Any], answer: Mapping[str, Any] | None) -> Rung:
    """What is known of one change."""
    sent: list[Signalled] = []
    if event["action"] == "signal":
        name = str(event["signal"])
        whom = _whom(event["targets"])
        text = f"SIG{name} was about to be sent to {whom}"
        if answer is not None:
            rows = [row for row in answer["results"] if row["result"] == "sent"]
            sent = [
                {"pid": row["pid"], "start_time": row["start_time"], "signal": name} for row in rows
            ]
            keys = {(row["pid"], row["start_time"]) for row in rows}
            hit = [one for one in event["targets"] if (one[0], one[1]) in keys]
            text = f"SIG{name} was sent to {_whom(hit)}" if hit else f"SIG{name} was sent to nobody"
    else:
        name = str(event["action"])
        files = len(event.get("files") or ())
        text = f"pages of {files} files were about to leave memory"
        if answer is not None:
            text = f"pages of {files} files were asked to leave memory ({answer['outcome']})"
    return {
        "rung": _RUNGS[name],
        "outcome": "partial",
        "seconds": None,
        "signalled": sent,
        "freed_bytes": None,
        "why": text,
    }


def _whom(targets: Sequence[Sequence[Any]]) -> str:
    said = [f"{name} {pid}" for pid, _, name in targets[:_NAMED]]
    if len(targets) > _NAMED:
        said.append(f"{len(targets) - _NAMED} more")
    return ", ".join(said)
