"""The fan-out: every host ends once, deadlines bind, the cap has one denominator."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import psutil
import pytest

from fleetmem.controller.errors import (
    ConnectRefused,
    InternalError,
    Interrupted,
    OutcomeUnknown,
    SessionLost,
    UsageError,
)
from fleetmem.controller.hosts.host import Host
from fleetmem.controller.run import fanout as runner
from fleetmem.controller.run.fanout import HostEnd, run_hosts
from fleetmem.controller.run.resources import LEAST_MEMORY_BYTES, Budget
from fleetmem.controller.text.cap import cap

Phase = Callable[[str], None]


def hosts(count: int) -> list[Host]:
    return [Host(f"h{n:03}", f"h{n:03}") for n in range(count)]


def run(count: int, work: Any, **options: Any) -> dict[str, HostEnd]:
    return asyncio.run(run_hosts(hosts(count), work, **options))


def outcomes(ends: dict[str, HostEnd]) -> Counter[str]:
    return Counter(end.outcome for end in ends.values())


def test_every_host_ends_once_in_the_order_given() -> None:
    async def work(host: Host, phase: Phase) -> Any:
        number = int(host.name[1:])
        await asyncio.sleep(0.001 * (20 - number % 20))
        if number % 5 == 1:
            raise ConnectRefused("no")
        if number % 5 == 2:
            raise SessionLost("no")
        if number % 5 == 3:
            return HostEnd(host.name, "partial", result=number)
        if number % 5 == 4:
            raise OutcomeUnknown("?")
        return number

    ends = run(100, work, fanout=7)
    assert list(ends) == [host.name for host in hosts(100)]
    assert outcomes(ends) == dict.fromkeys(
        ("ok", "unreachable", "failed", "partial", "unknown"), 20
    )
    assert ends["h000"].result == 0
    assert ends["h003"].result == 3
    error = ends["h001"].error
    assert error is not None
    assert error.code == "connect_refused"
    assert set(outcomes(ends)) <= set(runner.OUTCOMES)


def test_never_more_than_fanout_and_slots_refill_at_once() -> None:
    now, most, order = 0, 0, []

    async def scenario() -> dict[str, HostEnd]:
        others = asyncio.Event()

        async def work(host: Host, phase: Phase) -> None:
            nonlocal now, most
            now += 1
            most = max(most, now)
            if host.name == "h000":
                await asyncio.wait_for(others.wait(), 60)
            else:
                await asyncio.sleep(0.01)
            now -= 1
            order.append(host.name)
            if len(order) == 19:
                others.set()

        return await run_hosts(hosts(20), work, fanout=3)

    assert outcomes(asyncio.run(scenario())) == {"ok": 20}
    assert most == 3
    assert order[-1] == "h000"  # the others did not wait for the slow one


def test_one_deadline_for_each_host() -> None:
    async def work(host: Host, phase: Phase) -> str:
        phase("connect")
        if host.name == "h001":
            phase("nvml")
            await asyncio.sleep(600)
        return "fine"

    ends = run(4, work, deadline_seconds=0.3)
    assert outcomes(ends) == {"ok": 3, "timed_out": 1}
    late = ends["h001"]
    assert late.phase == "nvml"
    assert late.error is not None
    words = r"h001: did not finish within 0\.3 s, at nvml for \d+ s"
    assert re.search(words, late.error.message), late.error.message
    assert 0.25 < late.seconds < 600


def test_a_deadline_keeps_what_the_work_has() -> None:
    async def work(host: Host, phase: Phase) -> Any:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            outcome = "unknown" if host.name == "h000" else "partial"
            return HostEnd(host.name, outcome, result="half")

    ends = run(2, work, deadline_seconds=0.05)
    assert ends["h000"].outcome == "unknown"
    assert ends["h000"].result == "half"
    assert ends["h001"].outcome == "timed_out"
    assert ends["h001"].result == "half"


def test_work_that_ignores_cancellation_is_abandoned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "GRACE_SECONDS", 0.1)

    async def scenario() -> dict[str, HostEnd]:
        enough, ended = asyncio.Event(), asyncio.Event()

        async def work(host: Host, phase: Phase) -> str:
            if host.name != "h000":
                return "fine"
            while not enough.is_set():
                try:
                    await enough.wait()
                except asyncio.CancelledError:
                    continue
            ended.set()
            return "too late"

        async with asyncio.timeout(60):
            found = await run_hosts(hosts(3), work, deadline_seconds=0.1)
            assert not ended.is_set()
            enough.set()
            await ended.wait()
        return found

    ends = asyncio.run(scenario())
    assert outcomes(ends) == {"ok": 2, "timed_out": 1}
    error = ends["h000"].error
    assert error is not None
    assert "abandoned" in error.message


def test_the_run_deadline_leaves_the_rest_not_attempted() -> None:
    async def work(host: Host, phase: Phase) -> None:
        if int(host.name[1:]) >= 4:
            await asyncio.sleep(600)

    ends = run(20, work, fanout=2, run_deadline_seconds=1.0)
    counts = outcomes(ends)
    assert counts["ok"] == 4
    assert counts["timed_out"] == 2
    assert counts["not_attempted"] == 14
    error = ends["h019"].error
    assert error is not None
    assert "deadline" in error.message


@pytest.mark.parametrize("trouble", [ConnectRefused("x"), SessionLost("x"), OutcomeUnknown("x")])
def test_the_cap_stops_new_hosts_and_counts_unreachable(trouble: Exception) -> None:
    async def work(host: Host, phase: Phase) -> None:
        await asyncio.sleep(0.01 if int(host.name[1:]) < 4 else 0.1)
        if int(host.name[1:]) < 2:
            raise trouble

    ends = run(40, work, fanout=4, max_fail=2)
    counts = outcomes(ends)
    assert counts["not_attempted"] + counts["ok"] == 38
    assert counts["ok"] >= 2  # those that ran have finished
    assert counts["not_attempted"] >= 32
    error = ends["h039"].error
    assert error is not None
    assert error.message == "h039: --max-fail was reached: 2 of 40 hosts failed"


def test_partial_is_no_failure_for_the_cap() -> None:
    async def work(host: Host, phase: Phase) -> HostEnd:
        return HostEnd(host.name, "partial")

    assert outcomes(run(10, work, fanout=1, max_fail=1)) == {"partial": 10}


def test_the_cap_has_one_denominator() -> None:
    assert cap(None) is None
    for value, targeted, most in (
        (3, 100, 3), ("3", 2, 3), ("10%", 100, 10), ("10%", 15, 2), ("1%", 5, 1), (0, 5, 1),
    ):  # fmt: skip
        found = cap(value)
        assert found is not None
        assert cap(found) is found
        assert found.of(targeted) == most
    for bad in ("x", "-1", "101%", "nan%", "", "1.5", "inf%"):
        with pytest.raises(UsageError, match="not a number of hosts"):
            cap(bad)


def test_an_interrupt_keeps_partial_results() -> None:
    told: list[HostEnd] = []

    async def scenario() -> None:
        async def work(host: Host, phase: Phase) -> Any:
            if host.name == "h003":
                phase("connect")
                await asyncio.sleep(600)
            if host.name == "h004":
                asyncio.get_running_loop().call_soon(task.cancel)
                try:
                    await asyncio.sleep(600)
                except asyncio.CancelledError:
                    return HostEnd(host.name, "unknown", result="signalled")
            return "fine"

        task = asyncio.ensure_future(run_hosts(hosts(10), work, fanout=2, on_end=told.append))
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scenario())
    ends = {end.host: end for end in told}
    assert [ends[f"h00{n}"].outcome for n in range(5)] == ["ok"] * 3 + ["failed", "unknown"]
    assert outcomes(ends)["not_attempted"] == 5
    assert isinstance(ends["h003"].error, Interrupted)
    assert ends["h004"].result == "signalled"


@pytest.mark.parametrize("times", [1, 2, 5])
def test_every_host_ends_however_often_the_run_is_cancelled(times: int) -> None:
    """Work that takes a while to stop is waited for, within the grace, each time."""
    ended = []
    told: list[HostEnd] = []

    async def scenario() -> None:
        begun = asyncio.Semaphore(0)

        async def work(host: Host, phase: Phase) -> None:
            begun.release()
            try:
                await asyncio.sleep(600)
            finally:
                await asyncio.sleep(0.2)
                ended.append(host.name)

        task = asyncio.create_task(run_hosts(hosts(4), work, fanout=2, on_end=told.append))
        for _ in range(2):
            await begun.acquire()
        for _ in range(times):
            task.cancel()
            await asyncio.sleep(0.01)
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scenario())
    assert sorted(ended) == ["h000", "h001"]
    assert {end.host: end.outcome for end in told} == {
        "h000": "failed",
        "h001": "failed",
        "h002": "not_attempted",
        "h003": "not_attempted",
    }


def test_an_end_is_settled_before_it_is_told_and_counted() -> None:
    """Whoever knows better how a host ended has the last word, also where it was cut off."""

    async def work(host: Host, phase: Phase) -> None:
        await asyncio.sleep(600)

    def settle(end: HostEnd) -> HostEnd:
        return HostEnd(end.host, "unknown", end.error)

    told: list[HostEnd] = []
    ends = run(
        3, work, fanout=1, deadline_seconds=0.1, max_fail=1, settle=settle, on_end=told.append
    )
    assert [end.outcome for end in ends.values()] == ["unknown"] * 3
    assert [end.error.code for end in told if end.error] == ["timed_out"] + ["not_attempted"] * 2


def test_a_used_up_budget_starts_no_further_host() -> None:
    """The controller's own memory: what runs is finished, the rest is named."""

    async def work(host: Host, phase: Phase) -> int:
        if host.name == "h002":
            budget.memory_bytes = 1 << 20
        return 1

    budget = Budget(memory_bytes=1 << 40)
    ends = run(6, work, fanout=1, budget=budget)
    assert [end.outcome for end in ends.values()] == ["ok"] * 3 + ["not_attempted"] * 3
    error = ends["h005"].error
    assert error is not None
    assert re.fullmatch(
        r"h005: fleetmem itself uses [0-9 ]+ MiB of memory here, and a run may use 1 MiB; "
        "run the rest afterwards",
        error.message,
    )


