"""The readings of one host, joined by pid: what touches which GPU, and how. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from fleetmem.controller.memory.driver import has_no_memory

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from fleetmem.agent import shapes

UNLISTED_BYTES = 64 << 20
"""An idle handle costs a few MiB that no list names (3 MiB measured on an H200)."""

HEIR_CTL_BYTES = 1 << 20
"""A CUDA context and its forks map far more of nvidiactl; monitoring tools at most a page."""


@dataclass(frozen=True)
class Survey:
    """One look at a host. Process keys are pids; GPU keys NVML indexes; sizes bytes."""

    facts: shapes.HostFacts
    operations: shapes.HostOperations
    gpus: Mapping[int, shapes.GpuDevice]
    listed: Mapping[int, tuple[shapes.GpuProcess, ...]]
    complete: Mapping[int, bool]
    holders: Mapping[int, shapes.Holder]
    holders_denied: int
    processes: Mapping[int, shapes.Identity]
    ties: shapes.Ties
    driver: str | None = None
    numa_file_bytes: Mapping[int, int] = field(default_factory=dict)

    @property
    def numbers_count(self) -> bool:
        """Whether NVML's numbers are this pid namespace's: elsewhere they mean somebody else."""
        return self.facts["init_pid_namespace"]

    @property
    def identity_pids(self) -> list[int]:
        """Pids whose identity a judgement needs."""
        alive = {p["pid"] for rows in self.listed.values() for p in rows if p["state"] == "alive"}
        return sorted(alive | set(self.holders))

    @cached_property
    def _held(self) -> Mapping[int, Mapping[int, int | None]]:
        return {
            gpu: {p["pid"]: p["used_bytes"] for p in rows if p["state"] == "alive"}
            if self.numbers_count
            else {}
            for gpu, rows in self.listed.items()
        }

    @cached_property
    def _dead(self) -> Mapping[int, Mapping[int, int | None]]:
        found = {}
        for gpu, rows in self.listed.items():
            dead = {p["pid"]: p["used_bytes"] for p in rows if p["state"] == "dead"}
            for pid, used in self._held[gpu].items():
                process = self.processes.get(pid)
                if process is not None and not process["alive"]:
                    dead[pid] = used
            found[gpu] = dead if self.numbers_count else {}
        return found

    @cached_property
    def _listed_pids(self) -> frozenset[int]:
        return frozenset(
            pid for gpu in self.gpus for pid in self._held[gpu] if pid not in self._dead[gpu]
        )

    @cached_property
    def mps_clients(self) -> list[frozenset[int]]:
        """Live clients of each MPS server that has any, by the GPU whose list names them."""
        found = [
            frozenset(p["pid"] for p in rows if "mps" in p["lists"] and p["state"] == "alive")
            for rows in self.listed.values()
        ]
        return [pids for pids in found if pids]

    def held(self, gpu: int) -> Mapping[int, int | None]:
        """Live pids that NVML's plausible lists name on *gpu*, with their bytes."""
        return self._held[gpu]

    def dead(self, gpu: int) -> Mapping[int, int | None]:
        """Dead pids that NVML still names on *gpu*, with their bytes.

        A number whose process has ended without being waited for is as dead as a free one.
        """
        return self._dead[gpu]

    def listed_pids(self) -> frozenset[int]:
        """All live pids that any GPU's list names."""
        return self._listed_pids

    def context_gpus(self, pid: int) -> list[int]:
        """GPUs that *pid* has a context on by what it maps, with memory of unknown size."""
        holder = self.holders.get(pid)
        if holder is None or holder["ctl_map_bytes"] <= HEIR_CTL_BYTES:
            return []
        return [gpu for gpu in sorted(self.gpus) if may_hold(self, pid, gpu)]

    def has_unlisted(self, gpu: int) -> bool:
        """Whether more is used on *gpu* than an idle handle and what the lists name explain."""
        reserved = self.gpus[gpu]["reserved_bytes"] or 0
        version = self.gpus[gpu]["memory_version"]
        return (self.unlisted(gpu) or 0) > UNLISTED_BYTES + (0 if version == 2 else reserved)

    def open_gpus(self, pid: int) -> list[int]:
        """GPUs whose node *pid* has open or mapped."""
        holder = self.holders.get(pid)
        if holder is None:
            return []
        minors = {f["minor"] for f in holder["gpus"]}
        return [i for i, gpu in sorted(self.gpus.items()) if gpu["minor"] in minors]

    def used(self, gpu: int) -> int | None:
        """NVML's used bytes; on a NUMA GPU less the node's file pages, which are no holder's.

        On a GPU that uses the host's memory, what the lists add up to: there is no other figure.
        """
        device = self.gpus[gpu]
        if has_no_memory(device):
            return self.named_bytes(gpu) if self.complete[gpu] else None
        used, node = device["used_bytes"], device["numa_node"]
        if used is None or node is None:
            return used
        return max(0, used - self.numa_file_bytes.get(node, 0))

    def named_bytes(self, gpu: int) -> int | None:
        """What NVML's lists add up to on *gpu*, with dead numbers; None where a size is unknown."""
        sizes = [p["used_bytes"] for p in self.listed[gpu] if p["state"] != "implausible"]
        known = [size for size in sizes if size is not None]
        return sum(known) if len(known) == len(sizes) else None

    def unlisted(self, gpu: int) -> int | None:
        """What is used on *gpu* beside that, below zero where the lists name more; None where
        either is not known."""
        used, named = self.used(gpu), self.named_bytes(gpu)
        return None if used is None or named is None else used - named

    def managed_map_bytes(self, pids: Iterable[int]) -> int:
        """Address space of managed memory that *pids* have mapped: how much of it lies on a GPU
        is not to be seen, and no list has it."""
        return sum(self.holders[pid]["uvm_map_bytes"] for pid in pids if pid in self.holders)


