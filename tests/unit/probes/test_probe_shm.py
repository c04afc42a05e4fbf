"""shm.segments: POSIX, System V and memfd, their sizes and who still uses them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from fleetmem.agent.kernel import maps as mappings
from fleetmem.agent.page_cache import shm_scan
from fleetmem.agent.probes import shm
from tests.unit.page_cache.cache_ground import MIB, PAGE, call, end, holder

NAME = f"/dev/shm/fleetmem-test-{os.getpid()}"


def segments() -> list[dict[str, Any]]:
    found = call("shm.segments", largest=5000, seconds=300.0)[2]["segments"]
    assert isinstance(found, list)
    return found


def test_a_posix_segment_and_its_user() -> None:
    Path(NAME).write_bytes(b"x" * (2 * MIB))
    running = holder(f"f = open({NAME!r}, 'r+b'); m = mmap.mmap(f.fileno(), 0); f.close()")
    try:
        row = next(row for row in segments() if row["path"] == NAME)
        assert row["kind"] == "posix"
        assert (row["size_bytes"], row["resident_bytes"]) == (2 * MIB, 2 * MIB)
        assert row["swap_bytes"] in (0, None)
        assert row["mapped_by"] == [running.pid]
        assert row["owner_state"] == "live"
        assert row["uid"] == os.geteuid()
        end(running)
        row = next(row for row in segments() if row["path"] == NAME)
        assert row["mapped_by"] == row["open_by"] == []
        assert row["owner_state"] != "live"
    finally:
        end(running)
        os.unlink(NAME)


SYSTEM_V = """
import ctypes
libc = ctypes.CDLL(None)
libc.shmat.restype = ctypes.c_void_p
number = libc.shmget(0, ctypes.c_size_t(1 << 20), 0o1600)
at = libc.shmat(number, None, 0)
libc.shmctl(number, 0, None)  # it goes with this process
ctypes.memset(at, 1, 1 << 20)
"""


IPC_OF_ITS_OWN = "import ctypes; assert ctypes.CDLL(None).unshare(0x08000000) == 0"


@pytest.mark.parametrize("first", ["", IPC_OF_ITS_OWN], ids=["ours", "its-own"])
def test_a_system_v_segment(first: str) -> None:
    """Also the first segment of an ipc namespace, as a container has it: its number is 0."""
    running = holder(first + SYSTEM_V)
    try:
        row = next(row for row in segments() if row["creator_pid"] == running.pid)
    finally:
        end(running)
    assert (row["kind"], row["size_bytes"], row["resident_bytes"]) == ("sysv", MIB, MIB)
    assert (row["attached"], row["mapped_by"]) == (1, [running.pid])
    assert row["owner_state"] == "live"
    assert row["path"] is None


def test_a_memfd_is_known_by_who_has_it() -> None:
    running = holder("f = os.memfd_create('kv-cache'); os.write(f, b'x' * (1 << 20))")
    try:
        rows = [row for row in segments() if row["path"] == "/memfd:kv-cache"]
        row = next(row for row in rows if running.pid in row["open_by"])
        assert (row["kind"], row["size_bytes"]) == ("memfd", MIB)
        assert row["resident_bytes"] == MIB
        assert row["owner_state"] == "live"
    finally:
        end(running)


def row_of(**changes: Any) -> Any:
    rows: Any = {}
    found = ("sysv", None, 5, None, 7, 4096, 4096, 0, 0, None, 0, None)
    shm._add(rows, found, 99)
    (row,) = rows.values()
    row.update(changes)
    return row


def test_who_is_dead_is_only_said_where_all_could_be_seen() -> None:
    for changes, denied, expected in (
        ({}, 0, "dead"),
        ({}, 1, None),
        ({"attached": 1}, 0, "live"),
        ({"creator_pid": os.getpid()}, 0, "live"),
        ({"creator_pid": 4194305}, 0, "dead"),
    ):
        row = row_of(**changes)
        shm._users(row, None, denied)
        assert row["owner_state"] == expected, changes
    use = mappings.Use(b"/memfd:x", b"")
    use.open_by = [12]
    row = row_of(kind="memfd")
    shm._users(row, use, 0)
    assert (row["open_by"], row["owner_state"]) == ([12], "live")


def test_segments_of_an_old_kernel_have_fewer_columns() -> None:
    lines = [
        b"       key      shmid perms       size  cpid  lpid nattch   uid",
        b"-559038737          3   600       4096     0   401      0  1000",
    ]
    (row,) = shm_scan.parse_sysv(lines)
    assert row[2] == 0xDEADBEEF
    assert row[4:7] == (3, 4096, None)
    assert row[8:11] == (1000, None, 0)
    assert shm_scan.parse_sysv([]) == []
    assert PAGE >= 4096
