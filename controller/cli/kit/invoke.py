"""From the command line to :class:`fleetmem.Fleet` and back: loading, running, signals."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any

from fleetmem.controller.answer.envelope import Envelope
from fleetmem.controller.answer.exit_codes import exit_code
from fleetmem.controller.answer.step import Reach, complete_next
from fleetmem.controller.cli.kit.flags import Common
from fleetmem.controller.errors import (
    EXIT_SIGINT,
    EXIT_SIGTERM,
    Interrupted,
    Terminated,
    UsageError,
)

if TYPE_CHECKING:
    from fleetmem.controller.cli.kit.live import Live

_CODES = {signal.SIGINT: EXIT_SIGINT, signal.SIGTERM: EXIT_SIGTERM}


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
        raise UsageError("--ask-sudo-password: no terminal to ask at, and nothing on stdin")
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
    plan_only: Callable[[], bool] = lambda: False,
    reach: Reach | None = None,
) -> tuple[Envelope, int]:
    """The envelope that *ask* gives, its commands to copy whole, events shown meanwhile; and the
    process status, which stands in it too. ``plan_only`` says afterwards whether a plan was all
    that was wanted."""

    async def work() -> Envelope:
        async with live.ticking():
            return await ask()

    envelope, signal_code = run(work, live.note)
    complete_next(envelope, reach or common.reach)
    status = exit_code(
        envelope,
        plan_only=plan_only(),
        fail_on=None if common.fail_on == "never" else common.fail_on,
        interrupted=signal_code,
    )
    envelope["run"]["exit_code"] = status
    return envelope, status


def run(
    work: Callable[[], Awaitable[Envelope]], note: Callable[[str], None]
) -> tuple[Envelope, int | None]:
    """Run *work* to its end; its envelope and the exit code of a signal that came meanwhile.

    The first SIGINT or SIGTERM cancels *work* once, which may then still answer with what
    it has; a second one cancels again. Interrupted or Terminated where it answers nothing.
    """
    caught: list[int] = []

    async def guarded() -> Envelope | None:
        loop = asyncio.get_running_loop()
        task: asyncio.Future[Envelope] = asyncio.ensure_future(work())

        def stop(number: signal.Signals) -> None:
            if not caught:
                note("interrupted: ending the run, what is finished is kept")
            caught.append(_CODES[number])
            task.cancel()

        for number in _CODES:
            loop.add_signal_handler(number, stop, number)
        try:
            return await task
        except asyncio.CancelledError:
            if not caught:
                raise
            return None
        finally:
            for number in _CODES:
                loop.remove_signal_handler(number)

    envelope = asyncio.run(guarded())
    code = caught[0] if caught else None
    if envelope is None:
        if code == EXIT_SIGTERM:
            raise Terminated("terminated")
        raise Interrupted("interrupted")
    return envelope, code
