"""Rungs over a host that the test plays: what is sent, and what is never sent again."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any, cast

import pytest

from fleetmem.agent.shapes import SignalRecord
from fleetmem.controller.contact import gather
from fleetmem.controller.contact.session import Session
from fleetmem.controller.errors import NoProcesses
from fleetmem.controller.reclaim import ladder
from fleetmem.controller.reclaim.classify import classify
from fleetmem.controller.reclaim.climb import Climb
from fleetmem.controller.reclaim.ladder import climb
from fleetmem.controller.reclaim.law.rules import rules
from fleetmem.controller.reclaim.options import ReclaimOptions
from fleetmem.controller.reclaim.plan import make_plan
from fleetmem.controller.reclaim.survey import Survey
from fleetmem.controller.reclaim.verdict.judgement import Climbed, GpuJudgement
from tests.unit.reclaim.reclaim_world import (
    GIB,
    IDLE,
    fork_files,
    holder,
    identity,
    listed,
    owner,
    survey,
)

GONE = owner("unit", "a.service", "gone")


class Play:
    """A host: processes by pid with what they do on a signal, and the memory that follows."""

    def __init__(self, before: Survey, dies_of: dict[int, str], refuses: str = "") -> None:
        self.before = before
        self.dies_of = dies_of
        self.refuses = refuses
        self.dead: set[int] = set()
        self.deaf: dict[int, str] = {}
        self.waited: list[tuple[float, list[int]]] = []
        self.sent: list[tuple[str, int]] = []
        self.trail: list[tuple[str, str]] = []

    def note(self, event: dict[str, Any]) -> None:
        self.trail.append((event["action"], event["signal"]))

    def look(self) -> Survey:
        alive = {p: row for p, row in self.before.processes.items() if p not in self.dead}
        rows = {}
        for gpu, lists in self.before.listed.items():
            kept = [row for row in lists if row["pid"] in alive or self.inherited(row["pid"])]
            rows[gpu] = [
                row if row["pid"] in alive else listed(row["pid"], row["used_bytes"], "dead")
                for row in kept
            ]
        files = tuple(row for pid, row in self.before.holders.items() if pid in alive)
        return survey(*alive.values(), holders=files, lists=rows)

    def inherited(self, pid: int) -> bool:
        return any(
            pid in [above["pid"] for above in row["ancestors"]] and p not in self.dead
            for p, row in self.before.processes.items()
        )

    async def ask(self, session: Any, name: str, args: dict[str, Any], **more: Any) -> Any:
        if name == "signal.send":
            results = []
            for one in args["targets"]:
                result = "refused" if self.refuses else "sent"
                if not self.refuses:
                    self.sent.append((args["signal"], one["pid"]))
                    if self.dies_of.get(one["pid"], "") in ("TERM", args["signal"]):
                        self.dead.add(one["pid"])
                results.append(
                    {
                        "pid": one["pid"],
                        "start_time": one["start_time"],
                        "signal": args["signal"],
                        "result": result,
                        "code": "changed" if self.refuses else None,
                        "why": self.refuses or None,
                        "comm": None,
                        "deaf": self.deaf.get(one["pid"]) if args["signal"] == "TERM" else None,
                    }
                )
            return {"outcome": "ok", "reason": None, "reading": {"results": results}, "seconds": 0}
        assert name == "gpu.wait", name
        self.waited.append((args["timeout_seconds"], args["pids"]))
        now = self.look()
        pairs = zip(args["pids"], args["start_times"], strict=True)
        reading = {
            "gpus": [
                {"index": gpu, "used_bytes": now.used(gpu), "falling": False}
                for gpu in args["gpus"]
            ],
            "processes": [
                {
                    "pid": pid,
                    "start_time": start,
                    "state": "S" if pid in now.processes else "gone",
                    "wchan": None,
                }
                for pid, start in pairs
            ],
        }
        return {"outcome": "ok", "reason": None, "reading": reading, "seconds": 0}


def run(play: Play, events: list[Any] | None = None, **options: Any) -> tuple[Climb, str]:
    """Climb; the climb and the verdict over GPU 0. *events* gets what it tells meanwhile."""
    wish = ReclaimOptions(**{"gpu": "0", "release_timeout_seconds": 0.0, **options})
    made = make_plan(play.before, classify(play.before, rules()), wish, {})
    one = Climb(
        host="h1",
        session=cast(Session, None),
        plan=made,
        options=wish,
        survey=play.before,
        epoch=5,
        desk="me@desk",
        scope=wish.scope_text,
        announce=play.note,
        answered=lambda event, changed: play.note(event),
        emit=([] if events is None else events).append,
    )

    async def look(_run: Climb) -> Survey:
        return play.look()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gather, "ask", play.ask)
        patch.setattr(ladder, "look", look)
        rows = asyncio.run(climb(one))
    return one, next(row.verdict for row in rows if row.index == 0)


def outcomes(climbed: Climb) -> list[tuple[str, str]]:
    return [(row["rung"], row["outcome"]) for row in climbed.rungs]


def single(**more: Any) -> Survey:
    return survey(
        identity(50, owner=GONE, **more), holders=(holder(50),), lists={0: [listed(50, 90 * GIB)]}
    )


def family() -> Survey:
    """50 with its fork 51."""
    up = [{"pid": 50, "start_time": 500, "comm": "python3"}]
    return survey(
        identity(50, owner=GONE),
        identity(51, owner=GONE, ancestors=up),
        holders=(holder(50), fork_files(51)),
        lists={0: [listed(50, 90 * GIB)]},
    )


def test_term_is_enough() -> None:
    play = Play(single(), {50: "TERM"})
    climbed, verdict = run(play)
    assert verdict == "reclaimed"
    assert play.sent == [("TERM", 50)]
    assert outcomes(climbed) == [("drain", "not_applicable"), ("term", "ok")]
    assert climbed.rungs[1]["freed_bytes"] == 90 * GIB
    assert play.trail == [("signal", "TERM"), ("signal_done", "TERM")]
    assert climbed.used == {0: IDLE}


def test_a_rung_that_ended_is_not_what_the_progress_shows() -> None:
    """Each phase is told when it begins: the seconds beside it are that phase's own."""
    events: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ladder, "_RESTART_SECONDS", 0.05)
        play = Loop(launched(), {50: "TERM"})
        play.waits = -(10**9)
        run(play, events, release_timeout_seconds=5.0)
    kinds = [one["kind"] if one["kind"] == "rung" else one.get("text") for one in events]
    assert kinds == ["rung", "term", "rung", "watching launchers", "looking again"]


