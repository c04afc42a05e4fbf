"""What only smaps, maps and numa_maps of one process tell. Used in a child (see ``apart``)."""

from __future__ import annotations

import os

from fleetmem.agent.kernel import maps as mappings
from fleetmem.agent.kernel import sysroot, tasks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, List, Optional

MOST_OBJECTS = 32
ZERO = b"/dev/zero"
UVM = b"/dev/nvidia-uvm"
DRIVER = b"/dev/nvidia"


def look(pid: int, nodes: bool) -> Iterator[object]:
    """The facts of one process as a dictionary, "denied", or nothing where it is gone."""
    try:
        place = _place(pid)
        proportional = rollup(place)
        shared, driver, unnamed = objects(pid, place)
        if proportional is not None:
            proportional["pss_unnamed_shmem_bytes"] = unnamed
        yield {
            "proportional": proportional,
            "shared": shared,
            "driver": driver,
            "numa": numa_maps(place) if nodes else None,
        }
    except PermissionError:
        yield "denied"
    except (OSError, ValueError):
        return


def _place(pid: int) -> str:
    """Where /proc shows the memory of a process: its own folder, or another task's where the
    leader has ended."""
    found = tasks.stat(pid)
    live = tasks.live_task(found) if found is not None else None
    return "/proc/%d" % pid if live in (None, pid) else "/proc/%d/task/%d" % (pid, live)


def rollup(place: str) -> Optional[Dict[str, Optional[int]]]:
    """smaps_rollup in bytes, ``None`` where the kernel has none (before 4.14)."""
    try:
        data = sysroot.read(place + "/smaps_rollup")
    except FileNotFoundError:
        return None
    fields: Dict[bytes, int] = {}
    for line in data.split(b"\n")[1:]:
        words = line.split()
        if len(words) == 3 and words[1].isdigit():
            fields[words[0]] = int(words[1]) * 1024
    if b"Pss:" not in fields:
        return None
    return {
        "pss_bytes": fields[b"Pss:"],
        "pss_anon_bytes": fields.get(b"Pss_Anon:"),
        "pss_file_bytes": fields.get(b"Pss_File:"),
        "pss_shmem_bytes": fields.get(b"Pss_Shmem:"),
        "private_bytes": fields.get(b"Private_Clean:", 0) + fields.get(b"Private_Dirty:", 0),
        "swap_pss_bytes": fields.get(b"SwapPss:"),
        "locked_bytes": fields.get(b"Locked:"),
    }


def kind_of(path: bytes) -> Optional[str]:
    """What kind of shared memory a mapping's path means, ``None`` for a file."""
    if path.startswith(b"/SYSV"):
        return "sysv"
    if path.startswith(b"/memfd:"):
        return "memfd"
    if path.startswith(ZERO):
        return "zero"
    if path.startswith((b"/anon_hugepage", b"/dev/hugepages/")):
        return "hugetlb"
    return "posix" if path.startswith(b"/dev/shm/") else None


def objects(pid: int, place: str) -> Any:
    """(shared objects, the driver's mappings or ``None``, proportional size of shared memory
    without a name) of one process.

    The driver maps host memory of its own over /dev/nvidiactl, managed memory over
    /dev/nvidia-uvm and, where a GPU's memory is a NUMA node, that memory over its own node, all
    by vm_insert_page (nv-mmap.c, uvm.c of the open modules 580): counted pages, in RssFile, but
    in no counter of a node. Other mappings of a GPU's node count no page.
    """
    found: Dict[mappings.Key, Dict[str, Any]] = {}
    driver_bytes = uvm_bytes = 0
    unnamed = False
    for _, size, key, path in mappings.maps(pid):
        if path.startswith(DRIVER):
            driver_bytes += size
            uvm_bytes += size if path.startswith(UVM) else 0
            continue
        kind = kind_of(path)
        unnamed = unnamed or is_unnamed(path)
        if kind is not None:
            row = found.get(key)
            if row is None:
                row = found[key] = {
                    "kind": kind,
                    "name": mappings.plain(path).decode("utf-8", "replace"),
                    "device": "%d:%d" % key[:2],
                    "inode": key[2],
                    "map_bytes": 0,
                }
            row["map_bytes"] += size
    rows = sorted(found.values(), key=lambda row: -row["map_bytes"])[:MOST_OBJECTS]
    if not driver_bytes and not unnamed:
        return rows, None, 0
    found_sizes = sizes(place)
    if not driver_bytes:
        return rows, None, found_sizes.unnamed_bytes
    driver = {
        "map_bytes": driver_bytes,
        "pss_bytes": found_sizes.driver_bytes,
        "uvm_map_bytes": uvm_bytes,
        "uvm_pss_bytes": found_sizes.uvm_bytes,
        "pinned_resident_bytes": found_sizes.pinned_resident_bytes,
    }
    return rows, driver, found_sizes.unnamed_bytes


