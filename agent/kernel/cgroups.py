"""Who is responsible for a process, read from its control group (v1, v2 or both)."""

from __future__ import annotations

from fleetmem.agent.kernel import sysroot

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Optional, Tuple

    from fleetmem.agent.kernel.tasks import Table
    from fleetmem.agent.shapes import Owner

HEX = frozenset("0123456789abcdef")
SCOPES = (
    # (beginning of a scope's name, runtime); monitors of a runtime are not the container
    ("docker-", "docker"),
    ("cri-containerd-", "containerd"),
    ("nerdctl-", "nerdctl"),
    ("crio-", "cri-o"),
    ("libpod-", "podman"),
)
DIRECTORIES = {"docker": "docker", "libpod_parent": "podman", "buildkit": "buildkit"}
STATE_ROOTS = {
    # Where a runtime keeps a directory for each container that runs.
    "docker": (
        "/run/containerd/io.containerd.runtime.v2.task/moby",
        "/run/docker/runtime-runc/moby",
    ),
    "containerd": (
        "/run/containerd/io.containerd.runtime.v2.task/k8s.io",
        "/run/containerd/runc/k8s.io",
    ),
    "nerdctl": ("/run/containerd/io.containerd.runtime.v2.task/default",),
    "cri-o": ("/run/containers/storage/overlay-containers", "/run/crio"),
    "podman": ("/run/containers/storage/overlay-containers", "/run/libpod"),
}
POD_DIRECTORY = "/var/lib/kubelet/pods"
POD_LOGS = "/var/log/pods"
SESSIONS = "/run/systemd/sessions"
PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@%_+=:,./-")


class Place:
    """What a cgroup path says. ``key`` is the id that the state is looked up by."""

    __slots__ = ("key", "kind", "name", "path", "runtime")

    def __init__(
        self, kind: str, name: Optional[str], runtime: Optional[str], key: str, path: str
    ) -> None:
        self.kind = kind
        self.name = name
        self.runtime = runtime
        self.key = key
        self.path = path


def paths(text: str) -> List[str]:
    """Paths of /proc/PID/cgroup that say more than "/": v2 first, then systemd's, then others."""
    first: List[str] = []
    rest: List[str] = []
    for line in text.splitlines():
        parts = line.split(":", 2)
        if len(parts) != 3:
            continue
        target = first if parts[1] in ("", "name=systemd") else rest
        if parts[2] != "/" and parts[2] not in target:
            target.append(parts[2])
    return first + [path for path in rest if path not in first]


def read(text: str) -> Place:
    """The owner that a /proc/PID/cgroup names. Pods and jobs go before containers, then units."""
    found = paths(text)
    parts = [(path, [part for part in path.split("/") if part]) for path in found]
    for look in (_pod, _job, _container, _unit, _session):
        for path, names in parts:
            place = look(path, names)
            if place is not None:
                return place
    shown = found[0] if found else "/" if text.strip() else ""
    return Place("none", None, None, "", shown)


def _identifier(text: str) -> bool:
    return len(text) >= 12 and HEX.issuperset(text)


def _pod(path: str, names: List[str]) -> Optional[Place]:
    if not any("kubepods" in name for name in names):
        return None
    for at, name in enumerate(names):
        plain = name[: -len(".slice")] if name.endswith(".slice") else name
        begin = plain.rfind("pod")
        uid = plain[begin + 3 :].replace("_", "-")
        if begin < 0 or len(uid) < 32 or not HEX.issuperset(uid.replace("-", "")):
            continue
        runtime = None
        for inner in names[at + 1 :]:
            for start, which in SCOPES:
                if inner.startswith(start):
                    runtime = which
        return Place("pod", uid, runtime, uid, path)
    return None


def _job(path: str, names: List[str]) -> Optional[Place]:
    if not any("slurm" in name for name in names):
        return None
    for name in names:
        if name.startswith("job_") and name[4:].isdigit():
            return Place("job", name[4:], "slurm", name[4:], path)
    return None


def _container(path: str, names: List[str]) -> Optional[Place]:
    for at, name in enumerate(names):
        if name.endswith(".scope"):
            for start, runtime in SCOPES:
                ident = name[len(start) : -len(".scope")]
                if name.startswith(start) and _identifier(ident):
                    return Place("container", ident[:12], runtime, ident, path)
        if name.startswith("lxc.payload."):
            inner = name[len("lxc.payload.") :]
            return Place("container", inner, "lxc", inner, path)
        if at + 1 < len(names):
            inner = names[at + 1]
            if name in DIRECTORIES and _identifier(inner):
                return Place("container", inner[:12], DIRECTORIES[name], inner, path)
            if name == "lxc":
                return Place("container", inner, "lxc", inner, path)
    return None


def _unescape(name: str) -> str:
    return name[1:] if name.startswith("_") else name


def _unit(path: str, names: List[str]) -> Optional[Place]:
    """The innermost unit; under user@N.service one of that user's manager."""
    uid: Optional[str] = None
    unit: Optional[str] = None
    user_unit: Optional[str] = None
    for name in names:
        if name.endswith(".slice"):
            continue
        plain = _unescape(name)
        if plain.startswith("user@") and plain.endswith(".service"):
            uid = plain[5 : -len(".service")]
            unit = plain
        elif plain.endswith(".service"):
            if uid is None:
                unit = plain
            else:
                user_unit = plain
        elif plain.endswith(".scope") and uid is None and not plain.startswith("session-"):
            if plain == "init.scope":
                continue
            unit = unit or plain
    if uid is not None:
        if user_unit is None or user_unit == "init.scope":
            return Place("session", "user@%s" % uid, None, "", path)
        return Place("user_unit", user_unit, "systemd", uid, path)
    if unit is None:
        return None
    return Place("unit", unit, "systemd", unit, path)


