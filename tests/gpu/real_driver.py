"""The probes against a real driver, by hand: ``python3 tests/gpu/real_driver.py``.

Needs a GPU, root and an otherwise idle machine; no CUDA toolkit and no PyTorch, only the
driver's own libcuda. Starts holders, looks at them through the probes, ends them by their
exact pids and waits for the memory. Prints what it saw; fails at the first surprise.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from typing import Any

GIB = 1 << 30
MIB = 1 << 20


class Cuda:
    """The few calls of libcuda that make a process a holder."""

    def __init__(self) -> None:
        self.lib = ctypes.CDLL("libcuda.so.1")

    def check(self, name: str, *arguments: Any) -> None:
        code = getattr(self.lib, name)(*arguments)
        if code:
            raise SystemExit(f"{name} failed with {code}")

    def hold(self, gpu: int, size: int, pinned: int = 0) -> None:
        """A context with *size* bytes on the device and *pinned* bytes of host memory."""
        self.check("cuInit", 0)
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.check("cuDeviceGet", ctypes.byref(device), gpu)
        self.check("cuCtxCreate_v2", ctypes.byref(context), 0, device)
        pointer = ctypes.c_ulonglong()
        if size:
            self.check("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size))
        if pinned:
            host = ctypes.c_void_p()
            self.check("cuMemAllocHost_v2", ctypes.byref(host), ctypes.c_size_t(pinned))
            ctypes.memset(host, 1, pinned)


def holder(size: int, pinned: int = 0, fork: bool = False, leave: bool = False) -> list[int]:
    """Start a holder and wait until it holds: its pid, and its fork's."""
    back, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(back)
        os.setsid()
        Cuda().hold(0, size, pinned)
        heir = 0
        if fork:
            heir = os.fork()
            if heir == 0:
                os.close(told)
                while True:
                    time.sleep(60)
        if leave:
            import threading

            threading.Thread(target=time.sleep, args=(3600,)).start()
        os.write(told, b"%d\n" % heir)
        os.close(told)
        if leave:
            ctypes.CDLL(None).syscall(60 if os.uname().machine == "x86_64" else 93, 0)
        while True:
            time.sleep(60)
    os.close(told)
    answer = os.read(back, 32)
    os.close(back)
    if not answer:
        raise SystemExit("the holder ended")
    return [pid] + ([int(answer)] if fork else [])


def main() -> None:
    from fleetmem.agent.declare import find
    from fleetmem.agent.model import Trouble

    def probe(probe_name: str, **options: Any) -> Any:
        before = time.process_time()
        try:
            reading = find(probe_name).func(**options)
            outcome = "ok"
        except Trouble as trouble:
            reading, outcome = trouble.reading, f"{trouble.outcome}: {trouble.reason}"
        spent = (time.process_time() - before) * 1000
        print(f"{probe_name}: {outcome}, {spent:.1f} ms CPU")
        return reading

    devices = probe("gpu.devices")
    for row in devices["gpus"]:
        print(json.dumps(row))
    gpu = devices["gpus"][0]
    idle = gpu["used_bytes"]
    assert gpu["total_bytes"] == gpu["reserved_bytes"] + gpu["used_bytes"] + gpu["free_bytes"]
    print(json.dumps(probe("host.facts")))

    plain = holder(10 * GIB)[0]
    forked, heir = holder(2 * GIB, fork=True)
    ended = holder(1 * GIB, leave=True)[0]
    pinned = holder(0, pinned=4 * GIB)[0]
    os.kill(forked, signal.SIGKILL)
    os.waitpid(forked, 0)
    time.sleep(1)

    listed = {row["pid"]: row for row in probe("gpu.processes")["gpus"][0]["processes"]}
    print(json.dumps(listed))
    holders = {row["pid"]: row for row in probe("gpu.holders")["holders"]}
    probe("gpu.holders")
    people = {row["pid"]: row for row in probe("processes.identity")["processes"]}
    for pid, row in holders.items():
        print(json.dumps(row), people[pid]["comm"], people[pid]["pinned_bytes"])
    assert listed[plain]["used_bytes"] > 10 * GIB
    assert listed[plain]["state"] == listed[ended]["state"] == "alive"
    assert listed[forked]["state"] == "dead"
    assert heir not in listed
    assert {plain, heir, ended, pinned} <= set(holders)
    for pid in (plain, heir, ended, pinned):
        assert holders[pid]["ctl_map_bytes"] > MIB
        assert holders[pid]["via_task"] is (pid == ended)
        assert (holders[pid]["uvm_map_bytes"] == 0) is (pid == heir)
    assert holders[os.getpid()]["ctl_map_bytes"] < MIB
    assert people[ended]["state"] == "Z"
    assert people[ended]["alive"]
    assert people[pinned]["pinned_bytes"] >= 4 * GIB

    targets = [plain, heir, ended, pinned]
    starts = [holders[pid]["start_time"] for pid in targets]
    for pid in targets:
        os.kill(pid, signal.SIGKILL)
    chunks: list[Any] = []
    done = probe(
        "gpu.wait",
        gpus=[0],
        below_bytes=[idle + 64 * MIB],
        pids=targets,
        start_times=starts,
        timeout_seconds=60,
        emit=chunks.append,
    )
    for chunk in chunks:
        print(json.dumps(chunk))
    print(json.dumps(done))
    assert done["met"]
    assert done["gpus"][0]["start_bytes"] > 10 * GIB
    for pid in (plain, ended, pinned):
        os.waitpid(pid, 0)
    print("all as expected")


if __name__ == "__main__":
    sys.exit(main())
