"""The journal's export format, read in any portions, byte-exact.

An entry is lines ``NAME=value`` and ends with an empty line. A value that holds a newline or
no text comes as ``NAME``, newline, its length as 8 bytes little endian, itself, newline. The
addresses stand first, ``__CURSOR`` to ``_BOOT_ID``; of those only the time is kept.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Iterator, List, Optional, Tuple

    Fields = Dict[bytes, bytes]

KEEP_BYTES = 48 * 1024 * 1024
"""journald itself takes no field above this; more without an end is damage."""


TIME = b"__REALTIME_TIMESTAMP"


class Export:
    """Bytes in, entries out. A field that is repeated keeps all values, a line each."""

    __slots__ = ("_addresses", "_rest", "broken")

    def __init__(self) -> None:
        self._addresses = 0
        self._rest = b""
        self.broken = False

    def feed(self, data: bytes) -> Iterator[Fields]:
        """Each entry that *data* completes."""
        buffer = self._rest + data if self._rest else data
        at = 0
        while True:
            end = buffer.find(b"\n\n", at)
            if end < 0:
                break
            lines = buffer[at:end].split(b"\n")
            boot = self._addresses
            if not boot or len(lines) <= boot or lines[boot][:9] != b"_BOOT_ID=":
                boot = self._addresses = addresses(lines)
            rest = lines[boot + 1 :] if boot else lines
            try:
                entry = dict([line.split(b"=", 1) for line in rest])
            except ValueError:  # a field that is no plain text
                entry = {}
            if len(entry) == len(rest):
                if boot:
                    entry[TIME] = lines[1][len(TIME) + 1 :]
                at = end + 2
                yield entry
                continue
            found = slow(buffer, at)
            if found is None:
                break
            entry, at = found
            if entry:
                yield entry
        self._rest = buffer[at:]
        if len(self._rest) > KEEP_BYTES:
            self.broken = True
            self._rest = b""

    def close(self) -> Iterator[Fields]:
        """A last entry without its empty line."""
        rest, self._rest = self._rest, b""
        if rest.strip():
            found = slow(rest + b"\n\n", 0)
            if found is None:
                self.broken = True
            elif found[0]:
                yield found[0]


def addresses(lines: List[bytes]) -> int:
    """Where ``_BOOT_ID`` ends an entry's addresses, the time second among them; 0 where not."""
    if len(lines) < 2 or not lines[1].startswith(TIME + b"="):
        return 0
    for number, line in enumerate(lines):
        if line.startswith(b"_BOOT_ID="):
            return number
        if not line.startswith(b"__"):
            break
    return 0


def slow(buffer: bytes, at: int) -> Optional[Tuple[Fields, int]]:
    """The entry at *at*, field by field, and where it ends; ``None`` while it is not whole."""
    entry: Dict[bytes, List[bytes]] = {}
    while True:
        end = buffer.find(b"\n", at)
        if end < 0:
            return None
        line = buffer[at:end]
        if not line:
            return {name: b"\n".join(values) for name, values in entry.items()}, end + 1
        name, equal, value = line.partition(b"=")
        at = end + 1
        if not equal:
            if len(buffer) < at + 8:
                return None
            size = int.from_bytes(buffer[at : at + 8], "little")
            if size > KEEP_BYTES:  # no length: what follows is no field
                continue
            if len(buffer) < at + 8 + size + 1:
                return None
            value = buffer[at + 8 : at + 8 + size]
            at += 8 + size + 1
        entry.setdefault(name, []).append(value)
