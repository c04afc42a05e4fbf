"""One scene: the control run, then the product, and whether what came is what must come."""

from __future__ import annotations

import signal
import subprocess
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.gpu import look
from tests.gpu.product import Product, Signal, seen_seconds, signals
from tests.gpu.scenes import Scene, Step
from tests.gpu.stage import Stage
from tests.gpu.table import columns, section, sums

TOLERANCE_BYTES = 64 << 20
LATE_SECONDS = 1.0
FACTOR = 2.0
CLOSE_SECONDS = 0.1
GRACE = ("--grace-period", "1s")
USUAL_SLEEP_SECONDS = 3.0


@dataclass
class Result:
    """One row of the table. Times count from the last signal; sizes are over all its GPUs.

    ``driver_seconds``: control run; ``freed_seconds``: the product's run, seen by the
    script; ``seen_seconds``: the same as the product knew it; ``expect_seconds``: predicted.
    """

    row: str
    about: str
    classes: dict[str, str | None] = field(default_factory=dict)
    default: str | None = None
    verdicts: list[str] = field(default_factory=list)
    before_bytes: int | None = None
    after_bytes: int | None = None
    driver_seconds: float | None = None
    freed_seconds: float | None = None
    seen_seconds: float | None = None
    expect_seconds: float | None = None
    product_seconds: float | None = None
    gap_seconds: float = 0.0
    signals: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    series: list[Any] = field(default_factory=list)
    skipped: str = ""

    def check(self, true: bool, text: str) -> None:
        """Note *text* as a failure unless *true*."""
        if not true:
            self.failures.append(text)

    def to_json(self) -> dict[str, Any]:
        """All fields."""
        return asdict(self)

    @staticmethod
    def header() -> str:
        """Names of the columns of :meth:`line`."""
        return (
            "row | situation | class | no scope | verdict | MiB before > after | "
            "driver s | freed s | seen s | predicted s | signals | result"
        )

    def line(self) -> str:
        """The row as text."""
        if self.skipped:
            return f"{self.row} | {self.about} | – | not run: {self.skipped}"
        classes = sorted({str(kind) for kind in self.classes.values()})
        times = (self.driver_seconds, self.freed_seconds, self.seen_seconds, self.expect_seconds)
        sizes = [None if b is None else b >> 20 for b in (self.before_bytes, self.after_bytes)]
        cells = [
            self.row,
            self.about,
            ", ".join(classes) or "–",
            self.default or "–",
            " then ".join(self.verdicts) or "–",
            f"{sizes[0]} > {sizes[1]}",
            *("–" if value is None else f"{value:.2f}" for value in times),
            " ".join(f"{self.signals.count(s)}x{s}" for s in sorted(set(self.signals))) or "–",
            "FAILED" if self.failures else "ok",
        ]
        return " | ".join(cells)


@dataclass
class Bench:
    """What a trial needs. ``idle``: used bytes by GPU that no scene changes."""

    stage: Stage
    poller: look.Poller
    product: Product
    out: Path
    idle: tuple[int, ...] = ()
    bystanders: dict[str, int] = field(default_factory=dict)

    def begin(self) -> Result:
        """The idle machine, seen by the product; then bystanders start."""
        result = Result("idle", "nothing runs")
        answer = self.product.reclaim("gpu", "--dry-run")
        result.default = answer["reclaim"]["verdict"]
        result.check(result.default == "nothing_to_do", f"idle: {result.default}")
        _sums(result, answer)
        specs: list[dict[str, Any]] = [{"name": "monitor", "kind": "nvml"}]
        if len(self.poller.handles) > 1:
            last = len(self.poller.handles) - 1
            specs.append({"name": "neighbour", "gpu": last, "device_mib": 1024})
        pids = self.stage.build(specs, True, 60.0)
        self.bystanders = pids
        self.idle = self.poller.used()
        return result

    def bounds(self, gpus: tuple[int, ...]) -> dict[int, int]:
        """Used bytes to which *gpus* must come back."""
        return {gpu: self.idle[gpu] + TOLERANCE_BYTES for gpu in gpus}

    @property
    def spared(self) -> frozenset[int]:
        """Pids of the bystanders."""
        return frozenset(self.bystanders.values())

    def dismiss(self, name: str) -> None:
        """End a bystander that holds memory, before all GPUs are reclaimed."""
        pid = self.bystanders.pop(name, None)
        if pid is not None:
            self.stage.end(pid)
            time.sleep(0.5)
            self.idle = self.poller.used()


def trial(bench: Bench, scene: Scene) -> Result:
    """Run *scene* twice; whatever goes wrong is in the result."""
    result = Result(scene.row, scene.about)
    if scene.alone:
        bench.dismiss("neighbour")
    try:
        if scene.ends:
            _control(bench, scene, result)
        _product(bench, scene, result)
    except (RuntimeError, OSError, KeyError, subprocess.TimeoutExpired) as error:
        result.failures.append(f"{type(error).__name__}: {error}")
    finally:
        bench.stage.clear(bench.spared)
        back = bench.poller.wait_back(bench.bounds(tuple(range(len(bench.idle)))), 60.0)
        result.check(back, "the machine was not idle again after it")
    for name, pid in bench.bystanders.items():
        result.check(bench.stage.here(pid), f"the bystander {name} is gone")
    return result


