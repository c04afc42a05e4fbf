"""pagecache.files: every figure against mincore, and an answer for every strange file."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from fleetmem.agent.page_cache import overlay
from fleetmem.agent.page_cache import paths as cache_paths
from fleetmem.agent.page_cache import scan as cache_scan
from fleetmem.agent.probes import pagecache
from tests.unit.agent.probe_actors import until
from tests.unit.page_cache.cache_ground import (
    MAPS,
    MIB,
    PAGE,
    cached,
    call,
    disk,
    end,
    holder,
    near,
    resident,
)

__all__ = ["disk"]


def scan(*paths: Path | str, **options: Any) -> Any:
    """The reading for named paths alone."""
    options.setdefault("discover", 0)
    return call("pagecache.files", paths=tuple(map(str, paths)), **options)[2]


def row(reading: Any, path: Path | str) -> Any:
    return next(found for found in reading["files"] if found["path"] == str(path))


def test_residency_is_what_mincore_and_fincore_say(disk: Path) -> None:
    whole = cached(disk / "whole", 8)
    part = cached(disk / "part", 8)
    with open(part, "rb") as file:
        os.posix_fadvise(file.fileno(), 2 * MIB, 4 * MIB, os.POSIX_FADV_DONTNEED)
    reading = scan(disk)
    for path in (whole, part):
        assert near(row(reading, path)["resident_bytes"], resident(path))
        if shutil.which("fincore"):
            done = subprocess.run(
                ["fincore", "-bnr", "-o", "RES", str(path)], capture_output=True, text=True
            )
            assert near(row(reading, path)["resident_bytes"], int(done.stdout))
    assert near(row(reading, whole)["resident_bytes"], 8 * MIB)
    assert row(reading, part)["resident_bytes"] < 8 * MIB
    assert row(reading, whole)["dirty_bytes"] in (0, None)
    for found in reading["files"]:
        assert sum(found["by_numa_node"].values()) == found["resident_bytes"]


def test_unwritten_pages_are_dirty(disk: Path) -> None:
    def seen() -> bool:
        """Anybody's sync may write the pages before they are looked at (a new file each time:
        ext4 writes one that is cut to nothing and filled when it is closed)."""
        (disk / "dirty").unlink(missing_ok=True)
        (disk / "dirty").write_bytes(b"x" * MIB)
        found = row(scan(disk / "dirty"), disk / "dirty")
        dirty, written = found["dirty_bytes"], found["writeback_bytes"]
        return dirty is None or dirty + written > 0

    until(seen)


def test_nothing_is_read_and_nothing_is_touched(disk: Path) -> None:
    path = cached(disk / "cold", 4)
    with open(path, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    assert resident(path) == 0
    os.utime(path, (1, 1))
    found = row(scan(path), path)
    assert os.stat(path).st_atime == 1
    assert found["resident_bytes"] == 0
    assert resident(path) == 0


def test_strange_files_get_an_answer(disk: Path) -> None:
    (disk / "empty").touch()
    with open(disk / "sparse", "wb") as file:
        file.truncate(64 * MIB)
    os.mkfifo(disk / "fifo")
    odd = os.fsencode(disk) + b"/new\nline-\xff"
    with open(odd, "wb") as file:
        file.write(b"x" * PAGE)
    (disk / "link").symlink_to(disk / "empty")
    names = [str(disk / name) for name in ("empty", "sparse", "fifo", "link", "missing", "no*")]
    reading = scan(*names, "relative", "hex:" + odd.hex(), "hex:xyz")
    assert row(reading, disk / "empty")["resident_bytes"] == 0
    assert row(reading, disk / "sparse")["resident_bytes"] == 0
    found = next(f for f in reading["files"] if f["raw"])
    assert bytes.fromhex(found["raw"]) == odd
    assert found["resident_bytes"] == PAGE
    problems = {p["path"]: p["problem"] for p in reading["problems"]}
    assert "FIFO" in problems[str(disk / "fifo")]
    assert problems[str(disk / "missing")] == "No such file or directory"
    assert problems[str(disk / "no*")] == "nothing matches"
    assert problems["relative"] == "not an absolute path"
    assert "hex:xyz" in problems


def test_a_file_is_one_row_however_it_is_named(disk: Path) -> None:
    path = cached(disk / "model.bin", 2)
    os.link(path, disk / "again.bin")
    reading = scan(disk, path, disk / "*.bin")
    assert len(reading["files"]) == 1
    assert near(reading["coverage"]["found_bytes"], 2 * MIB)


def test_many_small_files_are_counted_within_the_limits(disk: Path) -> None:
    for number in range(3000):
        (disk / str(number)).write_bytes(b"x")
    reading = scan(disk, largest=10, seconds=300.0)
    assert reading["looked"] == 3000
    assert len(reading["files"]) == 10
    assert reading["small"]["files"] == 2990
    assert near(reading["small"]["resident_bytes"], 2990 * PAGE)
    outcome, reason, reading = call("pagecache.files", paths=(str(disk),), discover=0, seconds=0.0)
    assert outcome == "partial"
    assert reading["complete"] is False
    assert reading["stopped"] in str(reason)


def test_a_tree_of_any_size_is_known_in_bounded_memory(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The largest are kept whenever they come; the others are counted, none twice."""
    monkeypatch.setattr(pagecache, "MOST_FILES", 100)
    for number in range(2000):
        (disk / str(number)).write_bytes(b"x")
    large = cached(disk / "1000-large", 1)
    kept = []
    prune = pagecache.Scan.prune

    def spy(self: pagecache.Scan) -> None:
        kept.append(len(self.files))
        prune(self)

    monkeypatch.setattr(pagecache.Scan, "prune", spy)
    reading = scan(disk, largest=10, seconds=300.0)
    assert kept
    assert max(kept) <= 200 + cache_scan.BATCH
    assert reading["looked"] == 2001
    assert near(row(reading, large)["resident_bytes"], MIB)
    assert len(reading["files"]) == 10
    assert reading["small"] == reading["unlisted"]
    assert reading["small"]["files"] == 1991
    assert near(reading["small"]["resident_bytes"], 1991 * PAGE)
    found = reading["coverage"]["found_bytes"]
    assert near(found, MIB + 2000 * PAGE)
    by_node = reading["coverage"]["by_numa_node"]
    if len(by_node) == 1:
        assert [node["found_bytes"] for node in by_node.values()] == [found]