def test_a_budget_is_a_share_of_what_the_desk_has() -> None:
    """At least half a GiB, which ten thousand hosts do not need."""
    budget = Budget()
    assert budget.memory_bytes is not None
    assert (
        LEAST_MEMORY_BYTES
        <= budget.memory_bytes
        < max(LEAST_MEMORY_BYTES + 1, psutil.virtual_memory().total)
    )
    assert not budget.used_up()


def test_a_mistake_in_the_work_is_one_hosts_internal_error() -> None:
    async def work(host: Host, phase: Phase) -> int:
        return 1 // int(host.name[1:])

    ends = run(3, work)
    error = ends["h000"].error
    assert isinstance(error, InternalError)
    assert isinstance(error.__cause__, ZeroDivisionError)
    assert outcomes(ends) == {"failed": 1, "ok": 2}


def test_phases_and_ends_are_told_as_they_come() -> None:
    seen: list[Any] = []

    async def work(host: Host, phase: Phase) -> None:
        phase("one")
        phase("two")

    run(1, work, on_phase=lambda *at: seen.append(at), on_end=seen.append)
    assert seen[:2] == [("h000", "one"), ("h000", "two")]
    assert (seen[2].host, seen[2].outcome, seen[2].phase) == ("h000", "ok", "two")
    assert len(seen) == 3


