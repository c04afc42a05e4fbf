"""A program of the host as a stream: bounded in time, never left behind."""

from __future__ import annotations

import os
from _signal import SIGKILL
from select import select
from time import monotonic

from fleetmem.agent.kernel import sysroot

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterator, List, Optional

FOLDERS = ("/usr/bin", "/bin", "/usr/local/bin", "/usr/sbin", "/sbin", "/opt/bin")
ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LC_ALL": "C.UTF-8",
    "SYSTEMD_PAGER": "",
    "SYSTEMD_COLORS": "0",
}
PORTION = 1 << 18
SAID = 4096


def place(name: str) -> Optional[str]:
    """Where the program lies, ``None`` where the host has none."""
    for folder in FOLDERS:
        path = folder + "/" + name
        if os.access(sysroot.path(path), os.X_OK):
            return path
    return None


class Program:
    """One run of a program. ``problem`` says how it ended where that was not well."""

    __slots__ = ("_deadline", "_errors", "_name", "_output", "_pid", "late", "said", "status")

    def __init__(self, path: str, words: List[str], deadline: float, merge: bool = False) -> None:
        self._name = words[0]
        self._deadline = deadline
        self.late = False
        self.said = b""
        self.status: Optional[int] = None
        self._output, out = os.pipe()
        self._errors, err = os.pipe()
        null = os.open("/dev/null", os.O_RDONLY)
        try:
            self._pid = os.posix_spawn(
                sysroot.path(path),
                words,
                ENVIRONMENT,
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, null, 0),
                    (os.POSIX_SPAWN_DUP2, out, 1),
                    (os.POSIX_SPAWN_DUP2, out if merge else err, 2),
                ],
            )
        except OSError:
            os.close(self._output)
            os.close(self._errors)
            raise
        finally:
            for number in (null, out, err):
                os.close(number)

    def portions(self) -> Iterator[bytes]:
        """Its output as it comes; ends with the program or at the deadline."""
        open_ = [self._output, self._errors]
        while open_:
            left = self._deadline - monotonic()
            ready = select(open_, [], [], left)[0] if left > 0 else []
            if not ready:
                self.late = True
                return
            for number in ready:
                data = os.read(number, PORTION)
                if not data:
                    open_.remove(number)
                elif number == self._errors:
                    self.said = (self.said + data)[:SAID]
                else:
                    yield data

    def end(self) -> None:
        """Reap it, killed first where it has not ended by itself. A second call does nothing."""
        if self.status is not None:
            return
        os.close(self._output)
        os.close(self._errors)
        pid, status = os.waitpid(self._pid, os.WNOHANG)
        until = monotonic() + 0.05
        while not pid and not self.late and monotonic() < until:
            select([], [], [], 0.002)
            pid, status = os.waitpid(self._pid, os.WNOHANG)
        if not pid:
            os.kill(self._pid, SIGKILL)
            pid, status = os.waitpid(self._pid, 0)
        self.status = os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)

    def problem(self) -> Optional[str]:
        """One line where it ended badly, in its own words where it had some."""
        words = self.said.decode("utf-8", "replace").strip().splitlines()
        if self.late:
            return "%s did not end in time" % self._name
        if self.status:
            how = "status %d" % self.status if self.status > 0 else "signal %d" % -self.status
            return "%s: %s" % (self._name, words[-1] if words else how)
        return None
