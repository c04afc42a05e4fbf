"""The words both ends of the wire share.

Kept free of imports on purpose: this module is loaded on every host at every contact.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Optional

OK = "ok"
PARTIAL = "partial"
UNSUPPORTED = "unsupported"
DENIED = "denied"
TIMED_OUT = "timed_out"
FAILED = "failed"
OUTCOMES = (OK, PARTIAL, UNSUPPORTED, DENIED, TIMED_OUT, FAILED)


CODES = {
    PARTIAL: "incomplete",
    UNSUPPORTED: "unsupported",
    DENIED: "denied",
    TIMED_OUT: "no_answer",
    FAILED: "failed",
}
"""The code of a reason that needs no word of its own."""


class Trouble(Exception):
    """An expected difficulty on a host: an outcome with a reason, never a traceback.

    A reason is a code, which programs go by, and a text, which is for people only.
    ``raise Trouble(DENIED, "…", code="locked")`` ends a probe without a reading;
    ``raise Trouble(PARTIAL, "…", reading)`` ends it with the reading it has.
    """

    def __init__(
        self,
        outcome: str,
        reason: str,
        reading: Optional[Any] = None,
        code: Optional[str] = None,
    ) -> None:
        super().__init__(reason)
        self.outcome = outcome
        self.code = code or CODES[outcome]
        self.reason = reason
        self.reading = reading


class Probe:
    """A function that measures, with the limits it runs under.

    ``timeout_seconds`` is the default span of one call; ``nvml`` sends the call to the
    one child process that holds the NVML session.
    """

    __slots__ = ("func", "name", "nvml", "timeout_seconds")

    def __init__(
        self, name: str, func: Callable[..., Any], timeout_seconds: float, nvml: bool
    ) -> None:
        self.name = name
        self.func = func
        self.timeout_seconds = timeout_seconds
        self.nvml = nvml


class Action:
    """A function that changes something on a host.

    ``plan`` says what a call would change, without changing it; ``reversible`` and
    ``blast_radius`` are shown to the person who decides.
    """

    __slots__ = ("blast_radius", "func", "name", "plan", "reversible", "timeout_seconds")

    def __init__(
        self,
        name: str,
        func: Callable[..., Any],
        timeout_seconds: float,
        plan: Callable[..., Any],
        reversible: bool,
        blast_radius: str,
    ) -> None:
        self.name = name
        self.func = func
        self.timeout_seconds = timeout_seconds
        self.plan = plan
        self.reversible = reversible
        self.blast_radius = blast_radius
