"""What the NUMA machine needs is told in one line, and installed by the make targets."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tests.lab.making.build import LabError
from tests.lab.numa import arch as numa_arch
from tests.lab.numa import image as numa_image

MAKEFILE = Path(__file__).parents[3] / "Makefile"


@pytest.mark.parametrize("name", ["amd64", "arm64"])
def test_a_missing_program_is_one_line_with_the_command(name: str) -> None:
    own = numa_arch.named(name)
    arch = dataclasses.replace(own, qemu="qemu-of-nobody", compiler="gcc-of-nobody")
    with pytest.raises(LabError) as raised:
        numa_image.image(arch)
    assert str(raised.value) == (
        f"qemu-of-nobody, gcc-of-nobody missing; run: sh tests/lab_setup.sh {arch.install}"
    )


def test_an_unknown_architecture(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert numa_image.main(["vax"]) == 1
    said = "lab: no NUMA machine of architecture vax: amd64, arm64\n"
    assert capsys.readouterr().err == said
    monkeypatch.setenv("FLEETMEM_NUMA_ARCH", "vax")
    assert numa_image.main([]) == 1
    assert capsys.readouterr().err == said


def test_make_test_installs_what_the_usual_machine_needs() -> None:
    text = MAKEFILE.read_text().replace("\\\n", " ")
    line = next(line for line in text.splitlines() if line.startswith("TEST_PACKAGES"))
    assert set(numa_arch.AMD64.install.split()) <= set(line.split())
