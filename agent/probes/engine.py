"""``engine.find``: whose log tells how the processes that hold GPUs started."""

from __future__ import annotations

import stat

from fleetmem.agent.declare import probe
from fleetmem.agent.kernel import cgroups, sysroot, tasks
from fleetmem.agent.model import PARTIAL, Trouble
from fleetmem.agent.probes import holders

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Optional, Tuple

    from fleetmem.agent.shapes import EngineLogs, LogSource, Unplaced

CONTEXT_BYTES = 1 << 20
"""A CUDA context maps more of nvidiactl than that; monitoring tools at most a page."""


@probe("engine.find")
def engine_find() -> EngineLogs:
    """Units, containers and files that the GPUs' holders write their output to."""
    found = holders.scan()
    table = tasks.Table()
    systemd = sysroot.exists("/run/systemd/system")
    sources: Dict[Tuple[str, str, Optional[str]], LogSource] = {}
    unplaced: List[Unplaced] = []
    for holder in found["holders"]:
        if holder["ctl_map_bytes"] < CONTEXT_BYTES:
            continue
        pid = holder["pid"]
        place, why = _place(pid, table, systemd)
        if place is None:
            stat_ = table.get(pid)
            comm = stat_.comm if stat_ is not None else ""
            title = tasks.title("/proc/%d/" % pid)
            unplaced.append({"pid": pid, "comm": sysroot.clean(comm), "title": title, "why": why})
            continue
        key = (place["kind"], place["name"], place["user"])
        sources.setdefault(key, place)["pids"].append(pid)
    reading: EngineLogs = {
        "sources": sorted(sources.values(), key=lambda one: (one["kind"], one["name"])),
        "unplaced": unplaced,
        "denied": found["denied"],
    }
    if found["denied"]:
        from fleetmem.agent.words import count, reader

        who = count(found["denied"], "process")
        raise Trouble(PARTIAL, "%s could not be inspected %s" % (who, reader()), reading)
    return reading


def _place(pid: int, table: tasks.Table, systemd: bool) -> Tuple[Optional[LogSource], str]:
    """(where a process's log goes, "") or (``None``, why that is not known)."""
    try:
        owner = cgroups.read(sysroot.text("/proc/%d/cgroup" % pid))
    except OSError:
        owner = cgroups.Place("none", None, None, "", "")
    file, why = _output(pid, table)
    source: LogSource = {
        "kind": "file",
        "name": file or "",
        "user": None,
        "runtime": owner.runtime,
        "pids": [],
    }
    if owner.kind in ("container", "pod"):
        source["kind"], source["name"] = "container", owner.key
        return source, ""
    if file is not None:
        return source, ""
    if systemd and owner.name and owner.kind in ("unit", "user_unit"):
        source["name"] = owner.name
        source["kind"] = "unit"
        if owner.kind == "user_unit":
            source["kind"], source["user"] = "user_unit", owner.key
        return source, ""
    return None, why


def _output(pid: int, table: tasks.Table) -> Tuple[Optional[str], str]:
    """The file behind its stdout or stderr, also through one pipe to a tee."""
    why = "its log cannot be found"
    for number in (1, 2):
        link = _link(pid, number)
        if link is None:
            continue
        if link.startswith("pipe:"):
            file = _behind(pid, link, table)
            if file is not None:
                return file, ""
            why = "its output is a pipe that nobody writes to a file"
        elif link.startswith(("/dev/pts/", "/dev/tty")):
            why = "its output is a terminal"
        elif link.startswith("/") and _regular(pid, number):
            if link.endswith(" (deleted)"):
                why = "its log file was deleted"
                continue
            return link, ""
    return None, why


def _link(pid: int, number: int) -> Optional[str]:
    try:
        return sysroot.clean(sysroot.link("/proc/%d/fd/%d" % (pid, number)))
    except OSError:
        return None


def _regular(pid: int, number: int) -> bool:
    try:
        found = sysroot.node("/proc/%d/fd/%d" % (pid, number))
    except OSError:
        return False
    return found is not None and stat.S_ISREG(found[0])


def _behind(pid: int, pipe: str, table: tasks.Table) -> Optional[str]:
    """The one regular file that a reader of the pipe holds open for writing."""
    for other in table.everyone():
        if other.pid == pid:
            continue
        if _link(other.pid, 0) != pipe:
            continue
        try:
            names = sysroot.names("/proc/%d/fd" % other.pid)
        except OSError:
            continue
        for name in names:
            if not name.isdigit() or int(name) < 1 or not _writes(other.pid, name):
                continue
            link = _link(other.pid, int(name))
            if link is not None and link.startswith("/") and _regular(other.pid, int(name)):
                return link
    return None


def _writes(pid: int, name: str) -> bool:
    try:
        return bool(sysroot.link_mode("/proc/%d/fd/%s" % (pid, name)) & stat.S_IWUSR)
    except OSError:
        return False
