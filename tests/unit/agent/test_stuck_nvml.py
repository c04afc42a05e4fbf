"""An NVML child inside the kernel is stuck only where it stays there."""

from __future__ import annotations

import pytest

from fleetmem.agent import lifeline


@pytest.mark.parametrize(("looks", "stuck"), [(1, False), (5, False), (1000, True)])
def test_a_moment_in_the_kernel_is_not_a_hang(
    monkeypatch: pytest.MonkeyPatch, looks: int, stuck: bool
) -> None:
    left = [looks]

    def inside(_pids: list[int]) -> list[int]:
        left[0] -= 1
        return [4711] if left[0] >= 0 else []

    monkeypatch.setattr(lifeline, "_inside_kernel", inside)
    monkeypatch.setattr(lifeline.time, "sleep", lambda _seconds: None)
    reason = lifeline.stuck_nvml()
    assert (reason is not None) is stuck
    if reason is not None:
        assert reason.startswith("process 4711 ")


def test_nobody_here_is_stuck() -> None:
    assert lifeline.stuck_nvml() is None
