"""What /proc says of processes and their tasks: states, parents, start times, open files."""

from __future__ import annotations

import os

from fleetmem.agent.kernel import masking, sysroot

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, List, Optional, Set, Tuple

MOST_FILES_OF_PROCESS = 100_000
MOST_FILES_OF_USER = 300_000
FEW_FILES = 1000
"""Processes with no more than that count for nothing."""

KTHREAD = 0x00200000
INIT_PID_NAMESPACE = 0xEFFFFFFC
"""The kernel's fixed inode of the first pid namespace."""

KCMP_FILES = 2
KCMP_NUMBERS = {"x86_64": 312, "aarch64": 272, "ppc64le": 354, "s390x": 343, "riscv64": 272}
ENDED = "ZXx"
TITLE_CHARACTERS = 256
CMDLINE_BYTES = 4096
ONE_LINE = bytes(32 if byte in b"\0\t\n\r" else byte for byte in range(256))
AGENT_NAME = "fleetmem"
"""The agent's processes carry names that begin so."""


class Stat:
    """The fields of /proc/PID/stat that matter here; ``start_time`` in ticks since boot.

    ``layout``: where its program, stack and heap begin, which the kernel chooses at random
    at each exec and a fork keeps; ``None`` where it has no memory or could not be read.
    """

    __slots__ = (
        "comm",
        "flags",
        "layout",
        "pgid",
        "pid",
        "ppid",
        "sid",
        "start_time",
        "state",
        "threads",
        "tty",
    )

    def __init__(self, data: bytes) -> None:
        """ValueError where *data* is no stat line (the process went away)."""
        head, _, tail = data.rpartition(b")")
        number, _, comm = head.partition(b" (")
        fields = tail.split()
        if len(fields) < 20:
            raise ValueError("not a stat line")
        self.pid = int(number)
        self.comm = comm.decode("utf-8", "replace")
        self.state = fields[0].decode()
        self.ppid = int(fields[1])
        self.pgid = int(fields[2])
        self.sid = int(fields[3])
        self.tty = int(fields[4])
        self.flags = int(fields[6])
        self.threads = int(fields[17])
        self.start_time = int(fields[19])
        self.layout: Optional[Tuple[bytes, ...]] = None
        if len(fields) > 44 and len(fields[25]) > 1:  # 0: not told
            self.layout = (fields[23], fields[25], fields[44])


def stat(pid: int, dir_fd: Optional[int] = None) -> Optional[Stat]:
    """One process, ``None`` where it does not exist (any more) or cannot be seen."""
    try:
        if dir_fd is None:
            return Stat(sysroot.read("/proc/%d/stat" % pid))
        return Stat(sysroot.read("stat", dir_fd=dir_fd))
    except (OSError, ValueError):
        return None


def own_proc() -> bool:
    """Whether /proc tells of the pid namespace that this process itself is in."""
    try:
        return sysroot.link("/proc/self") == str(os.getpid())
    except OSError:
        return False


def initial_pid_namespace() -> Optional[bool]:
    """Whether numbers here are the kernel's own: by the namespace's fixed inode, or since
    number 2 is the thread that starts all kernel threads."""
    if namespace("self", "pid") == INIT_PID_NAMESPACE:
        return True
    second = stat(2)
    if second is not None:
        return bool(second.flags & KTHREAD)
    return None if not own_proc() else False


def hidden(pid: int) -> bool:
    """Whether a process exists that /proc does not show to this user (hidepid)."""
    if sysroot.exists("/proc/%d/stat" % pid) or not own_proc():
        return False
    try:
        os.getpgid(pid)
    except (OSError, OverflowError):
        return False
    return True


def task_ids(pid: int) -> List[int]:
    """Tasks of a process, leader first; empty where it is gone."""
    try:
        found = [int(name) for name in sysroot.names("/proc/%d/task" % pid)]
    except OSError:
        return []
    found.sort(key=lambda tid: (tid != pid, tid))
    return found


