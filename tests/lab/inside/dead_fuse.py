# mypy: ignore-errors
"""Runs inside a host: a FUSE file whose server stops answering, held open by a process.

Prints ``holder PID server PID`` and stays. The server answers until the file is open; from
then on every question about the file waits for ever. With the argument ``takes`` the server
takes the questions all the same: who asks is then beyond a kill. Ending the server frees everyone.
"""

import ctypes
import os
import stat
import struct
import sys
import time

PLACE = "/tmp/dead-fuse"
LOOKUP, GETATTR, OPEN, INIT = 1, 3, 14, 26
libc = ctypes.CDLL(None, use_errno=True)


def attributes(node):
    mode = stat.S_IFDIR | 0o755 if node == 1 else stat.S_IFREG | 0o644
    return struct.pack("<6Q10I", node, 0, 0, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


def let_go():
    null = os.open("/dev/null", os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)


def serve(device):
    while True:
        request = os.read(device, 1 << 17)
        _, opcode, unique, node = struct.unpack_from("<IIQQ", request)
        error, body = 0, b""
        if opcode == INIT:
            minor = struct.unpack_from("<II", request, 40)[1]
            body = struct.pack("<IIIIHHIIHHI28x", 7, min(minor, 31), 0, 0, 0, 0, 4096, 1, 0, 0, 0)
        elif opcode == LOOKUP:
            body = struct.pack("<QQQQII", 2, 0, 0, 0, 0, 0) + attributes(2)
        elif opcode == GETATTR:
            body = struct.pack("<QII", 0, 0, 0) + attributes(node)
        elif opcode == OPEN:
            body = struct.pack("<QII", 0, 0, 0)
        else:
            error = -38
        os.write(device, struct.pack("<IiQ", 16 + len(body), error, unique) + body)
        if opcode == OPEN:
            break
    while "takes" in sys.argv:
        os.read(device, 1 << 17)
    while True:
        time.sleep(60)


os.mkdir(PLACE)
node = "/tmp/fuse-device"
os.mknod(node, stat.S_IFCHR | 0o600, os.makedev(10, 229))
device = os.open(node, os.O_RDWR)
options = b"fd=%d,rootmode=40000,user_id=0,group_id=0" % device
if libc.mount(b"dead", PLACE.encode(), b"fuse", 0, options):
    sys.exit(f"no FUSE here: errno {ctypes.get_errno()}")
server = os.fork()
if server == 0:
    os.setsid()
    let_go()
    serve(device)
os.close(device)
holder = os.fork()
if holder == 0:
    os.setsid()
    held = os.open(PLACE + "/file", os.O_RDONLY)
    also = os.open("/dev/nvidia0", os.O_RDWR)
    print("holder", os.getpid(), "server", server, "fd", held, flush=True)
    let_go()
    while True:
        time.sleep(60)
