"""The run that this process recorded: its status is the process's, whatever happens at the end."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fleetmem.controller.answer.envelope import Run

_last: list[Run] = []


def remember(run: Run) -> None:
    """*run* was recorded with its status; its answer is yet to be written."""
    _last[:] = [run]


def ended(status: int) -> None:
    """The process ends with *status*. Where that is not the run's, since its answer could not be
    written or somebody interrupted that, the record says so too."""
    run = _last.pop() if _last else None
    if run is None or run["exit_code"] == status:
        return
    from fleetmem.controller.errors import HistoryUnavailable
    from fleetmem.controller.record.history import open_history

    try:
        history = open_history()
        history.correct_status(run["id"], status)
        history.close()
    except HistoryUnavailable:  # that was said when the run began
        pass
