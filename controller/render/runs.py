"""``runs list`` and the screen of a recorded run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fleetmem.controller.answer.envelope import Envelope
from fleetmem.controller.render.audit.audit import audit_lines
from fleetmem.controller.render.follow import follow_lines
from fleetmem.controller.render.hosts import checked_lines
from fleetmem.controller.render.kit.findings import folded_lines
from fleetmem.controller.render.kit.line import WIDTH, Line, left, right, wrap
from fleetmem.controller.render.reclaim.cache import cache_plan_lines, cache_result_lines
from fleetmem.controller.render.reclaim.reclaim import reclaim_lines
from fleetmem.controller.render.snapshot.snapshot import snapshot_lines
from fleetmem.controller.text.safe import safe
from fleetmem.controller.text.sizes import NONE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fleetmem.controller.record.history import RunRow


def run_rows(runs: Sequence[RunRow]) -> list[Line]:
    """One row a run, newest first."""
    if not runs:
        return [(("no runs are recorded yet", "dim"),)]
    head = f"{'RUN':<10} {'STARTED (UTC)':<20} {'COMMAND':<10} {'EXIT':>4} {'HOSTS':>6}  ENDED AS"
    lines: list[Line] = [((head, "dim"),)]
    for run in runs:
        code = NONE if run.exit_code is None else str(run.exit_code)
        ended = _tally(run.verdicts) or _tally(run.outcomes) or "no host reported"
        if run.finished is None:
            ended += " (not finished)"
        lines.append(
            (
                (f"{left(run.id, 10)} {left(run.started[:19].replace('T', ' '), 20)} ", ""),
                (f"{left(safe(run.command), 10)} ", ""),
                (right(code, 4), "" if run.exit_code == 0 else "warn"),
                (f" {right(str(run.targeted), 6)}  {safe(ended, WIDTH - 56)}", ""),
            )
        )
    return lines


def _tally(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {word}" for word, number in sorted(counts.items()))


def runs_data(runs: Sequence[RunRow]) -> list[dict[str, Any]]:
    """The same for programs."""
    return [{name: getattr(run, name) for name in run.__slots__} for run in runs]


def recorded_lines(envelope: Envelope) -> list[Line]:
    """A recorded run as its command would have shown it."""
    run = envelope["run"]
    state = f"exit {run['exit_code']}" if run["finished"] else "not finished"
    title = f"run {run['id']} · {safe(run['command'])} · {run['started']} · {state}"
    lines: list[Line] = [((title, "bold"),)]
    if error := envelope.get("error"):
        lines += [((piece, "bad"),) for piece in wrap(safe(error["message"]), WIDTH)]
    if not envelope["hosts"]:
        return lines
    if any("cache" in entry.get("reclaim", {}) for entry in envelope["hosts"]):
        plan = cache_plan_lines(envelope["hosts"])
        return [*lines, *plan, *([()] if plan else []), *cache_result_lines(envelope["hosts"])]
    if any("follow" in entry for entry in envelope["hosts"]):
        return [*lines, *follow_lines(envelope)]
    if any("snapshot" in entry for entry in envelope["hosts"]):
        return [*lines, *snapshot_lines(envelope)]
    if any("reclaim" in entry for entry in envelope["hosts"]):
        return [*lines, *reclaim_lines(envelope)]
    if any("startup" in entry for entry in envelope["hosts"]):
        return [*lines, *audit_lines(envelope)]
    if run["command"] == "run":
        return [*lines, *folded_lines(envelope, 1)]
    return [*lines, *checked_lines(envelope)]
