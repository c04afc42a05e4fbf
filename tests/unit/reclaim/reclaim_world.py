"""Surveys written by hand: a host with two GPUs, and processes that touch them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from fleetmem.agent import shapes
from fleetmem.controller.reclaim.law.known import OWNED
from fleetmem.controller.reclaim.survey import Survey
from tests.unit.reclaim import ties_world

GIB = 1 << 30
MIB = 1 << 20
TOTAL = 96 * GIB


def identity(pid: int, **more: Any) -> shapes.Identity:
    """A python3 of root in a session of its own, launcher dead, nothing else known."""
    row: dict[str, Any] = {
        "pid": pid,
        "start_time": pid * 10,
        "alive": True,
        "state": "S",
        "tasks": 1,
        "age_seconds": 60.0,
        "ppid": 1,
        "pgid": pid,
        "sid": pid,
        "uid": 0,
        "user": "root",
        "comm": "python3",
        "title": "python3 train.py",
        "exe": "/usr/bin/python3",
        "kernel_thread": False,
        "nspids": [pid],
        "pid_namespace": 1,
        "cgroup": "/",
        "owner": owner(),
        "ancestors": [{"pid": 1, "start_time": 1, "comm": "systemd"}],
        "launcher_alive": False,
        "group_leader_alive": None,
        "listening": False,
        "listening_ports": [],
        "orphaned_pipes": 0,
        "live_peers": [],
        "resident_bytes": GIB,
        "pinned_bytes": 0,
    }
    return cast(shapes.Identity, {**row, **more})


def owner(kind: str = "none", name: str | None = None, state: str | None = None) -> shapes.Owner:
    """An owner; a unit has the command that stops it."""
    stop = f"systemctl stop {name}" if kind == "unit" else None
    return {"kind": kind, "name": name, "runtime": None, "state": state, "stop_command": stop}


def holder(pid: int, gpus: tuple[int, ...] = (0, 1), **more: Any) -> shapes.Holder:
    """Files and mappings as CUDA has them; minor = index."""
    row: dict[str, Any] = {
        "pid": pid,
        "start_time": pid * 10,
        "gpus": [{"minor": gpu, "fds": 20, "map_bytes": 0} for gpu in gpus],
        "ctl_fds": 1,
        "ctl_map_bytes": 70 * MIB,
        "uvm_fds": 2,
        "uvm_map_bytes": 2 * MIB,
        "other_fds": 0,
        "via_task": False,
    }
    return cast(shapes.Holder, {**row, **more})


def fork_files(pid: int, gpus: tuple[int, ...] = (0, 1)) -> shapes.Holder:
    """What a fork of a CUDA process has: the same, without uvm mappings."""
    return holder(pid, gpus, uvm_map_bytes=0)


def listed(pid: int, used: int | None, state: str = "alive") -> shapes.GpuProcess:
    """A row of NVML's compute list."""
    row = {"pid": pid, "lists": ["compute"], "used_bytes": used, "gi": None, "ci": None}
    return cast(shapes.GpuProcess, {**row, "state": state, "why": None})


def device(index: int, used: int | None, **more: Any) -> shapes.GpuDevice:
    """A GPU of 96 GiB whose reserve is counted apart."""
    row: dict[str, Any] = {
        "index": index,
        "uuid": f"GPU-{index}",
        "name": "GH200",
        "minor": index,
        "bus_id": f"0009:0{index}:00.0",
        "numa_node": None,
        "memory_version": 2,
        "total_bytes": TOTAL,
        "reserved_bytes": 500 * MIB,
        "used_bytes": used,
        "free_bytes": None if used is None else TOTAL - used,
        "mig_mode": False,
        "persistence": True,
        "utilization_percent": 0,
        "recovery_action": "none",
        "instances": [],
        "errors": [],
    }
    return cast(shapes.GpuDevice, {**row, **more})


def facts(**more: Any) -> shapes.HostFacts:
    """Root's agent, pids 900-902, on a host without pid namespaces."""
    row: dict[str, Any] = {
        "hostname": "gh200-01",
        "boot_id": "boot-1",
        "kernel": "6.8",
        "machine": "aarch64",
        "python": "3.11.2",
        "page_size_bytes": 4096,
        "clock_ticks": 100,
        "uptime_seconds": 1000.0,
        "uid": 0,
        "user": "root",
        "pid": 902,
        "pid_namespace": 1,
        "init_pid_namespace": True,
        "agent_pids": [900, 901, 902],
        "systemd": True,
        "total_bytes": 512 * GIB,
        "state_dir": "/run/fleetmem",
        "state_dir_reason": None,
    }
    return cast(shapes.HostFacts, {**row, **more})


IDLE = 3 * MIB


def survey(
    *processes: shapes.Identity,
    holders: tuple[shapes.Holder, ...] = (),
    lists: dict[int, list[shapes.GpuProcess]] | None = None,
    used: dict[int, int | None] | None = None,
    **more: Any,
) -> Survey:
    """One look. Used memory is what the lists name plus 3 MiB, unless given."""
    rows = {gpu: tuple((lists or {}).get(gpu, ())) for gpu in (0, 1)}
    sums: dict[int, int | None] = {
        gpu: IDLE + sum(row["used_bytes"] or 0 for row in found) for gpu, found in rows.items()
    }
    sums |= used or {}
    made = Survey(
        facts=facts(),
        operations={"epoch": 4, "locked_by": None, "signals": []},
        gpus={gpu: device(gpu, sums[gpu]) for gpu in (0, 1)},
        listed=rows,
        complete={0: True, 1: True},
        holders={row["pid"]: row for row in holders},
        holders_denied=0,
        processes={row["pid"]: row for row in processes},
        driver="580.65",
        ties=ties_of(processes),
    )
    return replace(made, **more)


def holding(
    process: shapes.Identity, size: int | None = 90 * GIB, gpu: int = 0, **more: Any
) -> Survey:
    """A host on which *process* alone holds *size* of one GPU."""
    pid = process["pid"]
    lists = {gpu: [listed(pid, size)]}
    return survey(process, holders=(holder(pid),), lists=lists, **more)


def ties_of(processes: tuple[shapes.Identity, ...], **layouts: str) -> shapes.Ties:
    """Ties as the identities show them, with owners whose manager has answered.

    An owner that is ``gone`` has ended and would have ended this process; the process is the
    main process of one that is ``live``. *layouts*: ``_50="a"``; forks of one have the same.
    """
    made = ties_world.ties(processes, "boot-1")
    states = [p["owner"]["state"] for p in processes if p["owner"]["kind"] in OWNED]
    mains = [p["pid"] for p in processes if p["owner"]["kind"] in OWNED]
    for state, main, row in zip(states, mains, made["owners"], strict=True):
        if state == "gone":
            row.update(
                state="ended", manager="systemd", kill_mode="control-group", send_sigkill=True
            )
        elif state == "live":
            row.update(main_pid=main)
    for tied in made["processes"]:
        tied["layout"] = layouts.get(f"_{tied['pid']}", f"of {tied['pid']}")
        tied["unreadable"] = [code for code in tied["unreadable"] if code != "not_walked"]
        tied["cgroup_shared"] = tied["owners"] == []
    return made
