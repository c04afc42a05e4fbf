"""``gpu.holders``: who has the driver's device files open or mapped, in any task.

Names prove nothing: a node may be made anywhere, by any name. So every file of every task
is compared by device number (``st_rdev``), and mappings are followed through map_files.
"""

from __future__ import annotations

import os

from fleetmem.agent.declare import probe
from fleetmem.agent.kernel import sysroot, tasks
from fleetmem.agent.model import PARTIAL, Trouble

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Optional, Set, Tuple

    from fleetmem.agent.shapes import DriverNode, GpuHolders, Holder

    What = Tuple[str, Optional[int]]
    Number = Tuple[int, int]

CHARACTER = 0o020000
TYPE_MASK = 0o170000

FIXED = {
    "nvidiactl": "ctl",
    "nvidia-uvm": "uvm",
    "nvidia-uvm-tools": "uvm-tools",
    "nvidia-modeset": "modeset",
}
CAPS = ("nvidia-caps", "nvidia-caps-imex-channels")
CTL_MINOR = 255
MODESET_MINOR = 254


class Nodes:
    """The driver's device numbers on this host, and how to tell nodes of one number apart."""

    __slots__ = ("by_number", "identities", "majors", "names", "rows", "shared")

    def __init__(self) -> None:
        self.rows: List[DriverNode] = []
        self.by_number: Dict[Number, What] = {}
        self.shared: Dict[Number, Dict[str, What]] = {}
        self.identities: Dict[Tuple[int, int, int], What] = {}
        self.majors: Dict[int, str] = {}
        for name, kind, minor in _listed():
            found = sysroot.local_node(name)
            if found is None or found[0] & TYPE_MASK != CHARACTER:
                continue
            self._add(name, kind, minor, (found[2], found[3]))
            self.identities[(found[4], found[5], found[1])] = (kind, minor)
        self._registered()

    def _add(self, name: str, kind: str, minor: Optional[int], number: Number) -> None:
        self.rows.append(
            {
                "path": name,
                "kind": kind,
                "minor": minor,
                "major_number": number[0],
                "minor_number": number[1],
            }
        )
        what = (kind, minor)
        base = name.rpartition("/")[2]
        if number in self.shared:
            self.shared[number][base] = what
        elif self.by_number.setdefault(number, what) != what:
            other = next(
                row["path"]
                for row in self.rows
                if (row["major_number"], row["minor_number"]) == number
            )
            self.shared[number] = {
                other.rpartition("/")[2]: self.by_number.pop(number),
                base: what,
            }

    def _registered(self) -> None:
        """Numbers from /proc/devices, where the node is missing (uvm: both together)."""
        there = {row["kind"] for row in self.rows}
        gpus = {row["minor"] for row in self.rows if row["kind"] == "gpu"}
        for major, name in _majors():
            if name in ("nvidia", "nvidia-frontend", "nvidiactl"):
                # One major for all of them: GPUs by minor, 254 and 255 are special.
                if "ctl" not in there:
                    self.by_number.setdefault((major, CTL_MINOR), ("ctl", None))
                if name != "nvidiactl":
                    for minor in range(MODESET_MINOR):
                        if minor not in gpus:
                            self._fill(major, minor)
            elif name == "nvidia-uvm":
                self.by_number.setdefault((major, 0), ("uvm", None))
                if "uvm-tools" not in there:
                    self.by_number.setdefault((major, 1), ("uvm-tools", None))
            elif name.startswith("nvidia-caps"):
                self.majors[major] = "caps"

    def _fill(self, major: int, minor: int) -> None:
        if (major, minor) not in self.shared:
            self.by_number.setdefault((major, minor), ("gpu", minor))

    def what(self, found: sysroot.Node, name: str) -> Optional[What]:
        """Which of the driver's nodes a file is, ``None`` if it is none.

        *name* is the file's path as the kernel tells it; it decides only where two nodes
        carry one number and the inode is neither's.
        """
        if found[0] & TYPE_MASK != CHARACTER:
            return None
        number = (found[2], found[3])
        direct = self.by_number.get(number)
        if direct is not None:
            return direct
        alike = self.shared.get(number)
        if alike is not None:
            same = self.identities.get((found[4], found[5], found[1]))
            if same is not None:
                return same
            if name.endswith(" (deleted)"):
                name = name[: -len(" (deleted)")]
            return alike.get(name.rpartition("/")[2])
        kind = self.majors.get(found[2])
        return None if kind is None else (kind, None)

    def known(self) -> bool:
        """False where this host shows no trace of the driver."""
        return bool(self.by_number or self.shared or self.majors)