def test_a_large_directory_of_uncached_files_is_no_silence(disk: Path) -> None:
    """A sign of life for each batch of entries, also where none of them has a row."""
    for number in range(3 * cache_scan.BATCH):
        (disk / str(number)).touch()
    said = list(cache_scan.walk(os.fsencode(disk), 0))
    assert said.count(None) >= 3
    assert [value for value in said if value] == []


def test_who_maps_and_who_has_it_open(disk: Path) -> None:
    mapped, opened = cached(disk / "mapped", 2), cached(disk / "opened", 2)
    deleted = cached(disk / "deleted", 2)
    running = holder(
        MAPS.format(path=str(mapped)) + f"a = open({str(opened)!r}); b = open({str(deleted)!r})"
    )
    try:
        deleted.unlink()
        reading = call("pagecache.files", walk="never", seconds=300.0, largest=50000)[2]
        assert row(reading, mapped)["mapped_by"] == [running.pid]
        assert near(row(reading, mapped)["resident_bytes"], 2 * MIB)
        assert row(reading, opened)["open_by"] == [running.pid]
        assert row(reading, opened)["mapped_by"] == []
        gone = row(reading, deleted)
        assert gone["deleted"] is True
        assert near(gone["resident_bytes"], 2 * MIB)
    finally:
        end(running)
    coverage = reading["coverage"]
    assert coverage["found_bytes"] > 0
    assert coverage["file_bytes"] == sum(
        node["file_bytes"] for node in coverage["by_numa_node"].values()
    )


