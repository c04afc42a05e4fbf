"""The owners that a control group's path names, and whose they are to answer for. Pure.

A systemd's units lie below slices only. What lies below a container, a machine or another
unit belongs to whoever runs inside of that, and is not to be looked up in the host's.
"""

from __future__ import annotations

from fleetmem.agent.kernel.cgroups import DIRECTORIES, HEX, SCOPES, paths

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Optional, Tuple


class Named:
    """One owner as named. ``manager`` is who can be asked: ``systemd``, ``user:UID``, a
    runtime, ``slurm``, ``login``; ``None`` where it is inside something else."""

    __slots__ = ("id", "kind", "manager", "name", "runtime")

    def __init__(
        self,
        kind: str,
        ident: str,
        name: Optional[str],
        runtime: Optional[str],
        manager: Optional[str],
    ) -> None:
        self.kind = kind
        self.id = ident
        self.name = name
        self.runtime = runtime
        self.manager = manager

    def key(self) -> Tuple[Optional[str], ...]:
        """What tells it from other owners."""
        return self.kind, self.id, self.runtime, self.manager


def owners(text: str) -> List[Named]:
    """The owners in /proc/PID/cgroup, outermost first."""
    found: List[Named] = []
    seen = set()
    for path in paths(text):
        for one in _of_path([part for part in path.split("/") if part]):
            if one.key() not in seen:
                seen.add(one.key())
                found.append(one)
    return found


def _of_path(names: List[str]) -> List[Named]:
    job = _job(names) if any("slurm" in name for name in names) else None
    jobs = [] if job is None else [job]
    if ".." in names:  # outside of what this control group namespace shows
        return jobs + [one for one in _inside(names) if one.kind != "unit"]
    manager = "systemd"
    for at, escaped in enumerate(names):
        name = escaped[1:] if escaped.startswith("_") else escaped
        if name.endswith(".slice") and "kubepods" not in name:
            continue
        if name.startswith("user@") and name.endswith(".service") and manager == "systemd":
            manager = "user:" + name[5 : -len(".service")]
            continue
        if name == "init.scope":
            return []
        unit = _unit(name, manager)
        if unit is None or _container(name, "") is not None:
            return jobs + _inside(names[at:])
        return [unit, *jobs, *_inside(names[at + 1 :])]
    return jobs


def _unit(name: str, manager: str) -> Optional[Named]:
    """A unit of the host's systemd, or of the manager of a user."""
    if not name.endswith((".service", ".scope")):
        return None
    if manager != "systemd":
        return Named("user_unit", name, name, "systemd", manager)
    if name.startswith("session-") and name.endswith(".scope"):
        number = name[len("session-") : -len(".scope")]
        return Named("session", number, name, None, "login")
    return Named("scope" if name.endswith(".scope") else "unit", name, name, "systemd", manager)


def _inside(names: List[str]) -> List[Named]:
    """Pods and containers, wherever they lie; units there are nobody's to ask here."""
    found: List[Named] = []
    for at, name in enumerate(names):
        pod = _pod(name)
        if pod is not None:
            found.append(pod)
            continue
        container = _container(name, names[at + 1] if at + 1 < len(names) else "")
        if container is not None:
            return [*found, container, *_units_inside(names[at + 1 :], container.name or "")]
    return found or _units_inside(names, "")


def _units_inside(names: List[str], container: str) -> List[Named]:
    for name in reversed(names):
        if name.endswith(".service") and not name.startswith("user@"):
            where = "%s in %s" % (name, container) if container else name
            return [Named("unit", where, name, None, None)]
    return []


def _identifier(text: str) -> bool:
    return len(text) >= 12 and HEX.issuperset(text)


def _container(name: str, following: str) -> Optional[Named]:
    if name.endswith(".scope"):
        for start, runtime in SCOPES:
            ident = name[len(start) : -len(".scope")]
            if name.startswith(start) and _identifier(ident):
                return Named("container", ident, ident[:12], runtime, runtime)
    for start in ("lxc.payload.", "lxc.monitor."):
        if name.startswith(start):
            inner = name[len(start) :]
            return Named("container", inner, inner, "lxc", "lxc")
    for start in ("crio-", "libpod-", "docker-", "cri-containerd-"):
        ident = name[len(start) :]
        if name.startswith(start) and _identifier(ident):
            runtime = dict(SCOPES)[start]
            return Named("container", ident, ident[:12], runtime, runtime)
    if name in DIRECTORIES and _identifier(following):
        runtime = DIRECTORIES[name]
        return Named("container", following, following[:12], runtime, runtime)
    if name == "lxc" and following:
        return Named("container", following, following, "lxc", "lxc")
    if len(name) == 64 and HEX.issuperset(name):  # below kubepods, by the cgroupfs driver
        return Named("container", name, name[:12], "containerd", "containerd")
    return None


def _pod(name: str) -> Optional[Named]:
    plain = name[: -len(".slice")] if name.endswith(".slice") else name
    begin = plain.rfind("pod")
    uid = plain[begin + 3 :].replace("_", "-")
    if begin < 0 or len(uid) < 32 or not HEX.issuperset(uid.replace("-", "")):
        return None
    return Named("pod", uid, None, None, "pod")


def _job(names: List[str]) -> Optional[Named]:
    for name in names:
        if name.startswith("job_") and name[4:].isdigit():
            return Named("job", name[4:], name[4:], "slurm", "slurm")
    return None
