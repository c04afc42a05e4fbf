"""What the driver's Xid numbers mean, whose fault each is, and what it asks for at once.

Source: NVIDIA, "Xid Errors", the Xid catalogue (docs.nvidia.com/deploy/xid-errors), for Ampere
and newer; 61, unused there, has its meaning from ``nverror.h`` of the open GPU kernel modules.
A class is given only where the catalogue's description, trigger conditions or actions name one;
68 and 109 have none because NVIDIA's Kubernetes device plugin takes them for application errors
and the catalogue does not. A number without a confirmed meaning is left out, and so unknown.
"""

from __future__ import annotations

_MEANINGS: dict[str, dict[int, str]] = {
    "application": {
        11: "invalid commands in a process's push buffer",
        13: "graphics engine exception, usually a bad access or instruction of a process",
        25: "illegal commands in a process's push buffer",
        31: "GPU memory page fault, usually a bad address of a process",
        43: "a process hit a software fault and was stopped; the GPU is healthy",
        45: "a process's work was removed from the GPU, as it ended or after another Xid",
        69: "graphics engine class error",
        137: "illegal access over NVLink to another GPU, usually by a process",
    },
    "driver": {
        37: "driver firmware error",
        38: "driver firmware error",
        66: "illegal access by the driver",
        67: "illegal access by the driver",
        119: "no answer from the driver's firmware on the GPU (GSP)",
        120: "error in the driver's firmware on the GPU (GSP)",
    },
    "hardware": {
        32: "corrupted push buffer, mostly from the PCI link",
        48: "uncorrectable (double-bit) ECC error",
        63: "GPU memory was remapped after ECC errors",
        64: "GPU memory could not be remapped after ECC errors",
        74: "NVLink error, on this side or the other",
        79: "the GPU has fallen off the bus",
        92: "high rate of single-bit ECC errors",
        94: "contained memory error: one process is affected",
        95: "uncontained memory error: several processes may be affected",
        110: "security fault",
        121: "corrected errors on the C2C link to the CPU",
        136: "link training failed",
        140: "ECC error that was not recovered from",
        144: "NVLink SAW error",
    },
    "unknown": {
        8: "GPU stopped processing",
        46: "GPU stopped processing",
        61: "breakpoint of the internal micro-controller (PMU)",
        62: "internal micro-controller (PMU) halt",
        68: "NVDEC exception",
        109: "context switch timeout",
        143: "GPU initialisation error",
        145: "NVLink RLW error",
        146: "NVLink TLW error",
        149: "NVLink NETIR error",
        150: "NVLink MSE error",
        154: "the GPU's recovery action changed",
    },
}
_ADVICE = {
    "application": "Look at that process first; the GPU itself is usually sound.",
    "driver": "Look at the GPU and its driver before the engine.",
    "hardware": "Look at the GPU and its links before the engine.",
    "unknown": "The catalogue does not say what is at fault; look at the other Xids around it.",
}
_NO_MEANING = "Look the number up in NVIDIA's Xid catalogue before changing the engine."
_MILD = frozenset((37, 38, 63, 66, 67, 92, 121))
_ACTIONS: tuple[tuple[frozenset[int], str], ...] = (
    (
        frozenset((46, 48, 62, 64, 74, 95, 109, 110, 119, 120, 136, 140, 143)),
        "It needs a GPU reset before it can be used again.",
    ),
    (frozenset((79,)), "It needs a restart of the host."),
    (frozenset((94,)), "Start that process again; the GPU should be reset when convenient."),
    (frozenset((144, 145, 146, 149, 150)), "The numbers in its line name the action."),
    (frozenset((154,)), "The words of its line name the action."),
    (_MILD, "It asks for nothing at once."),
)


def xid_meaning(number: int) -> tuple[str | None, str, str]:
    """(meaning, class, advice) of an Xid; the advice ends with what it asks for at once."""
    for group, meanings in _MEANINGS.items():
        if number in meanings:
            asked = [text for numbers, text in _ACTIONS if number in numbers]
            return meanings[number], group, " ".join([_ADVICE[group], *asked])
    return None, "unknown", _NO_MEANING


def xid_is_mild(number: int) -> bool:
    """Whether the catalogue asks for no action at once."""
    return number in _MILD
