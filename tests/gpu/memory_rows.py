"""Where memory taken in each of CUDA's ways lands in ``fleetmem snapshot``.

Each case is built out of real processes, with a snapshot before and after. What its own row
and the column of its place gained must be what was taken; every place must add up.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.gpu.table import columns, place_of, section, sums
from tests.gpu.trial import Bench

MIB = 1 << 20
CONTEXT_MIB = 1200
"""A context costs some 600 MiB of its GPU beside what it allocates; two libraries may add to it."""

CONTEXT_HOST_MIB = 120
"""A context's own host memory: some 70 MiB that the driver maps, 2 of managed memory."""

NEAR = 0.02
NOISE_MIB = 64
LOST_MIB = 24
"""So much may a place lose to what no row explains: the driver's own, 9 to 17 MiB a context."""


@dataclass(frozen=True)
class Expect:
    """``mib`` of *backing* at *place* (``gpu0``, ``node`` for the host's own nodes) are in a row
    whose evidence names *holder*; with ``context`` a CUDA context's own may come on top."""

    holder: str
    backing: str
    place: str
    mib: int
    context: bool = False


@dataclass(frozen=True)
class Case:
    """One way of taking memory, and the rows in which it must stand."""

    about: str
    holders: tuple[dict[str, Any], ...]
    expects: tuple[Expect, ...]
    needs_gpus: int = 1


@dataclass
class Row:
    """What came of a case; sizes are MiB. ``unaccounted``: by how much that grew, by place."""

    about: str
    seen: list[str] = field(default_factory=list)
    gained: dict[str, float] = field(default_factory=dict)
    unaccounted: dict[str, float] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    skipped: str = ""

    def check(self, true: bool, text: str) -> None:
        """Note *text* as a failure unless *true*."""
        if not true:
            self.failures.append(text)

    def to_json(self) -> dict[str, Any]:
        """All fields."""
        return asdict(self)

    def line(self) -> str:
        """The row as text."""
        if self.skipped:
            return f"{self.about} | not run: {self.skipped}"
        gained = ", ".join(f"{name} {size:+.0f}" for name, size in self.gained.items())
        rest = ", ".join(f"{name} {change:+.1f}" for name, change in self.unaccounted.items())
        verdict = "FAILED" if self.failures else "ok"
        return f"{self.about} | {'; '.join(self.seen)} | {gained} | {rest} | {verdict}"


