"""What holds for every run of a fleet, and how a run talks to whoever started it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fleetmem.controller.answer.step import DIRECT, Reach
from fleetmem.controller.errors import EXIT_SIGINT

if TYPE_CHECKING:
    from pathlib import Path

    from fleetmem.controller.answer.envelope import HostEntry

Event = dict[str, Any]
"""``kind`` and what belongs to it: phase, host_done, rung, wait, warning."""

OnEvent = Callable[[Event], None]
Approve = Callable[[Sequence["HostEntry"]], Awaitable[bool]]


def interrupted() -> int:
    """The exit status of a run that somebody interrupted, nothing else being known."""
    return EXIT_SIGINT


@dataclass(frozen=True)
class FleetSettings:
    """Spans and choices of a fleet.

    ``host_timeout_seconds`` bounds connecting to a host and reading it; changing it is
    bounded by the ladder's own spans on top. ``run_lookup`` gives the hosts of an earlier
    run for ``@run:ID:OUTCOME``. ``history_dir`` None means the user's state directory.
    ``reach`` is what the commands in hints must repeat.
    ``run_timeout_seconds`` bounds the whole run, ``memory_bytes`` what the controller itself may
    use in it (None: half of what is available). ``fail_on`` is the severity from which a finding
    makes the exit status 5; ``interrupt_status`` gives that of a run whose task was cancelled.
    """

    fanout: int = 64
    host_timeout_seconds: float = 60.0
    accept_new_host_key: bool = False
    run_lookup: Callable[[str, str], Iterable[str]] | None = None
    sudo_password: str | None = field(default=None, repr=False)
    agent_cache: bool = True
    history_dir: Path | None = None
    reach: Reach = DIRECT
    run_timeout_seconds: float | None = None
    memory_bytes: int | None = None
    fail_on: str | None = None
    interrupt_status: Callable[[], int] = interrupted
