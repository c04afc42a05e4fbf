"""Ties as identities written by hand show them, for tests that are about one process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fleetmem.agent.shapes import Identity, Ties


def ties(identities: Iterable[Identity], boot_id: str) -> Ties:
    """The reading that ``processes.ties`` would have given at least."""
    rows: dict[int, dict[str, Any]] = {}
    links: list[dict[str, Any]] = []
    listeners: list[dict[str, Any]] = []
    owners: list[dict[str, Any]] = []
    people = list(identities)
    for one in people:
        rows[one["pid"]] = _tied(one)
        owner = one["owner"]
        if owner["kind"] in ("unit", "user_unit", "container", "pod", "job"):
            rows[one["pid"]]["owners"] = [{"owner": len(owners), "source": "cgroup"}]
            owners.append(_owner(one))
        for port in one["listening_ports"] or ([0] if one["listening"] else []):
            listeners.append(
                {
                    "kind": "tcp" if port else "unix",
                    "pids": [one["pid"]],
                    "address": None,
                    "port": port or None,
                    "path": None,
                    "ephemeral": False if port else None,
                }
            )
    for one in people:
        for link in _links(one):
            links.append(link)
            if link["other"] is not None and link["other"] not in rows:
                rows[link["other"]] = _stranger(one, link["other"])
    return cast(
        "Ties",
        {
            "boot_id": boot_id,
            "initial_pid_namespace": None,
            "complete": False,
            "bound": None,
            "processes": list(rows.values()),
            "links": links,
            "listeners": listeners,
            "owners": owners,
            "unseen": [],
            "gone": [],
        },
    )


def _tied(one: Identity) -> dict[str, Any]:
    unread = ["sockets"] if one["listening"] is None else []
    return {
        **{key: one[key] for key in ("pid", "start_time", "ppid", "pgid", "sid", "uid")},
        **{key: one[key] for key in ("user", "comm", "title", "exe", "state", "alive")},
        "asked": True,
        "kernel_thread": one["kernel_thread"],
        "tty": 0,
        "tracer_pid": 0,
        "pids_inside": one["nspids"][1:],
        "pid_namespace": one["pid_namespace"],
        "net_namespace": None,
        "adopter": False,
        "system": None,
        "layout": None,
        "cgroup": one["cgroup"],
        "cgroup_shared": None,
        "owners": [],
        "environment": {
            "invocation_id": None,
            "slurm_job_id": None,
            "pod_uid": None,
            "values": {},
        },
        "term": None,
        "unreadable": unread,
    }


def _stranger(one: Identity, pid: int) -> dict[str, Any]:
    """A process that only its number is known of."""
    comm = next((a["comm"] for a in one["ancestors"] if a["pid"] == pid), "")
    return {
        **_tied(one),
        "pid": pid,
        "asked": False,
        "start_time": next((a["start_time"] for a in one["ancestors"] if a["pid"] == pid), 0),
        "comm": comm,
        "title": comm,
        "ppid": 0,
        "alive": True,
        "unreadable": ["not_walked"],
    }


def _owner(one: Identity) -> dict[str, Any]:
    owner = one["owner"]
    live = owner["state"] == "live"
    return {
        "kind": owner["kind"],
        "id": owner["name"] or "",
        "name": owner["name"],
        "runtime": owner["runtime"],
        "manager": "systemd" if live else None,
        "state": "live" if live else "unknown",
        "detail": None,
        "invocation_id": None,
        "invocation_started": None,
        "kill_mode": None,
        "send_sigkill": None,
        "main_pid": None,
        "restart": None,
        "restart_seconds": None,
        "stop_command": owner["stop_command"],
    }


def _links(one: Identity) -> list[dict[str, Any]]:
    found = [
        _link(one, "parent", one["ppid"] if one["launcher_alive"] else None),
    ]
    if one["group_leader_alive"]:
        found.append(_link(one, "group", one["pgid"]))
    if one["orphaned_pipes"]:
        found.append({**_link(one, "pipe", None), "count": one["orphaned_pipes"]})
    if one["orphaned_pipes"] is None or one["live_peers"] is None:
        found.append({**_link(one, "pipe", None), "where": "unreadable"})
    found += [_link(one, "pipe", pid) for pid in one["live_peers"] or ()]
    return found


def _link(one: Identity, kind: str, other: int | None) -> dict[str, Any]:
    return {
        "kind": kind,
        "pid": one["pid"],
        "other": other,
        "where": "nobody" if other is None else "here",
        "count": 1,
        "standard": False,
        "reads": True,
        "writes": True,
        "closed": False,
        "address": None,
        "port": None,
        "local_port": None,
        "path": None,
        "listener": None,
    }
