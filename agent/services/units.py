"""What a systemd answers about units: the host's own, or the manager of one user."""

from __future__ import annotations

from fleetmem.agent.services.systemd import LIVE, ask

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Optional

PROPERTIES = (
    "Id,LoadState,ActiveState,SubState,Result,InvocationID,KillMode,SendSIGKILL,MainPID,"
    "Restart,RestartUSec,InactiveExitTimestampMonotonic,ControlGroup"
)
USER_SECONDS = 2.0
SPANS = {
    **{"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0},
    **{"w": 604800.0, "month": 2629800.0, "y": 31557600.0},
}


class Unit:
    """One unit; fields as in ``OwnerState``. ``state`` is live, ended or ``None``."""

    __slots__ = (
        "control_group",
        "detail",
        "invocation_id",
        "kill_mode",
        "main_pid",
        "restart",
        "restart_seconds",
        "send_sigkill",
        "started_us",
        "state",
    )

    def __init__(self, fields: Dict[str, str]) -> None:
        active = fields.get("ActiveState", "")
        loaded = fields.get("LoadState") == "loaded"
        self.state: Optional[str] = None
        if active in LIVE:
            self.state = "live"
        elif active in ("inactive", "failed"):
            self.state = "ended"  # also where it is not loaded: what runs always is
        result = fields.get("Result", "")
        words = [active, fields.get("SubState", ""), result if result != "success" else ""]
        self.detail = "/".join(word for word in dict.fromkeys(words) if word) or None
        if not loaded:
            self.detail = "%s, %s" % (active or "unknown", fields.get("LoadState") or "not loaded")
        self.invocation_id = fields.get("InvocationID") or None
        self.kill_mode = (fields.get("KillMode") or None) if loaded else None
        sends = fields.get("SendSIGKILL")
        self.send_sigkill = (sends == "yes") if loaded and sends else None
        main = fields.get("MainPID", "")
        self.main_pid = int(main) if main.isdigit() and main != "0" else None
        self.restart = (fields.get("Restart") or None) if loaded else None
        self.restart_seconds = seconds(fields.get("RestartUSec", "")) if loaded else None
        started = fields.get("InactiveExitTimestampMonotonic", "")
        self.started_us = int(started) if started.isdigit() and started != "0" else None
        self.control_group = fields.get("ControlGroup") or None


def seconds(text: str) -> Optional[float]:
    """``1min 30s`` as a number; ``None`` for infinity, or what is not a duration."""
    total = 0.0
    for word in text.split():
        digits = word.rstrip("abcdefghijklmnopqrstuvwxyz")
        unit = word[len(digits) :]
        try:
            total += float(digits) * SPANS[unit]
        except (KeyError, ValueError):
            return None
    return total if text.split() else None


def show(names: List[str], uid: Optional[int] = None) -> Dict[str, Unit]:
    """What systemd, or the manager of user *uid*, says of each unit; empty without an answer."""
    words = ["systemctl", *([] if uid is None else ["--user"]), "show", "-p", PROPERTIES]
    words += ["--", *names]
    if uid is None:
        text = ask(words)
    else:  # a user's manager takes nobody else's word, not even root's
        from time import monotonic

        from fleetmem.agent.services.runtimes import said

        text = said(words, uid, monotonic() + USER_SECONDS)
    return {} if text is None else parse(names, text)


def of_invocation(invocation: str, deadline: float) -> Optional[str]:
    """The unit that an invocation is or was of, by what process 1 wrote to the journal."""
    from fleetmem.agent.services.program import Program, place

    path = place("journalctl")
    if path is None:
        return None
    words = ["journalctl", "-q", "--no-pager", "-r", "-n", "1", "-o", "export"]
    words += ["--output-fields=UNIT", "_PID=1", "INVOCATION_ID=" + invocation]
    try:
        program = Program(path, words, deadline)
    except OSError:
        return None
    try:
        data = b"".join(program.portions())
    finally:
        program.end()
    for line in data.split(b"\n"):
        if line.startswith(b"UNIT="):
            return line[5:].decode("utf-8", "replace")
    return None


def parse(names: List[str], text: str) -> Dict[str, Unit]:
    """Blocks of ``systemctl show``, in the order in which the units were named."""
    blocks = [block for block in text.strip().split("\n\n") if block.strip()]
    if len(blocks) != len(names):
        return {}
    found = {}
    for at, name in enumerate(names):
        rows = (line.partition("=") for line in blocks[at].splitlines())
        found[name] = Unit({key: value for key, _, value in rows})
    return found
