"""gpu.holders: real processes that hold harmless devices in place of the driver's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fleetmem.agent.kernel import sysroot, tasks
from fleetmem.agent.model import PARTIAL, Trouble
from fleetmem.agent.probes import holders
from tests.unit.agent.probe_actors import actor, state_of, until

# /dev/full, /dev/random and /dev/zero open for everybody; the last one can be mapped too.
STAND_IN = {"nvidia0": "/dev/full", "nvidia1": "/dev/random", "nvidiactl": "/dev/zero"}


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A root whose /proc is the real one and whose /dev has nodes of a driver."""
    (tmp_path / "dev").mkdir()
    (tmp_path / "proc").symlink_to("/proc")
    for name, target in STAND_IN.items():
        (tmp_path / "dev" / name).symlink_to(target)
    monkeypatch.setattr(sysroot, "ROOT", str(tmp_path))
    return tmp_path


def held_by(pid: int) -> dict[str, object] | None:
    for row in holders.scan()["holders"]:
        if row["pid"] == pid:
            return dict(row)
    return None


def test_open_files_are_counted_by_node(host: Path) -> None:
    script = """
    files = [open("/dev/full") for _ in range(3)] + [open("/dev/random", "rb"), open("/dev/zero")]
    say("ready"); rest()
    """
    with actor(script) as one:
        found = held_by(one.pid)
        start = tasks.stat(one.pid)
    assert found is not None
    assert start is not None
    assert found["start_time"] == start.start_time
    assert found["gpus"] == [
        {"minor": 0, "fds": 3, "map_bytes": 0},
        {"minor": 1, "fds": 1, "map_bytes": 0},
    ]
    assert found["ctl_fds"] == 1
    assert found["via_task"] is False


def test_other_devices_are_no_holdings(host: Path) -> None:
    with actor("f = open('/dev/null'); say('ready'); rest()") as one:
        assert held_by(one.pid) is None
        assert not holders.has_driver_files(one.pid)


def test_a_mapping_is_found_after_its_file_was_closed(host: Path) -> None:
    script = """
    import mmap
    fd = os.open("/dev/zero", os.O_RDWR)
    area = mmap.mmap(fd, 3 << 20, flags=mmap.MAP_PRIVATE)
    os.close(fd)
    say("ready"); rest()
    """
    with actor(script) as one:
        # The binding keeps a duplicate of the descriptor: count what the kernel shows.
        fds = [os.readlink(f"/proc/{one.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{one.pid}/fd")]
        found = held_by(one.pid)
        assert found is not None
        assert found["ctl_fds"] == fds.count("/dev/zero")
        assert found["ctl_map_bytes"] == 3 << 20
        assert holders.has_driver_files(one.pid)


def test_files_show_in_a_task_after_the_leader_has_exited(host: Path) -> None:
    script = """
    import mmap
    keep = open("/dev/full")
    fd = os.open("/dev/zero", os.O_RDWR)
    area = mmap.mmap(fd, 1 << 20, flags=mmap.MAP_PRIVATE)
    started = threading.Event()
    def stay():
        started.set()
        rest()
    threading.Thread(target=stay).start()
    started.wait()
    say("ready")
    libc.syscall(EXIT, 0)
    """
    with actor(script) as one:
        until(lambda: state_of(one.pid) == "Z")
        assert os.listdir(f"/proc/{one.pid}/fd") == []
        found = held_by(one.pid)
    assert found is not None
    assert found["via_task"] is True
    assert found["gpus"] == [{"minor": 0, "fds": 1, "map_bytes": 0}]
    assert found["ctl_map_bytes"] == 1 << 20


def test_a_task_with_its_own_table_of_files_is_looked_at_and_others_only_once(host: Path) -> None:
    script = """
    shared = open("/dev/full")
    ready = threading.Event()
    def alone():
        libc.unshare(0x400)                     # CLONE_FILES
        os.close(shared.fileno())
        own = os.open("/dev/random", os.O_RDONLY)
        ready.set()
        rest()
    threading.Thread(target=alone).start()
    for _ in range(5):
        threading.Thread(target=rest).start()
    ready.wait()
    say("ready"); rest()
    """
    with actor(script) as one:
        found = held_by(one.pid)
    assert found is not None
    assert found["gpus"] == [
        {"minor": 0, "fds": 1, "map_bytes": 0},
        {"minor": 1, "fds": 1, "map_bytes": 0},
    ]


