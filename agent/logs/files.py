"""Log files as they lie on the host: rotated and packed siblings, containers' own files.

Lines are taken from the end towards the beginning, so that a budget keeps the newest.
"""

from __future__ import annotations

import os
from time import monotonic, time

from fleetmem.agent.kernel import sysroot
from fleetmem.agent.logs.lines import Lines
from fleetmem.agent.logs.rotated import family
from fleetmem.agent.logs.stamps import microseconds
from fleetmem.agent.model import DENIED, FAILED, PARTIAL, Trouble

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterator, List, Optional, Union

    from fleetmem.agent.shapes import JournalRead

BLOCK = 1 << 20
LINE_BYTES = 64 << 20
PACKED_BYTES = 24 << 20
"""At most so much of what one packed file holds is kept, its newest."""


def read(
    file: Optional[str], container: Optional[str], keep: Any, deadline: float, span: Any = None
) -> Union[JournalRead, str]:
    """A file's or a container's lines; of a container that is not found here, why not."""
    if file is not None:
        paths = family(file)
        if not paths:
            raise Trouble(FAILED, "there is no file %s on this host" % file, code="no_such_file")
        return _files("file", file, paths, keep, deadline, span)
    from fleetmem.agent.logs import container_logs

    assert container is not None
    paths = container_logs.files(container)
    if paths:
        return _files("container", container, paths, keep, deadline, span)
    started = container_logs.command(container, deadline)
    if started is None:
        return "no container runtime here has a log file or a command for it"
    running, words = started
    lines = Lines(keep, span)
    held: List[bytes] = []
    rest = b""
    size = 0
    for data in running.portions():
        parts = (rest + data).split(b"\n")
        rest = parts.pop()
        held += parts
        size += len(data)
        while size > PACKED_BYTES and held:
            size -= len(held.pop(0)) + 1
    running.end()
    if rest:
        held.append(rest)
    if running.status and not running.late and not any(map(_stamped, held)):
        said = b" ".join(held[-1:]).decode("utf-8", "replace").strip()
        return "%s: %s" % (words[0], said[:300]) if said else str(running.problem())
    for line in reversed(held):
        if not lines.take(line):
            break
    lines.close()
    reading = _reading("container", container, [" ".join(words)], keep, lines.scanned)
    problem = running.problem()
    if problem is not None:
        raise Trouble(PARTIAL, problem, reading)
    return reading


def _stamped(line: bytes) -> bool:
    """Whether a container wrote it: the runtime's own words bear no time."""
    return microseconds(line[:40].decode("utf-8", "replace").partition(" ")[0]) is not None


def _files(
    kind: str, name: str, paths: List[str], keep: Any, deadline: float, span: Any
) -> JournalRead:
    problems: List[str] = []
    lines = Lines(keep, span)
    used: List[str] = []
    denied = 0
    for path in paths:
        shown = sysroot.clean(path)
        try:
            for line in backwards(path):
                if not lines.take(line):
                    break
                if not lines.scanned & 1023 and monotonic() > deadline:
                    keep.full = "time"
                    break
        except PermissionError:
            denied += 1
            problems.append("%s could not be read here" % shown)
            continue
        except (OSError, ValueError, EOFError) as error:
            problems.append("%s: %s" % (shown, str(error)[:200]))
        used.append(shown)
        if keep.full or lines.early:
            break
    lines.close()
    if span is not None and lines.scanned and not lines.dated:
        problems.append("no line of it bears a time that is known: --since and --until do not hold")
    if denied and not used:
        raise Trouble(DENIED, problems[0])
    reading = _reading(kind, name, used, keep, lines.scanned)
    if keep.full == "time":
        problems.append("the time limit was reached before the start of the log")
    if problems:
        raise Trouble(PARTIAL, "; ".join(problems)[:500], reading)
    return reading


def _reading(kind: str, name: str, used: List[str], keep: Any, scanned: int) -> JournalRead:
    keep.flush()
    return {
        "kind": "file" if kind == "file" else "container",
        "name": name,
        "user": None,
        "units": [],
        "files": used[:50],
        "invocations": [],
        "scanned": scanned,
        "rows": keep.rows,
        "bytes": keep.bytes,
        "cut": keep.cut,
        "kernel_rows": 0,
        "truncated": keep.full,
        "damaged": [],
        "now_us": int(time() * 1e6),
    }


def backwards(path: str) -> Iterator[bytes]:
    """The lines of a file, last first. OSError or ValueError where it cannot be read on."""
    place = sysroot.path(path)
    fd = os.open(place, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        if not os.path.isfile(place):
            raise ValueError("is not a regular file")
        head = os.pread(fd, 6, 0)
        if head[:2] == b"\x1f\x8b":
            yield from reversed(_unpacked(fd))
            return
        if head[:3] == b"BZh" or head == b"\xfd7zXZ\x00" or head[:4] == b"\x28\xb5\x2f\xfd":
            raise ValueError("uses a compression that is not supported")
        end = os.fstat(fd).st_size
        rest: List[bytes] = []  # pieces of a line whose beginning lies further up
        first = True
        while end > 0:
            start = max(0, end - BLOCK)
            data = os.pread(fd, end - start, start)
            end = start
            parts = data.split(b"\n")
            if first and parts[-1] == b"":
                parts.pop()
                parts = parts or [b""]
            first = False
            if len(parts) == 1:
                rest.insert(0, parts[0])
                if len(rest) * BLOCK > LINE_BYTES:
                    raise ValueError("has a line of more than 64 MiB")
                continue
            yield parts[-1] + b"".join(rest)
            for at in range(len(parts) - 2, 0, -1):
                yield parts[at]
            rest = [parts[0]]
        if rest:
            yield b"".join(rest)
    finally:
        os.close(fd)


def _unpacked(fd: int) -> List[bytes]:
    """The last lines of a gzip file; a cut or damaged one gives what came before the damage."""
    import zlib

    held: List[bytes] = []
    size, rest = 0, b""
    unpack = zlib.decompressobj(31)
    while True:
        data = os.read(fd, BLOCK)
        if not data:
            break
        while data:
            try:
                text = unpack.decompress(data, BLOCK)
            except zlib.error:
                return [*held, rest] if rest else held
            data = unpack.unconsumed_tail
            if unpack.eof:
                data, unpack = unpack.unused_data, zlib.decompressobj(31)
            parts = (rest + text).split(b"\n")
            rest = parts.pop()
            held += parts
            size += len(text)
            at = 0
            while size > PACKED_BYTES and at < len(held):
                size -= len(held[at]) + 1
                at += 1
            del held[:at]
    return [*held, rest] if rest else held
