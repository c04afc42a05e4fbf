"""What the driver's Xid numbers mean, and whose fault each is: NVIDIA's Xid catalogue."""

from __future__ import annotations

_MEANINGS: dict[str, dict[int, str]] = {
    "application": {
        13: "graphics engine exception",
        31: "memory page fault of a process",
        43: "the process was stopped by the driver",
        45: "the channel of a process was torn down",
        68: "NVDEC exception",
        69: "graphics engine class error",
    },
    "driver": {
        8: "GPU stopped processing",
        32: "corrupted push buffer",
        38: "driver firmware error",
        61: "internal micro-controller breakpoint",
        62: "internal micro-controller halt",
        109: "context switch timeout",
        119: "GSP timeout",
        120: "GSP error",
        121: "link to the CPU was retrained",
        136: "link training failed",
        140: "unrecovered ECC error",
        143: "GPU initialisation failed",
        154: "the driver names a recovery action",
    },
    "hardware": {
        48: "double-bit ECC error",
        63: "row remapped",
        64: "row remapping failed",
        74: "NVLink error",
        79: "the GPU has fallen off the bus",
        92: "many single-bit ECC errors",
        94: "contained ECC error",
        95: "uncontained ECC error",
        110: "security fault",
        137: "fault on an NVLink peer",
        144: "NVLink SAW error",
        145: "NVLink RLW error",
        149: "NVLink NETIR error",
    },
}
_RESET = frozenset((48, 62, 64, 74, 79, 95, 109, 110, 119, 120, 136, 140, 143))
_ADVICE = {
    "application": "Look at that process first; the GPU itself is usually sound.",
    "driver": "Look at the GPU and its driver before the engine.",
    "hardware": "Look at the GPU before the engine: fleetmem audit gpu-health, or the vendor.",
    "unknown": "Look the number up in NVIDIA's Xid catalogue before changing the engine.",
}


def xid_meaning(number: int) -> tuple[str | None, str, str]:
    """(meaning, class, advice) of an Xid; the class says whether a reset is needed."""
    for group, meanings in _MEANINGS.items():
        if number in meanings:
            advice = _ADVICE[group]
            if number in _RESET:
                advice += " It needs a GPU reset before it can be used again."
            return meanings[number], group, advice
    return None, "unknown", _ADVICE["unknown"]
