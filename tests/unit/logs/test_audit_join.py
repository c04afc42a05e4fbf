"""Who held the memory that a failed start lacked."""

from __future__ import annotations

from typing import Any

from fleetmem.controller.logs.audit_join import GIB, held_then, lacked_memory
from fleetmem.controller.startup.read.parse import parse

NOW = 1_800_000_000_000_000
SPAN = {"first_us": NOW - 60_000_000}


def rows(*, age: float = 3600, state: str = "alive", file_bytes: int = 0) -> dict[str, Any]:
    def reading(value: Any) -> dict[str, Any]:
        return {"outcome": "ok", "reason": None, "reading": value, "seconds": 0.0}

    process = {"pid": 41, "used_bytes": 11 * GIB, "state": state}
    small = {"pid": 42, "used_bytes": 1 << 20, "state": "alive"}
    who = {
        "pid": 41, "age_seconds": age, "title": "python3 train.py", "comm": "python3",
        "owner": {"name": "train.service"},
    }  # fmt: skip
    node = {"id": 2, "kind": "gpu", "gpu_uuid": "GPU-1", "file_bytes": file_bytes}
    return {
        "gpu.processes": reading({"gpus": [{"index": 3, "processes": [process, small]}]}),
        "processes.identity": reading({"processes": [who] if state == "alive" else []}),
        "numa.nodes": reading({"nodes": [node, {**node, "id": 0, "kind": "cpu"}]}),
    }


def test_a_holder_older_than_the_start_is_named() -> None:
    found = held_then("gpu-1", "sglang", SPAN, NOW, rows())
    assert found is not None
    say = found["evidence"]["say"]
    assert "python3 train.py 41 (train.service) has 11.0 GiB of GPU 3, since before" in say
    assert found["next"] == ["fleetmem reclaim -H gpu-1 --gpu 3 --dry-run"]
    assert str(found["advice"]).endswith(
        "--gpu stops holders even if they are working: read its plan first."
    )


def test_the_start_itself_and_small_holders_are_not() -> None:
    assert held_then("gpu-1", "sglang", SPAN, NOW, rows(age=59)) is None


def test_dead_holders_and_file_pages() -> None:
    dead = held_then("gpu-1", "sglang", SPAN, NOW, rows(state="dead"))
    assert dead is not None
    assert "process 41, which is dead" in dead["evidence"]["say"]
    assert "working" not in str(dead["advice"])
    pages = held_then("gpu-1", "sglang", SPAN, NOW, rows(age=1, file_bytes=60 * GIB))
    assert pages is not None
    assert "60.0 GiB of file pages lie on GPU memory (NUMA node 2)" in pages["evidence"]["say"]
    assert pages["next"] == ["fleetmem snapshot -H gpu-1"]


def test_only_starts_that_lacked_memory_are_joined() -> None:
    text = "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static."
    assert lacked_memory(parse([text]).newest, [])
    assert not lacked_memory(parse(["Xid 79"]).newest, [])
    assert not lacked_memory(None, [{"rule": "startup/pool-shrank"}])
    ready = parse(["[2026-05-04 09:10:31] The server is fired up and ready to roll!"]).newest
    assert lacked_memory(ready, [{"rule": "startup/pool-shrank"}])
