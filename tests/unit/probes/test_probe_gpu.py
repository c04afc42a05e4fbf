"""gpu.devices and gpu.processes against a binding that answers as drivers were seen to."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fleetmem.agent.model import DENIED, FAILED, PARTIAL, UNSUPPORTED, Trouble
from fleetmem.agent.probes import gpu as probe
from fleetmem.agent.services import nvml
from tests.unit.agent.nvml_fake import GIB, Binding, Gpu, NVMLError, record

Load = Callable[..., Binding]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Load:
    """Put a binding with these GPUs in place of pynvml."""

    def put(*gpus: Gpu, init: NVMLError | None = None) -> Binding:
        binding = Binding(list(gpus), init)
        monkeypatch.setitem(sys.modules, "pynvml", binding)
        monkeypatch.setattr(nvml, "_session", None)
        return binding

    return put


def test_a_gpu_is_described_field_by_field(load: Load) -> None:
    load(Gpu(0, memory_v2=(140 * GIB, GIB, 100 * GIB, 39 * GIB), numa=2, recovery=1, mig=[0, 0]))
    reading = probe.gpu_devices()
    assert reading["driver_version"] == "580.159.04"
    assert reading["gpus"] == [
        {
            "index": 0,
            "uuid": "GPU-0",
            "name": "NVIDIA H200",
            "minor": 0,
            "bus_id": "00000000:01:00.0",
            "numa_node": 2,
            "memory_version": 2,
            "total_bytes": 140 * GIB,
            "reserved_bytes": GIB,
            "used_bytes": 39 * GIB,
            "free_bytes": 100 * GIB,
            "mig_mode": False,
            "persistence": True,
            "utilization_percent": 0,
            "recovery_action": "reset",
            "instances": [],
            "errors": [],
            "error_codes": {},
        }
    ]


def test_the_session_is_started_once(load: Load) -> None:
    binding = load(Gpu(0))
    probe.gpu_devices()
    probe.gpu_devices()
    probe.gpu_processes()
    assert binding.inits == 1


def test_a_session_that_the_library_forgot_is_started_again(load: Load) -> None:
    binding = load(Gpu(0))
    probe.gpu_devices()
    answers = iter([NVMLError(1), 1, 1])
    binding.count = lambda: next(answers)
    assert len(probe.gpu_devices()["gpus"]) == 1
    assert binding.inits == 2


def test_what_is_not_supported_is_null_with_its_reason(load: Load) -> None:
    load(Gpu(0, utilization=NVMLError(3), recovery=NVMLError(3), persistence=NVMLError(13)))
    row = probe.gpu_devices()["gpus"][0]
    assert row["utilization_percent"] is None
    assert row["recovery_action"] is None
    assert row["persistence"] is None
    assert row["numa_node"] is None
    assert row["mig_mode"] is None
    assert "utilization: Not Supported (3)" in row["errors"]
    assert "recovery_action: Not Supported (3)" in row["errors"]
    assert "persistence: Function Not Found (13)" in row["errors"]
    assert row["total_bytes"] == 140 * GIB


def test_a_name_that_the_binding_lacks_is_null_too(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(Gpu(0))
    monkeypatch.delattr(Binding, "nvmlDeviceGetNumaNodeId")
    row = probe.gpu_devices()["gpus"][0]
    assert row["numa_node"] is None
    assert any("nvmlDeviceGetNumaNodeId" in line for line in row["errors"])


def test_older_memory_information_is_used_where_the_newer_is_missing(load: Load) -> None:
    load(Gpu(0, memory_v2=NVMLError(13), memory_v1=(140 * GIB, 128 * GIB, 12 * GIB)))
    row = probe.gpu_devices()["gpus"][0]
    assert row["memory_version"] == 1
    assert row["reserved_bytes"] is None
    assert (row["used_bytes"], row["free_bytes"]) == (12 * GIB, 128 * GIB)


def test_the_reserve_is_taken_out_of_used_where_the_driver_counts_it_there(load: Load) -> None:
    load(Gpu(0, memory_v2=(140 * GIB, GIB, 100 * GIB, 40 * GIB)))
    row = probe.gpu_devices()["gpus"][0]
    assert row["memory_version"] == 2
    assert (row["reserved_bytes"], row["used_bytes"]) == (GIB, 39 * GIB)


def test_a_lost_gpu_keeps_its_row_and_the_others_are_complete(load: Load) -> None:
    load(Gpu(0), Gpu(1, handle=NVMLError(15)), Gpu(2, memory_v2=NVMLError(15)))
    with pytest.raises(Trouble) as caught:
        probe.gpu_devices()
    assert caught.value.outcome == PARTIAL
    assert "GPU 1: handle: GPU is lost (15)" in caught.value.reason
    assert "GPU 2: memory: GPU is lost (15)" in caught.value.reason
    rows = caught.value.reading["gpus"]
    assert [row["index"] for row in rows] == [0, 1, 2]
    assert rows[0]["total_bytes"] == 140 * GIB
    assert rows[1]["uuid"] == ""
    assert rows[2]["uuid"] == "GPU-2"


def test_a_gpu_without_memory_of_its_own_is_no_fault(load: Load) -> None:
    """A GB10 with driver 580: both calls are not supported, everything else answers."""
    load(Gpu(0, name="NVIDIA GB10", memory_v2=NVMLError(3), memory_v1=NVMLError(3)))
    row = probe.gpu_devices()["gpus"][0]
    assert (row["memory_version"], row["total_bytes"]) == (None, None)
    assert "memory: Not Supported (3)" in row["errors"]
    assert row["error_codes"]["memory"] == 3


def test_instances_are_listed_with_their_own_memory(load: Load) -> None:
    inner = Gpu(9, uuid="MIG-a", gi=1, ci=0, memory_v2=(20 * GIB, GIB // 8, 10 * GIB, 9 * GIB))
    load(Gpu(0, mig=[1, 1], instances={2: inner}))
    row = probe.gpu_devices()["gpus"][0]
    assert row["mig_mode"] is True
    assert row["instances"] == [
        {"uuid": "MIG-a", "gi": 1, "ci": 0, "total_bytes": 20 * GIB, "used_bytes": 9 * GIB}
    ]


@pytest.mark.parametrize(
    ("code", "outcome", "word"),
    [
        (12, UNSUPPORTED, "nvml_missing"),
        (18, FAILED, "nvml_mismatch"),
        (9, UNSUPPORTED, "nvml_no_driver"),
        (4, DENIED, "nvml_denied"),
        (999, FAILED, "nvml_failed"),
    ],
)
def test_trouble_at_the_start_has_a_word_of_its_own(
    load: Load, code: int, outcome: str, word: str
) -> None:
    load(Gpu(0), init=NVMLError(code))
    for call in (probe.gpu_devices, probe.gpu_processes):
        with pytest.raises(Trouble) as caught:
            call()
        assert caught.value.outcome == outcome
        assert caught.value.code == word
        assert word not in caught.value.reason
        assert "\n" not in caught.value.reason


def test_a_missing_binding_is_unsupported(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    load()
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(Trouble) as caught:
        probe.gpu_devices()
    assert caught.value.outcome == UNSUPPORTED
    assert caught.value.code == "nvml_missing"


# --- processes -----------------------------------------------------------------------------

ME = os.getpid()


def rows_of(reading: Any, index: int = 0) -> dict[int, Any]:
    return {row["pid"]: row for row in reading["gpus"][index]["processes"]}


def unused_pid() -> int:
    limit = int(Path("/proc/sys/kernel/pid_max").read_text())
    return next(pid for pid in range(limit - 1, 1, -1) if not Path(f"/proc/{pid}").exists())


def test_lists_are_merged_by_process_and_checked_against_the_host(load: Load) -> None:
    dead = unused_pid()
    load(
        Gpu(
            0,
            compute=[record(ME, 10 * GIB), record(dead, GIB)],
            mps=[record(ME, 10 * GIB)],
            graphics=[record(1, None)],
        )
    )
    reading = probe.gpu_processes()
    assert reading["gpus"][0]["complete"] is True
    rows = rows_of(reading)
    assert rows[ME] == {
        "pid": ME,
        "lists": ["compute", "mps"],
        "used_bytes": 10 * GIB,
        "gi": None,
        "ci": None,
        "state": "alive",
        "why": None,
    }
    assert rows[dead]["state"] == "dead"
    assert rows[1]["lists"] == ["graphics"]
    assert rows[1]["used_bytes"] is None


def test_all_ones_is_no_size(load: Load) -> None:
    load(Gpu(0, compute=[record(ME, 0xFFFFFFFFFFFFFFFF)]))
    assert rows_of(probe.gpu_processes())[ME]["used_bytes"] is None


def test_a_list_that_grows_is_asked_for_again(load: Load) -> None:
    answers = iter([NVMLError(7), NVMLError(7), [record(ME, GIB)]])
    load(Gpu(0, compute=lambda: next(answers)))
    assert rows_of(probe.gpu_processes())[ME]["used_bytes"] == GIB


def test_an_older_library_has_only_the_second_version(load: Load) -> None:
    load(Gpu(0, missing={"v3"}, compute=[record(ME, GIB)]))
    reading = probe.gpu_processes()
    assert reading["gpus"][0]["complete"] is True
    assert ME in rows_of(reading)


def test_a_list_that_fails_makes_the_gpu_incomplete(load: Load) -> None:
    load(
        Gpu(0, compute=NVMLError(15)),
        Gpu(1, compute=[record(ME, GIB)]),
        Gpu(2, compute=NVMLError(3)),
    )
    with pytest.raises(Trouble) as caught:
        probe.gpu_processes()
    assert caught.value.outcome == PARTIAL
    complete = [row["complete"] for row in caught.value.reading["gpus"]]
    assert complete == [False, True, False]
    assert ME in rows_of(caught.value.reading, 1)


def test_lists_that_a_gpu_does_not_have_leave_it_complete(load: Load) -> None:
    load(Gpu(0, graphics=NVMLError(3), mps=NVMLError(13), compute=[]))
    row = probe.gpu_processes()["gpus"][0]
    assert row["complete"] is True
    assert row["processes"] == []


def test_a_scrambled_list_is_not_trusted_at_all(load: Load) -> None:
    # 32-byte records read as 24-byte ones, three processes: the first row looks right.
    import struct

    body = b"".join(
        struct.pack("=IxxxxQIIQ", pid, size, 0xFFFFFFFF, 0xFFFFFFFF, 0)
        for pid, size in ((ME, 30 * GIB), (1, 20 * GIB), (ME, 10 * GIB))
    )
    scrambled = [
        record(*struct.unpack_from("=IxxxxQII", body.ljust(120, b"\0"), 24 * row))
        for row in range(3)
    ]
    load(Gpu(0, compute=scrambled))
    with pytest.raises(Trouble) as caught:
        probe.gpu_processes()
    row = caught.value.reading["gpus"][0]
    assert row["complete"] is False
    assert {process["state"] for process in row["processes"]} == {"implausible"}
    assert all(process["why"] for process in row["processes"])


@pytest.mark.parametrize("pid", [0, 0xFFFFFFFF, 1 << 23])
def test_a_pid_that_cannot_be_spoils_the_list(load: Load, pid: int) -> None:
    load(Gpu(0, compute=[record(ME, GIB), record(pid, GIB)]))
    with pytest.raises(Trouble) as caught:
        probe.gpu_processes()
    assert {p["state"] for p in caught.value.reading["gpus"][0]["processes"]} == {"implausible"}


def test_an_instance_id_that_cannot_be_spoils_the_list(load: Load) -> None:
    load(Gpu(0, compute=[record(ME, GIB), record(1, GIB, 0x40000000, 7)]))
    with pytest.raises(Trouble):
        probe.gpu_processes()


def test_more_memory_than_the_gpu_has_spoils_its_own_row(load: Load) -> None:
    load(Gpu(0, compute=[record(ME, 141 * GIB), record(1, GIB)]))
    rows = rows_of(probe.gpu_processes())
    assert rows[ME]["state"] == "implausible"
    assert rows[1]["state"] == "alive"


def test_the_number_of_a_thread_is_no_process(load: Load) -> None:
    import threading

    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        tid = thread.native_id
        assert tid is not None
        load(Gpu(0, compute=[record(tid, GIB)]))
        assert rows_of(probe.gpu_processes())[tid]["state"] == "dead"
    finally:
        stop.set()
        thread.join()


def test_instances_tell_their_own_processes(load: Load) -> None:
    one = Gpu(8, gi=1, ci=0, compute=[record(ME, GIB)])
    two = Gpu(9, gi=2, ci=0, compute=[record(ME, 2 * GIB, 2, 0)])
    load(Gpu(0, mig=[1, 1], compute=NVMLError(4), instances={0: one, 1: two}))
    reading = probe.gpu_processes()
    assert reading["gpus"][0]["complete"] is True
    found = [(p["pid"], p["gi"], p["ci"], p["used_bytes"]) for p in reading["gpus"][0]["processes"]]
    assert found == [(ME, 1, 0, GIB), (ME, 2, 0, 2 * GIB)]


# --- names ---------------------------------------------------------------------------------


def test_all_names_of_the_binding_are_listed_and_exist_in_it() -> None:
    """The payload carries only what is listed, so each name in the code must be."""
    agent = Path(nvml.__file__).parents[1]
    used = set()
    for file in (agent / "services/nvml.py", agent / "probes/gpu.py", agent / "probes/gpu_wait.py"):
        tree = ast.parse(file.read_text())
        tree.body = [
            node
            for node in tree.body
            if not (isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "NVML_NAMES")
        ]
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                if node.value.startswith(("nvmlDevice", "nvmlSystem")):
                    used.add(node.value)
            elif isinstance(node, ast.Attribute):
                owner = ast.unparse(node.value)
                if owner.endswith("pynvml") or owner == "lib" or owner.endswith(".lib"):
                    used.add(node.attr)
    listed = set(nvml.NVML_NAMES)
    # A name without its version stands for the versions that list_processes tries.
    for name in [name for name in used if name.endswith("RunningProcesses")]:
        used.remove(name)
        used |= {name + "_v2", name + "_v3"}
    assert used == listed
    saved = sys.modules.pop("pynvml", None)
    try:
        import pynvml

        assert [name for name in nvml.NVML_NAMES if not hasattr(pynvml, name)] == []
    finally:
        if saved is not None:
            sys.modules["pynvml"] = saved


def test_a_process_that_proc_does_not_show_to_this_user_is_not_dead(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With hidepid the processes of others have no place in /proc; the kernel still counts."""
    import subprocess

    from fleetmem.agent.kernel import sysroot

    child = subprocess.Popen([sys.executable, "-I", "-S", "-c", "import time; time.sleep(60)"])
    try:
        proc = tmp_path / "proc"
        (proc / "sys/kernel").mkdir(parents=True)
        (proc / "sys/kernel/pid_max").write_text("4194304\n")
        (proc / "self").symlink_to(str(ME))
        (proc / str(ME)).mkdir()
        monkeypatch.setattr(sysroot, "ROOT", str(tmp_path))
        load(Gpu(0, compute=[record(child.pid, GIB), record(unused_pid(), GIB)]))
        states = {pid: row["state"] for pid, row in rows_of(probe.gpu_processes()).items()}
    finally:
        child.kill()
        child.wait()
    assert states.pop(child.pid) == "alive"
    assert list(states.values()) == ["dead"]
