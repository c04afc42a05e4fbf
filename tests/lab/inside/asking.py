"""What a host says about itself when a test asks: NVML's answers and /proc's."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pynvml

from tests.lab import api

HERE = Path(__file__).parent


def nvml(lab: api.Lab, host: str, *words: str, timeout: float = 120) -> dict[str, Any]:
    """query.py's answer inside a host. TimeoutExpired where the library hangs."""
    own = lab.directory / host / "pynvml.py"
    if not own.exists():
        shutil.copy(str(pynvml.__file__), own)
    script = (HERE / "query.py").read_text("utf-8")
    command = ["env", "PYTHONPATH=/run/host", "python3", "-B", "-", *words]
    done = lab.exec(host, *command, stdin=script, timeout=timeout)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


def used(lab: api.Lab, host: str, gpu: int = 0) -> int:
    """MiB used on a GPU above its idle 3 MiB."""
    return (int(nvml(lab, host)["gpus"][gpu]["memory"]["used"]) >> 20) - 3


def look(lab: api.Lab, host: str, *pids: int) -> list[dict[str, Any]]:
    """look.py's answer for each pid; fails where one does not exist."""
    script = (HERE / "look.py").read_text("utf-8")
    done = lab.exec(host, "python3", "-", *map(str, pids), stdin=script)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert all(found.values()), found
    return [found[str(pid)] for pid in pids]


def exists(lab: api.Lab, host: str, pid: int) -> bool:
    """Whether the pid exists there and is no zombie."""
    done = lab.exec(host, "cat", f"/proc/{pid}/stat")
    return done.returncode == 0 and done.stdout.rpartition(")")[2].split()[0] not in "ZX"


def kill(lab: api.Lab, host: str, signal: str, *pids: int) -> None:
    """Sends a signal to exact pids of a host."""
    done = lab.exec(host, "kill", f"-{signal}", *map(str, pids))
    assert done.returncode == 0, done.stderr


def gives_back(lab: api.Lab, host: str) -> None:
    """The memory that a driver still keeps for dead processes comes back now."""
    done = lab.exec(host, "sh", "-c", "rm /run/nvml-sim/charges/*")
    assert done.returncode == 0, done.stderr


def put(lab: api.Lab, host: str, path: str, text: str) -> None:
    """Writes a file inside a host, whole or not at all."""
    temporary = path.rpartition("/")[0] + "/.new"
    script = f"cat >{temporary} && mv {temporary} {path}"
    done = lab.exec(host, "sh", "-c", script, stdin=text)
    assert done.returncode == 0, done.stderr
