"""``journal.read``: one log of this host, newest lines first, filtered and bounded here.

A unit's lines come from journald, chosen by systemd's invocation ids; files and containers
from where they lie. Rows travel as chunks while they are read.
"""

from __future__ import annotations

from time import monotonic, time

from fleetmem.agent.declare import probe
from fleetmem.agent.model import DENIED, FAILED, PARTIAL, Trouble

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Tuple

    from fleetmem.agent.logs.export import Fields
    from fleetmem.agent.logs.find import Journal, LoggedUnit
    from fleetmem.agent.shapes import JournalInvocation, JournalRead

FIELDS = "MESSAGE,_PID,SYSLOG_IDENTIFIER,PRIORITY"
OTHERS, MOST_OTHERS = 60, 5000
"""So many entries of older invocations in a row are passed over before the newest one's first
is taken for read: few once its manager's line was seen."""
KERNEL_WORDS = (
    b"ut of memory", b"oom-kill", b"oom_reaper", b"Xid", b"NVRM", b"Killed process", b"hung_task",
    b"blocked for more than", b"Hardware Error", b"segfault",
)  # fmt: skip
KERNEL_LINES = 2000
TAIL = 20_000
OWN, MANAGER, KERNEL = 0, 1, 2


@probe("journal.read")
def journal_read(
    *,
    unit: Optional[str] = None,
    user: Optional[str] = None,
    file: Optional[str] = None,
    container: Optional[str] = None,
    directory: Optional[str] = None,
    invocation: str = "0",
    count: int = 1,
    boot: Optional[str] = None,
    since: Optional[str] = None,
    until: Optional[str] = None,
    grep: Optional[str] = None,
    words: Optional[Tuple[str, ...]] = None,
    before: int = 0,
    after: int = 0,
    kernel: int = 0,
    kernel_only: bool = False,
    kernel_words: Optional[Tuple[str, ...]] = None,
    head: int = 0,
    limit_lines: int = 10_000,
    limit_bytes: int = 16 * 1024 * 1024,
    span_seconds: float = 45.0,
    emit: Optional[Callable[[Any], None]] = None,
) -> JournalRead:
    """Lines of one unit, file or container; all of the host's journal where none is named.

    ``invocation`` is an age (0 newest), ``all`` or an id; ``count`` starts from there on.
    ``grep`` is a Python expression, in any case where it has no upper case; ``words`` keeps
    lines that hold one of them, digits apart. ``before`` and ``after`` add lines around a
    match. With ``head`` the beginning of each invocation is read first, that many entries,
    and of a longer one its end beside it: an engine's start, however long ago. ``since`` and
    ``until`` are journalctl's; of files and containers they hold for lines that bear a time.
    ``kernel_only`` reads the kernel's lines alone, those with one of ``kernel_words``, or all
    that ``grep`` lets pass.

    Chunks are ``{"rows": [[microseconds, invocation, pid, name, priority, kind, hit,
    message]]}``, newest first (kind 0 the unit's own, 1 its manager's, 2 the kernel's); what
    is no UTF-8 comes as lone surrogates.
    """
    from fleetmem.agent.logs.keep import Keep

    keep = Keep(grep, words, before, after, limit_lines, limit_bytes, emit)
    deadline = monotonic() + span_seconds
    tried = ""
    if file is not None or container is not None:
        from fleetmem.agent.logs import files as log_files

        bounds = None
        if since is not None or until is not None:
            from fleetmem.agent.logs.moments import span

            bounds = span(since, until)
        found = log_files.read(file, container, keep, deadline, bounds)
        if not isinstance(found, str):
            return found
        tried = found
    try:
        reader = _Read(keep, deadline, directory, boot, since, until)
        reader.kernel_words = tuple(word.encode() for word in kernel_words or ())
        if kernel_only:
            return reader.kernel_alone(grep is None)
        return reader.run(unit, user, container, invocation, count, kernel, head)
    except Trouble as trouble:
        if container is None or trouble.outcome == PARTIAL:
            raise
        why = "no log of container %s: %s; %s" % (container, tried, trouble.reason)
        outcome = DENIED if trouble.outcome == DENIED else FAILED
        raise Trouble(outcome, why, trouble.reading, trouble.code) from None


