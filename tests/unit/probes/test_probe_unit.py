"""``unit.state``: systemd's own words about one unit."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleetmem.agent.kernel import sysroot
from fleetmem.agent.model import Trouble
from fleetmem.agent.probes.unit import unit_state
from fleetmem.controller.contact.door import misfit


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A made-up host that systemd runs."""
    monkeypatch.setattr(sysroot, "ROOT", str(tmp_path))
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    return tmp_path


def systemctl(host: Path, body: str) -> None:
    program = host / "usr/bin/systemctl"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n" + body)
    program.chmod(0o755)


def test_a_unit_that_waits_for_its_restart(host: Path) -> None:
    systemctl(
        host,
        f"""echo "$@" >{host}/asked
printf 'Result=exit-code\\nNRestarts=3\\nId=vllm.service\\nLoadState=loaded\\n'
printf 'ActiveState=activating\\nSubState=auto-restart\\n'
""",
    )
    reading = unit_state(unit="vllm.service")
    assert reading == {
        "name": "vllm.service",
        "load": "loaded",
        "active": "activating",
        "sub": "auto-restart",
        "result": "exit-code",
        "restarts": 3,
    }
    assert misfit("unit.state", reading) is None
    assert (host / "asked").read_text().split()[-2:] == ["--", "vllm.service"]


def test_an_old_systemd_does_not_count_restarts(host: Path) -> None:
    systemctl(host, "echo Id=a.service; echo LoadState=not-found; echo ActiveState=inactive")
    reading = unit_state(unit="a.service")
    assert (reading["load"], reading["restarts"], reading["result"]) == ("not-found", None, None)


def test_no_answer_is_a_failure_and_no_systemd_is_said(host: Path) -> None:
    with pytest.raises(Trouble, match="does not answer"):
        unit_state(unit="a.service")
    (host / "run/systemd/system").rmdir()
    with pytest.raises(Trouble, match="not run by systemd") as caught:
        unit_state(unit="a.service")
    assert caught.value.code == "no_systemd"