def test_a_name_that_ends_like_the_kernel_s_remark_is_no_deleted_file(disk: Path) -> None:
    path = cached(disk / "kept (deleted)", 1)
    running = holder(f"a = open({str(path)!r})")
    try:
        reading = call("pagecache.files", walk="never", paths=(str(disk),), seconds=300.0)[2]
        found = row(reading, path)
        assert (found["deleted"], found["open_by"]) == (False, [running.pid])
    finally:
        end(running)


def test_what_the_kernel_makes_up_is_neither_opened_nor_a_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A tree ends at its root, a file before it is opened: the reason is said once."""
    really = os.open

    def opened(path: Any, flags: int, *more: Any) -> int:
        assert flags & os.O_PATH, path
        return really(path, flags, *more)

    monkeypatch.setattr(os, "open", opened)
    for place, name in ((b"/proc", "proc"), (b"/proc/version", "proc"), (b"/sys", "sysfs")):
        said = [measure for rows in cache_scan.named(place) for measure in rows or ()]  # type: ignore[attr-defined]
        problem = f"{name}: virtual kernel files have no page cache"
        assert [(one[0], one[4], one[7]) for one in said] == [(place, None, problem)]


def test_an_overlay_s_layers_from_the_upper_one_down() -> None:
    """Colons, commas and blanks in names come escaped, some of them twice."""
    line = (
        rb"38 29 0:39 /sub /mnt/a\040b rw - overlay overlay rw,"
        rb"lowerdir=/l/one\134:x:/l/two\054y::/l/data,upperdir=/u,workdir=/w"
    )
    assert overlay.parse(line) == (
        b"/mnt/a b", b"/sub", [b"/u", b"/l/one:x", b"/l/two,y", b"/l/data"]
    )  # fmt: skip
    newer = b"38 29 0:39 / / rw - overlay overlay ro,lowerdir+=/a,lowerdir+=/b"
    assert overlay.parse(newer) == (b"/", b"/", [b"/a", b"/b"])
    assert overlay.parse(b"29 1 254:0 / / rw - ext4 /dev/vda rw") is None


def test_a_stranger_is_told_unknown_never_a_wrong_figure(disk: Path) -> None:
    theirs = cached(disk / "theirs", 1)
    os.chmod(theirs, 0o644)
    os.chmod(disk, 0o711)
    if os.geteuid() != 0:
        theirs = Path("/bin/sh").resolve()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setresgid(65534, 65534, 65534)
                os.setresuid(65534, 65534, 65534)
            found = cache_scan.measure(os.fsencode(theirs))
            os.write(writer, f"{found[4]} {found[7]}".encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as file:
        said = file.read()
    os.waitpid(child, 0)
    assert said == f"None {cache_scan.NOT_ALLOWED}"


def test_shared_memory_is_no_file_cache() -> None:
    place = Path(f"/dev/shm/fleetmem-test-{os.getpid()}")
    place.write_bytes(b"x" * MIB)
    try:
        reading = scan(place)
        assert reading["files"] == []
        assert "tmpfs" in reading["problems"][0]["problem"]
    finally:
        place.unlink()


def test_mounts_are_told_apart_by_text_alone() -> None:
    table = cache_paths.Mounts(
        b"22 1 254:0 / / rw - ext4 /dev/a rw\n"
        b"23 22 0:50 / /mnt/with\\040blank rw shared:1 - nfs4 server:/x rw\n"
        b"24 22 0:51 / /mnt/f rw - fuse.sshfs host: rw\n"
    )
    assert table.of(b"/models/a").device == "254:0"
    assert table.of(b"/mnt/with blank/x").device == "0:50"
    assert table.of(b"/mnt/f/deep/er").remote
    assert not table.of(b"/mnt/fother").remote
    assert [row.remote for row in table.rows] == [False, True, True]
