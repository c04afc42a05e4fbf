"""What systemd says of units: one ``systemctl show`` for all of them, with a bound."""

from __future__ import annotations

import os
from select import select
from time import monotonic

from fleetmem.agent.kernel import sysroot

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Optional, Tuple

PLACES = ("/usr/bin/systemctl", "/bin/systemctl")
TIMEOUT_SECONDS = 2.0
LIVE = ("active", "activating", "reloading", "deactivating", "refreshing", "maintenance")
LIMIT = 1 << 20
SIGKILL = 9


def show(units: List[str]) -> Dict[str, Tuple[Optional[str], int]]:
    """(live, gone or ``None``, main pid or 0) of each unit; empty where there is no answer."""
    text = ask(["systemctl", "show", "-p", "ActiveState,LoadState,MainPID", "--", *units])
    return {} if text is None else parse(units, text)


def ask(words: List[str]) -> Optional[str]:
    """What systemctl prints, else ``None``."""
    program = next((place for place in PLACES if sysroot.exists(place)), None)
    return None if program is None else _run(sysroot.path(program), words)


def parse(units: List[str], text: str) -> Dict[str, Tuple[Optional[str], int]]:
    """Blocks of ``systemctl show``, in the order in which the units were named."""
    blocks = [block for block in text.strip().split("\n\n") if block.strip()]
    if len(blocks) != len(units):
        return {}
    found: Dict[str, Tuple[Optional[str], int]] = {}
    for at, unit in enumerate(units):
        fields = {
            line.partition("=")[0]: line.partition("=")[2] for line in blocks[at].splitlines()
        }
        active, main = fields.get("ActiveState", ""), fields.get("MainPID", "")
        state = "live" if active in LIVE else "gone" if active else None
        found[unit] = (state, int(main) if main.isdigit() else 0)
    return found


def _run(program: str, words: List[str]) -> Optional[str]:
    """Output of a program that ends well within the bound, else ``None``."""
    ours, theirs = os.pipe()
    try:
        null = os.open("/dev/null", os.O_RDWR)
        try:
            child = os.posix_spawn(
                program,
                words,
                {
                    "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
                    "LC_ALL": "C",
                    "SYSTEMD_PAGER": "",
                },
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, null, 0),
                    (os.POSIX_SPAWN_DUP2, theirs, 1),
                    (os.POSIX_SPAWN_DUP2, null, 2),
                ],
            )
        except OSError:
            os.close(theirs)
            return None
        finally:
            os.close(null)
        os.close(theirs)
        data = _drain(ours, monotonic() + TIMEOUT_SECONDS)
        if data is None:
            os.kill(child, SIGKILL)
        _, status = os.waitpid(child, 0)
        if data is None or status != 0:
            return None
        return data.decode("utf-8", "replace")
    finally:
        os.close(ours)


def _drain(fd: int, deadline: float) -> Optional[bytes]:
    data = b""
    while True:
        left = deadline - monotonic()
        if left <= 0 or len(data) > LIMIT or not select([fd], [], [], left)[0]:
            return None
        part = os.read(fd, 65536)
        if not part:
            return data
        data += part
