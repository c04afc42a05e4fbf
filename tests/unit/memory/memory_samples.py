"""Hand-made readings of a GH200-shaped host: CPU node 0, HBM node 1, sizes in MiB."""

from __future__ import annotations

from typing import Any

MIB = 1 << 20
UUID = "GPU-11111111-2222-3333-4444-555555555555"


def node(number: int, kind: str, cpus: str, **parts: int | None) -> dict[str, Any]:
    """A node whose *parts* are MiB; what is left of ``total`` is unaccounted."""
    names = ("free", "file", "anon", "shmem", "slab", "hugetlb", "kernel", "device")
    sizes = {name: parts.get(name, None if name == "device" else 0) for name in names}
    total = parts["total"] or 0
    rest = total - sum(size or 0 for size in sizes.values())
    row: dict[str, Any] = {
        "id": number,
        "kind": kind,
        "gpu_uuid": None,
        "gpu_bus_id": None,
        "gpu_evidence": None,
        "cpus": cpus,
        "movable_only": kind != "cpu",
        "distances": [10, 80],
        "total_bytes": total * MIB,
        "unaccounted_bytes": rest * MIB,
        "low_watermark_bytes": None,
        "percpu_bytes": 0,
        "zspages_bytes": None,
        "huge_pages": [],
    }
    row.update({f"{n}_bytes": None if s is None else s * MIB for n, s in sizes.items()})
    for name in (
        "kernel_stack",
        "vmalloc",
        "page_tables",
        "slab_reclaimable",
        "mapped",
        "dirty",
        "writeback",
        "unevictable",
        "mlocked",
        "swap_cached",
    ):
        row[f"{name}_bytes"] = 0
    return row


def gpu(
    index: int = 0, numa_node: int | None = 1, uuid: str = UUID, **sizes: int
) -> dict[str, Any]:
    """A GPU as NVML's v2 numbers describe it, in MiB."""
    figures = {"total": 2048, "reserved": 0, "used": 1148, "free": 900, **sizes}
    return {
        "index": index,
        "uuid": uuid,
        "name": "NVIDIA GH200 480GB",
        "minor": index,
        "bus_id": "0009:01:00.0",
        "numa_node": numa_node,
        "memory_version": 2,
        **{f"{name}_bytes": size * MIB for name, size in figures.items()},
        "mig_mode": False,
        "persistence": True,
        "utilization_percent": 0,
        "recovery_action": None,
        "instances": [],
        "errors": [],
    }


def cached(path: str, by_node: dict[str, int], **more: Any) -> dict[str, Any]:
    """A file with MiB in memory by node."""
    size = sum(by_node.values()) * MIB
    return {
        "path": path,
        "raw": None,
        "device": "254:0",
        "inode": abs(hash(path)) % 10**6,
        "filesystem": "ext4",
        "kind": "file",
        "size_bytes": size,
        "resident_bytes": size,
        "by_numa_node": {name: mib * MIB for name, mib in by_node.items() if mib},
        "dirty_bytes": 0,
        "writeback_bytes": 0,
        "mapped_by": [],
        "open_by": [],
        "mapped_elsewhere": False,
        "deleted": False,
        "sources": ["path"],
        "problem": None,
        **more,
    }


def process(pid: int, comm: str, anon: int, **more: Any) -> dict[str, Any]:
    """A process with *anon* MiB as its proportional share."""
    return {
        "pid": pid,
        "start_time": pid * 10,
        "comm": comm,
        "title": comm,
        "uid": 0,
        "user": "root",
        "cgroup": None,
        "virtual_bytes": 0,
        "resident_bytes": anon * MIB,
        "anon_bytes": anon * MIB,
        "file_bytes": 0,
        "shmem_bytes": 0,
        "swap_bytes": 0,
        "locked_bytes": 0,
        "pinned_bytes": 0,
        "hugetlb_bytes": 0,
        "page_tables_bytes": 0,
        "allowed_numa_nodes": None,
        "proportional": share(anon),
        "shared": [],
        "driver": None,
        "numa": None,
        **more,
    }


def share(anon: int, shmem: int = 0, unnamed: int = 0, swap: int = 0) -> dict[str, Any]:
    """Proportional sizes in MiB; *unnamed* is the part of *shmem* without a name."""
    return {
        "pss_bytes": (anon + shmem) * MIB,
        "pss_anon_bytes": anon * MIB,
        "pss_file_bytes": 0,
        "pss_shmem_bytes": shmem * MIB,
        "pss_unnamed_shmem_bytes": unnamed * MIB,
        "private_bytes": anon * MIB,
        "swap_pss_bytes": swap * MIB,
        "locked_bytes": 0,
    }


def segment(path: str, mib: int, **more: Any) -> dict[str, Any]:
    """A file in /dev/shm."""
    return {
        "kind": "posix",
        "path": path,
        "raw": None,
        "key": None,
        "shmid": None,
        "device": "0:22",
        "inode": abs(hash(path)) % 10**6,
        "size_bytes": mib * MIB,
        "resident_bytes": mib * MIB,
        "swap_bytes": 0,
        "uid": 0,
        "user": "root",
        "creator_pid": None,
        "attached": None,
        "mapped_by": [],
        "open_by": [],
        "owner_state": "dead",
        "namespace": 1,
        "modified_seconds_ago": 10.0,
        **more,
    }


