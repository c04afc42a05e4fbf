"""What a child does with files for ``pagecache.files``: measure, walk, count by node.

Everything here touches the files themselves and may hang or die with them (see ``apart``).
Values are plain tuples, since they pass through a pipe.
"""

from __future__ import annotations

import os
import stat

from fleetmem.agent.page_cache import overlay, pages

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, List, Optional, Tuple

    Item = Tuple[str, bytes, int]
    """(what to do: file, named, tree, nodes; path; smallest size of interest)"""
    Key = Tuple[int, int, int]
    Measure = Tuple[
        bytes, Key, bool, int, Optional[int], Optional[int], Optional[int], Optional[str], bool
    ]
    """path, key (device's major, minor, inode), block device?, size, pages cached, dirty,
    under writeback, problem, deleted?"""

BATCH = 256
DELETED = b" (deleted)"
NOT_ALLOWED = "unknown: only root, its owner or a user who can write it can see this"
NO_ATIME = getattr(os, "O_NOATIME", 0)


class NotCached(Exception):
    """The file has no page cache of this kind; the text says why."""


def work(item: Item) -> Iterator[object]:
    """Do *item*: yields lists of Measure for files and trees, node counts for nodes."""
    what, path, least = item
    if what == "nodes":
        return count_nodes(path)
    if what == "tree":
        return walk(path, least)
    if what == "named":
        return named(path)
    return iter(([measure(path)],))


def named(path: bytes) -> Iterator[object]:
    """Measures of a file, of all files below a directory, or of what a pattern matches."""
    if not os.path.lexists(path) and any(mark in path for mark in b"*?["):
        from glob import iglob

        places = sorted(iglob(path))
        if not places:
            yield [bad(path, "nothing matches")]
    else:
        places = [path]
    for place in places:
        if os.path.isdir(place):
            for value in walk(place, 0):
                yield value
        else:
            yield [measure(place)]


def bad(path: bytes, problem: Optional[str]) -> Measure:
    """A row for a path that cannot be measured."""
    return (path, (0, 0, 0), False, 0, None, None, None, problem or "cannot be read", False)


def same(path: bytes, key: Key) -> bool:
    """Whether *path* leads to the file *key*; for files known by a process's use of them."""
    try:
        found = os.stat(path)
    except OSError:
        return False
    return key_of(found) == key


def open_file(path: bytes, follow: bool = True) -> Tuple[int, os.stat_result]:
    """(descriptor for reading, status) of a regular file or block device, without waiting.

    NotCached for anything else. What it is is known before it is really opened, so that a
    FIFO or a tape is never disturbed; access times stay where this user may ask for that.
    """
    extra = 0 if follow else os.O_NOFOLLOW
    first = os.open(path, os.O_PATH | os.O_CLOEXEC | extra)
    try:
        found = os.fstat(first)
        if not (stat.S_ISREG(found.st_mode) or stat.S_ISBLK(found.st_mode)):
            raise NotCached("a %s has no page cache of its own" % _kind(found.st_mode))
        _refuse_kernel(first)
        again = "/proc/self/fd/%d" % first
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            return os.open(again, flags | NO_ATIME), found
        except PermissionError:
            return os.open(again, flags), found
    finally:
        os.close(first)


def _refuse_kernel(fd: int) -> None:
    name = pages.KERNEL.get(pages.filesystem(fd))
    if name is not None:
        raise NotCached("%s: virtual kernel files have no page cache" % name)


def _kind(mode: int) -> str:
    for name, check in (
        ("directory", stat.S_ISDIR),
        ("FIFO", stat.S_ISFIFO),
        ("socket", stat.S_ISSOCK),
        ("character device", stat.S_ISCHR),
        ("symbolic link", stat.S_ISLNK),
    ):
        if check(mode):
            return name
    return "special file"


def file_size(fd: int, found: os.stat_result) -> int:
    """Bytes of a file or block device."""
    if stat.S_ISBLK(found.st_mode):
        return os.lseek(fd, 0, os.SEEK_END)
    return found.st_size


def may_know(fd: int, found: os.stat_result) -> bool:
    """Whether the kernel tells this user the truth about the file's pages.

    It asks for the owner, write permission, or root of the first user namespace; to all
    others mincore says that every page is resident.
    """
    uid = os.geteuid()
    if uid == found.st_uid or (uid == 0 and _first_user_namespace()):
        return True
    return os.access("/proc/self/fd/%d" % fd, os.W_OK, effective_ids=True)


_first: Optional[bool] = None


def _first_user_namespace() -> bool:
    global _first  # noqa: PLW0603 - asked once a process
    if _first is None:
        try:
            with open("/proc/self/uid_map", "rb") as file:
                _first = file.read().split() == [b"0", b"0", b"4294967295"]
        except OSError:
            _first = True  # a kernel without user namespaces
    return _first


