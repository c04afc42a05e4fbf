"""GPUs without memory of their own: they use the host's. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def has_no_memory(gpu: Mapping[str, Any]) -> bool:
    """Whether a GPU of ``gpu.devices`` has none: a GB10's NVML (driver 580) answers "Not
    Supported (3)" where others tell their memory. Its lists of processes have sizes."""
    said = (line for line in gpu["errors"] if line.startswith("memory:"))
    return gpu["total_bytes"] is None and any(line.endswith("(3)") for line in said)