def test_kill_follows() -> None:
    play = Play(single(), {50: "KILL"})
    climbed, verdict = run(play)
    assert verdict == "reclaimed"
    assert play.sent == [("TERM", 50), ("KILL", 50)]
    assert outcomes(climbed)[1:] == [("term", "partial"), ("kill", "ok")]


def test_up_to_binds() -> None:
    play = Play(single(), {50: "KILL"})
    assert run(play, up_to="term")[1] == "held_by"
    assert play.sent == [("TERM", 50)]
    play = Play(family(), {50: "TERM", 51: "TERM"})
    assert run(play, up_to="kill")[1] == "held_by"
    assert play.sent == [("TERM", 50)]


def test_a_fork_is_signalled_in_the_heirs_rung_only() -> None:
    play = Play(family(), {50: "KILL", 51: "KILL"})
    climbed, verdict = run(play)
    assert verdict == "reclaimed"
    assert play.sent == [("TERM", 50), ("KILL", 50), ("TERM", 51), ("KILL", 51)]
    assert outcomes(climbed)[-1] == ("heirs", "ok")


def test_nobody_is_left_to_kill() -> None:
    play = Play(family(), {50: "TERM", 51: "TERM"})
    climbed, verdict = run(play)
    assert verdict == "reclaimed"
    assert outcomes(climbed)[1:] == [
        ("term", "partial"),
        ("kill", "not_applicable"),
        ("heirs", "ok"),
    ]


def launched() -> Survey:
    """50 was started by 20, which lives."""
    up = [{"pid": 20, "start_time": 200, "comm": "sh"}]
    return survey(
        identity(50, ppid=20, launcher_alive=True, ancestors=up),
        holders=(holder(50),),
        lists={0: [listed(50, 90 * GIB)]},
    )


