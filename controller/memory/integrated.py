"""GPUs without memory of their own: they use the host's. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NOT_SUPPORTED = 3


def has_no_memory(gpu: Mapping[str, Any]) -> bool:
    """Whether a GPU of ``gpu.devices`` has none: a GB10's NVML (driver 580) answers "Not
    Supported (3)" where others tell their memory. Its lists of processes have sizes."""
    codes = gpu.get("error_codes") or {}
    return gpu["total_bytes"] is None and codes.get("memory") == NOT_SUPPORTED
