"""What one look means: free, wait on, held, or not to be told."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetmem.agent.gate import verdicts
from fleetmem.agent.gate.scope import ScopeError, choose
from fleetmem.agent.gate.sight import Gpu, GpuUser

GIB = 1 << 30
TOTAL = 96 * GIB


def gpu(
    used: int | None, *holders: GpuUser, file_bytes: int = 0, index: int = 0, uuid: str = "GPU-a"
) -> Gpu:
    made = Gpu(index, uuid, f"00000000:0{index}:00.0")
    made.total_bytes = TOTAL
    made.used_bytes = used
    made.free_bytes = None if used is None else TOTAL - used
    made.holders = list(holders)
    made.file_bytes = file_bytes
    return made


def live(size: int | None) -> GpuUser:
    return GpuUser(8123, "live", size, "VLLM::EngineCore", "live")


@pytest.mark.parametrize(
    ("look", "need", "still", "state"),
    [
        (gpu(3 << 20), None, 0.0, "free"),
        (gpu(90 * GIB, live(90 * GIB)), None, 0.0, "held"),  # at once
        (gpu(90 * GIB, live(None)), None, 0.0, "held"),  # its size cannot be read
        (gpu(90 * GIB, GpuUser(1, "ending", 90 * GIB)), None, 0.5, "falling"),
        (gpu(90 * GIB, GpuUser(1, "ending", 90 * GIB)), None, 60.0, "falling"),
        (gpu(90 * GIB, GpuUser(1, "dead", 90 * GIB)), None, 9.0, "falling"),
        (gpu(90 * GIB, GpuUser(1, "dead", 90 * GIB)), None, 10.0, "held"),
        (gpu(90 * GIB), None, 10.0, "held"),  # nobody is seen: that frees nothing
        (gpu(61 * GIB, file_bytes=61 * GIB), None, 0.0, "held"),
        (gpu(None), None, 0.0, "unknown"),
        (gpu(10 * GIB, live(10 * GIB)), 80 * GIB, 0.0, "free"),
        (gpu(30 * GIB, live(10 * GIB)), 80 * GIB, 0.5, "falling"),  # the other 20 may fall
        (gpu(30 * GIB, live(20 * GIB)), 80 * GIB, 0.5, "held"),
        (gpu(10 * GIB), 200 * GIB, 0.0, "held"),
        (gpu(90 * GIB, GpuUser(77, "outside", 90 * GIB)), None, 11.0, "held"),
    ],
)
def test_one_look(look: Gpu, need: int | None, still: float, state: str) -> None:
    found, why = verdicts.judge(look, need, still)
    assert found == state, why
    assert (found == "free") == (why == "")


SIZES = st.one_of(st.none(), st.integers(0, TOTAL))
HOLDERS = st.lists(
    st.builds(
        GpuUser, st.integers(2, 99), st.sampled_from(("live", "ending", "dead", "outside")), SIZES
    ),
    max_size=4,
)


@given(
    used=SIZES,
    holders=HOLDERS,
    file_bytes=st.integers(0, TOTAL),
    need=st.one_of(st.none(), st.integers(1, 2 * TOTAL)),
    still=st.floats(0, 10),
)
def test_free_rests_on_what_was_read_alone(
    used: int | None, holders: list[GpuUser], file_bytes: int, need: int | None, still: float
) -> None:
    """Whoever is or is not seen: only the bytes that NVML says are free make it free."""
    found, _ = verdicts.judge(gpu(used, *holders, file_bytes=file_bytes), need, still)
    enough = used is not None and (
        used <= verdicts.IDLE_BYTES if need is None else TOTAL - used >= need
    )
    assert (found == "free") == enough


def test_the_worst_gpu_decides() -> None:
    assert verdicts.verdict(["free", "held", "unknown", "falling"]) == "held"
    assert verdicts.verdict(["free", "unknown", "falling"]) == "unknown"
    assert verdicts.verdict(["free", "falling"]) == "falling"
    assert verdicts.verdict(["free"]) == "free"
    assert verdicts.verdict([]) == "unknown"  # no GPU was looked at


GPUS = [gpu(0, index=n, uuid=f"GPU-{n}") for n in range(4)]
PART = gpu(0, index=1, uuid="MIG-1-0")


@pytest.mark.parametrize(
    ("text", "uuids"),
    [
        ("all", ["GPU-0", "GPU-1", "GPU-2", "GPU-3"]),
        ("2", ["GPU-2"]),
        ("1-2,0", ["GPU-0", "GPU-1", "GPU-2"]),
        ("GPU-3,3", ["GPU-3"]),
        ("0000:02:00.0", ["GPU-2"]),
        ("02:00.0", ["GPU-2"]),
        ("00000000:02:00.0", ["GPU-2"]),
        ("mig-1-0", ["MIG-1-0"]),
    ],
)
def test_which_gpus_are_meant(text: str, uuids: list[str]) -> None:
    assert [one.uuid for one in choose(text, [*GPUS, PART])] == uuids


@pytest.mark.parametrize("text", ["4", "0-9", "3-1", "", "GPU-9", "x", "0,,1", "1-", "99999999999"])
def test_a_gpu_that_is_not_there_is_an_error(text: str) -> None:
    with pytest.raises(ScopeError):
        choose(text, GPUS)
