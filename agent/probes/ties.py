"""``processes.ties``: whoever a process is tied to, and who answers for it."""

from __future__ import annotations

from fleetmem.agent.declare import probe
from fleetmem.agent.kernel import tasks
from fleetmem.agent.model import PARTIAL, Trouble

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Optional

    from fleetmem.agent.shapes import Ties


@probe("processes.ties")
def processes_ties(*, pids: Optional[List[int]] = None) -> Ties:
    """What ties processes to others: parents, sessions, pipes, sockets, forks, tracers, owners.

    Without *pids* of all processes that hold files of the GPU driver; from there to whatever
    the ties reach. Partial where files of others cannot be read, or a bound was hit.
    """
    from fleetmem.agent.ties import facts
    from fleetmem.agent.ties.closure import Closure
    from fleetmem.agent.ties.owners import Owners

    if not pids:
        from fleetmem.agent.probes.holders import scan

        pids = [holder["pid"] for holder in scan()["holders"]]
    initial = tasks.initial_pid_namespace()
    wanted = list(dict.fromkeys(pids))
    closure = Closure(wanted, initial)
    gone = [pid for pid in wanted if pid not in closure.rows and not tasks.hidden(pid)]
    closure.read_cgroups()
    owners = Owners(closure)
    reading: Ties = {
        "boot_id": facts.boot_id(),
        "initial_pid_namespace": initial,
        "complete": closure.bound is None,
        "bound": closure.bound,  # type: ignore[typeddict-item]
        "processes": [closure.rows[pid] for pid in sorted(closure.rows)],
        "links": closure.links.rows(),
        "listeners": list(closure.links.listeners.values()),
        "owners": owners.rows,
        "unseen": closure.unseen(),
        "gone": gone,
    }
    if closure.bound is not None or reading["unseen"]:
        why = reading["unseen"][0]["why"] if reading["unseen"] else "too many processes are tied"
        raise Trouble(PARTIAL, "not all ties could be followed: %s" % why, reading)
    return reading
