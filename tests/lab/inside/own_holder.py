# mypy: ignore-errors
"""Runs inside a host: a holder written by somebody who does not know the lab's own.

own_holder.py GPU BYTES RULE [again|later] [deaf|ignores] [fork|afar]
[managed=BYTES] opens every node as CUDA does,
maps what CUDA maps and puts a charge on the GPU. ``again``: a supervisor starts a new one
whenever one ends, ``later``: a second after. ``deaf``: takes TERM and goes on,
``ignores``: has it ignored. ``fork``: a child
inherits the files, and with ``RULE`` file the charge lives as long as any of the two; ``afar``:
a grandchild does, in a session of its own, and its parent has ended. ``managed=BYTES``: so much
managed memory on the GPU as well, mapped over the uvm node and on no list. Pids go to
/tmp/own-pids, each TERM that a deaf one sees to /tmp/own-terms.
"""

import fcntl
import mmap
import os
import signal
import sys
import time


def note(path):
    """One line with this pid."""
    number = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    os.write(number, f"{os.getpid()}\n".encode())
    os.close(number)


def look_like_cuda():
    """Files and mappings; kept for the life of the process."""
    kept = []
    for name in sorted(os.listdir("/dev")):
        if name.startswith("nvidia"):
            kept.append(os.open("/dev/" + name, os.O_RDWR))
    ctl, uvm = (os.open("/dev/" + name, os.O_RDWR) for name in ("nvidiactl", "nvidia-uvm"))
    kept.append(mmap.mmap(ctl, 5 << 20, mmap.MAP_PRIVATE))
    uvm_map = mmap.mmap(uvm, 1 << 20, mmap.MAP_PRIVATE)
    uvm_map.madvise(mmap.MADV_DONTFORK)
    return [*kept, uvm_map]


def manage(size):
    """Managed memory that the GPU has touched: address space here, nothing of it in memory."""
    uvm = os.open("/dev/nvidia-uvm", os.O_RDWR)
    return mmap.mmap(uvm, size, mmap.MAP_PRIVATE)


def charge(gpu, size, rule, lists="compute"):
    """One line for the simulated library; the lock on it is the memory's life."""
    with open("/proc/self/stat") as file:
        start = file.read().rpartition(")")[2].split()[19]
    folder, me = "/run/nvml-sim/charges/", os.getpid()
    line = f"rule={rule} lists={lists} bytes={size} start={start} gpu={gpu} pid={me}\n"
    number = os.open(f"{folder}.own{me}", os.O_RDWR | os.O_CREAT, 0o644)
    os.write(number, line.encode())
    fcntl.flock(number, fcntl.LOCK_EX)
    os.rename(f"{folder}.own{me}", f"{folder}own-{lists}-{me}-{start}")
    return number


def main():
    """Never returns."""
    gpu, size, rule = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    words = sys.argv[4:]
    while "again" in words or "later" in words:
        child = os.fork()
        if child == 0:
            break
        os.waitpid(child, 0)
        time.sleep("later" in words)
    if "ignores" in sys.argv:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "deaf" in words:
        signal.signal(signal.SIGTERM, lambda number, frame: note("/tmp/own-terms"))
    kept = look_like_cuda()
    if size:
        kept.append(charge(gpu, size, rule))
    for word in words:
        if word.startswith("managed="):
            size = int(word.partition("=")[2])
            kept += [manage(size), charge(gpu, size, rule, "none")]
    if "fork" in words:
        os.fork()
    if "afar" in words:
        child = os.fork()
        if child:
            os.waitpid(child, 0)
        elif os.fork():
            os._exit(0)
        else:
            os.setsid()
    note("/tmp/own-pids")
    while kept:
        time.sleep(1000)


main()
