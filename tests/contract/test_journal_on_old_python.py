"""Logs under the oldest and a new interpreter that a host may have, heavy imports counted."""

from __future__ import annotations

import gzip
import json
import subprocess
from pathlib import Path

import pytest

from fleetmem import agent
from fleetmem.agent.logs.find import SIGNATURE
from tests.contract.test_probes_on_old_python import HERE

SCRIPT = """
import sys
BEFORE = set(sys.modules)
sys.path.insert(0, sys.argv[1])
from fleetmem.agent.kernel import sysroot; from fleetmem.agent import wire
from fleetmem.agent.declare import find
sysroot.ROOT = sys.argv[2]
rows = []
read = find("journal.read").func
def take(data):
    rows.extend(data["rows"])
for asked in ({"unit": "u"}, {"file": "/var/log/e.log"}, {"container": "engine"}):
    read(emit=take, words=("GB",), **asked)
heavy = {"typing", "dataclasses", "re", "json", "subprocess", "enum", "signal", "socket",
         "selectors", "pathlib", "inspect"}
found = {"rows": [row[7] for row in rows]}
found["heavy"] = sorted(heavy.intersection(sys.modules) - BEFORE)
read(emit=take, file="/var/log/e.log", grep="gb")
found["grepped"] = [row[7] for row in rows[len(found["rows"]):]]
sys.stdout.write(wire.dumps(found))
"""


@pytest.mark.parametrize("version", HERE)
def test_logs_are_read(version: str, tmp_path: Path) -> None:
    program = HERE[version]
    package = tmp_path / "code" / "fleetmem"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    assert agent.__file__ is not None
    (package / "agent").symlink_to(Path(agent.__file__).parent)
    root = tmp_path / "root"
    docker = root / "var/lib/docker/containers" / ("ab" * 32)
    for folder in (root / "var/log/journal/m", docker, root / "usr/bin"):
        folder.mkdir(parents=True)
    (root / "var/log/journal/m/system.journal").write_bytes(SIGNATURE + b"\0" * 500)
    (root / "var/log/e.log").write_text("file 1 GB\nnothing\n")
    (root / "var/log/e.log.1.gz").write_bytes(gzip.compress(b"older 2 GB\n"))
    row = {"log": "docker 3 GB\n", "stream": "stdout", "time": "2026-05-04T01:02:03Z"}
    (docker / f"{docker.name}-json.log").write_text(json.dumps(row) + "\n")
    (docker / "config.v2.json").write_text(json.dumps({"Name": "/engine"}))
    journalctl = root / "usr/bin/journalctl"
    journalctl.write_text(
        "#!/bin/sh\nprintf '__REALTIME_TIMESTAMP=5\\nMESSAGE=unit 4 GB\\n_PID=7\\n"
        f"_SYSTEMD_INVOCATION_ID={'cd' * 16}\\n\\n'\n"
    )
    journalctl.chmod(0o755)
    words = [program, "-I", "-S", "-B", "-W", "error", "-c", SCRIPT, str(tmp_path / "code"), root]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    found = json.loads(done.stdout)
    assert found["rows"] == ["unit 4 GB", "file 1 GB", "older 2 GB", "docker 3 GB"]
    assert found["heavy"] == []
    assert found["grepped"] == ["file 1 GB", "older 2 GB"]
