"""A loopback address range of its own for each lab."""

from __future__ import annotations

import socket
import zlib

from tests.lab.making.build import LabError

PORT = 2222
FIRST, LAST = 64, 254
MAX_HOSTS = 250 * 250


def reserve(seed: str, count: int) -> tuple[str, socket.socket]:
    """(format of an address with two numbers, socket that reserves the range while open).

    Binding is atomic, so labs that start at one moment get different ranges.
    """
    if count > MAX_HOSTS:
        raise LabError(f"at most {MAX_HOSTS} hosts")
    size = LAST - FIRST + 1
    start = zlib.crc32(seed.encode()) % size
    for step in range(size):
        block = FIRST + (start + step) % size
        sock = socket.socket()
        try:
            sock.bind((f"127.{block}.255.254", PORT))
        except OSError:
            sock.close()
            continue
        return f"127.{block}.{{}}.{{}}", sock
    raise LabError("no free loopback address range")


def listen(address: str) -> socket.socket:
    """A listening socket in this network namespace."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((address, PORT))
    sock.listen(256)
    return sock


def answers(address: str) -> bool:
    """Whether an SSH server says its banner there within a second."""
    try:
        with socket.create_connection((address, PORT), timeout=1) as sock:
            return sock.recv(4) == b"SSH-"
    except OSError:
        return False
