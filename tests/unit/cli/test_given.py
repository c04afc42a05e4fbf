"""Commands to copy carry the options that say how this run reached its hosts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from fleetmem.controller.answer.envelope import Envelope, new_envelope, new_host, new_run
from fleetmem.controller.cli import main
from fleetmem.controller.cli.kit.flags import Common
from fleetmem.controller.cli.kit.given import whole

GIVEN = "-i 'my lab.yaml' "
WORDS = ["-i", "my lab.yaml", "-H", "gh200-01"]


class _Fleet:
    """One host; whatever is asked, the same finding with a command to copy, and a trouble."""

    hosts = ()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        async def answer(*_: Any, **__: Any) -> Envelope:
            row = new_host("gh200-01", "failed")
            row["error"] = {"code": "x", "message": "m", "hint": "try: fleetmem logs -H gh200-01"}
            envelope = new_envelope(new_run(name), ["gh200-01"], [row])
            envelope["findings"] = [
                {
                    "rule": "memory/full",
                    "severity": "warn",
                    "hosts": "gh200-01",
                    "subject": "GPU 0",
                    "evidence": {"say": "it is full"},
                    "advice": None,
                    "next": ["fleetmem reclaim -H gh200-01 --gpu 0 --dry-run"],
                }
            ]
            return envelope

        return answer


@pytest.fixture(autouse=True)
def fleet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleetmem.controller.cli.kit.invoke.load_fleet", lambda common: _Fleet())
    monkeypatch.setenv("NO_COLOR", "1")


@pytest.mark.parametrize(
    "command",
    [
        ["snapshot"],
        ["snapshot", "--follow-start", "vllm"],
        ["run", "memory"],
        ["audit", "memory"],
        ["audit", "startup"],
        ["audit", "startup", "memory"],
        ["logs", "-u", "vllm"],
        ["hosts", "--check"],
        ["reclaim", "--dry-run"],
    ],
    ids=" ".join,
)
def test_every_command_names_the_inventory(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """In the data, and in every command that the screen shows."""
    main([*command, *WORDS, "-o", "json", "-q"])
    envelope = json.loads(capsys.readouterr().out)
    for finding in envelope["findings"]:
        assert finding["next"] == [f"fleetmem reclaim {GIVEN}-H gh200-01 --gpu 0 --dry-run"]
    assert envelope["hosts"][0]["error"]["hint"] == f"try: fleetmem logs {GIVEN}-H gh200-01"
    main([*command, *WORDS, "-q"])
    out = capsys.readouterr().out
    shown = re.findall(r"fleetmem \w+ (?:startup )?.*", out)
    assert shown or command[0] in ("logs", "reclaim"), out
    assert all(GIVEN in one for one in shown), out
    assert out.count("-i ") == len(shown)


def test_a_password_that_was_asked_for_is_asked_for_again() -> None:
    common = Common("table", None, False, False, ask_sudo_password=True)
    step = "fleetmem snapshot -H gh200-01"
    asking = "fleetmem snapshot --ask-sudo-password -H gh200-01"
    assert whole(step, common) == whole(asking, common) == asking
    both = Common("table", None, False, False, inventory="a.yaml", ask_sudo_password=True)
    assert whole(step, both) == "fleetmem snapshot -i a.yaml --ask-sudo-password -H gh200-01"
    assert whole(step, Common("table", None, False, False)) == step


def test_commands_that_reach_no_host_stay_as_they_are() -> None:
    common = Common("table", None, False, False, inventory="a.yaml")
    for step in ("fleetmem runs list", "fleetmem diff before after", "fleetmem playbooks list"):
        assert whole(step, common) == step