class Loop(Play):
    """A launcher that starts the next one at the third look at it."""

    waits = 0

    def look(self) -> Survey:
        if self.waits < 3:
            return super().look()
        up = [{"pid": 20, "start_time": 200, "comm": "sh"}]
        one = identity(60, ppid=20, launcher_alive=True, ancestors=up)
        return survey(one, holders=(holder(60),), lists=self.lists())

    def lists(self) -> dict[int, Any]:
        return {0: [listed(60, 90 * GIB)]}

    async def ask(self, session: Any, name: str, args: dict[str, Any], **more: Any) -> Any:
        row = await super().ask(session, name, args, **more)
        if name == "gpu.wait" and args["pids"] == [20]:
            self.waits += 1
            row["reading"]["processes"][0]["state"] = "S"
        return row


class Slow(Loop):
    """The next one has opened the files and has no memory yet."""

    def lists(self) -> dict[int, Any]:
        return {}


@pytest.mark.parametrize("kind", [Loop, Slow])
def test_a_launcher_that_lives_is_watched(kind: type[Loop]) -> None:
    play = kind(launched(), {50: "TERM"})
    assert run(play, release_timeout_seconds=5.0)[1] == "respawned"
    assert play.sent == [("TERM", 50)]


def test_a_launcher_is_watched_for_a_moment_only() -> None:
    play = Loop(launched(), {50: "TERM"})
    play.waits = -(10**9)  # the play answers at once: a fast machine looks thousands of times
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ladder, "_RESTART_SECONDS", 0.1)
        assert run(play, release_timeout_seconds=5.0)[1] == "reclaimed"
    assert play.waits > -(10**9)


def unit(pause: float | None, kind: str = "unit", restart: str = "always") -> Survey:
    """50 is the main process of a.service, which systemd starts again."""
    found = single_in(owner(kind, "a.service", "live"))
    rows = [
        {
            **row,
            "restart": restart,
            "restart_seconds": pause,
            "main_pid": 50,
            "stop_command": "stop a",
        }
        for row in found.ties["owners"]
    ]
    return replace(found, ties={**found.ties, "owners": rows})  # type: ignore[typeddict-item]


def single_in(of: Any) -> Survey:
    return survey(identity(50, owner=of), holders=(holder(50),), lists={0: [listed(50, 90 * GIB)]})


class Unit(Play):
    """systemd's words about a.service after the climb."""

    active, sub = "active", "running"

    async def ask(self, session: Any, name: str, args: dict[str, Any], **more: Any) -> Any:
        if name != "unit.state":
            return await super().ask(session, name, args, **more)
        assert args == {"unit": "a.service"}
        return {"outcome": "ok", "reading": {"active": self.active, "sub": self.sub}}


@pytest.mark.parametrize(
    ("active", "sub", "verdict", "said"),
    [
        ("active", "running", "respawned", []),
        ("activating", "start-pre", "respawned", []),
        ("activating", "auto-restart", "reclaimed", ["unit a.service starts it again after 0.1 s"]),
        ("inactive", "dead", "reclaimed", []),
        ("failed", "failed", "reclaimed", []),
    ],
)
def test_a_unit_that_restarts_is_watched_for_its_pause(
    active: str, sub: str, verdict: str, said: list[str]
) -> None:
    play = Unit(unit(0.1), {50: "TERM"})
    play.active, play.sub = active, sub
    began = time.monotonic()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ladder, "_STARTED_SECONDS", 0.1)
        climbed, found = run(play, pids=(50,))
    assert found == verdict
    assert time.monotonic() - began >= 0.2
    assert [str(one) for one in climbed.restarters if one.state == "may"] == said


@pytest.mark.parametrize(
    ("kind", "pause", "said"),
    [
        ("unit", 60.0, "unit a.service starts it again after 60 s"),
        ("container", None, "container a.service starts it again"),
        ("pod", None, "pod a.service: kubelet starts it again after its back-off (10 s to 5 min)"),
    ],
)
def test_a_long_pause_is_named_and_not_waited_for(kind: str, pause: float, said: str) -> None:
    play = Unit(unit(pause, kind), {50: "TERM"})
    play.active, play.sub = "activating", "auto-restart"
    climbed, verdict = run(play, pids=(50,))
    assert verdict == "reclaimed"
    row = judged(climbed, play)
    assert row.starts_again == (said,)
    assert row.next == ("stop a",)
    assert row.why.endswith(f"; {said}")


