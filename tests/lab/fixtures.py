"""pytest fixtures for tests that need test hosts: import them into a conftest or a module.

Nothing is skipped: where the lab cannot run, the tests that need it fail and say why.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Protocol

import pytest

from tests.lab import api


class LabFactory(Protocol):
    """Starts labs that end with the module that asked for them."""

    def __call__(
        self, n: int = 1, gpus: int = 2, gpu_mib: int = 97887, net: bool = False
    ) -> api.Lab:
        """A new lab."""


@pytest.fixture(scope="session")
def shared_lab() -> Iterator[api.Lab]:
    """Four hosts for a whole run; leave them as you found them."""
    with api.lab(n=4) as running:
        yield running


@pytest.fixture(scope="module")
def labs() -> Iterator[LabFactory]:
    """Private labs of a module."""
    with contextlib.ExitStack() as stack:

        def start(n: int = 1, gpus: int = 2, gpu_mib: int = 97887, net: bool = False) -> api.Lab:
            return stack.enter_context(api.lab(n, gpus, gpu_mib, net))

        yield start


def wait_until(
    what: str, happened: Callable[[], object], seconds: float = 60, pause: float = 0.02
) -> None:
    """Calls ``happened`` until it is true; fails the test with ``what`` after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not happened():
        if time.monotonic() > deadline:
            pytest.fail(f"{what}: not within {seconds} s")
        time.sleep(pause)
