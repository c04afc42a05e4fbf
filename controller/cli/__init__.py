"""``fleetmem`` at the shell: one file a command, loaded when it is called.

:func:`main` is the only place that turns errors into lines and exit codes. Nothing here
imports rich, asyncssh or pydantic, so that ``--help`` and mistakes are answered at once.
"""

from __future__ import annotations

import gc
import os
import sys
from _signal import SIG_IGN, SIGINT, signal
from collections.abc import Sequence

from fleetmem.controller.cli.kit import last_run, stdout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fleetmem.controller.errors import FleetError
    from fleetmem.controller.errors.base import Error

GARBAGE = 50_000
"""So many new objects before a look for unreachable ones: with 64 hosts those looks were a tenth
of the client's CPU, and found next to nothing."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the process status. Never raises, except with ``--debug``'s help."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if arguments is None:
        gc.set_threshold(GARBAGE)
        stdout.open_standard()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    status = 0
    try:
        status = _run(words)
        sys.stdout.flush()
        if arguments is None:  # all is said: an interrupt must not make it another status
            signal(SIGINT, SIG_IGN)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 0
    except OSError as error:  # the last of what was written, by click for example
        stdout.lose(error)
    except KeyboardInterrupt:  # while the program itself was being loaded
        print("fleetmem: interrupted", file=sys.stderr)
        status = 130
    status = status or int(stdout.lost())
    last_run.ended(status)
    return status


def _run(words: list[str]) -> int:
    import click

    from fleetmem.controller import errors
    from fleetmem.controller.cli.commands import fleetmem

    try:
        status = fleetmem.main(words or ["--help"], prog_name="fleetmem", standalone_mode=False)
        return status if isinstance(status, int) else 0
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        hint = f"see {context.command_path} --help" if context else ""
        return _failed(words, errors.UsageError(error.format_message(), hint))
    except errors.FleetError as error:
        return _failed(words, error)
    except (KeyboardInterrupt, click.Abort):
        return _failed(words, errors.Interrupted("interrupted"))
    except BrokenPipeError:
        raise
    except Exception as error:  # noqa: BLE001 - the last line of defence
        return _failed(words, errors.InternalError(f"{type(error).__name__}: {error}"))


def _failed(words: list[str], error: Exception) -> int:
    """Say what went wrong: one line (a list of mistakes: one each), the hint, the code."""
    from fleetmem.controller.errors import FleetError
    from fleetmem.controller.text.safe import safe

    assert isinstance(error, FleetError)
    if "--debug" in words:
        import traceback

        traceback.print_exc()
    for line in error.message.splitlines() or [error.code]:
        print(f"fleetmem: {safe(line)}", file=sys.stderr)
    if error.hint:
        print(f"hint: {safe(error.hint)}", file=sys.stderr)
    output = option_value(words, "-o", "--output") or os.environ.get("FLEETMEM_OUTPUT", "")
    if output in ("json", "jsonl"):
        said: Error = {"code": error.code, "message": error.message, "hint": error.hint or None}
        _print_envelope(words, error, said, output)
    return error.exit_code


def _print_envelope(words: list[str], failure: FleetError, error: Error, output: str) -> None:
    from fleetmem.controller.answer.envelope import error_envelope, new_run
    from fleetmem.controller.render.kit.data import to_json, to_jsonl

    command = next((word for word in words if not word.startswith("-")), "")
    envelope = error_envelope(failure.run or new_run(command), failure.exit_code, error)
    text = to_json(envelope) if output == "json" else to_jsonl(envelope)
    target = option_value(words, "", "--to")
    if target and target != "-":
        try:
            with open(target, "w", encoding="ascii") as file:
                file.write(text)
                return
        except OSError:  # the error itself may be about that file
            pass
    try:
        stdout.put(text)
    except BrokenPipeError:
        raise
    except OSError as lost:
        stdout.lose(lost)


def option_value(words: Sequence[str], short: str, long: str) -> str | None:
    """The value of an option among *words* that may not be parseable as a whole."""
    for at, word in enumerate(words):
        if word in (short, long) and at + 1 < len(words):
            return words[at + 1]
        if word.startswith(long + "="):
            return word[len(long) + 1 :]
        if short and word.startswith(short) and not word.startswith("--") and word != short:
            return word[len(short) :].removeprefix("=")
    return None