def test_without_kcmp_every_task_is_looked_at(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kcmp = tasks._Kcmp()
    kcmp.call = None
    monkeypatch.setattr(tasks, "_kcmp", kcmp)
    script = """
    keep = open("/dev/full")
    threading.Thread(target=rest).start()
    say("ready"); rest()
    """
    with actor(script) as one:
        found = held_by(one.pid)
    assert found is not None
    assert found["gpus"] == [{"minor": 0, "fds": 2, "map_bytes": 0}]


def test_a_mapping_is_told_by_inode_where_links_to_it_may_not_be_followed(
    host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = """
    import mmap
    fd = os.open("/dev/zero", os.O_RDWR)
    area = mmap.mmap(fd, 1 << 20, flags=mmap.MAP_PRIVATE)
    say("ready"); rest()
    """
    real = sysroot.node

    def refuse(name: str, dir_fd: int | None = None) -> sysroot.Node | None:
        if "map_files" in name:
            raise PermissionError(1, "refused", name)
        return real(name, dir_fd)

    monkeypatch.setattr(sysroot, "node", refuse)
    with actor(script) as one:
        found = held_by(one.pid)
    assert found is not None
    assert found["ctl_map_bytes"] == 1 << 20


def test_nodes_are_listed_with_kind_and_numbers(host: Path) -> None:
    (host / "dev/nvidia-caps").mkdir()
    (host / "dev/nvidia-caps/nvidia-cap1").symlink_to("/dev/urandom")
    (host / "dev/nvidia-uvm").symlink_to("/dev/tty")
    (host / "dev/nvidia-broken").symlink_to("/dev/no-such-node")
    (host / "dev/nvidia7").write_text("a plain file is no node")
    rows = {row["path"]: row for row in holders.scan()["nodes"]}
    assert set(rows) == {
        "/dev/nvidia0",
        "/dev/nvidia1",
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
        "/dev/nvidia-caps/nvidia-cap1",
    }
    assert rows["/dev/nvidia1"] == {
        "path": "/dev/nvidia1",
        "kind": "gpu",
        "minor": 1,
        "major_number": 1,
        "minor_number": 8,
    }
    assert rows["/dev/nvidia-caps/nvidia-cap1"]["kind"] == "caps"


def test_a_host_without_the_driver_has_no_holders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/1").mkdir()
    monkeypatch.setattr(sysroot, "ROOT", str(tmp_path))
    assert holders.gpu_holders() == {"nodes": [], "holders": [], "scanned": 1, "denied": 0}


# --- numbers -------------------------------------------------------------------------------

CHAR = 0o020666


def nodes(
    monkeypatch: pytest.MonkeyPatch, there: dict[str, tuple[int, int, int]], devices: str = ""
) -> holders.Nodes:
    """Nodes by name as (major, minor, inode), with a text of /proc/devices."""
    monkeypatch.setattr(sysroot, "names", lambda _name: list(there))
    monkeypatch.setattr(
        sysroot,
        "local_node",
        lambda name: (
            CHAR,
            there[name[5:]][2],
            there[name[5:]][0],
            there[name[5:]][1],
            0,
            6,
        ),
    )
    monkeypatch.setattr(sysroot, "text", lambda _name: devices)
    return holders.Nodes()


DEVICES = """Character devices:
  1 mem
195 nvidia
195 nvidiactl
238 nvidia-uvm
241 nvidia-caps

Block devices:
  7 loop
"""


def test_a_second_node_with_the_number_of_a_gpu_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    known = nodes(monkeypatch, {"nvidia0": (195, 0, 11), "nvidiactl": (195, 255, 12)}, DEVICES)
    assert known.what((CHAR, 99, 195, 0, 8, 1), "/tmp/any") == ("gpu", 0)
    assert known.what((0o060666, 99, 195, 0, 8, 1), "/tmp/block") is None
    assert known.what((0o100644, 99, 195, 0, 8, 1), "/tmp/file") is None


def test_registered_numbers_stand_in_for_missing_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    known = nodes(monkeypatch, {"nvidia0": (195, 0, 11)}, DEVICES)
    assert known.what((CHAR, 1, 195, 3, 0, 5), "x") == ("gpu", 3)
    assert known.what((CHAR, 1, 195, 255, 0, 5), "x") == ("ctl", None)
    assert known.what((CHAR, 1, 238, 0, 0, 5), "x") == ("uvm", None)
    assert known.what((CHAR, 1, 238, 1, 0, 5), "x") == ("uvm-tools", None)
    assert known.what((CHAR, 1, 241, 2, 0, 5), "x") == ("caps", None)
    assert known.what((CHAR, 1, 1, 3, 0, 5), "/dev/null") is None


def test_older_drivers_register_a_frontend(monkeypatch: pytest.MonkeyPatch) -> None:
    known = nodes(monkeypatch, {}, "Character devices:\n195 nvidia-frontend\n")
    assert known.what((CHAR, 1, 195, 1, 0, 5), "x") == ("gpu", 1)
    assert known.what((CHAR, 1, 195, 255, 0, 5), "x") == ("ctl", None)


def test_the_node_wins_over_what_is_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    known = nodes(monkeypatch, {"nvidia0": (7, 4, 11)}, DEVICES)
    assert known.what((CHAR, 1, 7, 4, 0, 5), "x") == ("gpu", 0)
    assert known.what((CHAR, 1, 195, 0, 0, 5), "x") is None


def test_both_numbers_of_uvm_count(monkeypatch: pytest.MonkeyPatch) -> None:
    known = nodes(monkeypatch, {"nvidia-uvm": (237, 0, 11)}, DEVICES)
    assert known.what((CHAR, 1, 237, 0, 0, 5), "x") == ("uvm", None)
    assert known.what((CHAR, 1, 238, 0, 0, 5), "x") == ("uvm", None)


def test_nodes_of_one_number_are_told_apart_by_inode_then_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = nodes(
        monkeypatch,
        {"nvidiactl": (1, 5, 21), "nvidia-uvm": (1, 5, 22), "nvidia-uvm-tools": (1, 5, 23)},
    )
    assert known.what((CHAR, 21, 1, 5, 0, 6), "/dev/nvidiactl") == ("ctl", None)
    assert known.what((CHAR, 22, 1, 5, 0, 6), "/somewhere/else") == ("uvm", None)
    assert known.what((CHAR, 80, 1, 5, 0, 9), "/c/dev/nvidia-uvm-tools") == ("uvm-tools", None)
    assert known.what((CHAR, 80, 1, 5, 0, 9), "/c/nvidiactl (deleted)") == ("ctl", None)
    assert known.what((CHAR, 4, 1, 5, 0, 9), "/dev/zero") is None


def test_denied_processes_make_it_partial(monkeypatch: pytest.MonkeyPatch, host: Path) -> None:
    real = os.listdir

    def refuse(path: object = ".") -> list[str]:
        if isinstance(path, int) and os.readlink(f"/proc/self/fd/{path}").endswith("/fd"):
            raise PermissionError(13, "refused")
        return real(path)  # type: ignore[call-overload,no-any-return]

    monkeypatch.setattr(os, "listdir", refuse)
    with pytest.raises(Trouble) as caught:
        holders.gpu_holders()
    assert caught.value.outcome == PARTIAL
    assert caught.value.reading["denied"] >= 1


def test_without_statx_and_kcmp_files_in_dev_are_still_found(
    host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some kernels have neither; what may wait for a server is then not followed."""
    statx, kcmp = sysroot._Statx(), tasks._Kcmp()
    statx.call = kcmp.call = None
    monkeypatch.setattr(sysroot, "_statx", statx)
    monkeypatch.setattr(tasks, "_kcmp", kcmp)
    script = """
    import mmap
    keep = open("/dev/full")
    fd = os.open("/dev/zero", os.O_RDWR)
    area = mmap.mmap(fd, 1 << 20, flags=mmap.MAP_PRIVATE)
    threading.Thread(target=rest).start()
    say("ready"); rest()
    """
    (host / "dev/full").symlink_to("/dev/full")
    (host / "dev/zero").symlink_to("/dev/zero")
    with actor(script) as one:
        found = held_by(one.pid)
    assert found is not None
    assert found["gpus"] == [{"minor": 0, "fds": 2, "map_bytes": 0}]
    assert found["ctl_map_bytes"] == 1 << 20