def _control(bench: Bench, scene: Scene, result: Result) -> None:
    """How long the driver itself takes, with the same processes killed by the script."""
    pids = bench.stage.set_up(scene)
    bounds = bench.bounds(scene.gpus)
    bench.poller.mark()
    last = 0.0
    for at, name in enumerate(scene.ends):
        if at and scene.row == "7":  # the charge has to have moved
            time.sleep(0.5)
        last = bench.stage.send(pids[name], signal.SIGKILL) or last
    back = bench.poller.wait_back(bounds, 60.0)
    result.check(back, "control: memory did not come back")
    moment = bench.poller.back_at(last, bounds)
    result.driver_seconds = None if moment is None else round(moment - last, 3)
    result.gap_seconds = round(bench.poller.gap_seconds, 3)
    bench.stage.clear(bench.spared)


def _product(bench: Bench, scene: Scene, result: Result) -> None:
    pids = bench.stage.set_up(scene)
    if scene.aftermath:
        _aftermath(bench, result)
        _snapshot(bench, result, "before")
    dry = bench.product.reclaim(scene.host, "--dry-run")
    _judge_dry(scene, result, pids, dry)
    for name, expected in scene.leaders.items():
        result.check(look.state(pids[name]) == expected, f"{name} is {look.state(pids[name])}")
    for step in scene.steps:
        _step(bench, scene, step, result, pids)
    if scene.aftermath:
        _snapshot(bench, result, "after")


def _snapshot(bench: Bench, result: Result, when: str) -> None:
    """The table of the machine closes on every GPU within 1 %; what each holds is noted."""
    now = section(bench.product)
    result.failures += [f"snapshot {when}: {text}" for text in sums(now)]
    held = {
        place: size >> 20
        for (place, backing), size in sorted(columns(now).items())
        if backing == "device" and place.startswith("gpu")
    }
    result.notes.append(f"snapshot {when}: device MiB {held}")


def _judge_dry(scene: Scene, result: Result, pids: dict[str, int], dry: dict[str, Any]) -> None:
    section = dry["reclaim"]
    result.default = section["verdict"]
    seen = {
        row["pid"]: (row["class"], row.get("conditional", False))
        for row in (*section["targets"], *section["spared"])
    }
    result.check(
        result.default == scene.default, f"no scope: {result.default}, not {scene.default}"
    )
    for name, expected in scene.classes.items():
        found = seen.get(pids[name], (None, False))[0]
        result.classes[name] = found
        why = next(
            (r["why"] for r in (*section["targets"], *section["spared"]) if r["pid"] == pids[name]),
            "not seen",
        )
        result.check(found == expected, f"{name} is {found}, not {expected} ({why})")
    for name in scene.conditional:
        found = seen.get(pids[name], (None, False))
        result.check(found[1], f"{name} is no conditional target but {found[0]}")
    _sums(result, dry)


def _sums(result: Result, row: dict[str, Any]) -> None:
    """Total is used, free and reserved on every GPU, within 1 %."""
    for gpu in row["readings"]["gpu.devices"]["reading"]["gpus"]:
        parts = gpu["used_bytes"] + gpu["free_bytes"] + (gpu["reserved_bytes"] or 0)
        off = abs(gpu["total_bytes"] - parts) / gpu["total_bytes"]
        result.check(off <= 0.01, f"GPU {gpu['index']}: the sum is off by {off:.1%}")


def _step(bench: Bench, scene: Scene, step: Step, result: Result, pids: dict[str, int]) -> None:
    words = [word.format(**pids) for word in step.words]
    bounds = bench.bounds(scene.gpus)
    bench.poller.mark()
    if result.before_bytes is None:
        used = bench.poller.used()
        result.before_bytes = sum(used[gpu] for gpu in scene.gpus)
    begin = time.time()
    answer = bench.product.reclaim(scene.host, *words, "--yes", *GRACE)
    ended = time.time()
    section = answer["reclaim"]
    result.product_seconds = round(ended - begin, 3)
    result.verdicts.append(section["verdict"])
    why = "; ".join(str(gpu.get("why")) for gpu in section["gpus"])
    result.check(
        section["verdict"] == step.verdict,
        f"{' '.join(words) or 'no scope'}: {section['verdict']}, not {step.verdict} ({why})",
    )
    for name in step.gone:
        result.check(not bench.stage.here(pids[name]), f"{name} still runs")
    for name in step.alive:
        result.check(bench.stage.here(pids[name]), f"{name} is gone")
    sent = signals(section["plan"]["id"])
    names = {pid: name for name, pid in pids.items()}
    for one in sent:
        result.check(one.pid in names, f"{one.pid} was signalled and is none of the scene's")
    result.signals.extend(one.signal for one in sent)
    known = {pids[name] for name in (*step.gone, *scene.conditional)}
    result.check({one.pid for one in sent} <= known, "others than the targets were signalled")
    result.after_bytes = sum(bench.poller.used()[gpu] for gpu in scene.gpus)
    result.series.extend(
        [round(moment - begin, 3), *used]
        for moment, used in bench.poller.samples
        if begin <= moment
    )
    if step is scene.steps[-1] and step.verdict == "reclaimed":
        _times(bench, result, section, sent, bounds)
        if scene.predicted:
            _prediction(result, bool(scene.conditional))