class _Read:
    """One reading of the journal."""

    def __init__(
        self,
        keep: Any,
        deadline: float,
        directory: Optional[str],
        boot: Optional[str],
        since: Optional[str],
        until: Optional[str],
    ) -> None:
        from fleetmem.agent.logs.find import Journal, check

        self.keep = keep
        self.journal: Journal = Journal(deadline, directory, boot, since, until)
        self.damaged, self.denied = check(directory)
        self.numbers: Dict[str, int] = {}
        self.spans: List[JournalInvocation] = []
        self.scanned = 0
        self.absent: Optional[str] = None
        self.kernel_words: Tuple[bytes, ...] = ()

    def run(
        self,
        unit: Optional[str],
        user: Optional[str],
        container: Optional[str],
        invocation: str,
        count: int,
        kernel: int,
        head: int,
    ) -> JournalRead:
        from fleetmem.agent.logs.find import LoggedUnit, named

        units: List[str] = []
        if unit is not None:
            uid = None if user is None else _uid(user)
            units = named(self.journal, unit, uid is not None)
            for name in units:
                self._unit(LoggedUnit(name, uid), invocation, count, head)
        elif container is not None:
            names = ("CONTAINER_NAME", "CONTAINER_ID", "CONTAINER_ID_FULL")
            words = [word for name in names for word in ("+", name + "=" + container)]
            self._entries(FIELDS, words[1:])
        else:
            self._entries(FIELDS, [])
        kernel_rows = self._kernel(units) if kernel else 0
        self.keep.flush()
        return self._answer(unit, user, container, units, kernel_rows)

    # --- reading ---------------------------------------------------------------------------

    def _unit(self, unit: LoggedUnit, invocation: str, count: int, head: int) -> None:
        from fleetmem.agent.logs.find import invocations

        if invocation == "0" and count == 1 and not head:
            self._newest(unit)
            return
        ids = invocations(self.journal, unit, invocation, count)
        for name, age in ids.items():
            self._span(unit, name, age)
        if not ids and invocation not in ("0", "all"):
            self.absent = invocation
            return
        if head and ids:
            for name in ids:
                self._ends(unit, name, head)
            return
        for entry in self.journal.entries(_fields(unit), ["-r", *unit.matches(list(ids))]):
            self.scanned += 1
            if not self._take(entry, unit):
                break

    def _ends(self, unit: LoggedUnit, name: str, head: int) -> None:
        """One invocation's beginning and, where it goes on, its newest entries."""
        held: List[Fields] = []
        seen = border = 0
        span = self.spans[self.numbers[name]]
        words = unit.matches([name])
        first: Optional[int] = None
        wanted = self.keep.wanted
        for entry in self.journal.entries(_fields(unit), words):
            seen += 1
            if seen > head:
                break
            border = int(entry.get(b"__REALTIME_TIMESTAMP") or 0)
            first = border if first is None else first
            if unit.tell(entry)[1] or wanted(entry.get(b"MESSAGE", b"")):
                held.append(entry)
        self.scanned += seen
        last: Optional[int] = border or None
        if seen > head:
            self.keep.middle = True
            last = None
            for entry in self.journal.entries(_fields(unit), ["-r", "-n", str(TAIL), *words]):
                self.scanned += 1
                micro = int(entry.get(b"__REALTIME_TIMESTAMP") or 0)
                last = micro if last is None else last
                if micro <= border or not self._take(entry, unit):
                    break
        for entry in reversed(held):
            if not self._take(entry, unit):
                break
        span["first_us"], span["last_us"], span["entries"] = first, last, seen

    def _newest(self, unit: LoggedUnit) -> None:
        """The newest invocation in one pass, from the end to where only others' entries stand.

        Its manager's first line is its beginning; a process can have logged a moment before
        that, and late lines of the invocation before can stand in between.
        """
        newest: Optional[str] = None
        begun = False
        others = 0
        take, tell = self._take_of, unit.tell
        for entry in self.journal.entries(_fields(unit), ["-r", *unit.matches([])]):
            self.scanned += 1
            found, managed = tell(entry)
            begun = begun or managed
            if newest is None and found is not None:
                newest = found
                self._span(unit, found, 0)
            if found == newest:
                others = 0
                if not take(entry, found, managed):
                    return
                continue
            others += 1
            if others >= (OTHERS if begun else MOST_OTHERS):
                return

    def _span(self, unit: LoggedUnit, name: str, age: int) -> None:
        self.numbers[name] = len(self.spans)
        self.spans.append(
            {
                "id": name,
                "unit": unit.name,
                "age": age,
                "first_us": None,
                "last_us": None,
                "entries": 0,
            }
        )

    def _entries(self, fields: str, words: List[str]) -> None:
        for entry in self.journal.entries(fields, ["-r", *words]):
            self.scanned += 1
            if not self._take(entry, None):
                break

    def _take(self, entry: Fields, unit: Optional[LoggedUnit]) -> bool:
        """One entry, newest first; false where a budget is used up."""
        found, managed = (None, False) if unit is None else unit.tell(entry)
        return self._take_of(entry, found, managed)

    def _take_of(self, entry: Fields, found: Optional[str], managed: bool) -> bool:
        """One entry of the invocation *found*, its manager's own or not."""
        number = None if found is None else self.numbers.get(found)
        stamp = entry.get(b"__REALTIME_TIMESTAMP")
        micro = int(stamp) if stamp else None
        if number is not None:
            span = self.spans[number]
            span["first_us"] = micro
            if span["last_us"] is None:
                span["last_us"] = micro
            span["entries"] += 1
        kind = MANAGER if managed else OWN
        message = entry.get(b"MESSAGE", b"")
        return bool(self.keep.take(micro, number, entry.get(b"_PID"), entry, kind, message))

    def kernel_alone(self, by_words: bool) -> JournalRead:
        """The kernel's lines of this host, whichever unit they are about."""
        words = self.kernel_words or KERNEL_WORDS
        rows = 0
        for entry in self.journal.entries("MESSAGE,PRIORITY", ["-r", "_TRANSPORT=kernel"]):
            self.scanned += 1
            message = entry.get(b"MESSAGE", b"")
            if by_words and not any(word in message for word in words):
                continue
            stamp = entry.get(b"__REALTIME_TIMESTAMP")
            micro = int(stamp) if stamp else None
            entry[b"SYSLOG_IDENTIFIER"] = b"kernel"
            if not self.keep.take(micro, None, None, entry, KERNEL, message):
                break
            rows += 1
        self.keep.flush()
        return self._answer(None, None, None, [], rows)

    def _kernel(self, units: List[str]) -> int:
        """The kernel's lines of the same span that tell of lost memory, GPUs or processes."""
        times = [one["first_us"] for one in self.spans] + [one["last_us"] for one in self.spans]
        known = [one for one in times if one is not None]
        words = ["-r", "-n", str(KERNEL_LINES * 10)]
        if known:
            words.append("--since=@%d" % (min(known) // 1000000))
            if not any(one["age"] == 0 for one in self.spans):
                words.append("--until=@%d" % (max(known) // 1000000 + 60))
        rows = 0
        for entry in self.journal.entries("MESSAGE,PRIORITY", [*words, "_TRANSPORT=kernel"]):
            message = entry.get(b"MESSAGE", b"")
            if any(word in message for word in self.kernel_words or KERNEL_WORDS):
                stamp = entry.get(b"__REALTIME_TIMESTAMP")
                micro = int(stamp) if stamp else None
                entry[b"SYSLOG_IDENTIFIER"] = b"kernel"
                if not self.keep.add(micro, None, None, entry, KERNEL, message):
                    break
                rows += 1
                if rows >= KERNEL_LINES:
                    break
        return rows

    # --- the answer ------------------------------------------------------------------------

    def _answer(
        self,
        unit: Optional[str],
        user: Optional[str],
        container: Optional[str],
        units: List[str],
        kernel_rows: int,
    ) -> JournalRead:
        keep, problems = self.keep, list(self.journal.problems)
        reading: JournalRead = {
            "kind": "unit" if unit is not None else "container" if container else "journal",
            "name": unit if unit is not None else container,
            "user": user,
            "units": units,
            "files": [],
            "invocations": self.spans,
            "scanned": self.scanned,
            "rows": keep.rows,
            "bytes": keep.bytes,
            "cut": keep.cut,
            "kernel_rows": kernel_rows,
            "truncated": keep.full or ("middle" if keep.middle else None),
            "damaged": self.damaged[:20],
            "now_us": int(time() * 1e6),
        }
        if self.damaged:
            many = len(self.damaged)
            problems.insert(
                0,
                "1 damaged journal file was left out"
                if many == 1
                else "%d damaged journal files were left out" % many,
            )
        if self.denied:
            from fleetmem.agent.words import count

            problems.append(
                "%s could not be read here (group systemd-journal or root is needed)"
                % count(len(self.denied), "journal file")
            )
        if unit is not None and not self.scanned and not problems:
            which = ", ".join(units)
            if self.absent is not None:
                which += " that belongs to its invocation " + self.absent
            raise Trouble(FAILED, "no journal entries for %s" % which, reading, "no_entries")
        if container is not None and not self.scanned and not problems:
            raise Trouble(FAILED, "no journal entries for it", reading, "no_entries")
        if not problems:
            return reading
        if not self.scanned and not self.denied and self.journal.problems:
            raise Trouble(FAILED, "; ".join(problems)[:500], reading)
        raise Trouble(PARTIAL, "; ".join(problems)[:500], reading)


def _fields(unit: LoggedUnit) -> str:
    return FIELDS + ",_SYSTEMD_INVOCATION_ID," + unit.id_field


def _uid(user: str) -> int:
    if user.isdigit():
        return int(user)
    import pwd

    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError:
        raise Trouble(
            FAILED, "there is no user %r on this host" % user, code="no_such_user"
        ) from None