def task_states(pid: int) -> List[Tuple[int, str]]:
    """(task, kernel's letter) of each task that is still there."""
    found = []
    for tid in task_ids(pid):
        try:
            data = sysroot.read("/proc/%d/task/%d/stat" % (pid, tid))
            found.append((tid, Stat(data).state))
        except (OSError, ValueError):
            continue
    return found


def live_task(of: Stat) -> Optional[int]:
    """A task that has not ended (the leader where it has not), ``None`` if all have."""
    if of.state not in ENDED:
        return of.pid
    if of.threads <= 1:
        # The leader is counted until it is reaped: one means that it is alone.
        return None
    for tid, state in task_states(of.pid):
        if state not in ENDED:
            return tid
    return None


class Table:
    """Processes as they were when first asked for: each stat is read once."""

    __slots__ = ("_alive", "_complete", "_known")

    def __init__(self) -> None:
        self._known: Dict[int, Optional[Stat]] = {}
        self._alive: Dict[int, bool] = {}
        self._complete = False

    def get(self, pid: int) -> Optional[Stat]:
        """One process or ``None``."""
        if pid not in self._known:
            self._known[pid] = stat(pid)
        return self._known[pid]

    def everyone(self) -> List[Stat]:
        """All processes of the pid namespace."""
        if not self._complete:
            for pid in sysroot.pids():
                self.get(pid)
            self._complete = True
        return [found for found in self._known.values() if found is not None]

    def alive(self, pid: int) -> bool:
        """True while any task of the process has not ended."""
        if pid not in self._alive:
            found = self.get(pid)
            self._alive[pid] = found is not None and live_task(found) is not None
        return self._alive[pid]


def title(place: str) -> str:
    """The command line of the process at *place* (``/proc/PID/``), one line, its secrets masked,
    cut."""
    try:
        data = sysroot.read(place + "cmdline", CMDLINE_BYTES)
    except OSError:
        return ""
    words = masking.masked(data.rstrip(b"\0 ")).translate(ONE_LINE)
    return words.decode("utf-8", "replace")[:TITLE_CHARACTERS]


def agent_pids(table: Table) -> List[int]:
    """This process, its ancestors, and the other processes that this agent started."""
    line = []
    of_agent = set()
    pid = os.getpid()
    while pid and pid not in line:
        line.append(pid)
        found = table.get(pid)
        if found is None:
            break
        if found.comm.startswith(AGENT_NAME):
            of_agent.add(pid)
        pid = found.ppid
    if of_agent:
        grown = True
        while grown:
            grown = False
            for other in table.everyone():
                if other.ppid in of_agent and other.pid not in of_agent:
                    of_agent.add(other.pid)
                    grown = True
    return line + sorted(of_agent.difference(line))


class Budget:
    """How many open files are read of each process and each user.

    One user's millions cost only that user's rows: ``cut`` has the processes whose files were
    not read to the end, with the user.
    """

    __slots__ = ("_spent", "cut")

    def __init__(self) -> None:
        self.cut: Dict[int, int] = {}
        self._spent: Dict[int, int] = {}

    def tables(
        self, pid: int, proc_fd: int, denied: Set[int]
    ) -> Iterator[Tuple[int, int, List[str]]]:
        """:func:`tables` of a process, as far as its user's budget goes."""
        uid = os.fstat(proc_fd).st_uid
        left = min(MOST_FILES_OF_PROCESS, MOST_FILES_OF_USER - self._spent.get(uid, 0))
        count = 0
        for tid, place, names in tables(pid, proc_fd, denied, max(1, left) + 1):
            room = max(0, left - count)
            count += len(names)
            yield tid, place, names[:room]
            if count > left:
                self.cut[pid] = uid
                break
        if count > FEW_FILES:
            self._spent[uid] = self._spent.get(uid, 0) + min(count, max(left, 0))

    def reasons(self) -> List[Tuple[int, str, str]]:
        """(processes, user, why) for each user whose files were not all read."""
        rows = []
        for uid in sorted(set(self.cut.values())):
            pids = [pid for pid, other in self.cut.items() if other == uid]
            user = user_name(uid) or str(uid)
            why = "process %d of user %s has more open files than are read" % (min(pids), user)
            rows.append((len(pids), user, why))
        return rows


