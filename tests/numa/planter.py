# mypy: ignore-errors
"""Runs inside the NUMA machine: puts anonymous or shared memory on a node and keeps it.

Reads lines "anon|shmem NODE MIB" from /run/plant.in and answers each on /run/plant.out.
"""

import ctypes
import mmap
import os

MBIND, BIND = {"x86_64": 237, "aarch64": 235}[os.uname().machine], 2
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
kept = []
with open("/run/planter.pid", "w") as file:
    file.write(str(os.getpid()))
os.mkfifo("/run/plant.in")
os.mkfifo("/run/plant.out")
while True:
    with open("/run/plant.in") as file:
        kind, node, mib = file.read().split()
    flags = mmap.MAP_ANONYMOUS | (mmap.MAP_SHARED if kind == "shmem" else mmap.MAP_PRIVATE)
    region = mmap.mmap(-1, int(mib) << 20, flags)
    at = ctypes.addressof(ctypes.c_char.from_buffer(region))
    mask = ctypes.c_ulong(1 << int(node))
    size = ctypes.c_ulong(len(region))
    rc = libc.syscall(
        ctypes.c_long(MBIND), ctypes.c_void_p(at), size, ctypes.c_int(BIND),
        ctypes.byref(mask), ctypes.c_ulong(64), ctypes.c_uint(0),
    )  # fmt: skip
    for place in range(0, len(region), mmap.PAGESIZE):
        region[place] = 1
    kept.append(region)
    with open("/run/plant.out", "w") as file:
        file.write("done" if rc == 0 else f"mbind: {ctypes.get_errno()}")