def _times(
    bench: Bench,
    result: Result,
    section: dict[str, Any],
    sent: list[Signal],
    bounds: dict[int, int],
) -> None:
    result.expect_seconds = section["expect_seconds"]
    total = sum(bounds.values())
    result.check(
        result.after_bytes is not None and result.after_bytes <= total, "memory is not back"
    )
    result.check(bool(sent), "the trail tells of no signal")
    if not sent:
        return
    last = max(one.at for one in sent)
    moment = bench.poller.back_at(last, bounds)
    result.freed_seconds = None if moment is None else round(moment - last, 3)
    seen = seen_seconds(section, sent)
    result.seen_seconds = None if seen is None else round(seen, 3)
    driver, freed, expected = result.driver_seconds, result.freed_seconds, result.expect_seconds
    if seen is None or driver is None or freed is None or expected is None:
        result.failures.append("a time is missing")
        return
    late = seen - freed  # freed is the driver's own teardown in this very run
    result.check(late <= LATE_SECONDS, f"seen {late:.2f} s after the driver had given it back")


def _prediction(result: Result, by_control: bool) -> None:
    """Within a factor of two, or 0.1 s. With conditional heirs the last KILL comes when the rest
    is back, so there the control run, where all die at once, is what it is about."""
    real = result.driver_seconds if by_control else result.freed_seconds
    expected = result.expect_seconds
    if real is not None and expected is not None:
        result.check(
            real / FACTOR <= expected <= real * FACTOR or abs(real - expected) <= CLOSE_SECONDS,
            f"predicted {expected:.2f} s, it took {real:.2f} s",
        )


def _aftermath(bench: Bench, result: Result) -> None:
    """What is left when the launcher, all that the usual kill finds, is gone and time passed."""
    time.sleep(USUAL_SLEEP_SECONDS)
    smi = subprocess.run(["nvidia-smi"], capture_output=True, text=True).stdout
    (bench.out / "nvidia-smi-incident.txt").write_text(smi)
    used = ", ".join(str(size >> 20) for size in bench.poller.used())
    result.notes.append(f"launcher killed, {USUAL_SLEEP_SECONDS:.0f} s later used MiB: {used}")


def observe(bench: Bench) -> list[dict[str, Any]]:
    """Files and mappings of contexts, forks, heirs and monitors, by node and by GPU."""
    count = min(2, len(bench.poller.handles))
    specs: list[dict[str, Any]] = [
        {"name": "monitor", "kind": "nvml"},
        {"name": "cuInit", "kind": "cuinit"},
    ]
    specs += [
        {"name": f"context{gpu}", "gpu": gpu, "device_mib": 3072 + 1024 * gpu, "fork": True}
        for gpu in range(count)
    ]
    rows: list[dict[str, Any]] = []
    try:
        pids = bench.stage.build(specs, True, 60.0)
    except RuntimeError as error:
        return [{"process": f"not observed: {error}", "listed": None, "files": {}}]
    forks = {f"context{gpu}.child": f"fork of the context on GPU {gpu}" for gpu in range(count)}
    names = {"monitor": "NVML client", "cuInit": "cuInit only"}
    names |= {f"context{gpu}": f"context on GPU {gpu}" for gpu in range(count)}
    for name, text in {**names, **forks}.items():
        rows.append(_observed(bench, text, pids[name]))
    for gpu in range(count):
        bench.stage.end(pids[f"context{gpu}"])
    for name, text in forks.items():
        rows.append(_observed(bench, f"{text}, parent dead", pids[name]))
    dead = {pids[f"context{gpu}"]: gpu for gpu in range(count)}
    for gpu in range(count):
        for pid, used in look.listed(bench.poller.handles[gpu]).items():
            if pid in dead:
                text = f"NVML's list of GPU {gpu} names dead {pid} of GPU {dead[pid]}: {used} bytes"
                rows.append({"process": text, "listed": True, "files": {}})
    for gpu in range(count):
        bench.stage.end(pids[f"context{gpu}.child"])
        time.sleep(0.5)
        left = [size >> 20 for size in bench.poller.used()]
        rows.append({"process": f"heir {gpu} dead: used MiB {left}", "listed": None, "files": {}})
    bench.stage.clear(bench.spared)
    return rows


def _observed(bench: Bench, text: str, pid: int) -> dict[str, Any]:
    lists = [gpu for gpu, handle in enumerate(bench.poller.handles) if pid in look.listed(handle)]
    return {
        "process": text,
        "pid": pid,
        "listed": lists,
        "files": look.driver_files(pid),
    }
