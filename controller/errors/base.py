"""The root of the error tree, and the exit codes that it and its children have."""

from __future__ import annotations

from typing import Any, Literal, TypedDict

EXIT_OK = 0
EXIT_INTERNAL = 1
EXIT_USAGE = 2
EXIT_SOME_FAILED = 3
EXIT_NONE_REACHED = 4
EXIT_NOT_RECOVERED = 5
EXIT_PLAN_ONLY = 6
EXIT_REFUSED = 7
EXIT_UNKNOWN = 8
EXIT_SIGHUP = 129
EXIT_SIGINT = 130
EXIT_SIGTERM = 143
SIGNALLED = (EXIT_SIGHUP, EXIT_SIGINT, EXIT_SIGTERM)


HostOutcome = Literal[
    "ok", "partial", "failed", "unreachable", "timed_out", "not_attempted", "unknown"
]


class Error(TypedDict):
    """Why something did not work: a stable word, a sentence, what to do about it."""

    code: str
    message: str
    hint: str | None


class FleetError(Exception):
    """Something went wrong that a person can understand.

    ``code`` is a stable word, ``exit_code`` the process status if this error ends the run,
    ``outcome`` how a host ends that meets it. ``message`` is one line, ``hint`` what to do.
    ``run`` is the envelope's ``run`` of the recorded run that it ended, if there is one.
    """

    code = "error"
    exit_code = EXIT_INTERNAL
    outcome: HostOutcome = "failed"
    remedy = ""
    run: Any = None

    at_hop = False
    """Whether *message* names a jump host as the place of it."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint or self.remedy

    def to_json(self) -> Error:
        """The envelope's ``error``: code, message, hint (null where there is none)."""
        return {"code": self.code, "message": self.message, "hint": self.hint or None}