def group(path: str, current: int, **more: Any) -> dict[str, Any]:
    """A control group with *current* MiB, none of it file cache, and no limit."""
    return {
        "path": path,
        "current_bytes": current * MIB,
        "max_bytes": None,
        "high_bytes": None,
        "swap_bytes": 0,
        "anon_bytes": current * MIB,
        "file_bytes": 0,
        "shmem_bytes": 0,
        "kernel_bytes": 0,
        "slab_bytes": 0,
        "dirty_bytes": 0,
        "writeback_bytes": 0,
        "by_numa_node": None,
        "events": {"oom_kill": 0},
        "processes": 1,
        **more,
    }


def groups(*rows: dict[str, Any], version: int = 2) -> dict[str, Any]:
    """A reading of ``cgroups.memory``."""
    return {"version": version, "cgroups": list(rows), "seen": len(rows), "complete": True}


def coverage(files: list[dict[str, Any]], nodes: list[dict[str, Any]]) -> dict[str, Any]:
    """What *files* explain of the file pages of *nodes*."""
    by_node = {}
    for one in nodes:
        found = sum((f["by_numa_node"] or {}).get(str(one["id"]), 0) for f in files)
        size = one["file_bytes"]
        by_node[str(one["id"])] = {
            "file_bytes": size,
            "found_bytes": found,
            "percent": round(100 * found / size, 2) if size else None,
        }
    whole = sum(row["file_bytes"] for row in by_node.values())
    total = sum(f["resident_bytes"] or 0 for f in files)
    return {
        "file_bytes": whole,
        "found_bytes": total,
        "percent": round(100 * total / whole, 2) if whole else None,
        "by_numa_node": by_node,
    }


def readings(
    nodes: list[dict[str, Any]] | None = None,
    files: list[dict[str, Any]] | None = None,
    gpus: list[dict[str, Any]] | None = None,
    listed: dict[int, dict[int, int]] | None = None,
    processes: list[dict[str, Any]] | None = None,
    segments: list[dict[str, Any]] | None = None,
    uid: int = 0,
    boot: str = "boot-1",
    swap: int = 0,
) -> dict[str, Any]:
    """Plain readings of one host. *listed*: GPU index → pid → MiB."""
    if nodes is None:
        nodes = [
            node(0, "cpu", "0-71", total=4096, free=2000, file=1000, anon=700, kernel=300, slab=50),
            node(1, "gpu", "", total=2048, free=900, file=800, anon=100, kernel=40),
        ]
    if files is None:
        files = [
            cached("/models/a/1.safetensors", {"1": 500, "0": 100}),
            cached("/models/a/2.safetensors", {"1": 200}),
            cached("/models/a/3.safetensors", {"1": 90}, mapped_by=[41]),
            cached("/usr/lib/libc.so.6", {"0": 850}, mapped_by=[41, 42], sources=["mapping"]),
        ]
    gpus = [gpu()] if gpus is None else gpus
    listed = {0: {41: 200}} if listed is None else listed
    memory = sum(one["total_bytes"] for one in nodes)
    return {
        "host.facts": {
            "hostname": "gh200-01",
            "boot_id": boot,
            "kernel": "6.12.0",
            "machine": "aarch64",
            "page_size_bytes": 65536,
            "uid": uid,
        },
        "host.operations": {"epoch": 4, "locked_by": None, "signals": []},
        "gpu.devices": {"driver_version": "570.86", "nvml_version": "12", "gpus": gpus},
        "gpu.processes": {
            "gpus": [
                {
                    "index": one["index"],
                    "uuid": one["uuid"],
                    "complete": True,
                    "errors": [],
                    "processes": [
                        {
                            "pid": pid,
                            "lists": ["compute"],
                            "used_bytes": mib * MIB,
                            "gi": None,
                            "ci": None,
                            "state": "alive",
                            "why": None,
                        }
                        for pid, mib in listed.get(one["index"], {}).items()
                    ],
                }
                for one in gpus
            ]
        },
        "numa.nodes": {
            "page_size_bytes": 65536,
            "synthetic": False,
            "nodes": nodes,
            "memory": {
                "total_bytes": memory,
                "available_bytes": memory // 2,
                "shmem_bytes": 0,
                "swap_total_bytes": swap * MIB,
                "swap_free_bytes": 0,
            },
            "settings": {"numa_balancing": 0},
            "driver": None,
            "gpus": [],
            "problems": [],
        },
        "processes.memory": {
            "processes": [process(41, "python3", 300)] if processes is None else processes,
            "denied": 0,
            "complete": True,
        },
        "shm.segments": {
            "segments": segments or [],
            "denied": 0,
            "complete": True,
            "problems": [],
        },
        "pagecache.files": {
            "page_size_bytes": 65536,
            "files": files,
            "small": {"files": 0, "resident_bytes": 0},
            "unlisted": {"files": 0, "resident_bytes": 0},
            "looked": len(files),
            "unknown": 0,
            "coverage": coverage(files, nodes),
            "complete": True,
            "stopped": None,
            "problems": [],
        },
    }
