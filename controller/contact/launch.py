"""How the agent is started on a host, and what it means where it does not start."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fleetmem.controller import errors
from fleetmem.controller.text.safe import visible

if TYPE_CHECKING:
    from fleetmem.controller.contact.agent_parts import Payload

_PYTHONS = (
    "python3 /usr/bin/python3 /usr/local/bin/python3 /usr/libexec/platform-python "
    "python3.13 python3.12 python3.11 python3.10 python3.9 python3.8"
)


@dataclass(frozen=True)
class LaunchWay:
    """How the agent is started: interpreter (None = look for one), sudo, its password, cache."""

    python: str | None = None
    sudo: bool = False
    sudo_password: str | None = field(default=None, repr=False)
    cache: bool = True


# --- the command line ----------------------------------------------------------------------


def command_line(payload: Payload, token: str, way: LaunchWay) -> str:
    """What the host's login shell is asked to run, whichever shell that is.

    One single-quoted word without quotes, newlines or ``!`` inside, so sh, csh and fish
    read it alike. /bin/sh looks for an interpreter; where there is none it says so itself.
    """
    candidates = shlex.quote(way.python).replace("'", '"') if way.python else _PYTHONS
    script = (
        f"for p in {candidates}; do command -v $p >/dev/null 2>&1 && "
        f'exec $p -I -S -c "{payload.wrap}" "$@"; done; '
        'printf "%s%s python_missing %s\\n" "${2#*:}" "${2%:*}" "' + _tried(way) + '"; exit 69'
    )
    flags = ("1" if way.cache else "0") + (" stay" if way.python else " look")
    inner = f"/bin/sh -c '{script}' sh {payload.bootstrap} {token} {payload.labels} {flags}"
    if not way.sudo:
        return f"exec {inner}"
    if way.sudo_password is None:
        return f"exec sudo -n -- {inner}"
    return f"exec sudo -k -S -p {sudo_prompt(token)} -- {inner}"


def _tried(way: LaunchWay) -> str:
    return (way.python or _PYTHONS).replace(" ", ",").replace('"', "").replace("'", "")


def sudo_prompt(token: str) -> str:
    """The prompt that sudo is told to print, unlike anything else on the channel."""
    return "fleetmem-sudo-" + token.replace(":", "-")


# --- what went wrong -----------------------------------------------------------------------


def start_error(word: str, rest: str) -> errors.FleetError:
    rest = one_line(rest)
    if word == "python_missing":
        return errors.PythonMissing(f"no Python found; tried {rest.replace(',', ', ')}")
    if word == "python_too_old":
        version, _, path = rest.partition(" ")
        return errors.PythonTooOld(f"{path or 'python3'} is {version}; the agent needs 3.8")
    if word == "python_incomplete":
        text, _, path = rest.rpartition(" ")
        return errors.PythonIncomplete(f"{path or 'Python'} on the host is incomplete: {text}")
    return errors.ProtocolMismatch(f"the host answered {word[:40]!r} where the agent should start")


def ended_before_start(status: int | None, stderr: bytes, stdout: bytes) -> errors.FleetError:
    """Why there is no agent, from what the shell, sudo or Python said last."""
    text = stderr.decode("utf-8", "replace").strip()
    last = one_line(text.splitlines()[-1]) if text else ""
    low = text.lower()
    if status is None and not text:
        return errors.SessionLost("the session ended before the agent started")
    if "sudo:" in low or "fleetmem-sudo-" in low:
        if "must have a tty" in low:
            return errors.SudoTtyRequired(f"sudo on the host: {last}")
        if "incorrect password" in low or "sorry, try again" in low:
            return errors.SudoPasswordWrong("sudo on the host rejected the password")
        if "password is required" in low or "no password was provided" in low:
            return errors.SudoPasswordRequired("sudo on the host asks for a password")
        return errors.SudoDenied(f"sudo on the host: {last}")
    if "No module named" in text or "ImportError" in text:
        return errors.PythonIncomplete(f"the host's Python is incomplete: {last}")
    if "may not run sudo" in low or "not in the sudoers" in low:
        return errors.SudoDenied(f"sudo on the host: {last}")
    said = last or one_line(stdout.decode("utf-8", "replace").strip()[-200:])
    if status == 127 and "sudo" in low:
        return errors.SudoDenied(f"sudo was not found on the host: {said}")
    return errors.AgentFailed(
        f"the agent did not start (status {status})" + (f": {said}" if said else "")
    )


def lost(status: int | None, signal: str | None, stderr: bytes) -> errors.FleetError:
    """Why a running agent's channel ended. Neither status nor signal is a lost session."""
    text = stderr.decode("utf-8", "replace").strip()
    last = one_line(text.splitlines()[-1]) if text else ""
    if status is None and signal is None:
        return errors.SessionLost("the connection ended without an exit status")
    ending = f"signal {signal}" if signal else f"status {status}"
    return errors.AgentFailed(f"the agent ended ({ending})" + (f": {last}" if last else ""))


def one_line(text: str) -> str:
    """What a host says about itself, as one line of at most 400 characters."""
    line = visible(" ".join(text[:4000].split()))
    return line if len(line) <= 400 else line[:399] + "…"
