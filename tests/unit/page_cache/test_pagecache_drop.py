"""pagecache.drop: gives back what it may, spares the rest and says why."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from fleetmem.agent import ledger
from fleetmem.agent.actions import pagecache, pagecache_file
from fleetmem.agent.model import Trouble
from fleetmem.agent.probes import numa
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


@pytest.fixture(autouse=True)
def trail(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []
    monkeypatch.setattr("fleetmem.agent.trail.trail", lines.append)
    return lines


def drop(*paths: Path | str, **options: Any) -> tuple[str, str | None, Any]:
    options.setdefault("mode", "drop")
    return call("pagecache.drop", paths=tuple(map(str, paths)), **options)


def test_clean_files_are_dropped_and_it_is_on_record(
    disk: Path, trail: list[dict[str, Any]]
) -> None:
    one, two = cached(disk / "one", 4), cached(disk / "two", 2)
    content = one.read_bytes()
    outcome, _, reading = drop(disk, operation="op-1")
    assert outcome == "ok"
    assert {row["path"]: row["result"] for row in reading["files"]} == {
        str(one): "dropped",
        str(two): "dropped",
    }
    assert near(reading["freed_bytes"], 6 * MIB)
    freed = sum(node["files_freed_bytes"] for node in reading["nodes"])
    assert freed == reading["freed_bytes"]
    assert resident(one) == resident(two) == 0
    assert [line["operation"] for line in trail] == ["op-1"]
    assert "2 files" in trail[0]["message"]
    assert one.read_bytes() == content
    again = drop(two)[2]
    assert [row["result"] for row in again["files"]] == ["absent"]


def test_a_dry_run_changes_nothing(disk: Path, trail: list[dict[str, Any]]) -> None:
    path = cached(disk / "file", 2)
    reading = drop(path, dry_run=1)[2]
    assert reading["files"][0]["result"] == "planned"
    assert near(reading["files"][0]["before_bytes"], 2 * MIB)
    assert reading["freed_bytes"] == 0
    assert resident(path) == 2 * MIB
    assert trail == []


def test_only_the_files_that_are_meant_are_touched(disk: Path) -> None:
    """Between a plan and its end: replaced, turned into a directory, deleted, and a name that
    is a pattern, too. What has the name by now stays in memory."""
    names = ("same", "new", "folder", "gone", "any*")
    paths = [cached(disk / name, 1) for name in names]
    keys = []
    for path in paths:
        found = path.stat()
        keys.append(f"{os.major(found.st_dev)}:{os.minor(found.st_dev)}:{found.st_ino}")
    kept = [cached(disk / "other", 1), cached(disk / "anything", 1)]
    os.replace(kept[0], disk / "new")
    for name in ("folder", "gone", "any*"):
        (disk / name).unlink()
    (disk / "folder").mkdir()
    kept = [disk / "new", kept[1], cached(disk / "folder" / "below", 1)]
    reading = drop(*paths, keys=tuple(keys))[2]
    assert {Path(row["path"]).name: (row["result"], row["why"]) for row in reading["files"]} == {
        "same": ("dropped", None),
        "new": ("spared", pagecache_file.REPLACED),
        "folder": ("spared", pagecache_file.REPLACED),
        "gone": ("absent", "it was deleted meanwhile"),
        "any*": ("absent", "it was deleted meanwhile"),
    }
    assert [resident(path) for path in (paths[0], *kept)] == [0, MIB, MIB, MIB]


@pytest.mark.parametrize("keys", [("1:2:3", "1:2:4"), ("1:2",), ("a:b:c",)])
def test_keys_that_do_not_fit_change_nothing(disk: Path, keys: tuple[str, ...]) -> None:
    path = cached(disk / "file", 1)
    assert drop(path, keys=keys)[0] == "failed"
    assert resident(path) == MIB


def test_mapped_files_are_spared_and_named_or_stay_with_a_reason(disk: Path) -> None:
    path, free = cached(disk / "mapped", 4), cached(disk / "free", 1)
    running = holder(MAPS.format(path=str(path)))
    try:
        reading = drop(disk)[2]
        rows = {row["path"]: row for row in reading["files"]}
        spared = rows[str(path)]
        assert (spared["result"], spared["mapped_by"]) == ("spared", [running.pid])
        assert str(running.pid) in spared["why"]
        assert rows[str(free)]["result"] == "dropped"
        assert near(reading["spared_bytes"], 4 * MIB)
        assert resident(path) == 4 * MIB
        outcome, reason, reading = drop(path, spare_mapped=0)
        stays = reading["files"][0]
        assert (outcome, stays["result"]) == ("partial", "partial")
        assert near(stays["after_bytes"], 4 * MIB)
        assert stays["residue"] == f"{stays['after_bytes'] >> 10} KiB stay: mapped"
        assert "mapped" in str(reason)
    finally:
        end(running)
    assert drop(path)[2]["files"][0]["result"] == "dropped"


def test_unwritten_pages_are_spared_and_written_before_a_drop(disk: Path) -> None:
    path = disk / "dirty"
    looks: list[Any] = []

    def not_written() -> bool:
        """It was still so when the drop came: anybody's sync may write the pages before.

        A new file each time: ext4 writes one that is cut to nothing and filled when it is closed.
        """
        path.unlink(missing_ok=True)
        path.write_bytes(b"y" * (2 * MIB))
        looks.append(drop(path)[2]["files"][0])
        return looks[-1]["dirty_bytes"] != 0

    until(not_written)
    *written, spared = looks
    assert {row["result"] for row in written} <= {"dropped"}
    if spared["dirty_bytes"] is not None:  # a kernel that can tell
        assert spared["result"] == "spared"
        assert spared["dirty_bytes"] > 0
        assert "not yet written" in spared["why"]
        path.write_bytes(b"z" * (2 * MIB))
        assert drop(path, spare_dirty=0)[2]["files"][0]["result"] == "dropped"
        assert path.read_bytes() == b"z" * (2 * MIB)
    else:
        assert spared["result"] == "dropped"


def test_what_it_will_not_touch(disk: Path) -> None:
    place = Path(f"/dev/shm/fleetmem-test-{os.getpid()}")
    place.write_bytes(b"only copy")
    os.mkfifo(disk / "fifo")
    try:
        outcome, _, reading = drop(place, disk / "fifo", disk / "missing", "relative")
        assert outcome == "partial"
        assert [row["result"] for row in reading["files"]] == ["refused"]
        assert "only copy" in reading["files"][0]["why"]
        assert place.read_bytes() == b"only copy"
        problems = {row["path"]: row["problem"] for row in reading["problems"]}
        assert "FIFO" in problems[str(disk / "fifo")]
        assert problems["relative"] == "not an absolute path"
        assert str(disk / "missing") in problems
    finally:
        place.unlink()


def test_another_boot_epoch_or_mode_is_refused(disk: Path) -> None:
    path = cached(disk / "file", 1)
    for options in ({"boot_id": "another"}, {"epoch": ledger.read_epoch() + 5}):
        with pytest.raises(Trouble) as caught:
            pagecache.drop(paths=(str(path),), mode="drop", **options)
        assert (caught.value.outcome, caught.value.code) == ("failed", "stale_plan")
    assert drop(path, mode="all")[:2] == ("failed", "mode is auto, migrate or drop")
    assert resident(path) == MIB


def test_without_a_second_node_nothing_migrates(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numa, "cpu_nodes", lambda rows: [])  # tests/numa has two nodes
    path = cached(disk / "file", 1)
    refused = drop(path, mode="migrate")[2]["files"][0]
    assert refused["result"] == "refused"
    assert "no other node" in refused["why"]
    assert resident(path) == MIB
    assert drop(path, mode="auto")[2]["files"][0]["result"] == "dropped"


def wish(**options: Any) -> pagecache_file.Wish:
    base: dict[str, Any] = {
        "mode": "auto",
        "dry_run": False,
        "spare_mapped": True,
        "spare_dirty": True,
        "sources": frozenset(),
        "single": None,
        "rooms": {0: 100, 2: 500},
        "mapped": {},
    }
    return {**base, **options}  # type: ignore[typeddict-item]


def test_the_target_is_the_first_node_with_room_for_what_is_not_there() -> None:
    own = wish()
    assert pagecache_file._target({1: 80}, own) == 0
    assert own["rooms"] == {0: 20, 2: 500}
    assert pagecache_file._target({1: 80}, own) == 2
    assert pagecache_file._target({1: 10, 0: 70}, own) == 0
    assert pagecache_file._target({1: 9999}, own) is None
    assert pagecache_file._target({1: 1}, wish(mode="drop")) is None
    assert "0 MiB of room" in pagecache_file._no_target({1: 9999}, wish(rooms={0: 100 // PAGE}))
    assert "already" in pagecache_file._no_target({0: 5}, wish())
