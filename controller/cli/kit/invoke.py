"""From the command line to :class:`fleetmem.Fleet` and back: loading, running, signals."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any

from fleetmem.controller.answer.envelope import Envelope
from fleetmem.controller.answer.step import Reach, complete_next
from fleetmem.controller.cli.kit import last_run
from fleetmem.controller.cli.kit.flags import Common
from fleetmem.controller.errors import (
    EXIT_SIGHUP,
    EXIT_SIGINT,
    EXIT_SIGTERM,
    FleetError,
    HungUp,
    Interrupted,
    Terminated,
    UsageError,
)

if TYPE_CHECKING:
    from fleetmem.controller.cli.kit.live import Live

_STATUS = {
    signal.SIGINT: EXIT_SIGINT,
    signal.SIGTERM: EXIT_SIGTERM,
    signal.SIGHUP: EXIT_SIGHUP,
}
_ERRORS: dict[int, type[FleetError]] = {
    EXIT_SIGINT: Interrupted,
    EXIT_SIGTERM: Terminated,
    EXIT_SIGHUP: HungUp,
}
_caught: list[int] = []
"""The exit statuses of the signals that have come, the first one first: a process has one set of
handlers, and ends by one signal."""


def interrupt_status() -> int:
    """The exit status that the first signal asks for."""
    return _caught[0] if _caught else EXIT_SIGINT


def load_fleet(common: Common) -> Any:
    """The fleet that the common options name; UsageError where they name none."""
    from fleetmem import Fleet
    from fleetmem.controller.fleet import FleetSettings

    return Fleet.load(
        inventory=common.inventory,
        hosts=common.hosts,
        exclude=common.exclude,
        settings=FleetSettings(
            fanout=common.fanout,
            host_timeout_seconds=common.timeout_seconds,
            accept_new_host_key=common.accept_new_host_key,
            sudo_password=ask_password() if common.ask_sudo_password else None,
            run_lookup=run_lookup,
            reach=common.reach,
            fail_on=None if common.fail_on == "never" else common.fail_on,
            interrupt_status=interrupt_status,
        ),
    )


def ask_password() -> str:
    """The sudo password: typed at the terminal, else the first line of stdin."""
    import getpass
    import sys

    if sys.stdin.isatty():
        return getpass.getpass("sudo password: ", sys.stderr)
    line = sys.stdin.readline()
    if not line:
        raise UsageError("--ask-sudo-password: no terminal to ask at and nothing on stdin")
    return line.rstrip("\n")


def run_lookup(run: str, outcome: str) -> Iterable[str]:
    """The hosts of ``@run:ID:OUTCOME``, from the history."""
    from fleetmem.controller.record.history import open_history

    history = open_history()
    try:
        return history.hosts_by(run, outcome)
    finally:
        history.close()


def answered(
    ask: Callable[[], Awaitable[Envelope]],
    live: Live,
    common: Common,
    reach: Reach | None = None,
) -> tuple[Envelope, int]:
    """The envelope that *ask* gives, its commands to copy whole, events shown meanwhile; and the
    process status, which the run has worked out."""

    async def work() -> Envelope:
        async with live.ticking():
            return await ask()

    envelope = run(work, live.note)
    last_run.remember(envelope["run"])
    complete_next(envelope, reach or common.reach)
    status = envelope["run"]["exit_code"]
    assert status is not None, "a run that ended has a status"
    return envelope, status


def run(work: Callable[[], Awaitable[Envelope]], note: Callable[[str], None]) -> Envelope:
    """Run *work* to its end; its envelope.

    SIGINT, SIGTERM and SIGHUP cancel *work*, which then answers with what it has. The error of
    the first signal where it answers nothing. A SIGHUP that the caller has ignored (nohup) stays
    ignored.
    """
    _caught.clear()
    numbers = [
        number
        for number in _STATUS
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN
    ]

    async def guarded() -> Envelope | None:
        loop = asyncio.get_running_loop()
        task: asyncio.Future[Envelope] = asyncio.ensure_future(work())

        def stop(number: signal.Signals) -> None:
            task.cancel()
            _caught.append(_STATUS[number])
            if len(_caught) == 1:
                note("interrupted: ending the run, finished results are kept")

        for number in numbers:
            loop.add_signal_handler(number, stop, number)
        try:
            return await task
        except asyncio.CancelledError:
            if not _caught:
                raise
            return None
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)

    envelope = asyncio.run(guarded())
    if envelope is None:
        kind = _ERRORS[interrupt_status()]
        raise kind(kind.code.replace("_", " "))
    return envelope
