"""What /proc says of one process itself: who it is, where it lives, what SIGTERM would do."""

from __future__ import annotations

import os

from fleetmem.agent.kernel import sysroot, tasks
from fleetmem.agent.kernel.tasks import namespace, user_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Optional

    from fleetmem.agent.shapes import Tied, TiedEnvironment

TERM = 1 << 14  # SIGTERM is 15
MOST_TASKS = 256
ENVIRONMENT_BYTES = 1 << 18
VALUE_CHARACTERS = 200
MARKS = frozenset(
    (
        *("RAY_JOB_ID", "RAY_NODE_ID", "RAY_CLUSTER_NAME", "KUBERNETES_SERVICE_HOST", "HOSTNAME"),
        *("SLURM_STEP_ID", "SLURM_CLUSTER_NAME", "PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID"),
        *("TORCHELASTIC_RUN_ID", "container", "XDG_SESSION_ID", "SYSTEMD_EXEC_PID"),
    )
)
"""Further variables that name an owner; values of others are never read out."""

POD_UIDS = ("POD_UID", "K8S_POD_UID", "MY_POD_UID", "KUBERNETES_POD_UID")


def tied(pid: int, table: tasks.Table, asked: bool) -> Optional[Tied]:
    """The row of one process, ``None`` where it is gone. Owners are added by others."""
    stat = table.get(pid)
    if stat is None:
        return None
    unreadable: List[str] = []
    live = tasks.live_task(stat)
    place = "/proc/%d/" % (live or pid)
    status = _status("/proc/%d/status" % pid)
    if not status:
        unreadable.append("status")
    uid = int((status.get(b"Uid") or b"-1").split()[0])
    inside = [int(number) for number in (status.get(b"NSpid") or b"").split()]
    exe = None
    try:
        exe = sysroot.clean(sysroot.link(place + "exe"))
    except PermissionError:
        unreadable.append("exe")
    except OSError:
        pass  # a kernel thread or a zombie has none
    pid_namespace, net_namespace = namespace(str(pid), "pid"), namespace(str(live or pid), "net")
    kernel = bool(stat.flags & tasks.KTHREAD)
    if live is not None and not kernel and None in (pid_namespace, net_namespace):
        unreadable.append("namespaces")
    if live is not None and not kernel and stat.layout is None and live == pid:
        unreadable.append("layout")
    environment = None
    if live is not None and not kernel:
        environment = _environment(place, unreadable)
    return {
        "pid": pid,
        "start_time": stat.start_time,
        "asked": asked,
        "ppid": stat.ppid,
        "pgid": stat.pgid,
        "sid": stat.sid,
        "uid": uid,
        "user": user_name(uid) if uid >= 0 else None,
        "comm": stat.comm,
        "title": tasks.title(place),
        "exe": exe,
        "state": _state(stat, live),
        "alive": live is not None,
        "kernel_thread": kernel,
        "tty": stat.tty,
        "tracer_pid": _tracer(stat, status, asked) if status else None,
        "pids_inside": inside,
        "pid_namespace": pid_namespace,
        "net_namespace": net_namespace,
        "adopter": None,
        "system": None,
        "layout": None if stat.layout is None else b"-".join(stat.layout).decode(),
        "cgroup": None,
        "cgroup_shared": None,
        "owners": [],
        "environment": environment,
        "term": _term(stat, status, inside) if status else None,
        "unreadable": unreadable,
    }


def _status(name: str) -> Dict[bytes, bytes]:
    try:
        lines = sysroot.read(name).split(b"\n")
    except OSError:
        return {}
    return {line.partition(b":")[0]: line.partition(b":")[2].strip() for line in lines}


def _state(stat: tasks.Stat, live: Optional[int]) -> str:
    """The kernel's letter over all tasks."""
    if live in (None, stat.pid):
        return stat.state
    for tid, state in tasks.task_states(stat.pid):
        if tid == live:
            return state
    return stat.state


def _others(stat: tasks.Stat) -> List[int]:
    return [tid for tid in tasks.task_ids(stat.pid)[:MOST_TASKS] if tid != stat.pid]


def _tracer(stat: tasks.Stat, status: Dict[bytes, bytes], asked: bool) -> int:
    """Who traces the process; of one that was asked about, any of its tasks."""
    tracer = int(status.get(b"TracerPid") or b"0")
    if tracer or not asked or stat.threads <= 1:
        return tracer
    for tid in _others(stat):
        data = _status("/proc/%d/task/%d/status" % (stat.pid, tid))
        tracer = int(data.get(b"TracerPid") or b"0")
        if tracer:
            return tracer
    return 0


def _term(stat: tasks.Stat, status: Dict[bytes, bytes], inside: List[int]) -> Optional[str]:
    try:
        blocked, ignored, caught = (
            bool(int(status[name], 16) & TERM) for name in (b"SigBlk", b"SigIgn", b"SigCgt")
        )
    except (KeyError, ValueError):
        return None
    if ignored:
        return "ignored"
    if blocked and all(
        int(_status("/proc/%d/task/%d/status" % (stat.pid, tid)).get(b"SigBlk") or b"0", 16) & TERM
        for tid in _others(stat)
    ):
        return "blocked"
    if caught:
        return "handled"
    return "init" if inside[-1:] == [1] else "default"


def _environment(place: str, unreadable: List[str]) -> Optional[TiedEnvironment]:
    """Marks of an owner. A process that writes a title over its environment has none left."""
    try:
        data = sysroot.read(place + "environ", ENVIRONMENT_BYTES)
    except OSError:
        unreadable.append("environment")
        return None
    rows: Dict[str, str] = {}
    for word in data.split(b"\0"):
        name, equals, value = word.partition(b"=")
        if equals:
            rows.setdefault(name.decode("utf-8", "replace"), value.decode("utf-8", "replace"))
    if data and not rows:
        unreadable.append("environment_overwritten")
        return None
    pods = [rows[name] for name in POD_UIDS if len(rows.get(name, "")) == 36]
    invocation = rows.get("INVOCATION_ID", "")
    job = rows.get("SLURM_JOB_ID") or rows.get("SLURM_JOBID") or ""
    return {
        "invocation_id": invocation if len(invocation) == 32 else None,
        "slurm_job_id": job if job.isdigit() else None,
        "pod_uid": pods[0] if pods else None,
        "values": {
            name: rows[name][:VALUE_CHARACTERS] for name in sorted(MARKS.intersection(rows))
        },
    }


def boot_id() -> str:
    """The kernel's id of this boot."""
    return sysroot.text("/proc/sys/kernel/random/boot_id").strip()


def agent_line(table: tasks.Table) -> List[int]:
    """The agent's own processes and all their ancestors."""
    return tasks.agent_pids(table) or [os.getpid()]
