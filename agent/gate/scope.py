"""``--gpu`` of the gate: which GPUs and MIG instances are meant. Pure.

``all``, ``0``, ``0-3``, a UUID of a GPU or MIG instance, a PCI address; joined by commas.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List

    from fleetmem.agent.gate.sight import Gpu

MOST = 4096


class ScopeError(ValueError):
    """A part of ``--gpu`` that cannot be meant, in one line."""


def choose(text: str, gpus: List[Gpu]) -> List[Gpu]:
    """The GPUs that *text* names, each once, in NVML's order; ScopeError names a bad part.

    ``all`` and numbers are whole GPUs: a GPU includes its instances.
    """
    wanted: List[Gpu] = []
    whole = [gpu for gpu in gpus if not gpu.uuid.startswith("MIG-")]
    for part in text.split(","):
        wanted += _part(part.strip(), gpus, whole)
    return [gpu for gpu in gpus if gpu in wanted]


def _part(part: str, gpus: List[Gpu], whole: List[Gpu]) -> List[Gpu]:
    if part == "all":
        return whole
    first, dash, last = part.partition("-")
    if first.isdigit() and first.isascii() and (not dash or last.isdigit()):
        low, high = int(first), int(last) if dash else int(first)
        if low > high or high > MOST:
            raise ScopeError("%r is not a range of GPUs" % part)
        found = [gpu for gpu in whole if low <= gpu.index <= high]
        missing = sorted(set(range(low, high + 1)) - {gpu.index for gpu in found})
        if missing:
            raise ScopeError("GPU %d does not exist (%s)" % (missing[0], _known(whole)))
        return found
    found = [gpu for gpu in gpus if part and part.lower() in (gpu.uuid.lower(), _bus(gpu.bus_id))]
    if not found:
        found = [gpu for gpu in whole if part and _bus(part) == _bus(gpu.bus_id)]
    if not found:
        raise ScopeError("%r is not a GPU of this host (%s)" % (part, _known(whole)))
    return found


def _bus(address: object) -> str:
    """A PCI address with the domain as NVML's newer form writes it, or what was given."""
    text = str(address or "").lower()
    return text[-12:] if text.count(":") == 2 else "0000:" + text if text.count(":") == 1 else text


def _known(whole: List[Gpu]) -> str:
    if not whole:
        return "NVML lists no GPU"
    last = whole[-1].index
    return "GPU 0" if last == 0 else "GPUs 0-%d" % last
