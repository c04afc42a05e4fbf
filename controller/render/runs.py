"""``runs list`` and the screen of a recorded run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fleetmem.controller.answer.envelope import Envelope
from fleetmem.controller.render.audit.audit import audit_lines
from fleetmem.controller.render.follow import follow_lines
from fleetmem.controller.render.hosts import checked_lines
from fleetmem.controller.render.kit.findings import folded_lines
from fleetmem.controller.render.kit.line import WIDTH, Line, block
from fleetmem.controller.render.kit.table import Column, Row, table_lines
from fleetmem.controller.render.reclaim.cache import cache_plan_lines, cache_result_lines
from fleetmem.controller.render.reclaim.reclaim import reclaim_lines
from fleetmem.controller.render.snapshot.snapshot import snapshot_lines
from fleetmem.controller.text.safe import safe
from fleetmem.controller.text.sizes import NONE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fleetmem.controller.record.history import RunRow


def run_rows(runs: Sequence[RunRow], width: int = WIDTH) -> list[Line]:
    """One row a run, newest first."""
    if not runs:
        return [(("no runs are recorded yet", "dim"),)]
    columns = [
        Column("RUN"),
        Column("STARTED (UTC)"),
        Column("COMMAND"),
        Column("EXIT", right=True),
        Column("HOSTS", right=True),
        Column("ENDED AS", least=24, place="below"),
    ]
    return table_lines(columns, list(map(_row, runs)), width)


def _row(run: RunRow) -> Row:
    code = NONE if run.exit_code is None else str(run.exit_code)
    ended = _tally(run.verdicts) or _tally(run.outcomes) or "no host reported"
    if run.finished is None:
        ended += " (not finished)"
    return Row(
        [
            safe(run.id),
            safe(run.started[:19].replace("T", " ")),
            safe(run.command),
            ((code, "" if run.exit_code == 0 else "warn"),),
            str(run.targeted),
            safe(ended),
        ]
    )


def _tally(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {word}" for word, number in sorted(counts.items()))


def runs_data(runs: Sequence[RunRow]) -> list[dict[str, Any]]:
    """The same for programs."""
    return [{name: getattr(run, name) for name in run.__slots__} for run in runs]


def recorded_lines(envelope: Envelope, width: int = WIDTH) -> list[Line]:
    """A recorded run as its command would have shown it."""
    run = envelope["run"]
    state = f"exit {run['exit_code']}" if run["finished"] else "not finished"
    title = f"run {run['id']} · {safe(run['command'])} · {run['started']} · {state}"
    lines = block(title, width, "bold")
    if error := envelope.get("error"):
        lines += block(safe(error["message"]), width, "bad")
    if not envelope["hosts"]:
        return lines
    if any("cache" in entry.get("reclaim", {}) for entry in envelope["hosts"]):
        plan = cache_plan_lines(envelope["hosts"], width)
        result = cache_result_lines(envelope["hosts"], width)
        return [*lines, *plan, *([()] if plan else []), *result]
    if any("follow" in entry for entry in envelope["hosts"]):
        return [*lines, *follow_lines(envelope, width=width)]
    if any("snapshot" in entry for entry in envelope["hosts"]):
        return [*lines, *snapshot_lines(envelope, width=width)]
    if any("reclaim" in entry for entry in envelope["hosts"]):
        return [*lines, *reclaim_lines(envelope, width=width)]
    if any("startup" in entry for entry in envelope["hosts"]):
        return [*lines, *audit_lines(envelope, width=width)]
    if run["command"] == "run":
        return [*lines, *folded_lines(envelope, 1, width=width)]
    return [*lines, *checked_lines(envelope, width)]