def _session(path: str, names: List[str]) -> Optional[Place]:
    for name in names:
        if name.startswith("session-") and name.endswith(".scope"):
            return Place("session", name, None, name[len("session-") : -len(".scope")], path)
    return None


# --- state ---------------------------------------------------------------------------------


class CgroupOwners:
    """CgroupOwners with their state, each looked up once.

    ``mains`` are main pids of live units; ``answered`` is true where systemd named them.
    """

    __slots__ = ("_done", "_live", "_systemd", "_table", "answered", "mains")

    def __init__(self, table: Table) -> None:
        self._table = table
        self._done: Dict[Tuple[str, str], Optional[str]] = {}
        self._systemd = sysroot.exists("/run/systemd/system")
        self._live: Dict[str, Optional[str]] = {}
        self.mains: Dict[int, str] = {}
        self.answered = False

    def prepare(self, places: List[Place]) -> None:
        """Ask systemd about all units at once."""
        units = sorted({place.key for place in places if place.kind == "unit"})
        if not units or not self._systemd:
            return
        from fleetmem.agent.services.systemd import show

        shown = show(units)
        self.answered = bool(shown)
        for unit, (state, main) in shown.items():
            self._live[unit] = state
            if main and state == "live":
                self.mains[main] = unit

    def owner(self, place: Place) -> Owner:
        """The owner of a process. Units count only where systemd runs."""
        kind = place.kind
        if kind in ("unit", "user_unit", "session") and not self._systemd:
            return {
                "kind": "none",
                "name": None,
                "runtime": None,
                "state": None,
                "stop_command": None,
            }
        name = place.name
        if kind == "pod":
            name = _pod_name(place.key) or name
        return {
            "kind": kind,
            "name": name,
            "runtime": place.runtime,
            "state": self._state(place),
            "stop_command": stop_command(place, name),
        }

    def _state(self, place: Place) -> Optional[str]:
        key = (place.kind, place.key)
        if key not in self._done:
            self._done[key] = self._look(place)
        return self._done[key]

    def _look(self, place: Place) -> Optional[str]:
        if place.kind == "unit":
            return self._live.get(place.key)
        if place.kind == "container":
            return _listed(STATE_ROOTS.get(place.runtime or "", ()), place.key)
        if place.kind == "pod":
            return _listed((POD_DIRECTORY,), place.key)
        if place.kind == "session" and place.key:
            return _listed((SESSIONS,), place.key)
        if place.kind == "job":
            return self._job(place.key)
        return None

    def _job(self, number: str) -> Optional[str]:
        """Live while a slurmstepd names the job; gone where none does and all can be seen."""
        for other in self._table.everyone():
            if other.comm != "slurmstepd":
                continue
            try:
                title = sysroot.text("/proc/%d/cmdline" % other.pid)
            except OSError:
                return None
            inside = title.partition("[")[2]
            if inside.startswith((number + ".", number + "]")) and self._table.alive(other.pid):
                return "live"
        return "gone"


def _listed(roots: Tuple[str, ...], key: str) -> Optional[str]:
    """live or gone by a runtime's state directories, ``None`` where it has none here."""
    state: Optional[str] = None
    for root in roots:
        try:
            names = sysroot.names(root)
        except OSError:
            continue
        if any(name == key or name.startswith(key) for name in names):
            return "live"
        state = "gone"
    return state


def _pod_name(uid: str) -> Optional[str]:
    """namespace/name of a pod, from the names of its log directory."""
    try:
        names = sysroot.names(POD_LOGS)
    except OSError:
        return None
    for name in names:
        parts = name.split("_")
        if len(parts) == 3 and parts[2] == uid:
            return sysroot.clean("%s/%s" % (parts[0], parts[1]))
    return None


def _quote(word: str) -> str:
    if word and PLAIN.issuperset(word):
        return word
    return "'%s'" % word.replace("'", "'\\''")


def stop_command(place: Place, name: Optional[str]) -> Optional[str]:
    """The command a person would type on this host to stop the owner."""
    word = _quote(name or "")
    if place.kind == "unit":
        return "systemctl stop " + word
    if place.kind == "user_unit":
        from fleetmem.agent.kernel.tasks import user_name

        uid = int(place.key) if place.key.isdigit() else -1
        user = user_name(uid) if uid >= 0 else None
        return "systemctl --user -M %s@ stop %s" % (_quote(user or place.key), word)
    if place.kind == "session":
        return "loginctl terminate-session " + _quote(place.key) if place.key else None
    if place.kind == "job":
        return "scancel " + word
    if place.kind == "pod":
        namespace, slash, pod = (name or "").partition("/")
        if slash:
            return "kubectl delete pod -n %s %s" % (_quote(namespace), _quote(pod))
        return "kubectl delete pod <the pod with uid %s>" % place.key
    return {
        "docker": "docker stop " + word,
        "podman": "podman stop " + word,
        "nerdctl": "nerdctl stop " + word,
        "containerd": "crictl stop " + word,
        "cri-o": "crictl stop " + word,
        "lxc": "lxc-stop -n " + word,
    }.get(place.runtime or "")
