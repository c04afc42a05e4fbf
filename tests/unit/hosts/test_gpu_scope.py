"""``--gpu``."""

from __future__ import annotations

from typing import Any, cast

import pytest

from fleetmem.agent.shapes import GpuDevices
from fleetmem.controller.errors import UsageError
from fleetmem.controller.hosts.gpu_scope import absent_everywhere, match, parse, pci_key


def devices(count: int, mig: int = 0) -> GpuDevices:
    """A reading with *count* GPUs, *mig* instances on the first."""
    gpus: list[dict[str, Any]] = [
        {
            "index": index,
            "uuid": f"GPU-5f1b-{index:04x}",
            "bus_id": f"00000000:{0x41 + index:02X}:00.0",
            "instances": [],
        }
        for index in range(count)
    ]
    for number in range(mig):
        gpus[0]["instances"].append({"uuid": f"MIG-aa-{number}", "gi": number + 1, "ci": 0})
    return cast(GpuDevices, {"driver_version": None, "nvml_version": None, "gpus": gpus})


@pytest.mark.parametrize(
    ("text", "indexes"),
    [
        ("all", {0, 1, 2, 3}),
        ("2", {2}),
        ("0-1,3", {0, 1, 3}),
        ("GPU-5f1b-0001", {1}),
        ("gpu-5F1B-0001", {1}),
        ("42:00.0", {1}),
        ("0000:42:00.0", {1}),
        ("00000000:42:00", {1}),
        ("2-9", {2, 3}),
        ("1, 1", {1}),
    ],
)
def test_what_is_named(text: str, indexes: set[int]) -> None:
    """Every spelling finds its GPUs."""
    found = match(parse(text), devices(4))
    assert found.indexes == indexes
    assert found.absent == ()


def test_a_gpu_includes_its_instances() -> None:
    """An instance stands alone only where its GPU is not in scope as a whole."""
    found = match(parse("MIG-aa-1"), devices(2, mig=2))
    assert found.indexes == frozenset()
    assert [(part.uuid, part.index, part.gi) for part in found.instances] == [("MIG-aa-1", 0, 2)]
    both = match(parse("0,MIG-aa-1"), devices(2, mig=2))
    assert (both.indexes, both.instances) == (frozenset({0}), ())


def test_absent_here_and_absent_everywhere() -> None:
    """Absent on one host is nothing to do there; absent on all is a mistake."""
    terms = parse("0,3,GPU-none")
    small, large = match(terms, devices(2)), match(terms, devices(4))
    assert small.absent == ("3", "GPU-none")
    assert not small.empty
    assert absent_everywhere([small, large]) == ("GPU-none",)
    assert absent_everywhere([small]) == ("3", "GPU-none")
    assert match(parse("3"), devices(2)).empty
    assert match(parse("all"), devices(0)).absent == ()
    assert absent_everywhere([]) == ()


@pytest.mark.parametrize(
    "text", ["", "x", "3-1", "0,", "-1", "1-2-3", "99999", "0-9999999999", "GPU-", "zz:00.0", "٣"]
)
def test_what_is_no_gpu(text: str) -> None:
    """One clear error of usage."""
    with pytest.raises(UsageError):
        parse(text)


def test_pci_domains() -> None:
    """Two GPUs that differ in their domain only are two."""
    assert pci_key("0009:01:00.0") == pci_key("00000009:01:00.0") != pci_key("0000:01:00.0")
