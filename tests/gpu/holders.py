"""Processes that hold GPU memory in every way the tables name, made with torch.

Run as a program it imports torch once and then forks what it is asked for, a JSON line a
request on stdin, so that a holder starts in a second. It never touches a GPU itself. Each
scene gets a launcher of its own, which forks the holders (and execs them where the scene has
``programs``: forks of one process are kin); a holder writes NAME.json into the scene's folder
when it holds what it was told to. Everything ends by itself when the
process that asked is gone, or after ``LIFE_SECONDS``.

A holder's orders (JSON): ``name``, ``gpu``, ``device_mib``, ``pinned_mib``, ``ignore_term``,
``title``, ``fork`` (a child that never calls CUDA), ``exports`` and ``imports`` (a name, CUDA
IPC), ``leader_exits``, ``nccl`` (rank, world, port), ``registered_mib`` (ordinary memory that
is pinned afterwards), ``managed_mib`` with ``managed_on`` cpu or gpu (who touches it),
``hands_mib`` with ``hands_to`` (memory whose exported handle that keeper gets), ``kind``: cuda,
cuinit, nvml or keeper (no CUDA of its own, only what was handed to it).
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import signal
import sys
import threading
import time
from typing import Any

try:
    from tests.gpu import exported
except ImportError:  # run as a program: its folder is on the path
    import exported  # type: ignore[no-redef,import-not-found,unused-ignore]

LIFE_SECONDS = 560.0
PINNED_CHUNK_MIB = 1024
"""torch rounds pinned blocks up to powers of two, so they are asked for in such."""

PADDING = "-" * 160
"""Room in the argument list, which a new title is written over."""

_SET_NAME, _SET_SUBREAPER = 15, 36
_EXIT_THREAD = {"x86_64": 60, "aarch64": 93}


def main() -> int:
    """Serve requests until stdin ends; with ``--hold`` be one holder, a program of its own."""
    if sys.argv[1:2] == ["--hold"]:
        order = json.loads(sys.argv[2])
        _Holder(order["spec"], order["folder"], order["asker"]).run(order["read"])
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children are reaped by the kernel
    adopter = _adopter()
    if adopter != 1:  # orphans would go to a process that is no init: be the init they need
        _prctl(_SET_SUBREAPER, 1)
        _prctl(_SET_NAME, ctypes.c_char_p(b"tini"))
    import torch  # type: ignore[import-not-found,unused-ignore]

    _say({"ready": True, "adopter": adopter, "torch": torch.__version__})
    asker = os.getppid()
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            try:
                _launch(order, asker)
            finally:
                os._exit(1)
        _say({"launcher": pid})
    return 0


def _say(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def _adopter() -> int:
    """Who gets an orphan here: its parent after its own parent has ended."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        if os.fork() == 0:
            first = os.getppid()
            for _ in range(200):
                if os.getppid() != first:
                    break
                time.sleep(0.01)
            os.write(write, b"%d" % os.getppid())
        else:
            time.sleep(0.05)
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as answer:
        return int(answer.read() or b"0")


