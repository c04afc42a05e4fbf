"""From the processes that were asked about to whatever their ties reach, and on from there."""

from __future__ import annotations

import os
from time import monotonic

from fleetmem.agent.kernel import sysroot, tasks
from fleetmem.agent.kernel.tasks import namespace
from fleetmem.agent.ties import facts, system
from fleetmem.agent.ties.ends import Ends, Links
from fleetmem.agent.ties.tables import Tables
from fleetmem.agent.ties.walk import Walk

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, FrozenSet, List, Optional, Set, Tuple

    from fleetmem.agent.shapes import Tied, Unseen

MOST_PROCESSES = 4000
FILES_SECONDS = 6.0
WALK_SECONDS = 12.0
MOST_NAMESPACES = 512


class Closure:
    """Rows of all processes that ties reach, and the ties. ``bound``: what ended the walk."""

    __slots__ = (
        "_agent",
        "_children",
        "_ends",
        "_kin",
        "_namespaces",
        "bound",
        "cgroups",
        "links",
        "rows",
        "walk",
        "walked",
    )

    def __init__(self, asked: List[int], initial: Optional[bool]) -> None:
        begun = monotonic()
        self.walk = Walk(begun + FILES_SECONDS)
        self.links = Links()
        self.rows: Dict[int, Tied] = {}
        self.walked: Set[int] = set()
        self.bound: Optional[str] = None
        self.cgroups: Dict[int, Optional[str]] = {}
        self._namespaces: Set[str] = set()
        self.walk.files(asked)
        self._agent: FrozenSet[int] = frozenset(facts.agent_line(self.walk.table))
        self._children = self.walk.children()
        self._kin = self.walk.kin()
        tables = Tables()
        self._read_tables(tables)
        # An ordinary user may not see all processes (hidepid), nor be told so.
        seen_all = bool(initial) and os.geteuid() == 0 and tasks.own_proc()
        self._ends = Ends(self.walk, tables, self.links, seen_all)
        self._from(asked, begun + WALK_SECONDS)
        self._adopters()
        if self.walk.late:
            self.bound = self.bound or "time"
        elif self.walk.budget.cut:
            self.bound = self.bound or "files"

    # --- sockets ---------------------------------------------------------------------------

    def _read_tables(self, tables: Tables) -> None:
        """The sockets of every network namespace that some process lives in."""
        if not any(link.startswith("socket:[") for link in self.walk.held):
            return
        here = namespace("self", "net")
        if here is not None:
            tables.read(here, "self", inside=True)
        for one in self.walk.table.everyone():
            live = tasks.live_task(one)
            if live is None or one.flags & tasks.KTHREAD:
                continue
            where = str(one.pid) if live == one.pid else "%d/task/%d" % (one.pid, live)
            space = namespace(where, "net")
            if space is None:
                self._namespaces.add("unreadable")
            elif space not in tables.nets:
                if len(tables.nets) >= MOST_NAMESPACES:
                    self._namespaces.add("too many")
                    continue
                tables.read(space, where, inside=False)
        if self._namespaces:
            tables.unread.update(("tcp", "unix_peers"))

    # --- the walk --------------------------------------------------------------------------

    def _from(self, asked: List[int], deadline: float) -> None:
        queue = list(dict.fromkeys(asked))
        wanted = set(queue)
        at = 0
        while at < len(queue):
            pid = queue[at]
            at += 1
            if pid in self.walked:
                continue
            row = self._row(pid, pid in wanted)
            if row is None:
                continue
            if pid not in wanted and (row["system"] is not None or self._only_adopts(row)):
                continue
            if len(self.walked) >= MOST_PROCESSES or monotonic() > deadline:
                self.bound = "time" if monotonic() > deadline else "processes"
                row["unreadable"].append("not_walked")
                continue
            self.walked.add(pid)
            self._ties(row)
            if row["asked"]:
                for child in self._children.get(pid, ()):
                    if self._alive(child):
                        self.links.reached.append((child, True))
            for other, onward in self.links.reached:
                if onward:
                    queue.append(other)
                else:
                    self._row(other, asked=False)
            self.links.reached = []

    def _row(self, pid: int, asked: bool) -> Optional[Tied]:
        row = self.rows.get(pid)
        if row is None:
            row = facts.tied(pid, self.walk.table, asked)
            if row is None:
                return None
            row["system"] = system.kind(row, self._agent)
            self.rows[pid] = row
        return row

    def _alive(self, pid: int) -> bool:
        return self.walk.table.alive(pid)

    def _ties(self, row: Tied) -> None:
        """Everything that *row*'s process is tied to."""
        pid = row["pid"]
        if not row["alive"]:
            return
        self._parent(row)
        for kind, leader in (("session", row["sid"]), ("group", row["pgid"])):
            if leader == pid:
                continue
            if not leader:  # led from outside this pid namespace
                self.links.add(kind, pid, "unreadable")
            elif self._alive(leader):
                self.links.add(kind, pid, "here", leader)
            else:
                self.links.add(kind, pid, "nobody")
        tracer = row["tracer_pid"]
        if tracer:
            where = "here" if self._alive(tracer) else "unreadable"
            self.links.add("tracer", pid, where, tracer if where == "here" else None)
        self._forks(pid)
        for code in self._ends.of(pid):
            row["unreadable"].append(code)

    def _parent(self, row: Tied) -> None:
        pid, ppid = row["pid"], row["ppid"]
        if not ppid:
            if pid != 1:  # its parent is outside this pid namespace
                self.links.add("parent", pid, "unreadable")
                row["unreadable"].append("parent")
            return
        parent = self.walk.table.get(ppid)
        if parent is None or not self._alive(ppid) or self._adopted(pid, parent):
            self.links.add("parent", pid, "nobody")
            if parent is not None:
                self._row(ppid, asked=False)
        else:
            self.links.add("parent", pid, "here", ppid)

    def _adopted(self, pid: int, parent: tasks.Stat) -> bool:
        """Whether it is certain that somebody else started *pid*, who has ended since.

        A process is in the session that it was born into, or leads one of its own. One that
        is born into a session that its parent is not in was born to somebody else; a parent
        that leads its session may have left that of its children.
        """
        child = self.walk.table.get(pid)
        if child is None:
            return False
        if parent.start_time > child.start_time:
            return True
        if not child.sid or not parent.sid or child.sid in (pid, parent.sid):
            return False
        return parent.sid != parent.pid

    def _forks(self, pid: int) -> None:
        one = self.walk.table.get(pid)
        group = self._kin.get(one.layout, ()) if one is not None and one.layout else ()
        if len(group) < 2:
            return
        at = group.index(pid)
        for other in sorted({group[at - 1] if at else group[1], group[0]} - {pid}):
            self.links.add("fork", pid, "here", other)
        self.links.reached.extend((other, True) for other in group if other != pid)

    # --- adopters, control groups ----------------------------------------------------------

    def _only_adopts(self, row: Tied) -> bool:
        return self._adopter(row) is True

    def _adopter(self, row: Tied) -> Optional[bool]:
        children = [self.walk.table.get(pid) for pid in self._children.get(row["pid"], ())]
        together = any(child is not None and child.sid == row["sid"] != 0 for child in children)
        adopts = system.adopts(row, together)
        parent = self.walk.table.get(row["pid"])
        if adopts is None and parent is not None and row["pids_inside"][-1:] != [1]:
            # Whoever has taken in one is a subreaper, and may have taken in the others too.
            theirs = [child.pid for child in children if child is not None]
            if theirs and all(self._adopted(pid, parent) for pid in theirs):
                return True
        return adopts

    def _adopters(self) -> None:
        for row in self.rows.values():
            row["adopter"] = self._adopter(row)

    def read_cgroups(self) -> None:
        """The control group of each row, and whether others share it."""
        for one in self.walk.table.everyone():
            if one.flags & tasks.KTHREAD or (one.state in "ZX" and one.pid not in self.rows):
                continue
            try:
                self.cgroups[one.pid] = sysroot.text("/proc/%d/cgroup" % one.pid)
            except OSError:
                self.cgroups[one.pid] = None
        outside: Set[Optional[str]] = set()
        for pid, text in self.cgroups.items():
            row = self.rows.get(pid)
            if row is None or row["system"] is not None:
                outside.add(text)
        for row in self.rows.values():
            text = self.cgroups.get(row["pid"])
            if text is None:
                if row["alive"] and not row["kernel_thread"]:
                    row["unreadable"].append("cgroup")
                continue
            row["cgroup_shared"] = True if text in outside else None if None in outside else False

    def unseen(self) -> List[Unseen]:
        """What was not looked at."""
        rows = self.walk.unseen()
        for why in sorted(self._namespaces):
            text = (
                "their network namespaces could not be told"
                if why == "unreadable"
                else ("there are more network namespaces than are read")
            )
            rows.append({"what": "namespace", "count": 1, "user": None, "why": text})
        return rows

    def unix_listeners(self) -> List[Tuple[str, List[int]]]:
        """(name, pids) of every Unix listener of the host that has a name."""
        found = []
        for inode, one in self._ends.tables.unix.items():
            if one.listens and one.name:
                found.append((one.name, self.walk.pids_of("socket:[%d]" % inode)))
        return found
