"""The product as its users start it: ``fleetmem … -o json``, and the trail it leaves."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TRAIL = Path("/run/fleetmem/audit.jsonl")


@dataclass(frozen=True)
class Signal:
    """One signal that the host's trail tells of; ``at`` is epoch seconds, before it was sent."""

    at: float
    pid: int
    signal: str


@dataclass
class Product:
    """How to call it. ``state`` is a folder for its history."""

    inventory: Path
    state: Path
    log: Path

    def run(self, *words: str, seconds: float = 150.0) -> dict[str, Any]:
        """The envelope of one command; RuntimeError where it prints none."""
        program = shutil.which("fleetmem")
        start = (
            [program]
            if program
            else [sys.executable, "-c", "import sys;from fleetmem.controller.cli import main;"
                  "sys.exit(main())"]
        )  # fmt: skip
        environ = dict(os.environ, XDG_STATE_HOME=str(self.state))
        command = [*start, *words, "-i", str(self.inventory), "-o", "json"]
        done = subprocess.run(
            command,
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
        )
        with self.log.open("a", encoding="utf-8") as file:
            file.write(f"$ fleetmem {' '.join(words)}\n{done.stderr}{done.stdout}\n")
        try:
            envelope: dict[str, Any] = json.loads(done.stdout)
        except ValueError:
            tail = (done.stderr or done.stdout)[-600:]
            raise RuntimeError(f"fleetmem {' '.join(words)}: {tail}") from None
        return envelope

    def reclaim(self, host: str, *words: str) -> dict[str, Any]:
        """The row of *host* out of ``fleetmem reclaim -H host …``; RuntimeError if it failed."""
        envelope = self.run("reclaim", "-H", host, *words)
        rows = [row for row in envelope["hosts"] if row["host"] == host]
        if not rows or "reclaim" not in rows[0]:
            raise RuntimeError(f"no answer for {host}: {json.dumps(envelope)[:600]}")
        row: dict[str, Any] = rows[0]
        row["exit_code"] = envelope["run"]["exit_code"]
        return row


def signals(operation: str) -> list[Signal]:
    """What the host's trail says was signalled under the plan *operation*."""
    try:
        lines = TRAIL.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    rows = [json.loads(line) for line in lines if line]
    return [
        Signal(row["time"], row["pid"], row["signal"])
        for row in rows
        if row.get("operation") == operation and row.get("action") == "signal"
    ]


def seen_seconds(section: dict[str, Any], sent: list[Signal]) -> float | None:
    """From the last signal to the end of its rung: when the product knew the memory was back.

    Counted from the rung's first signal, so its own looks before that are part of it.
    """
    if not sent:
        return None
    last = max(sent, key=lambda one: one.at)
    for rung in section["rungs"]:
        pairs = {(row["pid"], row["signal"]) for row in rung["signalled"]}
        if (last.pid, last.signal) in pairs:
            first = min(one.at for one in sent if (one.pid, one.signal) in pairs)
            return float(max(0.0, rung["seconds"] - (last.at - first)))
    return None
