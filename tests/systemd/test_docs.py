"""The documented commands that name a unit are run, on hosts that have it."""

from __future__ import annotations

import shlex

import pytest

from tests.lab.self.test_docs import UNIT, commands
from tests.systemd.world import World, start_up

pytestmark = pytest.mark.lab

FOLLOWED = "--follow-start"
"""Run by test_follow.py, which starts the unit meanwhile."""


def test_documented_commands_that_name_a_unit(world: World) -> None:
    """Each ends as a working one does, and has read each host's start of that unit."""
    shown = [command for command in commands(journal=True) if UNIT.search(command)]
    shown = [command for command in shown if FOLLOWED not in command]
    assert len(shown) >= 4
    text, tokens, _ = start_up()
    for name in sorted({found[1] for command in shown for found in UNIT.finditer(command)}):
        for host in world.lab.hosts:
            world.unit(name, f"CUDA error: an Xid, oom\n{text}", host=host)
            world.restart(name, host=host)
    for command in shown:
        out = world.run(*shlex.split(command)[1:]).stdout
        seen = f"{tokens:,}".replace(",", " ") if " audit " in command else "an Xid, oom"
        assert seen in out, (command, out)


def test_documented_commands_about_the_kernel(world: World) -> None:
    """Each shows the kernel's line of every host."""
    shown = [command for command in commands(journal=True) if not UNIT.search(command)]
    assert shown
    for host in world.lab.hosts:
        world.kernel_lines("NVRM: Xid (PCI:0000:03:00): 79, GPU has fallen off the bus.", host=host)
    for command in shown:
        out = world.run(*shlex.split(command)[1:]).stdout
        assert "79, GPU has fallen off" in out, (command, out)