def _prctl(option: int, value: Any) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _launch(order: dict[str, Any], asker: int) -> None:
    """The launcher: starts the holders, then lives on until it is killed."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN if order.get("reap", True) else signal.SIG_DFL)
    os.setsid()
    _own_files(os.path.join(order["folder"], "launcher.log"), keep=())
    _write(order["folder"], "launcher", {"pid": os.getpid()})
    pipes = []
    for spec in order["holders"]:
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                if order.get("programs"):
                    _own_program(spec, order["folder"], asker, read)
                _Holder(spec, order["folder"], asker).run(read)
            except BaseException:  # noqa: BLE001 - it is written to the log that the stage reads
                import traceback

                traceback.print_exc()
                sys.stderr.flush()
            finally:
                os._exit(1)
        os.close(read)
        pipes.append(write)
    _live(asker)


def _own_program(spec: dict[str, Any], folder: str, asker: int, read: int) -> None:
    """Become a program of its own: no kin of the process that all others are forked from."""
    os.set_inheritable(read, True)
    whole = {"spec": spec, "folder": folder, "asker": asker, "read": read}
    os.execv(sys.executable, [sys.executable, __file__, "--hold", json.dumps(whole), PADDING])


def _own_files(log: str, keep: tuple[int, ...]) -> None:
    """Close all descriptors but *keep*; 0 is /dev/null, 1 and 2 are the log."""
    for number in map(int, os.listdir("/proc/self/fd")):
        if number > 2 and number not in keep:
            try:
                os.close(number)
            except OSError:
                pass
    null = os.open("/dev/null", os.O_RDONLY)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for number, target in ((null, 0), (out, 1), (out, 2)):
        os.dup2(number, target)
    for number in (null, out):
        if number > 2:
            os.close(number)


def _write(folder: str, name: str, facts: dict[str, Any]) -> None:
    path = os.path.join(folder, name + ".json")
    with open(path + ".new", "w", encoding="ascii") as file:
        json.dump(facts, file)
    os.rename(path + ".new", path)


def _live(asker: int) -> None:
    """Stay as long as whoever asked is there."""
    end = time.monotonic() + LIFE_SECONDS
    while time.monotonic() < end and os.path.exists(f"/proc/{asker}"):
        time.sleep(0.5)
    os._exit(0)


class _Holder:
    """One holder; what it holds stays referenced in ``kept``."""

    def __init__(self, spec: dict[str, Any], folder: str, asker: int) -> None:
        self.spec = spec
        self.folder = folder
        self.asker = asker
        self.kept: list[Any] = []

    def run(self, read: int) -> None:
        spec = self.spec
        os.setsid()
        _own_files(os.path.join(self.folder, spec["name"] + ".log"), keep=(read,))
        if spec.get("title"):
            _retitle(spec["title"])
        if spec.get("ignore_term", True):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        getattr(self, "_" + spec.get("kind", "cuda"))()
        child = self._fork() if spec.get("fork") else None
        _write(self.folder, spec["name"], {"pid": os.getpid(), "child": child})
        if spec.get("leader_exits"):
            threading.Thread(target=_live, args=(self.asker,)).start()
            ctypes.CDLL(None).syscall(_EXIT_THREAD[os.uname().machine], 0)
        _live(self.asker)

    def _nvml(self) -> None:
        import pynvml

        pynvml.nvmlInit()
        for index in range(pynvml.nvmlDeviceGetCount()):
            self.kept.append(pynvml.nvmlDeviceGetHandleByIndex(index))

    def _cuinit(self) -> None:
        _cuda("cuInit", 0)

    def _keeper(self) -> None:
        path = os.path.join(self.folder, self.spec["name"] + ".sock")
        self.kept.append(exported.receive(path))

    def _cuda(self) -> None:
        import torch  # type: ignore[import-not-found,unused-ignore]

        spec = self.spec
        device = torch.device("cuda", spec.get("gpu", 0))
        torch.cuda.set_device(device)
        torch.zeros(1, device=device)
        if spec.get("nccl"):
            self._nccl(spec["nccl"], device)
        if spec.get("device_mib"):
            size = spec["device_mib"] << 20
            self.kept.append(torch.empty(size, dtype=torch.uint8, device=device))
        if spec.get("hands_mib"):
            handle, descriptor = exported.create(spec["hands_mib"] << 20, spec.get("gpu", 0))
            exported.hand_over(os.path.join(self.folder, spec["hands_to"] + ".sock"), descriptor)
            os.close(descriptor)
            self.kept.append(handle)
        if spec.get("exports"):
            self._export(self.kept[-1].data_ptr())
        if spec.get("imports"):
            self._import(spec["imports"])
        left = spec.get("pinned_mib", 0)
        while left > 0:
            size = min(left, PINNED_CHUNK_MIB)
            self.kept.append(torch.empty(size << 20, dtype=torch.uint8, pin_memory=True))
            left -= size
        if spec.get("registered_mib"):
            self._register(spec["registered_mib"] << 20)
        if spec.get("managed_mib"):
            self._manage(spec["managed_mib"] << 20, spec["managed_on"])
        torch.cuda.synchronize(device)

    def _register(self, size: int) -> None:
        area = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        start = ctypes.addressof(ctypes.c_char.from_buffer(area))
        ctypes.memset(start, 1, size)
        _cuda("cuMemHostRegister_v2", ctypes.c_void_p(start), ctypes.c_size_t(size), 0)
        self.kept.append(area)

    def _manage(self, size: int, who: str) -> None:
        pointer = ctypes.c_uint64()
        attach_global = ctypes.c_uint(1)
        _cuda("cuMemAllocManaged", ctypes.byref(pointer), ctypes.c_size_t(size), attach_global)
        if who == "cpu":
            ctypes.memset(pointer.value or 0, 1, size)
        else:
            _cuda("cuMemsetD8_v2", pointer, ctypes.c_ubyte(1), ctypes.c_size_t(size))
        _cuda("cuCtxSynchronize")
        self.kept.append(pointer)

    def _nccl(self, group: dict[str, int], device: Any) -> None:
        import torch  # type: ignore[import-not-found,unused-ignore]
        import torch.distributed as dist  # type: ignore[import-not-found,unused-ignore]

        dist.init_process_group(
            "nccl",
            init_method=f"tcp://127.0.0.1:{group['port']}",
            rank=group["rank"],
            world_size=group["world"],
            device_id=device,
        )
        one = torch.ones(1024, device=device)
        dist.all_reduce(one)
        torch.cuda.synchronize(device)
        if one[0].item() != group["world"]:
            raise RuntimeError("the all-reduce gave a wrong sum")
        self.kept.append(one)

    def _export(self, pointer: int) -> None:
        handle = _IpcHandle()
        _cuda("cuIpcGetMemHandle", ctypes.byref(handle), ctypes.c_uint64(pointer))
        path = os.path.join(self.folder, self.spec["name"] + ".ipc")
        with open(path + ".new", "wb") as file:
            file.write(bytes(handle))
        os.rename(path + ".new", path)

    def _import(self, name: str) -> None:
        path = os.path.join(self.folder, name + ".ipc")
        end = time.monotonic() + 60
        while not os.path.exists(path):
            if time.monotonic() > end:
                raise RuntimeError("nothing was exported by " + name)
            time.sleep(0.05)
        with open(path, "rb") as file:
            handle = _IpcHandle.from_buffer_copy(file.read())
        pointer = ctypes.c_uint64()
        _cuda("cuIpcOpenMemHandle_v2", ctypes.byref(pointer), handle, ctypes.c_uint(1))
        self.kept.append(pointer)

    def _fork(self) -> int:
        pid = os.fork()
        if pid == 0:
            _live(self.asker)
        return pid


class _IpcHandle(ctypes.Structure):
    _fields_ = [("reserved", ctypes.c_ubyte * 64)]


def _cuda(name: str, *args: Any) -> None:
    code = getattr(ctypes.CDLL("libcuda.so.1"), name)(*args)
    if code:
        raise RuntimeError(f"{name} failed with {code}")


def _retitle(title: str) -> None:
    """Write *title* over the arguments, as engines do, and set comm."""
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    start, end = int(fields[45]), int(fields[46])  # arg_start and arg_end, 48 and 49 of the line
    room = end - start
    text = title.encode()[: room - 1]
    ctypes.memmove(start, text + bytes(room - len(text)), room)
    _prctl(_SET_NAME, ctypes.c_char_p(title.encode()[:15]))


if __name__ == "__main__":
    sys.exit(main())
