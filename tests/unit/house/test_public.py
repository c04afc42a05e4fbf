"""What the package exports is there, and nothing heavy is loaded before it is used."""

from __future__ import annotations

import subprocess
import sys

import pytest

import fleetmem


@pytest.mark.parametrize("name", fleetmem.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(fleetmem, name)


def test_a_stranger_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Flet'"):
        _ = fleetmem.Flet


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = (
        "import fleetmem, sys; heavy = {'asyncssh', 'pydantic', 'rich', 'click', 'yaml'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
