"""One NUMA machine for the whole tier."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab import api
from tests.numa.machine import Machine


@pytest.fixture(scope="session")
def machine() -> Iterator[Machine]:
    """The machine; its image is built first where it is not cached.

    $FLEETMEM_NUMA_LAB: the directory of a lab that runs already, for quick trials.
    """
    running_already = os.environ.get("FLEETMEM_NUMA_LAB")
    if running_already:
        found = Machine(api.attach(Path(running_already)))
        yield found
        found.close()
        return
    with api.lab(n=0, numa_vm=True) as running:
        found = Machine(running)
        try:
            yield found
        finally:
            found.close()