def judged(climbed: Climb, play: Play) -> GpuJudgement:
    """The verdict over GPU 0 with all that the climb knows of restarts."""
    how = Climbed(restarters=tuple(climbed.restarters))
    after = play.look()
    (row,) = ladder.judge(climbed.plan, after, classify(after, rules()), how, "h1")
    return row


@pytest.mark.parametrize("restart", ["no", None])
def test_a_unit_that_does_not_restart_is_not_watched(restart: str) -> None:
    play = Unit(unit(9.0, restart=restart), {50: "TERM"})
    climbed, verdict = run(play, pids=(50,))
    assert (verdict, climbed.restarters) == ("reclaimed", [])


def test_a_launcher_that_lives_on_is_named() -> None:
    play = Loop(launched(), {50: "TERM"})
    play.waits = -(10**9)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ladder, "_RESTART_SECONDS", 0.05)
        climbed, verdict = run(play, release_timeout_seconds=5.0)
    assert verdict == "reclaimed"
    assert [str(one) for one in climbed.restarters] == [
        "launcher sh 20 lives and may start it again"
    ]


def test_unkillable() -> None:
    play = Play(single(), {})
    assert run(play)[1] == "unkillable"
    assert play.sent == [("TERM", 50), ("KILL", 50)]


def test_a_refused_target_gets_nothing_more() -> None:
    play = Play(single(), {50: "TERM"}, refuses="its user changed")
    assert run(play)[1] == "held_by"
    assert play.sent == []


@pytest.mark.parametrize("code", ["ignored", "blocked", "stopped", "init"])
def test_term_that_cannot_work_is_not_waited_for(code: str) -> None:
    play = Play(single(), {50: "KILL"})
    play.deaf = {50: code}
    climbed, verdict = run(play, grace_period_seconds=600.0)
    assert verdict == "reclaimed"
    assert play.sent == [("TERM", 50), ("KILL", 50)]
    assert play.waited[0] == (0.0, [])
    term = climbed.rungs[1]
    assert (term["rung"], term["outcome"]) == ("term", "partial")
    assert (term["why"] or "").startswith("python3 50 ")
    assert (term["why"] or "").endswith("; not waited for")


def test_those_that_hear_term_are_waited_for() -> None:
    both = survey(
        identity(50, owner=GONE),
        identity(51, owner=GONE),
        holders=(holder(50), holder(51)),
        lists={0: [listed(50, 40 * GIB), listed(51, 50 * GIB)]},
    )
    play = Play(both, {50: "KILL", 51: "TERM"})
    play.deaf = {50: "ignored"}
    climbed, verdict = run(play, grace_period_seconds=7.0)
    assert verdict == "reclaimed"
    assert play.waited[0] == (7.0, [51])
    assert climbed.rungs[1]["why"] == "python3 50 ignores SIGTERM"


def test_up_to_term_on_a_target_that_ignores_it_says_so() -> None:
    play = Play(single(), {50: "KILL"})
    play.deaf = {50: "ignored"}
    climbed, verdict = run(play, up_to="term")
    assert verdict == "held_by"
    (row,) = ladder.judge(
        climbed.plan,
        play.look(),
        classify(play.look(), rules()),
        Climbed(deaf=climbed.deaf, up_to="term"),
        "h1",
    )[:1]
    assert row.why == "python3 50 ignores SIGTERM; --up-to term allowed nothing harder"
    assert row.advice == "The last step allowed did not end it; a harder one would."
    assert row.next == ("fleetmem reclaim -H h1 --pid 50 --up-to heirs --dry-run",)


def test_a_host_without_room_for_a_process_was_not_changed() -> None:
    class Full(Play):
        async def ask(self, session: Any, name: str, args: dict[str, Any], **more: Any) -> Any:
            if name == "signal.send":
                why = "no process could be started: Resource temporarily unavailable"
                return {"outcome": "failed", "code": "no_processes", "reason": why, "reading": None}
            return await super().ask(session, name, args, **more)

    with pytest.raises(NoProcesses, match="no process could be started"):
        run(Full(single(), {}))


