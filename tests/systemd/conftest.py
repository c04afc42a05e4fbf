"""Hosts with a real systemd and journald; where they cannot be made, the tier fails."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab import api
from tests.systemd.world import World


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Three hosts for the whole run; each test uses units of its own."""
    state = tmp_path_factory.mktemp("state")
    with api.lab(n=3, systemd=True) as lab:
        yield World(lab, Path(state))
