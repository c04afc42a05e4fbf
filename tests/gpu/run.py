"""fleetmem on a real driver: ``python3 -m tests.gpu.run --out DIR``, as root, any number of GPUs.

Starts SSH servers on loopback, builds each situation with torch, measures the driver's own
teardown in a control run, then lets the product plan and reclaim the same situation again.
Ends with a table, DIR/results.json and, where an expectation failed, status 1. It changes
no setting of a GPU and signals only processes that it started.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.gpu import look, ssh_server
from tests.gpu.engine_rows import engine_rows
from tests.gpu.memory_rows import Row, memory_rows
from tests.gpu.product import Product
from tests.gpu.scenes import scenes
from tests.gpu.stage import Stage
from tests.gpu.trial import Bench, Result, observe, trial


def main() -> int:
    """The process status: 0 all as expected, 1 something was not, 2 it could not run."""
    args = _arguments()
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="fleetmem-gpu-") as folder:
            return _work(Path(folder), out, args, began)
    except RuntimeError as error:
        print(f"tests.gpu: {error}", file=sys.stderr)
        return 2


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default="gpu-results", help="where the results go")
    parser.add_argument("--sshd", type=Path, help="folder with sshd and lib/ to use")
    parser.add_argument("--only", help="rows to run, joined by commas; memory is the first table")
    parser.add_argument("--engine", type=Path, help="folder from which vllm can be imported")
    parser.add_argument("--pinned-gib", type=int, default=48, help="most host memory to pin")
    parser.add_argument("--seconds", type=float, default=520.0, help="for everything")
    parser.add_argument(
        "--reach", action="store_true", help="only reach the servers with the product; needs no GPU"
    )
    return parser.parse_args()


def _work(folder: Path, out: Path, args: argparse.Namespace, began: float) -> int:
    folder.chmod(0o700)
    servers = ssh_server.start(folder, args.sshd)
    stage = None
    poller = None
    try:
        product = Product(servers.inventory, folder / "state", out / "product.log")
        checks = [product.run("hosts", "--check", "-H", name) for name in servers.ports]
        reached = all(row["outcome"] == "ok" for one in checks for row in one["hosts"])
        print(f"ssh: {servers.kind}, hosts reached: {reached}", flush=True)
        if args.reach:
            print(json.dumps([row for one in checks for row in one["hosts"]], indent=1))
            return 0 if reached else 1
        stage = Stage.open(folder / "stage")
        handles, facts = look.open_nvml()
        facts |= {"ssh": servers.kind, **stage.facts, "kernel": os.uname().release}
        print(json.dumps(facts), flush=True)
        poller = look.Poller(handles)
        poller.start()
        bench = Bench(stage, poller, product, out)
        idle = bench.begin()
        totals = [total >> 20 for total in facts["total_bytes"]]
        wanted = set(args.only.split(",")) if args.only else None
        memory = memory_rows(bench, totals) if wanted is None or "memory" in wanted else []
        results = [idle, *_trials(bench, totals, wanted, args, began)]
        if args.engine is not None:
            results += engine_rows(bench, args.engine, len(totals), wanted)
        observations = observe(bench)
    finally:
        if stage is not None:
            stage.close()
        if poller is not None:
            poller.stop()
        servers.stop()
        for log in folder.glob("*.log"):
            (out / log.name).write_bytes(log.read_bytes()[-200_000:])
    return _tell(out, facts, (memory, results), observations, time.monotonic() - began)


def _trials(
    bench: Bench,
    totals: list[int],
    wanted: set[str] | None,
    args: argparse.Namespace,
    began: float,
) -> list[Result]:
    results: list[Result] = []
    for scene in scenes(totals, args.pinned_gib, ssh_server.free_port()):
        if wanted is not None and scene.row not in wanted:
            continue
        if scene.needs_gpus > len(totals):
            results.append(Result(scene.row, scene.about, skipped="needs two GPUs"))
            continue
        left = args.seconds - (time.monotonic() - began)
        if left < scene.seconds / 2:
            row = Result(scene.row, scene.about, skipped="no time was left")
            row.failures.append("not run")
            results.append(row)
            continue
        results.append(trial(bench, scene))
        print(results[-1].line(), flush=True)
    return results


def _tell(
    out: Path,
    facts: dict[str, Any],
    rows: tuple[list[Row], list[Result]],
    seen: list[Any],
    seconds: float,
) -> int:
    memory, results = rows
    smi = subprocess.run(["nvidia-smi"], capture_output=True, text=True).stdout
    (out / "nvidia-smi-after.txt").write_text(smi)
    whole = {
        "date": time.strftime("%Y-%m-%d"),
        "machine": facts,
        "seconds": round(seconds, 1),
        "memory": [row.to_json() for row in memory],
        "results": [row.to_json() for row in results],
        "observations": seen,
    }
    (out / "results.json").write_text(json.dumps(whole, indent=1))
    print("\nmemory | own row | what places gained, MiB | of it unaccounted, MiB | result")
    for one in memory:
        print(one.line())
    print("\n" + Result.header())
    for row in results:
        print(row.line())
    print("\nprocess; on a list of NVML; files / mappings / bytes mapped by node")
    for one in seen:
        nodes = "; ".join(
            f"{name} {node['fds']}/{node['maps']}/{node['map_bytes']}"
            for name, node in one["files"].items()
        )
        print(f"{one['process']} | {one['listed']} | {nodes}")
    failed = [(row.row, row.failures) for row in results if row.failures]
    failed += [(one.about, one.failures) for one in memory if one.failures]
    for name, reasons in failed:
        print(f"FAILED {name}: " + "; ".join(reasons))
    ran = sum(not row.skipped for row in [*results, *memory])
    print(f"\n{ran} run, {len(failed)} failed, {seconds:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