def _listed() -> List[Tuple[str, str, Optional[int]]]:
    """(path, kind, GPU minor) of each name in /dev that may be a node of the driver."""
    try:
        names = sorted(sysroot.names("/dev"))
    except OSError:
        return []
    found: List[Tuple[str, str, Optional[int]]] = []
    for name in names:
        if not name.startswith("nvidia"):
            continue
        if name in FIXED:
            found.append(("/dev/" + name, FIXED[name], None))
        elif name[6:].isdigit():
            found.append(("/dev/" + name, "gpu", int(name[6:])))
        elif name in CAPS:
            try:
                inner = sorted(sysroot.names("/dev/" + name))
            except OSError:
                continue
            found.extend(("/dev/%s/%s" % (name, cap), "caps", None) for cap in inner)
        else:
            found.append(("/dev/" + name, "other", None))
    return found


def _majors() -> List[Tuple[int, str]]:
    """(major, driver) of the character devices in /proc/devices."""
    try:
        body = sysroot.text("/proc/devices").partition("Block devices:")[0]
    except OSError:
        return []
    found = []
    for line in body.splitlines():
        parts = line.split()
        if len(parts) == 2 and parts[0].isdigit() and parts[1].startswith("nvidia"):
            found.append((int(parts[0]), parts[1]))
    return found


class _Scan:
    """One pass over all processes. Mapped files are looked at once, whoever maps them."""

    __slots__ = ("budget", "denied", "followed", "mapped", "nodes", "text_nodes")

    def __init__(self, nodes: Nodes) -> None:
        self.nodes = nodes
        self.denied: Set[int] = set()
        self.budget = tasks.Budget()
        self.mapped: Dict[bytes, Optional[What]] = {}
        self.followed = True
        self.text_nodes = {
            b"%02x:%02x %d" % (major, minor, inode): what
            for (major, minor, inode), what in nodes.identities.items()
        }

    def process(self, pid: int) -> Optional[Holder]:
        """What one process holds; ``None`` if nothing, or if it went away."""
        try:
            proc_fd = sysroot.open_dir("/proc/%d" % pid)
        except OSError:
            return None
        try:
            return self._process(pid, proc_fd)
        finally:
            os.close(proc_fd)

    def _process(self, pid: int, proc_fd: int) -> Optional[Holder]:
        fds: Dict[What, int] = {}
        maps: Dict[What, int] = {}
        by_leader = False
        for tid, place, names in self.budget.tables(pid, proc_fd, self.denied):
            if not self._files(place, names, fds):
                self.denied.add(pid)
            if tid == pid:
                by_leader = bool(fds)
        if self._maps(proc_fd, "", pid, maps):
            by_leader = by_leader or bool(maps)
        else:  # the leader has exited (or it is a kernel thread: then there is one task)
            for tid in tasks.task_ids(pid):
                if tid != pid and self._maps(proc_fd, "task/%d/" % tid, tid, maps):
                    break
        if not fds and not maps:
            return None
        found = tasks.stat(pid, proc_fd)
        if found is None:
            return None
        return _holder(pid, found.start_time, fds, maps, not by_leader)

    def _files(self, place: int, names: List[str], fds: Dict[What, int]) -> bool:
        """Count fds by node. False where the kernel refuses to say what they are."""
        nodes = self.nodes
        for name in names:
            try:
                found = sysroot.node(name, place)
                if found is None:
                    found = _old_kernel(os.readlink(name, dir_fd=place))
                if found is None or found[0] & TYPE_MASK != CHARACTER:
                    continue
                path = ""
                if (found[2], found[3]) in nodes.shared:
                    path = os.readlink(name, dir_fd=place)
            except PermissionError:
                return False
            except OSError:
                continue
            what = nodes.what(found, path)
            if what is not None:
                fds[what] = fds.get(what, 0) + 1
        return True

    def _maps(self, proc_fd: int, task: str, tid: int, maps: Dict[What, int]) -> bool:
        """Add up mapped bytes by node. False where nothing is mapped (no memory left)."""
        try:
            data = sysroot.read(task + "maps", sysroot.LARGE, proc_fd)
        except OSError:
            return False
        known = self.mapped
        for line in data.split(b"\n"):
            if line.find(b" /") < 0:
                continue
            parts = line.split(b" ", 3)
            if len(parts) < 4:
                continue
            file = parts[3]
            if file in known:
                what = known[file]
            elif task:
                # A task's number leads to map_files of its own, /proc/PID/task has none.
                what = self._mapping(file, parts[0], "/proc/%d/map_files/" % tid, None)
            else:
                what = self._mapping(file, parts[0], "map_files/", proc_fd)
            if what is not None:
                start, _, end = parts[0].partition(b"-")
                maps[what] = maps.get(what, 0) + int(end, 16) - int(start, 16)
        return bool(data)

    def _mapping(
        self, file: bytes, span: bytes, place: str, dir_fd: Optional[int]
    ) -> Optional[What]:
        """Which node a mapped file is. *file* is "dev inode path" as in maps."""
        numbers, _, name = file.partition(b"/")
        what: Optional[What] = None
        if self.followed:
            start, _, end = span.decode().partition("-")
            entry = "%x-%x" % (int(start, 16), int(end, 16))
            try:
                found = sysroot.node(place + entry, dir_fd)
                if found is not None:
                    what = self.nodes.what(found, name.decode("utf-8", "replace"))
                    self.remember(file, what)
                    return what
                self.followed = False
            except PermissionError:
                self.followed = False
            except OSError:
                return None
        what = self.text_nodes.get(numbers.strip())
        self.remember(file, what)
        return what

    def remember(self, file: bytes, what: Optional[What]) -> None:
        """Remember a mapped file, but not without bound."""
        if len(self.mapped) < 100000:
            self.mapped[file] = what


