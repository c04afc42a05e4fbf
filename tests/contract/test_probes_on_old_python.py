"""The probes under the oldest and a new interpreter that a host may have."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import typing
from collections.abc import Callable
from pathlib import Path

import pytest

from fleetmem import agent
from fleetmem.controller.contact.door import misfit
from tests import pythons

VERSIONS = ("3.8", "3.9", "3.13")
HERE = pythons.found(VERSIONS)

SCRIPT = """
import os, sys
from fleetmem.agent import wire
from fleetmem.agent.declare import find
from fleetmem.agent.model import Trouble

assert "re" not in sys.modules and "typing" not in sys.modules, "an import costs a host CPU"
found = {"version": "%d.%d" % sys.version_info[:2]}
calls = [
    ("host.facts", {}),
    ("host.operations", {}),
    ("gpu.holders", {}),
    ("processes.identity", {"pids": [os.getpid(), os.getppid()]}),
    ("processes.ties", {"pids": [os.getpid()]}),
    ("gpu.wait", {"pids": [os.getpid()], "start_times": [1], "timeout_seconds": 0.1}),
    ("numa.nodes", {}),
    ("pagecache.files", {"paths": ["/etc/passwd", "/no-such"], "walk": "never", "largest": 20}),
    ("pagecache.drop", {"paths": ["/etc/passwd"], "dry_run": 1}),
    ("processes.memory", {"rows": 5, "largest": 5, "numa": 2}),
    ("shm.segments", {}),
    ("engine.request", {"url": "http://127.0.0.1:1/v1/completions", "seconds": 10.0}),
]
for name, args in calls:
    try:
        found[name] = find(name).func(**args)
    except Trouble as trouble:
        found[name] = trouble.reading
for name in ("gpu.devices", "gpu.processes"):
    try:
        find(name).func()
        found[name] = "a driver"
    except Trouble as trouble:
        found[name] = trouble.code
heavy = {"typing", "dataclasses", "re", "json", "subprocess", "enum", "signal", "socket",
         "selectors", "pathlib", "inspect"}
found["heavy"] = sorted(heavy.intersection(sys.modules) - BEFORE)
sys.stdout.write(wire.dumps(found))
"""


def test_what_is_not_here(record_property: Callable[[str, object], None]) -> None:
    """The premise: an older and a newer one than this machine's own may be missing, not both."""
    record_property("not_tested", pythons.not_tested("probes and logs under", VERSIONS))
    assert HERE


@pytest.mark.parametrize("version", HERE)
def test_probes_run_and_keep_their_shapes(version: str, tmp_path: Path) -> None:
    program = HERE[version]
    package = tmp_path / "fleetmem"
    package.mkdir()
    (package / "__init__.py").write_text("")
    assert agent.__file__ is not None
    (package / "agent").symlink_to(Path(agent.__file__).parent)
    start = f"import sys; BEFORE = set(sys.modules); sys.path.insert(0, {str(tmp_path)!r})\n"
    done = subprocess.run(
        [program, "-I", "-S", "-B", "-W", "error", "-c", start + SCRIPT],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    found = json.loads(done.stdout)
    assert found.pop("version") == version
    for name in ("gpu.devices", "gpu.processes"):
        assert found.pop(name) == "nvml_missing"
    # ctypes is what the probes cannot do without; it brings nothing of these along.
    assert found.pop("heavy") == []
    from fleetmem.agent import declare

    scope = {**vars(__import__("fleetmem.agent.shapes", fromlist=["x"])), **vars(typing)}
    for name, reading in found.items():
        hints = typing.get_type_hints(
            declare.find(name).func, scope, {"shapes": sys.modules["fleetmem.agent.shapes"]}
        )
        assert misfit(name, reading) is None
        keys = set(hints["return"].__required_keys__)
        assert set(reading) == keys
    rows = found["processes.identity"]["processes"]
    assert rows[0]["launcher_alive"] is True
    assert rows[1]["pid"] == os.getpid()
