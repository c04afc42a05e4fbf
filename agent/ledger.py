"""What was done to this host, kept on this host: the lock, the epoch, intents.

Everything lies in one 0700 folder on a file system that a reboot empties
(``/run/fleetmem``, or the user's runtime directory), so a record never outlives the pids
it names. A record is one file per (identity, signal), created with O_EXCL and synced
before the signal is sent: at most once is the file system's promise, not ours.
"""

from __future__ import annotations

import os
from errno import EDQUOT, ENOSPC

from fleetmem.agent import wire
from fleetmem.agent.model import DENIED, FAILED, Trouble

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Tuple

    from fleetmem.agent import shapes

NO_ROOM = (ENOSPC, EDQUOT)


def state_dir() -> Tuple[Optional[str], Optional[str]]:
    """The folder for this user's records, or why there is none (path, reason)."""
    uid = os.geteuid()
    base = "/run" if uid == 0 else os.environ.get("XDG_RUNTIME_DIR") or "/run/user/%d" % uid
    try:
        found = os.stat(base)
    except OSError as error:
        return None, "%s: %s" % (base, error.strerror)
    if uid != 0 and (found.st_uid != uid or found.st_mode & 0o077):
        return None, "%s is not a private folder of this user" % base
    return os.path.join(base, "fleetmem"), None


def open_dir() -> str:
    """Make sure of the folder and return it; Trouble where it cannot be trusted."""
    folder, reason = state_dir()
    if folder is None:
        raise Trouble(DENIED, str(reason), code="no_state_dir")
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        pass
    except OSError as error:
        raise cannot_keep(folder, error) from None
    found = os.lstat(folder)
    if found.st_mode & 0o170077 != 0o040000 or found.st_uid != os.geteuid():
        raise Trouble(
            DENIED, "%s is not a private folder of this user" % folder, code="no_state_dir"
        )
    return folder


def cannot_keep(path: str, error: OSError) -> Trouble:
    """The Trouble that *error* about a record at *path* means: no room, or no folder."""
    if error.errno in NO_ROOM:
        return Trouble(FAILED, "%s: %s" % (path, error.strerror), code="remote_disk_full")
    return Trouble(DENIED, "%s: %s" % (path, error.strerror), code="no_state_dir")


# --- lock and epoch ------------------------------------------------------------------------


def lock(operation: str) -> Tuple[int, int]:
    """Take the host's lock for *operation*: (descriptor, new epoch); Trouble if held."""
    from fcntl import LOCK_EX, LOCK_NB, flock

    folder = open_dir()
    path = os.path.join(folder, "lock")
    try:
        number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise cannot_keep(path, error) from None
    try:
        flock(number, LOCK_EX | LOCK_NB)
    except OSError:
        holder = os.read(number, 4096).decode("utf-8", "replace").strip()
        os.close(number)
        raise Trouble(DENIED, "held by %s" % (holder or "another run"), code="locked") from None
    try:
        os.ftruncate(number, 0)
        os.pwrite(number, operation.encode(), 0)
        epoch = read_epoch() + 1
        write_synced(os.path.join(folder, "epoch"), b"%d\n" % epoch)
    except OSError as error:
        os.close(number)
        raise cannot_keep(folder, error) from None
    _settle(os.path.join(folder, "signals"))
    return number, epoch


def unlock(number: int) -> None:
    """Give the lock back."""
    os.ftruncate(number, 0)
    os.close(number)


def read_epoch() -> int:
    """How often the lock was taken since boot; 0 where it never was."""
    folder, _ = state_dir()
    try:
        with open(os.path.join(folder or "", "epoch"), "rb") as file:
            return int(file.read())
    except (OSError, ValueError):
        return 0


