"""``signal.send``: signal exact identities, each at most once, after rechecking each.

Order for every target: identity read, pidfd opened, identity read again, the rest of the
plan's facts rechecked, the trail found ready, intent on record, trail written, signal sent
through the pidfd, result on record. The name in the trail is the kernel's, not the plan's.
Without pidfd (Linux before 5.3) the identity is rechecked immediately before kill(2), and the
result says so.
"""

from __future__ import annotations

import os

from fleetmem.agent import ledger
from fleetmem.agent.declare import action
from fleetmem.agent.kernel import dispositions, identity
from fleetmem.agent.model import FAILED, Trouble
from fleetmem.agent.trail import Trail

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Tuple

    from fleetmem.agent import shapes

SIGNALS = dispositions.NUMBERS


def plan(signal: str = "TERM", targets: Tuple[Dict[str, Any], ...] = ()) -> List[str]:
    """What :func:`send` would do, one line a target."""
    return ["SIG%s to %d (started %d)" % (signal, t["pid"], t["start_time"]) for t in targets]


@action(
    "signal.send",
    plan=plan,
    reversible=False,
    blast_radius="the named processes, and what they serve",
)
def send(
    *,
    signal: str = "TERM",
    targets: Tuple[Dict[str, Any], ...] = (),
    operation: str = "",
    epoch: int = 0,
    boot_id: str = "",
    desk: str = "",
    scope: str = "",
    reason: str = "",
) -> shapes.SignalResults:
    """Signal *targets*, each ``{pid, start_time, uid, cgroup, files}``.

    ``files``: true where the plan saw driver files in the process; it must still have some.
    Trouble ``stale_plan`` where the boot or the epoch is another one than the plan's.
    """
    if signal not in SIGNALS:
        raise Trouble(FAILED, "no such signal here: %s" % signal)
    if boot_id != read_boot_id():
        raise Trouble(FAILED, "the host was rebooted since the plan was made", code="stale_plan")
    if epoch != ledger.read_epoch():
        raise Trouble(FAILED, "another run took the host's lock in between", code="stale_plan")
    spared = own_line()
    event = {
        "action": "signal",
        "operation": operation,
        "epoch": epoch,
        "signal": signal,
        "desk": desk,
        "scope": scope,
        "reason": reason,
    }
    return {"results": [_one(signal, target, spared, event) for target in targets]}


def read_boot_id() -> str:
    """The kernel's id of this boot."""
    with open("/proc/sys/kernel/random/boot_id", "rb") as file:
        return file.read().decode().strip()


def own_line() -> List[int]:
    """This process and all its ancestors."""
    line, pid = [], os.getpid()
    while pid > 0:
        line.append(pid)
        fields = identity.stat(pid)
        pid = int(fields[1]) if fields else 0
    return line


def _one(
    signal: str, target: Dict[str, Any], spared: List[int], event: Dict[str, Any]
) -> shapes.SignalResult:
    pid, start = int(target["pid"]), int(target["start_time"])
    comm: Optional[str] = None
    deaf: Optional[str] = None

    def row(
        result: Any, code: Optional[str] = None, why: Optional[str] = None
    ) -> shapes.SignalResult:
        return {
            "pid": pid,
            "start_time": start,
            "signal": signal,
            "result": result,
            "code": code,
            "why": why,
            "comm": comm,
            "deaf": deaf,
        }

    if pid <= 1 or pid in spared:
        return row("refused", "never_signalled", "this process is never signalled")
    if identity.start_time(pid) != start or not identity.alive(pid):
        return row("gone")
    try:
        pidfd: Optional[int] = identity.open_pidfd(pid)
    except ProcessLookupError:
        return row("gone")
    except OSError:
        pidfd = None
    try:
        if identity.start_time(pid) != start:
            return row("gone")
        comm = identity.comm(pid)
        changed = _changed(pid, target)
        if changed:
            return row("refused", *changed)
        event = dict(event, pid=pid, start_time=start, comm=comm or "?")
        try:
            way = Trail()
        except Trouble as trouble:
            return row("failed", trouble.code, trouble.reason)
        try:
            record = ledger.intend(pid, start, signal, event)
        except Trouble as trouble:
            way.close()
            return row("failed", trouble.code, trouble.reason)
        if record is None:
            way.close()
            return row(
                "already", "signalled_before", "SIG%s was sent to this process before" % signal
            )
        try:
            way.write(event)
        except Trouble as trouble:
            ledger.withdraw(record, pid, start, signal)
            return row("failed", trouble.code, trouble.reason)
        finally:
            way.close()
        if signal == "TERM":
            deaf = dispositions.deaf(pid)
        result = _deliver(pid, start, pidfd, SIGNALS[signal])
        ledger.done(record, result[0])
        return row(*result)
    finally:
        if pidfd is not None:
            os.close(pidfd)


def _deliver(
    pid: int, start: int, pidfd: Optional[int], number: int
) -> Tuple[str, Optional[str], Optional[str]]:
    """(result, code, why) of sending the signal."""
    try:
        if pidfd is not None:
            identity.send_signal(pidfd, number)
            return "sent", None, None
        if identity.start_time(pid) != start:
            return "gone", None, None
        os.kill(pid, number)
        return "sent", "no_pidfd", "without pidfd: this kernel has none"
    except ProcessLookupError:
        return "gone", None, None
    except OSError as error:
        denied = isinstance(error, PermissionError)
        return "failed", "not_permitted" if denied else "failed", error.strerror


def _changed(pid: int, target: Dict[str, Any]) -> Optional[Tuple[str, str]]:
    """Why the process is no longer what the plan proved (code, text), or None."""
    try:
        uid = os.stat("/proc/%d" % pid).st_uid
        with open("/proc/%d/status" % pid, "rb") as file:
            for line in file:
                if line.startswith(b"Uid:"):
                    uid = int(line.split()[1])
        with open("/proc/%d/cgroup" % pid, "rb") as file:
            cgroup = file.read().decode("utf-8", "replace")
    except OSError as error:
        return "unreadable", "cannot be read again: %s" % error.strerror
    if target.get("uid") is not None and uid != target["uid"]:
        return "changed", "its user changed"
    if target.get("cgroup") and target["cgroup"] not in cgroup:
        return "changed", "its control group changed"
    if target.get("files"):
        from fleetmem.agent.probes.holders import has_driver_files

        if not has_driver_files(pid):
            return "changed", "it no longer has files of the driver"
    return None