class _Kcmp:
    """kcmp(2); ``same`` is ``None`` where the kernel does not say."""

    __slots__ = ("call", "number")

    def __init__(self) -> None:
        self.call: Any = None
        self.number = KCMP_NUMBERS.get(os.uname().machine, 0)
        if not self.number or not own_proc():
            return  # numbers of another namespace's /proc would name other tasks
        from fleetmem.agent.kernel import clib

        self.call = clib.function("syscall", *[clib.c_long] * 6, result=clib.c_long)

    def same(self, one: int, other: int) -> Optional[bool]:
        """Whether two tasks share one table of open files."""
        if self.call is None:
            return None
        rc = self.call(self.number, one, other, KCMP_FILES, 0, 0)
        return None if rc < 0 else rc == 0


def _tids(pid: int, proc_fd: int) -> List[int]:
    """Tasks of a process. A folder of one task has three links, and need not be listed."""
    if os.stat("task", dir_fd=proc_fd).st_nlink == 3:
        return [pid]
    place = sysroot.open_dir("task", proc_fd)
    try:
        return [int(name) for name in os.listdir(place)]
    finally:
        os.close(place)


_kcmp: Optional[_Kcmp] = None


def _some(place: int, most: int) -> List[str]:
    """Names in a directory, no more than *most*: some processes have millions of files."""
    if 0 < os.fstat(place).st_size <= most:  # Linux 6.2: a size is their number
        return os.listdir(place)
    found = []
    with os.scandir(place) as entries:
        for entry in entries:
            found.append(entry.name)
            if len(found) >= most:
                break
    return found


def tables(
    pid: int, proc_fd: int, denied: Set[int], most: int = 1 << 30
) -> Iterator[Tuple[int, int, List[str]]]:
    """(task, descriptor of its fd directory, its fds) for each table of open files of *pid*.

    *proc_fd* is a descriptor of /proc/PID. Tasks that share a table are seen once where
    kcmp is allowed. A leader that has exited has no table (as an ordinary user EACCES), so
    every task is tried. At most *most* fds are listed of each. *denied* gets the pid where no
    task's files could be listed; root may list what it may not follow, so a caller adds the
    pid where a link is refused. The descriptor is closed when the next item is asked for.
    """
    global _kcmp  # noqa: PLW0603 - one libc for the life of the process
    try:
        tids = _tids(pid, proc_fd)
    except OSError:
        return
    seen: List[int] = []
    readable = refused = False
    for tid in tids:
        if seen:
            if _kcmp is None:
                _kcmp = _Kcmp()
            if any(_kcmp.same(other, tid) for other in seen):
                continue
        try:
            place = sysroot.open_dir("fd" if tid == pid else "task/%d/fd" % tid, proc_fd)
        except PermissionError:
            refused = True
            continue
        except OSError:
            continue
        try:
            try:
                found = _some(place, most)
            except PermissionError:
                refused = True
                continue
            except OSError:
                continue
            readable = True
            if found:
                seen.append(tid)
                yield tid, place, found
        finally:
            os.close(place)
    if refused and not readable:
        denied.add(pid)


def namespace(pid: str, kind: str) -> Optional[int]:
    """Inode of a namespace of a process, ``None`` where it could not be read."""
    try:
        inside = sysroot.link("/proc/%s/ns/%s" % (pid, kind)).partition("[")[2].rstrip("]")
        return int(inside)
    except (OSError, ValueError):
        return None


def user_name(uid: int) -> Optional[str]:
    """The account's name, ``None`` where the host has none for the number."""
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name.encode("utf-8", "replace").decode()
    except (KeyError, OverflowError):
        return None
