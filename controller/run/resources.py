"""What the controller itself may use in a run: file descriptors and memory.

A run over many hosts must not take the desk down with it. Descriptors bound how many hosts are
worked on at once; memory bounds how many are started at all: what was read stays in memory until
the answer is written, so waiting would free nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from fleetmem.controller.text.sizes import mib

DESCRIPTORS_PER_HOST = 4
RESERVED_DESCRIPTORS = 32
LEAST_MEMORY_BYTES = 512 << 20
"""A run may always use that much: ten thousand hosts take 300 MB."""

MEMORY_SHARE = 0.5
"""Of the memory that is available when the run begins."""


@dataclass
class Budget:
    """What one run may use. ``memory_bytes`` None: a share of what is available at its start."""

    memory_bytes: int | None = None
    why: str = ""

    def __post_init__(self) -> None:
        import psutil

        self._process = psutil.Process()
        if self.memory_bytes is None:
            available = int(psutil.virtual_memory().available * MEMORY_SHARE)
            self.memory_bytes = max(LEAST_MEMORY_BYTES, available)

    def used_up(self) -> bool:
        """Whether this process has more memory than it may; ``why`` then says so."""
        used = int(self._process.memory_info().rss)
        assert self.memory_bytes is not None
        if used <= self.memory_bytes:
            return False
        self.why = (
            f"fleetmem itself uses {mib(used)} MiB of memory here, and a run may use "
            f"{mib(self.memory_bytes)} MiB; run the rest afterwards"
        )
        return True

    def fitting_fanout(self, fanout: int) -> tuple[int, str]:
        """*fanout*, lowered to what the descriptor limit allows, and a warning where it was.

        The soft limit is raised to the hard one first.
        """
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        kept = RESERVED_DESCRIPTORS + int(self._process.num_fds())
        wanted = fanout * DESCRIPTORS_PER_HOST + kept
        if soft != resource.RLIM_INFINITY and soft < wanted:
            higher = wanted if hard == resource.RLIM_INFINITY else min(hard, max(wanted, soft))
            try:
                resource.setrlimit(resource.RLIMIT_NOFILE, (higher, hard))
            except (OSError, ValueError):
                pass
            soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if soft == resource.RLIM_INFINITY or soft >= wanted:
            return fanout, ""
        fitting = max(1, min(fanout, (soft - kept) // DESCRIPTORS_PER_HOST))
        if fitting == fanout:
            return fanout, ""
        return fitting, (
            f"fanout lowered from {fanout} to {fitting}: only {soft} files may be open (ulimit -n)"
        )
