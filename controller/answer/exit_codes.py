"""From an envelope to the process status. Pure; ``docs/exit-codes.md`` explains it to people."""

from __future__ import annotations

from collections.abc import Iterable

from fleetmem.controller import errors
from fleetmem.controller.answer.envelope import Envelope, HostEntry, Verdict

SEVERITIES = ("info", "warn", "critical")

VERDICT_CODES: dict[Verdict, int] = {
    "unknown": errors.EXIT_UNKNOWN,
    "driver_wedged": errors.EXIT_NOT_RECOVERED,
    "unkillable": errors.EXIT_NOT_RECOVERED,
    "kernel_pinned": errors.EXIT_NOT_RECOVERED,
    "respawned": errors.EXIT_NOT_RECOVERED,
    "held_by": errors.EXIT_NOT_RECOVERED,
    "host_pages": errors.EXIT_NOT_RECOVERED,
    "cannot_attribute": errors.EXIT_NOT_RECOVERED,
    "not_permitted": errors.EXIT_REFUSED,
    "protected": errors.EXIT_REFUSED,
    "drain_refused": errors.EXIT_REFUSED,
    "releasing": errors.EXIT_NOT_RECOVERED,
    "planned": errors.EXIT_OK,
    "reclaimed": errors.EXIT_OK,
    "nothing_to_do": errors.EXIT_OK,
}
"""What a host's verdict makes of the run; ``planned`` is 6 only where that was asked for."""


def exit_code(
    envelope: Envelope,
    *,
    plan_only: bool = False,
    fail_on: str | None = None,
    interrupted: int | None = None,
) -> int:
    """The status of a run over its hosts, verdicts and findings.

    *plan_only*: a plan with targets that was not applied counts as 6. *fail_on* is a
    severity; *interrupted* the code of the signal that ended the run.
    """
    codes = {code for entry in envelope["hosts"] for code in _codes(entry, plan_only)}
    if fail_on is not None and any(
        SEVERITIES.index(finding["severity"]) >= SEVERITIES.index(fail_on)
        for finding in envelope["findings"]
    ):
        codes.add(errors.EXIT_NOT_RECOVERED)
    if interrupted is not None:
        codes.add(interrupted)
    return exit_code_over((entry["outcome"] for entry in envelope["hosts"]), codes)


def _codes(entry: HostEntry, plan_only: bool) -> set[int]:
    codes: set[int] = set()
    if entry["error"] is not None:
        code = error_exit_code(entry["error"]["code"])
        if code not in errors.SIGNALLED:  # which signal ended the run is *interrupted*
            codes.add(code)
    if "reclaim" in entry:
        verdict = entry["reclaim"]["verdict"]
        check = entry["reclaim"].get("cache", {}).get("post_check")
        if check is not None and not check["answered"]:
            codes.add(errors.EXIT_NOT_RECOVERED)
        codes.add(VERDICT_CODES[verdict])
        if plan_only and verdict == "planned":
            codes.add(errors.EXIT_PLAN_ONLY)
    return codes


def error_exit_code(code: str) -> int:
    """The exit code of an error by its word; 3 for a word that this version does not know."""
    known = {word: number for word, number, _, _ in errors.rows()}
    return known.get(code, errors.EXIT_SOME_FAILED)


_FIRST_OF = (
    errors.EXIT_SIGINT,
    errors.EXIT_SIGTERM,
    errors.EXIT_SIGHUP,
    errors.EXIT_INTERNAL,
    errors.EXIT_USAGE,
    errors.EXIT_UNKNOWN,
    errors.EXIT_NONE_REACHED,
    errors.EXIT_NOT_RECOVERED,
    errors.EXIT_REFUSED,
    errors.EXIT_SOME_FAILED,
    errors.EXIT_PLAN_ONLY,
)
_FAILED = frozenset({"failed", "unreachable", "timed_out", "not_attempted"})


def exit_code_over(outcomes: Iterable[str], codes: Iterable[int] = ()) -> int:
    """The process status for a run over many hosts.

    *outcomes* are the hosts' outcomes, *codes* whatever else happened: the exit codes of
    errors, verdicts and findings. 4 needs every host unreachable or not attempted and at
    least one unreachable, so a 4 among *codes* counts only where there are no hosts;
    ``partial`` alone is a success.
    """
    seen = list(outcomes)
    found = set(codes)
    if seen and errors.EXIT_NONE_REACHED in found:
        found.discard(errors.EXIT_NONE_REACHED)
    if "unknown" in seen:
        found.add(errors.EXIT_UNKNOWN)
    if "unreachable" in seen and all(word in ("unreachable", "not_attempted") for word in seen):
        found.add(errors.EXIT_NONE_REACHED)
    if not _FAILED.isdisjoint(seen):
        found.add(errors.EXIT_SOME_FAILED)
    return next((code for code in _FIRST_OF if code in found), errors.EXIT_OK)