def cases(totals_mib: Sequence[int]) -> list[Case]:
    """All ways, for GPUs of *totals_mib*."""
    size = min(4096, min(totals_mib) // 16)
    small = size // 2

    def one(about: str, backing: str, place: str, mib: int, context: bool, **spec: Any) -> Case:
        holder = {"name": "holder", **spec}
        return Case(about, (holder,), (Expect("holder", backing, place, mib, context),))

    return [
        one("cudaMalloc", "device", "gpu0", size, True, device_mib=size),
        one("cudaHostAlloc", "shmem", "node", size, False, pinned_mib=size),
        one("cudaHostRegister", "anon", "node", size, False, registered_mib=size),
        one(
            "managed, touched by the CPU", "device", "node", small, False,
            managed_mib=small, managed_on="cpu",
        ),
        one(
            "managed, touched by the GPU", "device", "gpu0", small, True,
            managed_mib=small, managed_on="gpu",
        ),
        Case(
            "GPU 1 merely open",
            ({"name": "holder", "device_mib": size},),
            (
                Expect("holder", "device", "gpu0", size, True),
                Expect("holder", "device", "gpu1", 0),
            ),
            needs_gpus=2,
        ),
        Case(
            "CUDA IPC: the exporter is charged, the importer for its context",
            (
                {"name": "exporter", "device_mib": size, "exports": True},
                {"name": "importer", "imports": "exporter"},
            ),
            (
                Expect("exporter", "device", "gpu0", size, True),
                Expect("importer", "device", "gpu0", 0, True),
            ),
        ),
    ]  # fmt: skip


def memory_rows(bench: Bench, totals_mib: Sequence[int]) -> list[Row]:
    """Every case, one after another; whatever goes wrong is in its row."""
    rows = []
    for case in cases(totals_mib):
        row = Row(case.about)
        rows.append(row)
        if case.needs_gpus > len(totals_mib):
            row.skipped = "needs two GPUs"
            continue
        try:
            _run(bench, case, row)
        except (RuntimeError, OSError, KeyError, subprocess.TimeoutExpired) as error:
            row.failures.append(f"{type(error).__name__}: {error}")
        finally:
            bench.stage.clear(bench.spared)
            back = bench.poller.wait_back(bench.bounds(tuple(range(len(totals_mib)))), 60.0)
            row.check(back, "the machine was not idle again after it")
        print(row.line(), flush=True)
    return rows


def _run(bench: Bench, case: Case, row: Row) -> None:
    before = section(bench.product)
    pids = bench.stage.build(case.holders, True, 60.0)
    time.sleep(0.3)  # the driver's own counters follow an allocation
    after = section(bench.product)
    _keep(bench.out, case, pids, {"before": before, "after": after})
    for expect in case.expects:
        _expected(row, after, expect, pids[expect.holder])
    old, new = columns(before), columns(after)
    for key in sorted(new.keys() | old.keys()):
        change = (new.get(key, 0) - old.get(key, 0)) / MIB
        if abs(change) >= NOISE_MIB:
            row.gained[f"{key[0]} {key[1]}"] = round(change, 1)
    row.failures += sums(after)
    for place in sorted({place for place, _ in new}):
        lost = (new.get((place, "unaccounted"), 0) - old.get((place, "unaccounted"), 0)) / MIB
        row.unaccounted[place] = round(lost, 1)
        row.check(abs(lost) <= LOST_MIB, f"{place}: unaccounted changed by {lost:.1f} MiB")


def _keep(out: Path, case: Case, pids: dict[str, int], sections: dict[str, Any]) -> None:
    """Both snapshots, and what /proc says of the holders and the machine, to read afterwards."""
    kept: dict[str, Any] = {"about": case.about, "pids": pids, **sections, "proc": {}}
    for name, pid in [*pids.items(), ("machine", 0)]:
        kinds = ("status", "smaps", "numa_maps") if pid else ("meminfo", "vmallocinfo")
        for kind in kinds:
            path = Path("/proc", str(pid) if pid else "", kind)
            try:
                kept["proc"][f"{name}.{kind}"] = path.read_text(errors="replace")
            except OSError:
                continue
    with (out / "memory.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(kept) + "\n")


def _expected(row: Row, now: dict[str, Any], expect: Expect, pid: int) -> None:
    mine = sum(
        one["bytes"] or 0
        for one in now["table"]
        if one["backing"] == expect.backing
        and place_of(now, one["location"]) == expect.place
        and _names(one, pid)
    )
    size = mine / MIB
    row.seen.append(f"{expect.holder}: {expect.backing} at {expect.place} {size:.0f} MiB")
    low = expect.mib - max(NOISE_MIB, NEAR * expect.mib) if expect.mib else 0
    high = expect.mib + max(NOISE_MIB, NEAR * expect.mib)
    if expect.context:
        high += CONTEXT_MIB
    elif expect.backing == "device" and expect.place == "node":
        high += CONTEXT_HOST_MIB
    elif expect.backing in ("anon", "shmem"):
        high += 2 * CONTEXT_MIB  # torch's own, and what a context keeps of the host's memory
    row.check(low <= size <= high, f"{expect} is {size:.0f} MiB, not {low:.0f} to {high:.0f}")


def _names(row: dict[str, Any], pid: int) -> bool:
    """Whether a row is that process's own: by its label or by its evidence."""
    words = [str(row["owner"] or ""), *row["evidence"]]
    return any(str(pid) in text.split() for text in words)
