"""Leftovers of a real engine: what the default makes of them, and what it must not touch."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.gpu import engine
from tests.gpu.product import signals
from tests.gpu.trial import Bench, Result

SETTLED_SECONDS = 4.0
"""After the deaths that set a scene: vLLM's own watchers have acted by then."""


@dataclass(frozen=True)
class EngineRow:
    """One row. ``kills`` picks the processes whose death sets the scene.

    ``leftover``: the unscoped default must end everything that is left; else it must touch
    nothing, and ``serves`` says whether completions still come back.
    """

    row: str
    about: str
    options: tuple[str, ...]
    kills: Callable[[engine.Engine], list[int]]
    leftover: bool
    serves: bool
    needs_gpus: int = 1


def _nobody(_: engine.Engine) -> list[int]:
    return []


def _server(one: engine.Engine) -> list[int]:
    return [one.pid]


def _parent_and_servers(one: engine.Engine) -> list[int]:
    return [one.pid, *one.named("VLLM::APIServer")]


def _first_worker(one: engine.Engine) -> list[int]:
    return one.named("VLLM::Worker")[:1]


TP2 = ("--tensor-parallel-size", "2")
DP2 = ("--data-parallel-size", "2")
TWO_SERVERS = ("--api-server-count", "2")

ROWS = (
    EngineRow("e1", "vLLM serving, TP 1", (), _nobody, leftover=False, serves=True),
    EngineRow("e2", "its API server killed, TP 1", (), _server, leftover=True, serves=False),
    EngineRow(
        "e3", "two API servers, their parent killed", TWO_SERVERS, _server, False, serves=True
    ),
    EngineRow(
        "e4", "two API servers, all killed", TWO_SERVERS, _parent_and_servers, True, serves=False
    ),
    EngineRow("e5", "its API server killed, TP 2", TP2, _server, True, False, needs_gpus=2),
    EngineRow("e6", "one worker killed, TP 2", TP2, _first_worker, True, False, needs_gpus=2),
    EngineRow(
        "e7", "DP 2, parent and servers killed", DP2, _parent_and_servers, True, False, needs_gpus=2
    ),
)


def engine_rows(bench: Bench, folder: Path, gpus: int, wanted: set[str] | None) -> list[Result]:
    """All rows that *gpus* GPUs allow, or those *wanted*; the engine's logs go to the results."""
    model = bench.out / "model"
    engine.make_model(folder, model)
    bench.dismiss("neighbour")
    results = []
    named = wanted is not None and any(row.row in wanted for row in ROWS)
    for row in ROWS:
        if named and wanted is not None and row.row not in wanted:
            continue
        result = Result(row.row, row.about)
        if row.needs_gpus > gpus:
            result.skipped = f"needs {row.needs_gpus} GPUs"
        else:
            try:
                _run(bench, folder, model, row, result)
            except (RuntimeError, OSError, KeyError, subprocess.TimeoutExpired) as error:
                result.failures.append(f"{type(error).__name__}: {error}")
        print(result.line(), flush=True)
        results.append(result)
    return results


def _run(bench: Bench, folder: Path, model: Path, row: EngineRow, result: Result) -> None:
    one = engine.start(folder, model, bench.out, row.row, *row.options)
    try:
        one.kill(row.kills(one))
        time.sleep(SETTLED_SECONDS)
        left = [pid for pid in one.alive() if "resource_tracker" not in engine.title(pid)]
        result.before_bytes = sum(bench.poller.used())
        result.check(bool(left) or row.needs_gpus > 1, "nothing was left to look at")
        result.notes.append("left: " + "; ".join(engine.title(pid)[:60] for pid in left))
        result.check(engine.answers() == row.serves, f"serves: {not row.serves}")
        dry = bench.product.reclaim("gpu", "--dry-run")["reclaim"]
        result.default = dry["verdict"]
        expected = "planned" if row.leftover and left else "nothing_to_do"
        result.check(result.default == expected, f"no scope: {result.default}, not {expected}")
        _note_classes(result, dry, set(one.members))
        answer = bench.product.reclaim("gpu", "--yes", "--grace-period", "1s")["reclaim"]
        result.verdicts.append(answer["verdict"])
        sent = signals(answer["plan"]["id"])
        result.signals.extend(signal.signal for signal in sent)
        others = {signal.pid for signal in sent} - set(one.members)
        result.check(not others, f"signalled, but not the engine's: {sorted(others)}")
        if row.leftover:
            _must_be_back(bench, one, result, bool(left))
        else:
            result.check(not sent, "something that is wanted was signalled")
            result.check(set(left) <= set(one.alive()), "a process of the engine is gone")
            result.check(engine.answers() == row.serves, "it no longer answers")
    finally:
        one.end()
        back = bench.poller.wait_back(bench.bounds(tuple(range(len(bench.idle)))), 60.0)
        result.check(back, "the machine was not idle again after it")


def _must_be_back(bench: Bench, one: engine.Engine, result: Result, any_left: bool) -> None:
    verdict = "reclaimed" if any_left else "nothing_to_do"
    result.check(result.verdicts[-1] == verdict, f"{result.verdicts[-1]}, not {verdict}")
    result.after_bytes = sum(bench.poller.used())
    bound = sum(bench.bounds(tuple(range(len(bench.idle)))).values())
    result.check(result.after_bytes <= bound, "memory is not back")
    holders = [pid for pid in one.alive() if "resource_tracker" not in engine.title(pid)]
    result.check(not holders, f"still there: {[engine.title(pid)[:40] for pid in holders]}")


def _note_classes(result: Result, dry: dict[str, Any], members: set[int]) -> None:
    for row in (*dry["targets"], *dry["spared"]):
        if row["pid"] in members:
            result.classes[f"{row['name']} {row['pid']}"] = row["class"]
            result.notes.append(f"{row['name']}: {row['class']}: {row.get('why')}")
