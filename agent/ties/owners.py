"""Who answers for a process: named by its control group and its environment, and asked."""

from __future__ import annotations

from time import monotonic

from fleetmem.agent.kernel import cgroups, sysroot
from fleetmem.agent.ties import places, system

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Optional, Tuple

    from fleetmem.agent.shapes import OwnerState
    from fleetmem.agent.ties.closure import Closure
    from fleetmem.agent.ties.places import Named

    Key = Tuple[Optional[str], ...]

ASKING_SECONDS = 4.0
JOURNAL_SECONDS = 2.0
INVOCATIONS = "/run/systemd/units"
SESSIONS = "/run/systemd/sessions"
MONITORS = {
    # program: the option that names the container whose monitor it is
    "conmon": "-c",
    "conmonrs": "--cid",
    "containerd-shim": "-id",
    "containerd-shim-runc-v1": "-id",
    "containerd-shim-runc-v2": "-id",
}


class Owners:
    """Owners of the rows of a closure; each is asked about once."""

    __slots__ = ("_closure", "_deadline", "_named", "_places", "_systemd", "rows")

    def __init__(self, closure: Closure) -> None:
        self._closure = closure
        self._deadline = monotonic() + ASKING_SECONDS
        self._systemd = sysroot.exists("/run/systemd/system")
        self._named: List[Named] = []
        self._places: Dict[Key, int] = {}
        self.rows: List[OwnerState] = []
        self._by_cgroup()
        self._by_environment()
        self._ask()

    def _place(self, one: Named) -> int:
        key = one.key()
        if key not in self._places:
            self._places[key] = len(self._named)
            self._named.append(one)
            self.rows.append(
                {
                    "kind": one.kind,  # type: ignore[typeddict-item]
                    "id": one.id,
                    "name": one.name,
                    "runtime": one.runtime,
                    "manager": None,
                    "state": "unknown",
                    "detail": None,
                    "invocation_id": None,
                    "invocation_started": None,
                    "kill_mode": None,
                    "send_sigkill": None,
                    "main_pid": None,
                    "restart": None,
                    "restart_seconds": None,
                    "stop_command": cgroups.stop_command(_as_place(one), one.name),
                }
            )
        return self._places[key]

    def _by_cgroup(self) -> None:
        known: Dict[str, List[int]] = {}
        for pid, row in self._closure.rows.items():
            text = self._closure.cgroups.get(pid)
            if not text:
                continue
            row["cgroup"] = (cgroups.paths(text) or ["/"])[0]
            if text not in known:
                named = places.owners(text)
                units = ("unit", "user_unit", "scope", "session")
                known[text] = [
                    self._place(one) for one in named if self._systemd or one.kind not in units
                ]
            row["owners"] = [{"owner": place, "source": "cgroup"} for place in known[text]]

    def _by_environment(self) -> None:
        units = _invocations(INVOCATIONS) if self._systemd else {}
        users: Dict[int, Dict[str, str]] = {}
        for row in self._closure.rows.values():
            marks = row["environment"]
            if marks is None:
                continue
            uid = row["uid"]
            if uid not in users:  # what a user's manager keeps counts for that user's rows only
                users[uid] = _invocations("/run/user/%d/systemd/units" % uid) if uid > 0 else {}
            found: List[Named] = []
            invocation = marks["invocation_id"]
            if invocation is not None:
                name = units.get(invocation)
                own = users[uid].get(invocation)
                if own is not None:
                    found.append(places.Named("user_unit", own, own, "systemd", "user:%d" % uid))
                elif name is None:
                    found.append(places.Named("unit", invocation, None, "systemd", "invocation"))
                else:
                    kind = "scope" if name.endswith(".scope") else "unit"
                    found.append(places.Named(kind, name, name, "systemd", "systemd"))
            job = marks["slurm_job_id"]
            if job is not None:
                found.append(places.Named("job", job, job, "slurm", "slurm"))
            pod = marks["pod_uid"]
            if pod is not None:
                found.append(places.Named("pod", pod, None, None, "pod"))
            row["owners"] += [{"owner": self._place(one), "source": "environment"} for one in found]

    # --- asking ----------------------------------------------------------------------------

    def _ask(self) -> None:
        units: Dict[Optional[int], List[int]] = {}
        monitors: Optional[Dict[str, str]] = None
        for place, one in enumerate(self._named):
            if one.manager == "invocation":
                self._invocation(place, one.id)
            elif one.kind in ("unit", "user_unit", "scope") and one.manager is not None:
                user = one.manager[5:] if one.manager.startswith("user:") else ""
                if not user or user.isdigit():
                    units.setdefault(int(user) if user else None, []).append(place)
            elif one.kind == "container":
                if monitors is None:
                    monitors = self._monitors()
                self._container(place, one, monitors)
            elif one.kind == "pod":
                self._take(place, "pod", one)
            elif one.kind == "job":
                self._job(place, one)
            elif one.kind == "session":
                self._session(place, one)
        for uid, wanted in units.items():
            self._units(uid, wanted)

    def _invocation(self, place: int, invocation: str) -> None:
        """One that no unit runs by now: whose it was, and what systemd says of that unit."""
        from fleetmem.agent.services import units

        if monotonic() > self._deadline:
            return
        name = units.of_invocation(invocation, min(self._deadline, monotonic() + JOURNAL_SECONDS))
        unit = units.show([name]).get(name) if name else None
        if unit is None or unit.state is None:
            return
        row = self.rows[place]
        row["name"], row["manager"], row["invocation_id"] = name, "systemd", invocation
        row["kill_mode"], row["send_sigkill"] = unit.kill_mode, unit.send_sigkill
        if unit.invocation_id == invocation:
            row["state"], row["detail"] = unit.state, unit.detail  # type: ignore[typeddict-item]
        else:
            row["state"], row["detail"] = "ended", "another invocation: %s" % unit.detail

    def _units(self, uid: Optional[int], wanted: List[int]) -> None:
        import os
        from time import CLOCK_BOOTTIME, CLOCK_MONOTONIC, clock_gettime

        from fleetmem.agent.services import units

        asleep = clock_gettime(CLOCK_BOOTTIME) - clock_gettime(CLOCK_MONOTONIC)
        ticks = os.sysconf("SC_CLK_TCK")
        found = units.show([self._named[place].id for place in wanted], uid)
        for place in wanted:
            unit = found.get(self._named[place].id)
            if unit is None:
                continue
            row = self.rows[place]
            row["detail"] = unit.detail
            if unit.state is None or not self._same(place, unit.control_group):
                continue
            row["manager"] = "systemd" if uid is None else "systemd --user uid %d" % uid
            row["state"] = unit.state  # type: ignore[typeddict-item]
            row["invocation_id"] = unit.invocation_id
            row["kill_mode"] = unit.kill_mode
            row["send_sigkill"] = unit.send_sigkill
            row["main_pid"] = unit.main_pid
            row["restart"] = unit.restart
            row["restart_seconds"] = unit.restart_seconds
            if unit.started_us is not None:
                row["invocation_started"] = int((unit.started_us / 1e6 + asleep) * ticks)

    def _same(self, place: int, control_group: Optional[str]) -> bool:
        """Whether the unit of that name is the one whose control group the processes are in."""
        if control_group is None:
            return True  # one that is over has none
        for row in self._closure.rows.values():
            if any(ref["owner"] == place and ref["source"] == "cgroup" for ref in row["owners"]):
                paths = cgroups.paths(self._closure.cgroups.get(row["pid"]) or "")
                if not any(
                    path == control_group or path.startswith(control_group + "/") for path in paths
                ):
                    return False
        return True

    def _container(self, place: int, one: Named, monitors: Dict[str, str]) -> None:
        monitor = monitors.get(one.id)
        if monitor is not None:
            row = self.rows[place]
            row["manager"], row["state"], row["detail"] = monitor, "live", "its monitor runs"
        if one.manager is None:
            return
        self._take(place, "container", one)

    def _take(self, place: int, kind: str, one: Named) -> None:
        """Ask a runtime; its own answer goes before what its monitors show."""
        from fleetmem.agent.services import runtimes

        if monotonic() > self._deadline:
            return
        if kind == "pod":
            answer = runtimes.pod(one.id, self._deadline)
        else:
            sockets = self._docker_sockets() if one.runtime == "docker" else []
            uid = self._user_of(place) if one.runtime == "podman" else None
            answer = runtimes.container(one.id, one.runtime, uid, sockets, self._deadline)
        if answer is None or answer.state is None:
            return
        row = self.rows[place]
        row["manager"] = answer.manager
        row["state"] = answer.state  # type: ignore[typeddict-item]
        row["detail"] = answer.detail
        row["name"] = answer.name or row["name"]
        row["restart"] = answer.restart
        if answer.main_pid is not None and self._is_in(answer.main_pid, one.id):
            row["main_pid"] = answer.main_pid

    def _is_in(self, pid: int, ident: str) -> bool:
        """Whether a runtime's number means the same process here."""
        return ident in (self._closure.cgroups.get(pid) or "")

    def _user_of(self, place: int) -> Optional[int]:
        """Whose manager a rootless container runs below."""
        for row in self._closure.rows.values():
            if any(ref["owner"] == place for ref in row["owners"]):
                part = (row["cgroup"] or "").partition("/user@")[2].partition(".service")[0]
                return int(part) if part.isdigit() else None
        return None

    def _docker_sockets(self) -> List[str]:
        """Where the daemons that run here listen."""
        found = []
        for listener in self._closure.unix_listeners():
            for pid in listener[1]:
                if self._program(pid) == "dockerd" and listener[0].startswith("/"):
                    found.append("/proc/%d/root%s" % (pid, listener[0]))
        return found

    def _program(self, pid: int) -> str:
        try:
            exe = sysroot.clean(sysroot.link("/proc/%d/exe" % pid))
        except OSError:
            return ""
        if not exe.startswith(system.FOLDERS):
            return ""
        return exe.rpartition("/")[2].partition(" (deleted)")[0]

    def _monitors(self) -> Dict[str, str]:
        """Containers whose monitors live: by the option that names the container."""
        found: Dict[str, str] = {}
        for one in self._closure.walk.table.everyone():
            if not one.comm.startswith(("conmon", "containerd-shim")):
                continue
            option = MONITORS.get(self._program(one.pid))
            if option is None or not self._closure.walk.table.alive(one.pid):
                continue
            words = _words(one.pid)
            for at, word in enumerate(words[:-1]):
                if word == option:
                    found[words[at + 1]] = one.comm
        return found

    def _job(self, place: int, one: Named) -> None:
        row = self.rows[place]
        for other in self._closure.walk.table.everyone():
            if other.comm == "slurmstepd" and self._program(other.pid) == "slurmstepd":
                inside = " ".join(_words(other.pid)).partition("[")[2]
                if inside.startswith((one.id + ".", one.id + "]")):
                    row["manager"], row["state"], row["detail"] = "slurmstepd", "live", "it runs"
                    return
        from fleetmem.agent.services import runtimes

        if monotonic() < self._deadline:
            answer = runtimes.job(one.id, self._deadline)
            if answer is not None and answer.state is not None:
                row["manager"], row["detail"] = answer.manager, answer.detail
                row["state"] = answer.state  # type: ignore[typeddict-item]

    def _session(self, place: int, one: Named) -> None:
        try:
            lines = sysroot.text("%s/%s" % (SESSIONS, one.id)).splitlines()
        except OSError:
            return
        row = self.rows[place]
        fields = {line.partition("=")[0]: line.partition("=")[2] for line in lines}
        if fields.get("STATE"):
            row["manager"], row["state"], row["detail"] = "systemd-logind", "live", fields["STATE"]
        leader = fields.get("LEADER", "")
        row["main_pid"] = int(leader) if leader.isdigit() else None


def _words(pid: int) -> List[str]:
    try:
        return sysroot.text("/proc/%d/cmdline" % pid).split("\0")
    except OSError:
        return []


def _invocations(folder: str) -> Dict[str, str]:
    """Units that run now, by invocation, as a systemd keeps them in *folder*."""
    found: Dict[str, str] = {}
    try:
        names = sysroot.names(folder)
    except OSError:
        return found
    for name in names:
        if name.startswith("invocation:"):
            try:
                found[sysroot.link("%s/%s" % (folder, name))] = name.partition(":")[2]
            except OSError:
                continue
    return found


def _as_place(one: Named) -> cgroups.Place:
    kind = "unit" if one.kind == "scope" else one.kind
    manager = one.manager or ""
    key = manager[5:] if manager.startswith("user:") else one.id
    if one.manager in (None, "invocation") and one.kind in ("unit", "container"):
        kind = "none"
    return cgroups.Place(kind, one.name, one.runtime, key, "")
