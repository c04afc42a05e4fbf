"""Where memory taken in each of CUDA's ways lands in ``fleetmem snapshot``.

Each case is built out of real processes, with a snapshot before and after. What its own row
and the column of its place gained must be what was taken; every place must add up.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tests.gpu.table import columns, place_of, section, sums, unaccounted
from tests.gpu.trial import Bench

MIB = 1 << 20
CONTEXT_MIB = 1200
"""A context costs some 600 MiB of its GPU beside what it allocates; two libraries may add to it."""

NEAR = 0.02
NOISE_MIB = 64
REST_SHARE = 0.01


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
    """What came of a case; sizes are MiB."""

    about: str
    seen: list[str] = field(default_factory=list)
    gained: dict[str, float] = field(default_factory=dict)
    unaccounted_share: dict[str, float] = field(default_factory=dict)
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
        rest = ", ".join(f"{name} {100 * v:.2f} %" for name, v in self.unaccounted_share.items())
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
    for expect in case.expects:
        _expected(row, after, expect, pids[expect.holder])
    old, new = columns(before), columns(after)
    for key in sorted(new.keys() | old.keys()):
        change = (new.get(key, 0) - old.get(key, 0)) / MIB
        if abs(change) >= NOISE_MIB:
            row.gained[f"{key[0]} {key[1]}"] = round(change, 1)
    for place, share in unaccounted(after).items():
        row.unaccounted_share[place] = round(share, 4)
    row.failures += sums(after)
    for place in {place for place, _ in new}:
        lost = (new.get((place, "unaccounted"), 0) - old.get((place, "unaccounted"), 0)) / MIB
        whole = sum(size for (at, _), size in new.items() if at == place) / MIB
        row.check(
            abs(lost) <= max(NOISE_MIB, REST_SHARE * whole),
            f"{place}: unaccounted changed by {lost:.0f} MiB",
        )


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
    elif expect.backing in ("anon", "shmem"):
        high += 2 * CONTEXT_MIB  # torch's own, and what a context keeps of the host's memory
    row.check(low <= size <= high, f"{expect} is {size:.0f} MiB, not {low:.0f} to {high:.0f}")


def _names(row: dict[str, Any], pid: int) -> bool:
    """Whether a row is that process's own: by its label or by its evidence."""
    words = [str(row["owner"] or ""), *row["evidence"]]
    return any(str(pid) in text.split() for text in words)
