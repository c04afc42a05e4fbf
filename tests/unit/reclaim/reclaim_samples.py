"""Envelopes written by hand, as reclaim answers them."""

from __future__ import annotations

from typing import Any, cast

from fleetmem.controller.answer.envelope import (
    Envelope,
    GpuVerdict,
    HostEntry,
    Rung,
    Spared,
    Target,
    finish,
    new_envelope,
    new_host,
    new_run,
)

MIB = 1 << 20
GIB = 1 << 30


def target(pid: int, name: str, gpus: list[int], **more: Any) -> Target:
    """A leftover target."""
    row: dict[str, Any] = {
        "pid": pid,
        "start_time": pid * 10,
        "name": name,
        "user": "root",
        "unit": None,
        "container": None,
        "class": "leftover",
        "gpus": gpus,
        "held_bytes": None,
        "conditional": False,
        "evidence": ["nvml", "fd"],
    }
    return cast(Target, {**row, **more})


def spared(pid: int, name: str, kind: str, why: str, **more: Any) -> Spared:
    """A process left alone."""
    row: dict[str, Any] = {
        "pid": pid,
        "start_time": pid * 10,
        "name": name,
        "class": kind,
        "gpus": list(range(8)),
        "held_bytes": None,
        "why": why,
    }
    return cast(Spared, {**row, **more})


def gpu(index: int, before_mib: int, after_mib: int | None, verdict: str) -> GpuVerdict:
    """A GPU with an assumed baseline of 0."""
    return cast(
        GpuVerdict,
        {
            "index": index,
            "uuid": f"GPU-{index:08x}",
            "verdict": verdict,
            "before_bytes": before_mib * MIB,
            "after_bytes": None if after_mib is None else after_mib * MIB,
            "baseline_bytes": 0,
            "baseline_source": "assumed",
        },
    )


def rung(name: str, outcome: str, seconds: float | None, pids: list[int], **more: Any) -> Rung:
    """A rung that signalled *pids*."""
    signal = "TERM" if name == "term" else "KILL"
    row: dict[str, Any] = {
        "rung": name,
        "outcome": outcome,
        "seconds": seconds,
        "signalled": [{"pid": pid, "start_time": pid * 10, "signal": signal} for pid in pids],
        "freed_bytes": None,
    }
    return cast(Rung, {**row, **more})


def eight_gpus(host: str = "gpu-srv-1") -> HostEntry:
    """The host of the reclaim screen: eight ranks and one fork, all reclaimed."""
    ranks = list(range(41200, 41208))
    entry = new_host(host, "ok")
    entry["seconds"] = 11.0
    entry["readings"]["gpu.devices"] = {
        "outcome": "ok",
        "reason": None,
        "reading": {"gpus": [{"index": index, "name": "RTX PRO 6000"} for index in range(8)]},
        "seconds": 0.1,
    }
    entry["reclaim"] = {
        "plan": {
            "id": "7f3c",
            "created": "2026-03-01T12:00:00Z",
            "expires": "2026-03-01T12:15:00Z",
            "hash": "ab12cd34",
            "boot_id": "b00t",
        },
        "verdict": "reclaimed",
        "gpus": [gpu(index, 92049 + 11 * index, 0, "reclaimed") for index in range(8)],
        "numa_nodes": [],
        "targets": [
            *(
                target(
                    pid,
                    f"sglang::scheduler_TP{index}",
                    [index],
                    held_bytes=(92049 + 11 * index) * MIB,
                    why="launcher 41190 dead",
                    age_seconds=11532.0,
                )
                for index, pid in enumerate(ranks)
            ),
            target(41377, "python3", [3], conditional=True, why="fork of 41214"),
        ],
        "spared": [
            spared(
                1893, "dcgm-exporter", "protected", "a monitoring exporter", held_bytes=12 * MIB
            ),
            spared(22019, "jupyter", "in_use", "open files only, no memory", user="bob"),
        ],
        "rungs": [
            rung("drain", "not_applicable", None, [], why="no live server"),
            rung(
                "term",
                "partial",
                10.0,
                ranks,
                gone=0,
                targets=9,
                held_gpus=8,
                gpus=8,
                freed_bytes=0,
                why="ignored",
            ),
            rung(
                "kill",
                "ok",
                0.31,
                ranks,
                gone=8,
                targets=9,
                held_gpus=1,
                gpus=8,
                freed_bytes=int(629.8 * GIB),
            ),
            rung(
                "heirs",
                "ok",
                0.21,
                [41377],
                gone=9,
                targets=9,
                held_gpus=0,
                gpus=8,
                freed_bytes=90 * GIB,
            ),
        ],
        "advice": None,
        "next": ["systemctl start sglang-kimi", f"fleetmem reclaim -H {host} --gpu 3 --dry-run"],
        "expect_seconds": 0.3,
    }
    return entry


def idle(host: str) -> HostEntry:
    """A host with nothing to do and one process in use."""
    entry = new_host(host, "ok")
    entry["reclaim"] = {
        "plan": None,
        "verdict": "nothing_to_do",
        "gpus": [gpu(0, 1000, 1000, "nothing_to_do")],
        "numa_nodes": [],
        "targets": [],
        "spared": [spared(70, "trainer", "in_use", "its launcher 69 lives", gpus=[0])],
        "rungs": [],
        "advice": None,
        "next": [f"fleetmem reclaim -H {host} --gpu 0 --dry-run"],
    }
    return entry


def held(host: str, why: str) -> HostEntry:
    """A host whose GPU 0 somebody else's process holds."""
    entry = eight_gpus(host)
    section = entry["reclaim"]
    section["verdict"] = "held_by"
    section["gpus"][0]["verdict"] = "held_by"
    section["gpus"][0]["why"] = why
    section["advice"] = "choose one with --pid"
    return entry


def unreachable(host: str) -> HostEntry:
    """A host that never answered."""
    return new_host(
        host,
        "unreachable",
        {"code": "connect_timeout", "message": "no answer in 5 s", "hint": "is it up?"},
    )


def envelope(*entries: HostEntry, exit_code: int = 0) -> Envelope:
    """A finished reclaim over *entries*."""
    names = [entry["host"] for entry in entries]
    return finish(new_envelope(new_run("reclaim"), names, entries), exit_code)