def _old_kernel(target: str) -> Optional[sysroot.Node]:
    """Without statx only names in /dev, which no file server answers for, are followed."""
    return sysroot.local_node(target) if target.startswith("/dev/") else None


def _holder(
    pid: int,
    start_time: int,
    fds: Dict[What, int],
    maps: Dict[What, int],
    via_task: bool,
) -> Holder:
    minors = sorted(
        {what[1] for what in list(fds) + list(maps) if what[0] == "gpu" and what[1] is not None}
    )
    ctl, uvm = ("ctl", None), ("uvm", None)
    return {
        "pid": pid,
        "start_time": start_time,
        "gpus": [
            {
                "minor": minor,
                "fds": fds.get(("gpu", minor), 0),
                "map_bytes": maps.get(("gpu", minor), 0),
            }
            for minor in minors
        ],
        "ctl_fds": fds.get(ctl, 0),
        "ctl_map_bytes": maps.get(ctl, 0),
        "uvm_fds": fds.get(uvm, 0),
        "uvm_map_bytes": maps.get(uvm, 0),
        "other_fds": sum(n for what, n in fds.items() if what[0] not in ("gpu", "ctl", "uvm")),
        "via_task": via_task,
    }


def scan() -> GpuHolders:
    """Every process of this pid namespace, without judging the outcome."""
    return _scan()[0]


def _scan() -> Tuple[GpuHolders, tasks.Budget]:
    nodes = Nodes()
    work = _Scan(nodes)
    holders = []
    pids = sysroot.pids()
    if nodes.known():
        for pid in pids:
            held = work.process(pid)
            if held is not None:
                holders.append(held)
    reading: GpuHolders = {
        "nodes": nodes.rows,
        "holders": holders,
        "scanned": len(pids),
        "denied": len(work.denied.union(work.budget.cut)),
    }
    return reading, work.budget


def has_driver_files(pid: int) -> bool:
    """Whether any task of one process has a file of the driver open or mapped now."""
    return _Scan(Nodes()).process(pid) is not None


@probe("gpu.holders")
def gpu_holders() -> GpuHolders:
    """Processes with files of the GPU driver open or mapped, in any of their tasks.

    Compared by device number, so a second node and a leader that has exited are found.
    ``map_bytes`` are sizes of mappings. Partial where other users' files are not readable, or
    a user has more open files than are read of one: that user's rows may be short then.
    """
    reading, budget = _scan()
    if budget.cut:
        raise Trouble(PARTIAL, "; ".join(row[2] for row in budget.reasons()), reading)
    if reading["denied"]:
        from fleetmem.agent.words import count, reader

        who = count(reading["denied"], "process", reading["scanned"])
        raise Trouble(PARTIAL, "files of %s cannot be read %s" % (who, reader()), reading)
    return reading