def test_the_caller_may_say_what_failed_and_of_how_many() -> None:
    async def work(host: Host, phase: Phase) -> str:
        return "bad"

    ended: list[HostEnd] = []
    ends = run(
        10,
        work,
        fanout=1,
        max_fail="10%",
        max_fail_of=50,
        failed_before=2,
        failed=lambda end: end.result == "bad",
        on_end=ended.append,
    )
    assert outcomes(ends) == {"ok": 3, "not_attempted": 7}
    assert sorted(end.host for end in ended) == list(ends)
    error = ends["h009"].error
    assert error is not None
    assert "5 of 50 hosts failed" in error.message


def test_no_host_is_no_work() -> None:
    async def work(host: Host, phase: Phase) -> None:
        raise AssertionError

    assert run(0, work) == {}
    with pytest.raises(UsageError):
        run(1, work, fanout=0)


def test_the_descriptor_limit_lowers_the_fanout_once() -> None:
    """In a process of its own, since a hard limit cannot be raised again."""
    program = """
import asyncio, resource
from fleetmem.controller.hosts.host import Host
from fleetmem.controller.text.cap import cap
from fleetmem.controller.run.fanout import run_hosts
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 256))
now = most = 0
warnings = []
async def work(host, phase):
    global now, most
    now += 1
    most = max(most, now)
    files = [open("/dev/null") for _ in range(4)]
    await asyncio.sleep(0.02)
    for file in files:
        file.close()
    now -= 1
hosts = [Host(f"h{n}", "") for n in range(300)]
ends = asyncio.run(run_hosts(hosts, work, fanout=200, on_warning=warnings.append))
print(len(warnings), {end.outcome for end in ends.values()}, len(ends), 20 < most < 64)
print(warnings[0])
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=os.environ
    )
    first, second = done.stdout.splitlines()
    assert first == "1 {'ok'} 300 True"
    assert second.startswith("fanout lowered from 200 to ")
