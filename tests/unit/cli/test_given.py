"""Commands to copy carry the options that say how this run reached its hosts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from fleetmem.controller.answer.envelope import Envelope, finish, new_envelope, new_host, new_run
from fleetmem.controller.answer.step import Reach
from fleetmem.controller.cli import main
from fleetmem.controller.contact.transport.ssh.trust import KnownHosts, Trust, refusal
from fleetmem.controller.render.kit.line import plain
from fleetmem.controller.render.startup.startup import startup_lines

GIVEN = "-i 'my lab.yaml' "
WORDS = ["-i", "my lab.yaml", "-H", "gh200-01"]


class _Fleet:
    """One host; whatever is asked, the same finding with a command to copy, and a trouble."""

    hosts = ()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        async def answer(*_: Any, **__: Any) -> Envelope:
            row = new_host("gh200-01", "failed")
            row["error"] = {"code": "x", "message": "m", "hint": "h"}
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
            return finish(envelope, 3)

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
    main([*command, *WORDS, "-q"])
    out = capsys.readouterr().out
    shown = re.findall(r"fleetmem \w+ (?:startup )?.*", out)
    assert shown or command[0] in ("logs", "reclaim", "hosts"), out
    assert all(GIVEN in one for one in shown), out
    assert out.count("-i ") == len(shown)


@pytest.mark.parametrize(
    ("entry", "option"),
    [
        ({"unit": "vllm@0.service", "source": "journal"}, "--unit vllm@0.service"),
        ({"unit": None, "source": "/var/log/my vllm.log"}, "--file '/var/log/my vllm.log'"),
        ({"unit": None, "source": "prod/llama"}, "--container prod/llama"),
    ],
)
def test_the_audit_of_one_log_offers_that_log_again(entry: dict[str, Any], option: str) -> None:
    start = {"age": 0, "ranks": {}, "errors": [], "engine_name": "vllm", "lines": []}
    whole = {"engine": "vllm", "invocations": [start], **entry}
    reach = Reach("lab.yaml", logs=(("--boot", "-1"),))
    last = plain(startup_lines("a1", whole, [], reach=reach)[-1])
    assert last == (f"  next   fleetmem audit startup -i lab.yaml -H a1 {option} --lines --boot -1")


def test_a_saved_log_is_offered_with_its_engine() -> None:
    start = {"age": 0, "ranks": {}, "errors": [], "engine_name": "vllm", "lines": []}
    whole = {"engine": "vllm", "invocations": [start], "unit": None, "source": "/tmp/a b.log"}
    last = plain(startup_lines("file:a b.log", whole, [], reach=Reach(engine="vllm"))[-1])
    assert last == "  next   fleetmem audit startup --log '/tmp/a b.log' --lines --engine vllm"


def test_the_hint_of_an_unknown_host_key_names_the_inventory() -> None:
    import asyncssh

    key = asyncssh.generate_private_key("ssh-ed25519").convert_to_public()
    known = KnownHosts(("known_hosts",))
    error = refusal("a1", "10.0.0.1", 22, key, Trust((), (), (), ()), known, Reach("lab.yaml"))
    step = "fleetmem hosts -i lab.yaml -H a1 --check --accept-new-host-key"
    assert error.hint == f"if the fingerprint is right: {step}"
