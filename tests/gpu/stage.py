"""Builds a scene out of real processes, and takes it down again by exact identity."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.gpu import holders, look
from tests.gpu.scenes import Scene


@dataclass
class Stage:
    """The process that forks holders, and every identity that it started: pid to start time."""

    folder: Path
    process: subprocess.Popen[str]
    facts: dict[str, Any]
    started: dict[int, int] = field(default_factory=dict)
    count: int = 0

    @classmethod
    def open(cls, folder: Path) -> Stage:
        """Start it; RuntimeError where torch cannot be imported."""
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "stage.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, str(Path(holders.__file__).resolve()), holders.PADDING],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        stage = cls(folder, process, {})
        try:
            stage.facts = stage._answer()
        except BaseException:
            process.kill()
            process.wait()
            raise
        return stage

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            said = (self.folder / "stage.log").read_text(errors="replace").splitlines()
            raise RuntimeError(f"the holders' parent ended: {said[-1] if said else 'in silence'}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def build(
        self, specs: Any, reap: bool, seconds: float, programs: bool = False
    ) -> dict[str, int]:
        """Pids by name, once every holder holds what it was told to; RuntimeError if not."""
        self.count += 1
        folder = self.folder / f"scene{self.count}"
        folder.mkdir()
        assert self.process.stdin is not None
        order = {"folder": str(folder), "holders": list(specs), "reap": reap, "programs": programs}
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        launcher = self._answer()["launcher"]
        self._register(launcher)
        pids = {"launcher": launcher}
        end = time.monotonic() + seconds
        for name in ["launcher", *(spec["name"] for spec in specs)]:
            facts = self._await(folder, name, end)
            pids[name] = facts["pid"]
            if facts.get("child"):
                pids[f"{name}.child"] = facts["child"]
        for pid in pids.values():
            self._register(pid)
        return pids

    @staticmethod
    def _await(folder: Path, name: str, end: float) -> dict[str, Any]:
        path = folder / f"{name}.json"
        while not path.exists():
            log = folder / f"{name}.log"
            said = log.read_text(errors="replace") if log.exists() else ""
            if "Traceback" in said and "Error" in said.rpartition("Traceback")[2]:
                raise RuntimeError(f"{name}: {said[-500:]}")
            if time.monotonic() > end:
                raise RuntimeError(f"{name} is not ready in time: {said[-300:]}")
            time.sleep(0.02)
        facts: dict[str, Any] = json.loads(path.read_text())
        return facts

    def _register(self, pid: int) -> None:
        start = look.start_time(pid)
        if start is not None:
            self.started[pid] = start

    def send(self, pid: int, number: signal.Signals) -> float | None:
        """Signal an identity that was started here; the moment, None where it has gone."""
        with contextlib.suppress(OSError):
            handle = os.pidfd_open(pid)
            try:
                if self.started.get(pid) == look.start_time(pid):
                    moment = time.time()
                    signal.pidfd_send_signal(handle, number)
                    return moment
            finally:
                os.close(handle)
        return None

    def set_up(self, scene: Scene) -> dict[str, int]:
        """Build *scene* as far as its own deaths and stops go."""
        pids = self.build(scene.holders, scene.reap, scene.seconds, scene.programs)
        for name in scene.stop:
            self.send(pids[name], signal.SIGSTOP)
        for name in scene.kill_first:
            self.end(pids[name])
        return pids

    def end(self, pid: int, seconds: float = 10.0) -> None:
        """SIGKILL, and wait until no task of it runs."""
        self.send(pid, signal.SIGKILL)
        end = time.monotonic() + seconds
        while time.monotonic() < end and self.here(pid):
            time.sleep(0.005)

    def here(self, pid: int) -> bool:
        """Whether the identity that was started under *pid* still runs."""
        return self.started.get(pid) == look.start_time(pid) and look.lives(pid)

    def clear(self, spared: frozenset[int] = frozenset()) -> None:
        """End everything that was started here and still runs, but *spared*."""
        for pid in [pid for pid in self.started if pid not in spared]:
            if self.here(pid):
                self.end(pid, 30.0)
            del self.started[pid]

    def close(self) -> None:
        """End everything."""
        self.clear()
        self.process.kill()
        self.process.wait()
