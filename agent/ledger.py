"""What was done to this host, kept on this host: the lock, the epoch, intents, the trail.

Everything lies in one 0700 folder on a file system that a reboot empties
(``/run/fleetmem``, or the user's runtime directory), so a record never outlives the pids
it names. A record is one file per (identity, signal), created with O_EXCL and synced
before the signal is sent: at most once is the file system's promise, not ours.
"""

from __future__ import annotations

import os
import time
from errno import EDQUOT, ENOSPC

from fleetmem.agent import wire
from fleetmem.agent.model import DENIED, FAILED, Trouble

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Tuple

    from fleetmem.agent import shapes

_JOURNAL = "/run/systemd/journal/socket"


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
    if error.errno in (ENOSPC, EDQUOT):
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
    _forget_the_dead(os.path.join(folder, "signals"))
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

    The descriptor returned is for :func:`done`. Trouble where it cannot be recorded; then
    there is no record, and nothing may be sent.
    """
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
        if os.write(number, line) != len(line):
            raise OSError(ENOSPC, os.strerror(ENOSPC))
        os.fsync(number)
        sync_dir(folder)
    except OSError as error:
        withdraw(number, pid, start_time, signal)
        raise cannot_keep(path, error) from None
    return number


def done(number: int, result: str) -> None:
    """Close an intent with its result."""
    os.write(number, (wire.dumps({"result": result}) + "\n").encode())
    os.fsync(number)
    os.close(number)


def withdraw(number: int, pid: int, start_time: int, signal: str) -> None:
    """Take an intent back: nothing was sent."""
    os.close(number)
    os.unlink(os.path.join(open_dir(), "signals", "%d-%d-%s" % (pid, start_time, signal)))


def records() -> List[shapes.SignalRecord]:
    """All (identity, signal) pairs on record, oldest name first."""
    folder, _ = state_dir()
    path = os.path.join(folder or "", "signals")
    found: List[shapes.SignalRecord] = []
    try:
        names = sorted(os.listdir(path))
    except OSError:
        return found
    for name in names:
        pid, _, rest = name.partition("-")
        start, _, signal = rest.partition("-")
        try:
            with open(os.path.join(path, name), "rb") as file:
                lines = [wire.loads(line.decode()) for line in file.read().splitlines()]
            found.append(
                {
                    "operation": str(lines[0].get("operation", "")) if lines else "",
                    "pid": int(pid),
                    "start_time": int(start),
                    "signal": signal,
                    "done": len(lines) > 1,
                    "result": lines[1].get("result") if len(lines) > 1 else None,
                }
            )
        except (OSError, ValueError, AttributeError):
            continue
    return found


def operations() -> shapes.HostOperations:
    """The reading of ``host.operations``."""
    return {"epoch": read_epoch(), "locked_by": locked_by(), "signals": records()}


def _forget_the_dead(folder: str) -> None:
    """Drop records of identities that no longer exist: their numbers are free again."""
    from fleetmem.agent.kernel import identity

    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in names:
        pid, _, rest = name.partition("-")
        start = rest.partition("-")[0]
        if not (pid.isdigit() and start.isdigit()):
            continue
        if identity.start_time(int(pid)) != int(start):
            try:
                os.unlink(os.path.join(folder, name))
            except OSError:
                pass


# --- the trail -----------------------------------------------------------------------------


def trail(event: Dict[str, Any]) -> None:
    """One line in the host's journal, else in ``audit.jsonl``; it is on record on return.

    *event* says what happens by action, signal, pid, comm and operation, or by ``message``.
    Journal: the native protocol of systemd-journald (``systemd.io/JOURNAL_NATIVE_PROTOCOL``).
    """
    if "message" in event:
        text = "fleetmem: %s" % event["message"]
    else:
        form = "fleetmem: %(action)s %(signal)s to %(pid)d (%(comm)s), operation %(operation)s"
        text = form % event
    if os.geteuid() == 0 and _to_journal(text, event):
        return
    path = os.path.join(open_dir(), "audit.jsonl")
    line = wire.dumps(dict(event, time=round(time.time(), 3))) + "\n"
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        number = os.open(path, flags, 0o600)
        try:
            os.write(number, line.encode())
            os.fsync(number)
        finally:
            os.close(number)
    except OSError as error:
        raise Trouble(FAILED, "%s: %s" % (path, error.strerror), code="no_trail") from None


def _to_journal(text: str, event: Dict[str, Any]) -> bool:
    if not os.path.exists(_JOURNAL):
        return False
    import _socket

    fields = {"MESSAGE": text, "SYSLOG_IDENTIFIER": "fleetmem", "PRIORITY": "5"}
    for key, value in event.items():
        if key == "message":
            continue
        fields["FLEETMEM_" + key.upper()] = str(value)
    data = "".join("%s=%s\n" % (k, v.replace("\n", " ")) for k, v in fields.items())
    channel = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM)
    try:
        channel.sendto(data.encode(), _JOURNAL)
    except OSError:
        return False
    finally:
        channel.close()
    return True
