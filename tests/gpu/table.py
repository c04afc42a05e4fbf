"""What ``fleetmem snapshot`` says of the machine, and whether it adds up."""

from __future__ import annotations

from typing import Any

from tests.gpu.product import Product

SUM_SHARE = 0.01


def place_of(now: dict[str, Any], location: str) -> str:
    """``gpuN`` for a GPU with memory of its own, ``node`` for the host's nodes."""
    for gpu in now["gpus"]:
        if location in (f"gpu:{gpu['uuid']}", gpu["same_as"]):
            return f"gpu{gpu['index']}"
    return "node" if location.startswith("numa:") else location


def columns(now: dict[str, Any]) -> dict[tuple[str, str], int]:
    """Bytes by (place, backing)."""
    found: dict[tuple[str, str], int] = {}
    for row in now["table"]:
        key = (place_of(now, row["location"]), row["backing"])
        found[key] = found.get(key, 0) + (row["bytes"] or 0)
    return found


def sums(now: dict[str, Any]) -> list[str]:
    """What does not add up on the GPUs: rows to the total, and the unexplained below 1 %."""
    wrong = []
    for gpu in now["gpus"]:
        where = gpu["same_as"] or f"gpu:{gpu['uuid']}"
        if gpu["same_as"]:
            continue
        sizes = [row["bytes"] for row in now["table"] if row["location"] == where]
        if None in sizes:
            wrong.append(f"GPU {gpu['index']}: a row is not known")
        elif sum(sizes) != gpu["total_bytes"]:
            wrong.append(f"GPU {gpu['index']}: rows are {sum(sizes)} of {gpu['total_bytes']}")
        elif abs(gpu["unaccounted_bytes"]) > SUM_SHARE * gpu["total_bytes"]:
            wrong.append(f"GPU {gpu['index']}: {gpu['unaccounted_bytes']} bytes are unexplained")
    return wrong


def section(product: Product) -> dict[str, Any]:
    """``fleetmem snapshot`` of the machine, without the page cache."""
    envelope = product.run("snapshot", "-H", "gpu", "--no-files")
    found: dict[str, Any] = envelope["hosts"][0]["snapshot"]
    return found
