"""``--gpu``: from its text to the GPUs of one host. Pure.

``all``, ``N``, ``N-M``, a GPU or MIG uuid, or a PCI address, joined by commas. Numbers are
NVML's index on each host. A GPU includes its MIG instances; an instance stands alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from fleetmem.controller.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fleetmem.agent.shapes import GpuDevice, GpuDevices

MAX_INDEX = 4095
_INDEX = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?\Z")
_UUID = re.compile(r"(?:GPU|MIG)-[0-9A-Za-z/-]+\Z", re.IGNORECASE)
_PCI = re.compile(
    r"(?:([0-9a-f]{4}|[0-9a-f]{8}):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.([0-7]))?\Z", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Term:
    """One part of a scope: *text* as it was typed, and what it compares to.

    ``first`` and ``last`` are indexes, ``key`` is a uuid in lower case or a PCI address
    as (domain, bus, device, function) in text.
    """

    text: str
    kind: Literal["all", "index", "uuid", "pci"]
    first: int = 0
    last: int = 0
    key: str = ""


@dataclass(frozen=True, slots=True)
class Instance:
    """One MIG instance in scope, by its GPU's index and its own ids."""

    index: int
    uuid: str
    gi: int
    ci: int


@dataclass(frozen=True, slots=True)
class Match:
    """What a scope means on one host: whole GPUs, single instances, parts not there."""

    indexes: frozenset[int]
    instances: tuple[Instance, ...]
    absent: tuple[str, ...]

    @property
    def empty(self) -> bool:
        """Whether nothing of the scope is on this host."""
        return not self.indexes and not self.instances


def parse(text: str) -> tuple[Term, ...]:
    """The parts of a scope; UsageError names the first part that is none."""
    return tuple(_term(part.strip()) for part in text.split(","))


def _term(text: str) -> Term:
    if text == "all":
        return Term(text, "all")
    if found := _INDEX.match(text):
        first = int(found[1])
        last = int(found[2]) if found[2] else first
        if last < first:
            raise UsageError(f"--gpu: the range {text} runs backwards")
        if last > MAX_INDEX:
            raise UsageError(f"--gpu: {text} is past {MAX_INDEX}")
        return Term(text, "index", first, last)
    if _UUID.match(text):
        return Term(text, "uuid", key=text.lower())
    if address := pci_key(text):
        return Term(text, "pci", key=address)
    raise UsageError(
        f"--gpu: {text!r} is not a GPU",
        "write all, an index (0), a range (0-3), a uuid (GPU-…, MIG-…) or a PCI address",
    )


def pci_key(text: str) -> str | None:
    """A PCI address in one form, whatever its domain's width; ``None`` where it is none."""
    found = _PCI.match(text)
    if not found:
        return None
    domain, bus, device, function = (int(part or "0", 16) for part in found.groups())
    return f"{domain:x}:{bus:x}:{device:x}.{function:x}"


def match(terms: Iterable[Term], devices: GpuDevices) -> Match:
    """Which GPUs of a ``gpu.devices`` reading *terms* name."""
    indexes: set[int] = set()
    instances: dict[str, Instance] = {}
    absent: list[str] = []
    for term in terms:
        whole = [gpu["index"] for gpu in devices["gpus"] if _names(term, gpu)]
        parts = [
            Instance(gpu["index"], part["uuid"], part["gi"], part["ci"])
            for gpu in devices["gpus"]
            for part in gpu["instances"]
            if term.kind == "uuid" and part["uuid"].lower() == term.key
        ]
        indexes.update(whole)
        instances.update((part.uuid, part) for part in parts)
        if not whole and not parts and term.kind != "all":
            absent.append(term.text)
    alone = tuple(part for part in instances.values() if part.index not in indexes)
    return Match(frozenset(indexes), alone, tuple(absent))


def _names(term: Term, gpu: GpuDevice) -> bool:
    if term.kind == "all":
        return True
    if term.kind == "index":
        return term.first <= gpu["index"] <= term.last
    if term.kind == "uuid":
        return gpu["uuid"].lower() == term.key
    return gpu["bus_id"] is not None and pci_key(gpu["bus_id"]) == term.key


def absent_everywhere(matches: Iterable[Match]) -> tuple[str, ...]:
    """Parts of the scope that none of the hosts has, in the order typed.

    The caller makes that a UsageError where at least one host was read.
    """
    common: dict[str, None] | None = None
    for found in matches:
        here = dict.fromkeys(found.absent)
        common = here if common is None else {key: None for key in common if key in here}
    return tuple(common or ())
