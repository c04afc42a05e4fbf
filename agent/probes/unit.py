"""``unit.state``: what systemd says of one unit at this moment."""

from __future__ import annotations

from fleetmem.agent.declare import probe
from fleetmem.agent.kernel import sysroot
from fleetmem.agent.model import FAILED, UNSUPPORTED, Trouble

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fleetmem.agent.shapes import UnitState

PROPERTIES = ("Id", "LoadState", "ActiveState", "SubState", "Result", "NRestarts")


@probe("unit.state")
def unit_state(*, unit: str = "") -> UnitState:
    """State of one unit of the system's manager, by its whole name (``vllm.service``).

    ``load`` is ``not-found`` where systemd has no such unit; ``active`` is ``activating`` with
    ``sub`` ``auto-restart`` where a unit that ended will be started again. ``restarts`` counts
    those since the unit was last started by hand.
    """
    from fleetmem.agent.services.systemd import ask

    if not sysroot.exists("/run/systemd/system"):
        raise Trouble(UNSUPPORTED, "this host is not run by systemd", code="no_systemd")
    text = ask(["systemctl", "show", "-p", ",".join(PROPERTIES), "--", unit])
    fields = {}
    for line in (text or "").splitlines():
        name, _, value = line.partition("=")
        fields[name] = value
    if not fields.get("LoadState"):
        raise Trouble(FAILED, "systemctl does not answer about %r" % unit)
    restarts = fields.get("NRestarts", "")
    return {
        "name": fields.get("Id") or unit,
        "load": fields["LoadState"],
        "active": fields.get("ActiveState", ""),
        "sub": fields.get("SubState", ""),
        "result": fields.get("Result") or None,
        "restarts": int(restarts) if restarts.isdigit() else None,
    }
