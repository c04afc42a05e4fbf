"""Which invocations a unit had: systemd's own lines name them, newest first."""

from __future__ import annotations

import os

from fleetmem.agent.kernel import sysroot
from fleetmem.agent.logs.export import Export
from fleetmem.agent.model import DENIED, FAILED, UNSUPPORTED, Trouble
from fleetmem.agent.services.program import Program, place

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Iterator, List, Optional, Tuple

    from fleetmem.agent.logs.export import Fields

MOST = 200
HOPS = 24
FOLDERS = ("/var/log/journal", "/run/log/journal")
SIGNATURE = b"LPKSHHRH"
HEADER_BYTES = 208


class Journal:
    """The journal of this host (or of a directory) and the time that may be spent on it."""

    __slots__ = ("base", "deadline", "folder", "path", "problems")

    def __init__(
        self,
        deadline: float,
        folder: Optional[str],
        boot: Optional[str],
        since: Optional[str],
        until: Optional[str] = None,
    ) -> None:
        path = place("journalctl")
        if path is None:
            raise Trouble(UNSUPPORTED, "this host has no journalctl", code="no_journal")
        self.path = path
        self.deadline = deadline
        self.folder = folder
        self.problems: List[str] = []
        self.base = ["journalctl", "--no-pager", "-q", "-o", "export"]
        if folder is not None:
            self.base += ["-D", sysroot.path(folder)]
        if boot is not None:
            self.base.append("--boot=" + boot)
        if since is not None:
            self.base.append("--since=" + since)
        if until is not None:
            self.base.append("--until=" + until)

    def start(self, fields: str, words: List[str]) -> Program:
        """journalctl with these fields and matches."""
        return Program(self.path, [*self.base, "--output-fields=" + fields, *words], self.deadline)

    def entries(self, fields: str, words: List[str]) -> Iterator[Fields]:
        """Whole entries; what went wrong is noted in ``problems``."""
        running = self.start(fields, words)
        export = Export()
        try:
            for data in running.portions():
                yield from export.feed(data)
            yield from export.close()
        except GeneratorExit:
            running.late = True  # nobody waits for its end
            running.end()
            raise
        running.end()
        self.note(running.problem())

    def note(self, problem: Optional[str]) -> None:
        """Keep a problem, once."""
        if problem is not None and problem not in self.problems:
            self.problems.append(problem)

    def values(self, field: str) -> List[str]:
        """All values that a field ever had; an index look-up."""
        running = Program(self.path, [*self.base[:-2], *self._where(), "-F", field], self.deadline)
        try:
            data = b"".join(running.portions())
        finally:
            running.end()
        self.note(running.problem())
        return data.decode("utf-8", "replace").split("\n")

    def _where(self) -> List[str]:
        return [] if self.folder is None else ["-D", sysroot.path(self.folder)]


def check(folder: Optional[str]) -> Tuple[List[str], List[str]]:
    """(names of damaged journal files, names of files that could not be read).

    Trouble where the host keeps no journal at all.
    """
    damaged, denied, good = [], [], 0
    for path in _files(folder):
        try:
            head = sysroot.read(path, HEADER_BYTES)
        except PermissionError:
            denied.append(sysroot.clean(path))
            continue
        except OSError:
            continue
        if head[:8] == SIGNATURE and len(head) >= HEADER_BYTES:
            good += 1
        else:
            damaged.append(sysroot.clean(path))
    if denied and not good:
        raise Trouble(
            DENIED, "the journal could not be read here (group systemd-journal or root is needed)"
        )
    if not good and not damaged:
        where = folder if folder is not None else "this host"
        raise Trouble(UNSUPPORTED, "%s has no journal files" % where, code="no_journal")
    return damaged, denied


def _files(folder: Optional[str]) -> List[str]:
    found = []
    for top in FOLDERS if folder is None else (folder,):
        for place_ in (top, *_below(top)):
            try:
                names = sysroot.names(place_)
            except OSError:
                continue
            found += [
                place_ + "/" + name for name in names if name.endswith((".journal", ".journal~"))
            ]
    return found


def _below(top: str) -> List[str]:
    try:
        names = sysroot.names(top)
    except OSError:
        return []
    return [top + "/" + name for name in names if os.path.isdir(sysroot.path(top + "/" + name))]