def is_unnamed(path: bytes) -> bool:
    """Whether a mapping's path means shared memory that nobody else can find by a name."""
    return path.startswith(ZERO) or (
        path.startswith(b"/dev/shm/") and path.endswith(mappings.DELETED)
    )


class Sizes:
    """What smaps tells: proportional bytes of the driver's mappings (those of the uvm node
    apart) and of shared memory without a name; resident bytes of anonymous shared memory."""

    __slots__ = ("driver_bytes", "pinned_resident_bytes", "unnamed_bytes", "uvm_bytes")

    def __init__(self) -> None:
        self.driver_bytes = self.uvm_bytes = self.unnamed_bytes = 0
        self.pinned_resident_bytes = 0


def _lines(name: str) -> List[bytes]:
    """Whole lines: the end of a long file may be cut off."""
    return sysroot.read(name, 4 * sysroot.LARGE).rpartition(b"\n")[0].split(b"\n")


def sizes(place: str) -> Sizes:
    """The mappings of one process by what they are of, from smaps."""
    found = Sizes()
    path = b""
    for line in _lines(place + "/smaps"):
        if line[:4] == b"Rss:":
            if path.startswith(ZERO):
                found.pinned_resident_bytes += int(line.split()[1]) * 1024
        elif line[:4] == b"Pss:":
            size = int(line.split()[1]) * 1024
            if path.startswith(UVM):
                found.uvm_bytes += size
            elif path.startswith(DRIVER):
                found.driver_bytes += size
            elif is_unnamed(path):
                found.unnamed_bytes += size
        elif b"-" in line[:17]:
            words = line.split(None, 5)
            path = words[5] if len(words) == 6 else b""
    return found


def numa_maps(place: str) -> Optional[Dict[str, Any]]:
    """Bytes by node and backing, and mapped bytes by policy; ``None`` without NUMA."""
    try:
        lines = _lines(place + "/numa_maps")
    except FileNotFoundError:
        return None
    by_node: Dict[str, Dict[str, int]] = {}
    policies: Dict[str, int] = {}
    usual = os.sysconf("SC_PAGE_SIZE")  # of a line that does not say
    for line in lines:
        words = line.split()
        if len(words) < 2:
            continue
        counts: List[Any] = []
        page, backing = usual, "anon_bytes"
        for word in words[2:]:
            name, _, value = word.partition(b"=")
            if name == b"kernelpagesize_kB":
                page = int(value) * 1024
            elif name == b"file":
                kind = kind_of(value)
                backing = "file_bytes" if kind is None else "shmem_bytes"
                if value.startswith(UVM):
                    backing = "managed_bytes"
                elif value.startswith(DRIVER):
                    backing = "driver_bytes"
            elif name == b"huge":
                backing = "hugetlb_bytes"
            elif name[:1] == b"N" and name[1:].isdigit():
                counts.append((name[1:].decode(), int(value)))
        policy = words[1].decode("ascii", "replace")
        for node, count in counts:
            row = by_node.setdefault(node, {})
            row[backing] = row.get(backing, 0) + count * page
            policies[policy] = policies.get(policy, 0) + count * page
    return {"by_numa_node": by_node, "policies": policies}