def test_the_trail_says_what_the_host_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan may come from a file that somebody edited."""
    events: list[Any] = []
    play = Play(single(), {50: "TERM"})
    monkeypatch.setattr(play, "note", events.append)
    made = make_plan(play.before, classify(play.before, rules()), ReclaimOptions(gpu="0"), {})
    (target,) = made.targets
    edited = replace(target.member, process={**target.member.process, "comm": "fake", "title": ""})
    monkeypatch.setattr(
        "tests.unit.reclaim.test_ladder.make_plan",
        lambda *_: replace(made, targets=(replace(target, member=edited),)),
    )
    run(play, reason="ticket 7")
    assert [(e["targets"], e["scope"], e["reason"]) for e in events if "targets" in e] == [
        ([[50, 500, "python3"]], "--gpu 0", "ticket 7")
    ]


def test_a_listener_is_not_stopped_without_a_word() -> None:
    busy = survey(
        identity(50, listening=True, listening_ports=[8000]),
        holders=(holder(50),),
        lists={0: [listed(50, 90 * GIB)]},
    )
    play = Play(busy, {50: "TERM"})
    assert run(play)[1] == "drain_refused"
    assert play.sent == []
    assert run(play, no_drain=True)[1] == "reclaimed"


# --- what earlier runs left ----------------------------------------------------------------


def earlier(signal: str, done: bool, found: Survey) -> Survey:
    record: SignalRecord = {
        "operation": "old1",
        "pid": 50,
        "start_time": 500,
        "signal": signal,
        "done": done,
        "result": "sent" if done else None,
    }
    return replace(found, operations={"epoch": 4, "locked_by": None, "signals": [record]})


def test_a_term_on_record_is_not_sent_again() -> None:
    """Sent or only intended: the ladder begins above it."""
    for done in (True, False):
        play = Play(earlier("TERM", done, single()), {50: "KILL"})
        assert run(play)[1] == "reclaimed"
        assert play.sent == [("KILL", 50)]


@pytest.mark.parametrize(
    ("change", "waits"),
    [
        ({"term": "ignored"}, False),
        ({"term": "init"}, False),
        ({"state": "T"}, False),
        ({"term": "handled"}, True),
        ({"term": "blocked"}, True),  # a thread may still take it
        ({"term": None}, True),
    ],
)
def test_an_earlier_term_that_cannot_work_is_not_waited_for(
    change: dict[str, Any], waits: bool
) -> None:
    found = earlier("TERM", True, single())
    rows = [{**row, **change} for row in found.ties["processes"]]
    found = replace(found, ties={**found.ties, "processes": rows})  # type: ignore[typeddict-item]
    play = Play(found, {50: "KILL"})
    assert run(play, grace_period_seconds=9.0)[1] == "reclaimed"
    assert play.sent == [("KILL", 50)]
    assert play.waited[0] == ((9.0, [50]) if waits else (0.0, []))


def test_a_kill_that_was_sent_is_not_sent_again() -> None:
    play = Play(earlier("KILL", True, single()), {})
    assert run(play)[1] == "unkillable"
    assert play.sent == [("TERM", 50)]


def test_a_kill_whose_end_nobody_saw_is_unknown() -> None:
    play = Play(earlier("KILL", False, single()), {})
    climbed, verdict = run(play)
    assert verdict == "unknown"
    assert play.sent == [("TERM", 50)]
    assert climbed.unclear[(50, 500)].startswith("operation old1 was about to send it SIGKILL")


def test_a_kill_that_the_kernel_shows_was_not_sent_is_sent() -> None:
    found = earlier("KILL", False, single())
    record = replace(
        found,
        operations=dict(
            found.operations, signals=[{**found.operations["signals"][0], "result": "not_sent"}]
        ),
    )  # type: ignore[arg-type]
    play = Play(record, {50: "KILL"})
    assert run(play)[1] == "reclaimed"
    assert play.sent == [("TERM", 50), ("KILL", 50)]


def test_a_record_of_a_reused_number_is_anothers() -> None:
    play = Play(earlier("KILL", True, single(start_time=7)), {50: "KILL"})
    assert run(play)[1] == "reclaimed"
    assert play.sent == [("TERM", 50), ("KILL", 50)]