def measure(path: bytes, follow: bool = True) -> Measure:
    """Pages of one file. The problem is set where there is none or it is not known.

    A file that is only known by a process (below /proc) comes back under its own name, or
    that of the process's root directory where the name means another file here.
    """
    try:
        fd, found = open_file(path, follow)
    except NotCached as trouble:
        return bad(path, str(trouble))
    except OSError as error:
        return bad(path, error.strerror)
    try:
        name, deleted = path, False
        if path.startswith(b"/proc/"):
            name, deleted = own_name(path, key_of(found))
        fd, found = layered(fd, found, path)
        return (*_measure(fd, name, found), deleted)
    except OSError as error:
        return bad(path, error.strerror)
    finally:
        os.close(fd)


def key_of(found: os.stat_result) -> Key:
    """What a file is known by."""
    return os.major(found.st_dev), os.minor(found.st_dev), found.st_ino


def layered(fd: int, found: os.stat_result, path: bytes) -> Tuple[int, os.stat_result]:
    """The same, or in its place the layer's file that a file on overlayfs stands for, where
    that can be told: pages, unwritten ones and mappings are counted there."""
    if not found.st_size or pages.filesystem(fd) != pages.OVERLAY:
        return fd, found
    layer = overlay.behind(fd, found, path)
    if layer is None:
        return fd, found
    os.close(fd)
    return layer, os.fstat(layer)


def _measure(fd: int, path: bytes, found: os.stat_result) -> Any:
    block = stat.S_ISBLK(found.st_mode)
    size = file_size(fd, found)
    key = key_of(found)
    kind = pages.filesystem(fd)
    if kind in pages.SHMEM and not block:
        problem = "%s: shared memory, not file cache" % pages.SHMEM[kind]
        return (path, key, block, size, None, None, None, problem)
    if not may_know(fd, found):
        return (path, key, block, size, None, None, None, NOT_ALLOWED)
    counts = pages.cachestat(fd, size)
    if counts is not None and (counts[0] or kind != pages.OVERLAY):
        return (path, key, block, size, counts[0], counts[1], counts[2], None)
    # An older kernel, or overlayfs, whose own file is empty while a layer's has pages.
    resident = 0
    for window in pages.windows(fd, size):
        resident += window.states.count(b"\1")
    return (path, key, block, size, resident, None, None, None)


def own_name(place: bytes, key: Key) -> Tuple[bytes, bool]:
    """The name of a file below /proc/PID/fd or map_files, as one that can be opened here, and
    whether it is deleted: the kernel's remark is then its end. A name may end like that, too."""
    try:
        name = os.readlink(place)
    except OSError:
        return place, False
    root = b"/".join(place.split(b"/")[:3]) + b"/root"
    for known in (name, root + name):
        if same(known, key):
            return known, False
    return name, name.endswith(DELETED)


def count_nodes(path: bytes) -> Iterator[object]:
    """``None`` for each window, then (pages by node as pairs, mapped elsewhere, problem)."""
    try:
        fd, found = open_file(path)
    except (NotCached, OSError) as trouble:
        yield ([], None, str(trouble))
        return
    try:
        if not may_know(fd, found):
            yield ([], None, NOT_ALLOWED)
            return
        total: Dict[int, int] = {}
        shared = False
        for window in pages.windows(fd, file_size(fd, found)):
            if b"\1" in window.states:
                window.touch()
                counts, others = window.nodes()
                shared = shared or others
                for node, count in counts.items():
                    total[node] = total.get(node, 0) + count
            yield None
        yield (sorted(total.items()), shared, None)
    except OSError as error:
        yield ([], None, error.strerror)
    finally:
        os.close(fd)


def walk(path: bytes, least: int) -> Iterator[object]:
    """Measures of all regular files of at least *least* bytes below *path*, in batches.

    Other file systems below are left alone; links are not followed. Files without pages
    have no row unless there is a problem. ``None`` shows that it goes on, however many files
    of a directory have none.
    """
    batch: List[Measure] = []
    seen = 0
    try:
        device = os.stat(path).st_dev
        root = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            _refuse_kernel(root)
        finally:
            os.close(root)
    except NotCached as trouble:
        yield [bad(path, str(trouble))]
        return
    except OSError as error:
        yield [bad(path, error.strerror)]
        return
    stack = [path]
    while stack:
        place = stack.pop()
        try:
            with os.scandir(place) as entries:
                for entry in entries:
                    seen += 1
                    if seen % BATCH == 0:
                        yield batch or None
                        batch = []
                    row = _entry(entry, device, least, stack)
                    if row is not None:
                        batch.append(row)
        except OSError as error:
            if place == path:
                yield [bad(path, error.strerror)]
            continue
        yield None
    yield batch


def _entry(
    entry: os.DirEntry[bytes], device: int, least: int, stack: List[bytes]
) -> Optional[Measure]:
    """The measure of a file that has pages or a problem; a directory goes onto *stack*."""
    try:
        if entry.is_dir(follow_symlinks=False):
            if entry.stat(follow_symlinks=False).st_dev == device:
                stack.append(entry.path)
            return None
        if not entry.is_file(follow_symlinks=False) or (
            least and entry.stat(follow_symlinks=False).st_size < least
        ):
            return None
    except OSError:
        return None
    row = measure(entry.path, follow=False)
    return row if row[4] or row[7] else None