class LoggedUnit:
    """How a unit's own lines and its manager's lines are matched."""

    __slots__ = ("_id_key", "_known", "id_field", "manager", "name", "own")

    def __init__(self, name: str, uid: Optional[int]) -> None:
        self.name = name
        if uid is None:
            self.own = ["_SYSTEMD_UNIT=" + name]
            self.manager = ["_PID=1", "UNIT=" + name]
            self.id_field = "INVOCATION_ID"
        else:
            self.own = ["_UID=%d" % uid, "_SYSTEMD_USER_UNIT=" + name]
            self.manager = ["_UID=%d" % uid, "USER_UNIT=" + name]
            self.id_field = "USER_INVOCATION_ID"
        self._id_key = self.id_field.encode()
        self._known: Dict[bytes, str] = {}

    def matches(self, ids: List[str]) -> List[str]:
        """Everything of these invocations, the manager's lines too; of the unit without ids."""
        if not ids:
            return [*self.own, "+", *self.manager]
        own = ["_SYSTEMD_INVOCATION_ID=" + one for one in ids]
        manager = [self.id_field + "=" + one for one in ids]
        return [*own, "+", *manager, self.manager[0]]

    def tell(self, entry: Fields) -> Tuple[Optional[str], bool]:
        """The invocation that an entry belongs to; whether its manager wrote the entry."""
        raw = entry.get(self._id_key)
        managed = raw is not None
        if not raw:
            raw = entry.get(b"_SYSTEMD_INVOCATION_ID")
            if raw is None:
                return None, managed
        known = self._known.get(raw)
        if known is None:
            known = self._known[raw] = raw.decode("ascii", "replace").partition("\n")[0]
        return known, managed


def invocations(journal: Journal, unit: LoggedUnit, wanted: str, count: int) -> Dict[str, int]:
    """Ids with their ages (0 newest): *count* from age *wanted* on, ``all``, or one id.

    Empty where the journal names none.
    """
    if len(wanted) == 32:
        known = _list(journal, unit, MOST)
        return {wanted: known.index(wanted) if wanted in known else 0}
    first = 0 if wanted == "all" else int(wanted)
    need = MOST if wanted == "all" else first + count
    known = _list(journal, unit, need)
    return {one: age for age, one in enumerate(known) if first <= age < need}


def _list(journal: Journal, unit: LoggedUnit, need: int) -> List[str]:
    fields = unit.id_field + ",_SYSTEMD_INVOCATION_ID"
    known: List[str] = []
    both = ["-r", "-n", "8", *unit.own, "+", *unit.manager]
    for entry in journal.entries(fields, both):
        found = unit.tell(entry)[0]
        if found is not None and found not in known:
            known.append(found)
            if need == 1:
                return known
    if need > len(known):
        for entry in journal.entries(unit.id_field, ["-r", *unit.manager]):
            found = unit.tell(entry)[0]
            if found is not None and found not in known:
                known.append(found)
                if len(known) >= need:
                    break
    hops = 0
    while known and len(known) < need and hops < HOPS:
        hops += 1
        before = _before(journal, unit, fields, known)
        if before is None:
            break
        known.append(before)
    return known[:need]


def _before(journal: Journal, unit: LoggedUnit, fields: str, known: List[str]) -> Optional[str]:
    """The invocation before the oldest known one, where the manager's lines are gone."""
    first = next(journal.entries(fields, unit.matches(known[-1:])), None)
    stamp = first.get(b"__REALTIME_TIMESTAMP", b"") if first else b""
    if not stamp.isdigit():
        return None
    until = "--until=@%d.%06d" % divmod(int(stamp) - 1, 1000000)
    for entry in journal.entries(fields, ["-r", "-n", "8", until, *unit.own]):
        found = unit.tell(entry)[0]
        if found is not None and found not in known:
            return found
    return None


def named(journal: Journal, pattern: str, user: bool) -> List[str]:
    """LoggedUnit names that a pattern means: itself, with .service, or all that match a glob."""
    suffixes = (".service", ".scope", ".socket", ".timer", ".slice", ".mount", ".target")
    name = pattern if pattern.endswith(suffixes) else pattern + ".service"
    if not any(char in pattern for char in "*?["):
        return [name]
    from fnmatch import fnmatchcase

    field = "_SYSTEMD_USER_UNIT" if user else "_SYSTEMD_UNIT"
    found = set(journal.values(field)) | set(journal.values("USER_UNIT" if user else "UNIT"))
    units = sorted(one for one in found if fnmatchcase(one, name))
    if not units:
        raise Trouble(FAILED, "no unit in the journal matches %r" % pattern, code="no_such_unit")
    return units