def locked_by() -> Optional[str]:
    """Who holds the lock now, without taking it."""
    from fcntl import LOCK_NB, LOCK_SH, flock

    folder, _ = state_dir()
    try:
        number = os.open(os.path.join(folder or "", "lock"), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        flock(number, LOCK_SH | LOCK_NB)
    except OSError:
        return os.read(number, 4096).decode("utf-8", "replace").strip() or "another run"
    finally:
        os.close(number)
    return None


def write_synced(path: str, data: bytes) -> None:
    """Replace *path* so that after a crash it holds the old or the new content."""
    temporary = "%s.%s" % (path, os.urandom(6).hex())
    number = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        whole = os.write(number, data) == len(data)
        os.fsync(number)
    except OSError:
        os.unlink(temporary)
        raise
    finally:
        os.close(number)
    if not whole:
        os.unlink(temporary)
        raise OSError(ENOSPC, os.strerror(ENOSPC))
    os.rename(temporary, path)
    sync_dir(os.path.dirname(path))


def sync_dir(path: str) -> None:
    """Make the names in the folder *path* durable."""
    number = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(number)
    finally:
        os.close(number)


# --- intents -------------------------------------------------------------------------------


def intend(pid: int, start_time: int, signal: str, event: Dict[str, Any]) -> Optional[int]:
    """Record the intent to signal an identity; None if this pair is on record already.

    The descriptor returned is for :func:`done`; while it is open the record is locked, so that
    nobody takes an intent in the making for one that was left behind. Trouble where it cannot
    be recorded; then there is no record, and nothing may be sent.
    """
    from fcntl import LOCK_EX, LOCK_NB, flock

    folder = os.path.join(open_dir(), "signals")
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        pass
    except OSError as error:
        raise cannot_keep(folder, error) from None
    path = os.path.join(folder, "%d-%d-%s" % (pid, start_time, signal))
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_APPEND
    try:
        number = os.open(path, flags, 0o600)
    except FileExistsError:
        return None
    except OSError as error:
        raise cannot_keep(path, error) from None
    line = (wire.dumps(event) + "\n").encode()
    try:
        flock(number, LOCK_EX | LOCK_NB)
        if os.write(number, line) != len(line):
            raise OSError(ENOSPC, os.strerror(ENOSPC))
        os.fsync(number)
        sync_dir(folder)
    except OSError as error:
        withdraw(number, pid, start_time, signal)
        raise cannot_keep(path, error) from None
    return number


def done(number: int, result: str) -> None:
    """Close an intent with its result. Where there is no room for that it stays open: what the
    kernel shows settles it later, and the result is still told."""
    try:
        os.write(number, (wire.dumps({"result": result}) + "\n").encode())
        os.fsync(number)
    except OSError:
        pass
    finally:
        os.close(number)


def withdraw(number: int, pid: int, start_time: int, signal: str) -> None:
    """Take an intent back: nothing was sent."""
    os.close(number)
    os.unlink(os.path.join(open_dir(), "signals", "%d-%d-%s" % (pid, start_time, signal)))


def records() -> List[shapes.SignalRecord]:
    """All (identity, signal) pairs on record, oldest name first.

    One without a result is settled by what the kernel shows, where it shows it: ``sent`` counts as
    done, ``not_sent`` may be sent again, and the next lock forgets it.
    """
    folder, _ = state_dir()
    path = os.path.join(folder or "", "signals")
    found: List[shapes.SignalRecord] = []
    try:
        names = sorted(os.listdir(path))
    except OSError:
        return found
    for name in names:
        key = _key(name)
        if key is None:
            continue
        operation, result = _read(os.path.join(path, name))
        shown = None if result is not None else _shown(os.path.join(path, name), *key)
        found.append(
            {
                "operation": operation,
                "pid": key[0],
                "start_time": key[1],
                "signal": key[2],
                "done": result is not None or shown == "sent",
                "result": result or shown,
            }
        )
    return found


def _key(name: str) -> Optional[Tuple[int, int, str]]:
    """The identity and the signal that a record's name says, None for another file."""
    pid, _, rest = name.partition("-")
    start, _, signal = rest.partition("-")
    if not (pid.isdigit() and start.isdigit() and signal):
        return None
    return int(pid), int(start), signal


def _read(path: str) -> Tuple[str, Optional[str]]:
    """(operation, result) of a record; a line that is damaged or cut short says nothing."""
    operation, result = "", None
    try:
        with open(path, "rb") as file:
            lines = file.read().splitlines()
        operation = str(wire.loads(lines[0].decode())["operation"])
        result = str(wire.loads(lines[1].decode())["result"])
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        pass
    return operation, result


def _shown(path: str, pid: int, start_time: int, signal: str) -> Optional[str]:
    """What the kernel shows of an intent without a result; None while somebody is at it."""
    from fcntl import LOCK_NB, LOCK_SH, flock

    from fleetmem.agent.kernel import dispositions

    try:
        number = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        flock(number, LOCK_SH | LOCK_NB)
    except OSError:
        return None
    finally:
        os.close(number)
    return dispositions.outcome(pid, start_time, signal)


def operations() -> shapes.HostOperations:
    """The reading of ``host.operations``."""
    return {"epoch": read_epoch(), "locked_by": locked_by(), "signals": records()}


def _settle(folder: str) -> None:
    """Drop records of identities that no longer exist, whose numbers are free again, and of
    signals that the kernel shows were never sent."""
    from fleetmem.agent.kernel import identity

    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in names:
        key = _key(name)
        if key is None:
            continue
        path = os.path.join(folder, name)
        gone = identity.start_time(key[0]) != key[1]
        if gone or (_read(path)[1] is None and _shown(path, *key) == "not_sent"):
            try:
                os.unlink(path)
            except OSError:
                pass
