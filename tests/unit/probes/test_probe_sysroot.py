"""sysroot: bounded, swappable, JSON-safe reads."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleetmem.agent.kernel import sysroot


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(sysroot, "ROOT", str(tmp_path))
    return tmp_path


def test_reads_go_below_the_root(root: Path) -> None:
    (root / "proc").mkdir()
    (root / "proc/uptime").write_bytes(b"12.5 1\n")
    assert sysroot.read("/proc/uptime") == b"12.5 1\n"
    assert sysroot.exists("/proc/uptime")
    assert not sysroot.exists("/proc/stat")
    with pytest.raises(FileNotFoundError):
        sysroot.read("/proc/stat")


def test_reads_are_bounded(root: Path) -> None:
    (root / "big").write_bytes(b"x" * 300_000)
    assert len(sysroot.read("/big", 100)) == 100
    assert len(sysroot.read("/big", 70_000)) == 70_000
    assert len(sysroot.read("/big")) == sysroot.SMALL
    assert len(sysroot.read("/big", sysroot.LARGE)) == 300_000


def test_bytes_that_are_no_utf8_become_text_that_json_can_carry(root: Path) -> None:
    (root / "odd").write_bytes(b"caf\xe9")
    assert json.dumps(sysroot.text("/odd")).encode("utf-8")
    assert sysroot.clean(os.fsdecode(b"caf\xe9")) == "caf\ufffd"


def test_a_directory_descriptor_reads_the_same_directory(root: Path) -> None:
    (root / "proc/1").mkdir(parents=True)
    (root / "proc/1/stat").write_bytes(b"one")
    fd = sysroot.open_dir("/proc/1")
    try:
        (root / "proc/1").rename(root / "proc/2")
        assert sysroot.read("stat", dir_fd=fd) == b"one"
    finally:
        os.close(fd)


def test_pids_are_the_numbers_only(root: Path) -> None:
    for name in ("1", "77", "self", "sys"):
        (root / "proc" / name).mkdir(parents=True)
    assert sorted(sysroot.pids()) == [1, 77]


def test_node_agrees_with_stat() -> None:
    for name in ("/dev/null", "/dev/zero", "/dev", "/proc/self/exe"):
        told = os.stat(name)
        found = sysroot.node(name)
        assert found is not None
        assert found[0] == told.st_mode
        assert found[1] == told.st_ino
        assert found[2:4] == (os.major(told.st_rdev), os.minor(told.st_rdev))
        assert found[4:6] == (os.major(told.st_dev), os.minor(told.st_dev))


def test_node_follows_a_descriptor(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as file:
        place = sysroot.open_dir("/proc/self/fd")
        try:
            found = sysroot.node(str(file.fileno()), place)
        finally:
            os.close(place)
    assert found is not None
    assert stat.S_ISREG(found[0])


def test_node_tells_what_is_missing_or_refused() -> None:
    with pytest.raises(FileNotFoundError):
        sysroot.node("/dev/no-such-node")
    assert sysroot.local_node("/dev/no-such-node") is None


def test_without_statx_node_answers_nothing_and_local_node_falls_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    statx = sysroot._Statx()
    statx.call = None
    monkeypatch.setattr(sysroot, "_statx", statx)
    assert sysroot.node("/dev/zero") is None
    found = sysroot.local_node("/dev/zero")
    assert found is not None
    assert found[2:4] == (1, 5)