def heir_like(survey: Survey, pid: int) -> bool:
    """Whether *pid* looks like the fork of a CUDA process, and like nothing else.

    On no list of NVML, maps over 1 MiB of nvidiactl as only a CUDA context and its forks do,
    and has no uvm mapping, which fork does not copy (measured on driver 580).
    """
    holder, process = survey.holders.get(pid), survey.processes.get(pid)
    return (
        holder is not None
        and process is not None
        and process["alive"]
        and holder["ctl_map_bytes"] > HEIR_CTL_BYTES
        and holder["uvm_map_bytes"] == 0
        and pid not in survey.listed_pids()
    )


CONTEXT_MAP_BYTES = 1 << 20
"""A context maps 2176 KiB of its own GPU's node and 128 KiB of every other's; forks keep both."""


def may_hold(survey: Survey, pid: int, gpu: int) -> bool:
    """Whether an heir can have memory of *gpu*: by the node it maps as a context does.

    Where it maps no GPU's node like that, any node it has open counts.
    """
    holder = survey.holders.get(pid)
    if holder is None or gpu not in survey.open_gpus(pid):
        return False
    contexts = {f["minor"] for f in holder["gpus"] if f["map_bytes"] > CONTEXT_MAP_BYTES}
    return not contexts or survey.gpus[gpu]["minor"] in contexts


def only_opened(survey: Survey, pid: int) -> bool:
    """Whether *pid* has nothing of the driver but an open nvidiactl, as the holder of exported
    memory has (CUDA VMM handles; measured on driver 580)."""
    holder = survey.holders.get(pid)
    return (
        holder is not None
        and holder["ctl_fds"] > 0
        and not holder["gpus"]
        and not (holder["ctl_map_bytes"] or holder["uvm_fds"] or holder["uvm_map_bytes"])
    )


def descends_from(process: shapes.Identity, ancestor: shapes.Identity) -> bool:
    """Whether *ancestor*, that very process, is above *process*."""
    key = (ancestor["pid"], ancestor["start_time"])
    return any((a["pid"], a["start_time"]) == key for a in process["ancestors"])
