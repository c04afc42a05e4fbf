"""Every screen over made-up answers, at any width: for tests of layout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fleetmem.controller.answer import envelope as env
from fleetmem.controller.look.diff import changes
from fleetmem.controller.memory.account import snapshot
from fleetmem.controller.reclaim.options import ReclaimOptions
from fleetmem.controller.record.history import RunRow
from fleetmem.controller.render import diff, follow, hosts, playbooks, runs
from fleetmem.controller.render.audit.audit import audit_lines
from fleetmem.controller.render.kit.findings import folded_lines
from fleetmem.controller.render.kit.line import Line
from fleetmem.controller.render.reclaim import cache as cache_screen
from fleetmem.controller.render.reclaim.reclaim import reclaim_lines
from fleetmem.controller.render.snapshot.snapshot import snapshot_lines
from fleetmem.controller.rules import playbook as books
from tests.unit.memory.memory_samples import MIB, cached, gpu, node, readings
from tests.unit.reclaim import reclaim_samples as reclaims
from tests.unit.reclaim import test_cache as caches
from tests.unit.reclaim.reclaim_world import identity

Screen = Callable[[int], Sequence[Line]]
LONG = "h" * 30
NAMES = [f"gh200-{number:02}" for number in (1, 3, 5, 7, 9, 12, 14, 15, 18, 21, 25)]


def screens() -> dict[str, Screen]:
    """Name → screen; each holds long names, long reasons and folded hosts."""
    found: dict[str, Screen] = {
        "snapshot-one": lambda width: snapshot_lines(_snapshot(["gh200-01"]), True, width),
        "snapshot-long-name": lambda width: snapshot_lines(_snapshot([LONG]), True, width),
        "snapshot-many": lambda width: snapshot_lines(_snapshot(NAMES), False, width),
        "diff-one": lambda width: diff.diff_lines(_diff(["gh200-01"]), "before-load", "a1", width),
        "diff-many": lambda width: diff.diff_lines(
            _diff(NAMES), "before-load", "after-load", width
        ),
        "follow": lambda width: follow.follow_lines(_follow(NAMES), True, width),
        "hosts": lambda width: hosts.resolved_lines(_resolved(), width),
        "hosts-check": lambda width: hosts.checked_lines(_checked(), width),
        "findings": lambda width: folded_lines(_judged(), 2, width=width),
        "audit-many": lambda width: audit_lines(_audited(), width=width),
        "runs": lambda width: runs.run_rows(_runs(), width),
        "playbooks": lambda width: playbooks.listed_lines(books.listed(), width),
        "playbook": lambda width: playbooks.shown_lines(books.load("memory"), width),
        "reclaim-one": lambda width: reclaim_lines(_plan(reclaims.eight_gpus()), _OPTIONS, width),
        "reclaim-many": lambda width: reclaim_lines(_fleet(), _OPTIONS, width),
        "cache-plan": lambda width: cache_screen.cache_plan_lines(_caches(), width),
        "cache-result": lambda width: cache_screen.cache_result_lines(_caches(), width),
    }
    return found


_OPTIONS = ReclaimOptions()


def _story() -> dict[str, Any]:
    """Two GPUs whose memory is a NUMA node, checkpoint pages on one, a worker on each."""
    nodes = [
        node(0, "cpu", "0-71", total=478 * 1024, free=431 * 1024, file=30 * 1024, anon=13 * 1024,
             kernel=3 * 1024, slab=1024),
        node(2, "gpu", "", total=142 * 1024, free=18 * 1024, file=123 * 1024, kernel=100),
        node(3, "memory", "", total=0, free=0),
    ]  # fmt: skip
    models = "/srv/models/deepseek-v4.1-instruct-with-a-long-name"
    files = [
        cached(f"{models}/model-00001-of-00163.safetensors", {"2": 60 * 1024}),
        cached(f"{models}/model-00002-of-00163.safetensors", {"2": 50 * 1024, "0": 10 * 1024}),
        cached("/opt/vllm/lib/python3.12/site-packages/torch/lib/libtorch_cuda.so",
               {"0": 1024, "2": 200}, mapped_by=[41, 42, 43]),
        cached("/data/unknown", {"0": 500}, mapped_by=[], mapped_elsewhere=True),
    ]  # fmt: skip
    found = readings(nodes, files, [gpu(numa_node=2)], {0: {41: 90_000, 77: 9_000}})
    command = "python3 -m vllm.entrypoints.openai.api_server --model ds --max-model-len 524288"
    known = identity(
        41,
        title=command,
        launcher_alive=True,
        ancestors=[{"pid": 8101, "comm": "vllm", "start_time": 1}],
    )
    found["processes.identity"] = {"processes": [known], "gone": [], "denied": 0}
    return found


def _entry(name: str, found: dict[str, Any], phase: str = "before-load") -> Any:
    entry = env.new_host(name, "ok")
    entry["readings"] = {
        probe: {"outcome": "ok", "reason": None, "reading": reading, "seconds": 0.1}
        for probe, reading in found.items()
    }
    entry["snapshot"] = snapshot(found, phase)
    entry["seconds"] = 1.2
    return entry


def _finding(names: Sequence[str], severity: str = "critical") -> Any:
    from fleetmem.controller.answer.fold import fold_hosts

    where = fold_hosts(names)
    return {
        "rule": "hbm-page-cache/file-pages-on-gpu",
        "severity": severity,
        "hosts": where,
        "subject": "NUMA node 2",
        "evidence": {"say": "247.3 GiB of checkpoint pages lie in GPU memory and no process maps "
                            "them; the engine counts them as used: " + "x" * 90},
        "advice": "They come back from disk when they are needed. " * 3,
        "next": [f"fleetmem reclaim -H '{where}' --cache /srv/models/deepseek-v4.1-instruct "
                 "--dry-run"],
    }  # fmt: skip


def _lost(name: str) -> Any:
    entry = env.new_host(name, "unreachable")
    entry["error"] = {"code": "connect_timeout", "message": f"{name}: no answer in 5 s, 2 tries",
                      "hint": "check the address and the firewall"}  # fmt: skip
    return entry


def _whole(command: str, entries: Sequence[Any], findings: Sequence[Any] = ()) -> Any:
    names = [entry["host"] for entry in entries]
    whole = env.new_envelope(env.new_run(command), names, list(entries))
    whole["findings"] = list(findings)
    return env.finish(whole, 0)


def _snapshot(names: Sequence[str]) -> Any:
    entries = [_entry(name, _story()) for name in names]
    lost = [_lost("gh200-30")] if len(names) > 1 else []
    entries[0]["readings"]["cgroups.memory"] = {
        "outcome": "partial", "reason": "12 control groups could not be read " * 3,
        "reading": None, "seconds": 0.1,
    }  # fmt: skip
    return _whole("snapshot", [*entries, *lost], [_finding(names)])


def _diff(names: Sequence[str]) -> Any:
    entries = []
    for number, name in enumerate(names):
        entry = env.new_host(name, "ok")
        after = _story()
        row = after["numa.nodes"]["nodes"][1]
        row["anon_bytes"] += (1000 + number) * MIB
        row["free_bytes"] -= (1000 + number) * MIB
        entry["diff"] = changes(snapshot(_story(), None), snapshot(after, None))
        entries.append(entry)
    return _whole("diff", [*entries, _lost("gh200-30")], [_finding(names, "warn")])


def _follow(names: Sequence[str]) -> Any:
    entries = []
    for name in names:
        entry = _entry(name, _story(), "after-load")
        mark = {"time": "2026-11-30T07:00:01.123Z", "delay_seconds": 0.4, "pattern": "weights",
                "note": "memory was read after the next line", "rank": "TP0", "unit": "vllm",
                "text": "INFO 11-30 07:00:01 Loading weights took 12.34 seconds " * 3}  # fmt: skip
        entry["follow"] = {
            "unit": "vllm@deepseek.service", "invocation": "ab" * 16, "status": "failed",
            "restarts": 2, "changes": [], "failed": [],
            "phases": [{"phase": "after-load", "run": "9c1e0a2b", "mark": mark}],
            "missed": [{"phase": "before-load", "why": "its line was not the newest any more"}],
            "next": [f"fleetmem audit startup -H {name} --unit vllm@deepseek.service"],
        }  # fmt: skip
        entries.append(entry)
    return _whole("snapshot", entries)


def _resolved() -> Any:
    entries = []
    for name in (*NAMES, LONG):
        entry = env.new_host(name, "not_attempted")
        entry["resolved"] = {
            "address": f"{name}.rack-12.cluster.example.com", "port": 2222, "user": "operator",
            "transport": "ssh", "groups": ["gh200", "production", "model-deepseek"],
            "jump": ["bastion-1", "gate"],
        }  # fmt: skip
        entries.append(entry)
    return _whole("hosts", entries)


def _checked() -> Any:
    entries = [_entry(name, _story()) for name in NAMES]
    for entry in entries:
        entry["readings"]["host.facts"]["reading"] |= {
            "user": "operator", "uid": 1000, "python": "3.10.12", "kernel": "6.8.0-1021-nvidia-64k",
            "machine": "aarch64", "total_bytes": 478 << 30,
            "state_dir": None, "state_dir_reason": "no runtime directory",
        }  # fmt: skip
    for entry in entries[:3]:
        entry["outcome"] = "partial"
        entry["readings"]["host.operations"] = {
            "outcome": "denied", "reason": "only root may read that " * 4, "reading": None,
            "seconds": 0.1,
        }  # fmt: skip
    return _whole("hosts", [*entries, _lost("gh200-30")])


def _judged() -> Any:
    entries = [_entry(name, _story()) for name in NAMES]
    found = [_finding(NAMES[:1]), _finding(NAMES[1:5], "warn"), _finding(NAMES, "info")]
    return _whole("audit", [*entries, _lost("gh200-30"), _lost("gh200-31")], found)


def _audited() -> Any:
    found = [{**_finding(NAMES[:4]), "rule": "startup/kv-below-group"}]
    return _whole("audit", [*(_entry(name, _story()) for name in NAMES), _lost("gh200-30")], found)


def _runs() -> list[RunRow]:
    return [
        RunRow("9c1e0a2b", "snapshot", "2026-11-30T07:00:01.123Z", "x", 0, 64, {"ok": 64}, {}),
        RunRow("5f0c1d2e", "reclaim", "2026-11-30T06:00:01.123Z", None, None, 10_000,
               {"ok": 9_900, "unreachable": 60, "timed_out": 40},
               {"reclaimed": 12, "nothing_to_do": 9_880, "held_by": 8}),
    ]  # fmt: skip


def _plan(*entries: Any) -> Any:
    return reclaims.envelope(*entries)


def _fleet() -> Any:
    hostile = reclaims.eight_gpus(LONG)
    hostile["reclaim"]["targets"][0]["name"] = "模型" * 30
    hostile["reclaim"]["spared"][0]["why"] = "w" * 300
    hostile["reclaim"]["advice"] = "a long advice " * 20
    idle = [reclaims.idle(name) for name in NAMES]
    held = reclaims.held("gh200-40", "a process outside the plan holds it " * 4)
    return _plan(hostile, *idle, held, reclaims.unreachable("gh200-50"))


def _caches() -> list[Any]:
    return [
        caches.entry("gh200-01", caches.plan()),
        caches.entry("gh200-02", caches.plan()),
        _lost("gh200-30"),
    ]
