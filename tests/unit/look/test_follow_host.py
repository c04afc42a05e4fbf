"""A unit's start, followed: what is read when, what is taken, and how it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from fleetmem.controller.contact.session import Result
from fleetmem.controller.errors import ProbeFailed, TimedOut
from fleetmem.controller.logs.reading import LogLine
from fleetmem.controller.look.follow import one_host as follow_host
from fleetmem.controller.look.follow import watch as follow_watch
from fleetmem.controller.look.follow.marks import marking
from fleetmem.controller.look.follow.one_host import MOST_RESTARTS, Follower, new_follow
from fleetmem.controller.look.follow.watch import MISSES, Start, Watch
from fleetmem.controller.memory.snapshot_shapes import Follow, PhaseMark
from fleetmem.controller.startup.read.patterns import builtin

NOW = 1_800_000_000_000_000
SECOND = 1_000_000
LOADED = (
    "(Worker_TP0 pid=8) INFO 10-06 15:57:41 [r.py:9] Model loading took 14.25 GiB and 9.1 seconds"
)
READY = "INFO:     Application startup complete."
EXITED = "v.service: Main process exited, code=exited, status=1/FAILURE"


# --- Watch ---------------------------------------------------------------------------------


class Journal:
    """A session whose ``journal.read`` gives one prepared answer a call."""

    def __init__(
        self, *answers: dict[str, Any], load: str = "loaded", alias_of: str | None = None
    ) -> None:
        self.alias_of = alias_of
        self.answers = list(answers)
        self.asked: list[dict[str, Any]] = []
        self.load = load

    async def call(self, name: str, args: Any = None, **options: Any) -> Result:
        if name == "unit.state":
            name = self.alias_of or args["unit"]
            state = {"name": name, "load": self.load, "active": "inactive", "sub": "dead"}
            return Result("ok", None, {**state, "result": None, "restarts": 0}, 0.0)
        self.asked.append(args)
        answer = self.answers.pop(0)
        if answer.get("rows"):
            options["on_chunk"]({"rows": answer["rows"]})
        return Result(answer["outcome"], answer["reason"], answer["reading"], 0.0)


def answer(
    *rows: list[Any], id_: str | None = "a", last_us: int = NOW, outcome: str = "ok", **more: Any
) -> dict[str, Any]:
    spans = [
        {
            "id": id_,
            "unit": "v.service",
            "age": 0,
            "first_us": NOW,
            "last_us": last_us,
            "entries": 1,
        }
    ]
    reading = {
        "kind": "unit", "name": "v", "user": None, "units": ["v.service"], "files": [],
        "invocations": spans if id_ else [], "scanned": 1 if id_ else 0, "rows": len(rows),
        "bytes": 0, "cut": 0, "kernel_rows": 0, "truncated": None, "damaged": [], "now_us": NOW,
    }  # fmt: skip
    reading.update(more)
    return {"rows": list(rows), "outcome": outcome, "reason": "why", "reading": reading}


def row(text: str, micro: int = NOW) -> list[Any]:
    return [micro, 0, 1, "x", 6, 0, 1, text]


def watch(journal: Journal) -> Watch:
    return Watch(cast(Any, journal), "v", ["Model"])


def test_the_first_look_reads_all_and_the_next_what_is_new() -> None:
    journal = Journal(
        answer(row("one"), last_us=NOW + 5),
        answer(row("one"), row("two"), last_us=NOW + 9),
        answer(),
    )
    found = watch(journal)

    async def work() -> None:
        await found.first()
        await found.look()
        await found.look()

    asyncio.run(work())
    assert "head" in journal.asked[0]
    assert "since" not in journal.asked[0]
    assert journal.asked[1]["since"] == f"@{NOW // SECOND}.000005"
    assert journal.asked[2]["since"] == f"@{NOW // SECOND}.000009"
    assert found.newest is not None
    assert [line.message for line in found.newest.lines] == ["one", "two"]


def test_the_last_words_of_an_older_start_change_nothing() -> None:
    """The newest start stays the newest, and what it logged beside them is read again."""
    journal = Journal(
        answer(row("old"), id_="a"),
        answer(row("new"), id_="b", last_us=NOW + 5),
        answer(row("late"), id_="a", last_us=NOW + 99),
        answer(row("more"), id_="b", last_us=NOW + 50),
    )
    found = watch(journal)

    async def work() -> None:
        await found.first()
        for _ in range(3):
            await found.look()

    asyncio.run(work())
    assert found.newest is not None
    assert found.newest.invocation == "b"
    assert [line.message for line in found.newest.lines] == ["new", "more"]
    assert journal.asked[3]["since"] == journal.asked[2]["since"]


def test_a_host_that_never_ends_to_talk_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow_watch, "MOST_LINES", 3)
    journal = Journal(answer(row("a"), row("b")), answer(row("c"), row("d"), row("e")))
    found = watch(journal)

    async def work() -> None:
        await found.first()
        await found.look()

    asyncio.run(work())
    assert found.newest is not None
    assert len(found.newest.lines) == 3


@pytest.mark.parametrize(
    ("first", "load", "said"),
    [
        (answer(id_=None, outcome="failed"), "not-found", "no unit v.service to start (not-found)"),
        (answer(id_=None, outcome="failed"), "masked", "no unit v.service to start (masked)"),
        (answer(id_=None, outcome="partial"), "loaded", "journal.read: why"),
        ({"outcome": "denied", "reason": "not yours", "reading": None}, "loaded", "not yours"),
    ],
)
def test_what_cannot_be_followed_is_an_error_at_once(
    first: dict[str, Any], load: str, said: str
) -> None:
    with pytest.raises(ProbeFailed) as caught:
        asyncio.run(watch(Journal(first, load=load)).first())
    assert said in caught.value.message


@pytest.mark.parametrize(
    "first",
    [answer(id_=None, outcome="failed"), answer(id_=None, outcome="partial", damaged=["/j/torn"])],
)
def test_a_unit_that_never_ran_is_waited_for(first: dict[str, Any]) -> None:
    found = watch(Journal(first))
    asyncio.run(found.first())
    assert found.newest is None


def test_an_alias_is_followed_by_the_unit_s_own_name() -> None:
    """The journal knows no other."""
    none = answer(id_=None, outcome="failed")
    journal = Journal(none, answer(row("one")), answer(row("two")), alias_of="engine.service")
    found = watch(journal)

    async def work() -> None:
        await found.first()
        await found.look()

    asyncio.run(work())
    assert [asked["unit"] for asked in journal.asked] == ["v", *["engine.service"] * 2]
    assert found.newest is not None
    assert [line.message for line in found.newest.lines] == ["one", "two"]


def test_looks_that_give_nothing_are_an_error_only_in_a_row() -> None:
    none = {"outcome": "timed_out", "reason": "hung", "reading": None}
    journal = Journal(answer(), *[none] * (MISSES - 1), answer(), *[none] * MISSES)
    found = watch(journal)

    async def work() -> None:
        await found.first()
        for _ in range(2 * MISSES - 1):
            await found.look()
        with pytest.raises(ProbeFailed, match="hung"):
            await found.look()

    asyncio.run(work())


# --- Follower ------------------------------------------------------------------------------


class Script:
    """A watch whose looks follow a script: each is (invocation, line or None)."""

    unit = "v"

    def __init__(
        self, *looks: tuple[str, str | None], active: str = "failed", ended: str = EXITED
    ) -> None:
        self.newest: Start | None = None
        self._ended = ended
        self.now_us = NOW
        self.behind_us = 0
        self._looks = list(looks)
        self._active = active

    async def first(self) -> None:
        await self.look()

    async def look(self) -> None:
        if not self._looks:
            return
        self.now_us += SECOND
        name, text = self._looks.pop(0)
        if not name:
            return
        if self.newest is None or self.newest.invocation != name:
            self.newest = Start(name, self.now_us)
        for part in (text or "").split("|"):
            if part:
                kind = 1 if part.startswith("v.service") or part.startswith("Stopp") else 0
                moment = self.now_us - self.behind_us
                line = LogLine(moment, 0, 1, "x", 6, kind, True, part)
                self.newest.lines[line] = None

    async def state(self) -> dict[str, Any]:
        return {"active": self._active, "sub": "dead"}

    async def earlier(self, invocation: str) -> list[LogLine]:
        return [LogLine(NOW, 0, 1, "x", 6, 1, True, self._ended)]


def follow(
    script: Script, monkeypatch: pytest.MonkeyPatch, timeout_seconds: float = 60
) -> tuple[Follow, list[str]]:
    """(the section, what was taken as ``invocation phase``)."""
    monkeypatch.setattr(follow_host, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(follow_host, "WAIT_SECONDS", 0.0)
    section = new_follow("v")
    taken: list[str] = []

    async def look(name: str, mark: PhaseMark, stamp: Callable[[], int]) -> str:
        stamp()
        taken.append(f"{mark['invocation']} {name}")
        return "run"

    follower = Follower(
        host="h",
        watch=cast(Watch, script),
        rows=marking(builtin()),
        section=section,
        look=look,
        amend=lambda name: taken.append(f"amend {name}"),
        say=lambda text: None,
        phase=lambda text: None,
        timeout_seconds=timeout_seconds,
    )
    asyncio.run(follower.run())
    return section, taken


def test_a_restart_by_hand_between_two_looks_is_no_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = (("a", None), ("a", LOADED), ("b", None), ("b", READY))
    section, taken = follow(Script(*looks, ended="Stopping v.service..."), monkeypatch)
    assert taken[-2:] == ["b before-load", "b after-init"]
    assert (section["status"], section["restarts"], section["failed"]) == ("ready", 1, [])
    section, _ = follow(Script(*looks), monkeypatch)
    assert [one["text"] for one in section["failed"]] == [EXITED]


def test_one_look_for_each_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(("", None), ("a", None), ("a", LOADED), ("a", None), ("a", READY))
    section, taken = follow(script, monkeypatch)
    assert taken == ["a before-load", "a after-load", "a after-init"]
    assert (section["status"], section["restarts"], section["missed"]) == ("ready", 0, [])


def test_a_phase_that_the_next_line_overtook_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    section, taken = follow(Script(("a", None), ("a", f"{LOADED}|{READY}")), monkeypatch)
    assert taken == ["a before-load", "a after-init"]
    assert [one["phase"] for one in section["missed"]] == ["after-load"]
    assert "was no longer the newest milestone" in section["missed"][0]["why"]


def test_what_began_before_memory_was_read_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Known at the look, or from a line that the next look brings: then it is recorded again."""
    begin = "INFO 10-06 15:56:51 [r.py:1] Starting to load model /m"
    pool = "INFO 10-06 15:58:20 [k.py:1] GPU KV cache size: 1,000 tokens"
    script = Script(("a", begin), ("a", LOADED), ("a", pool), ("a", READY))
    script.behind_us = 2 * SECOND  # lines are that much older than the look that brings them
    section, taken = follow(script, monkeypatch)
    assert [one["mark"]["note"] for one in section["phases"]] == [
        "weights began to load 2.0 s before memory was read",
        "the KV pool was made 1.0 s before memory was read",
        None,
    ]
    assert taken == ["a before-load", "a after-load", "amend after-load", "a after-init"]
    script = Script(("a", None), ("a", begin), ("a", LOADED), ("a", pool), ("a", READY))
    section, taken = follow(script, monkeypatch)
    assert {one["mark"]["note"] for one in section["phases"]} == {None}


def test_an_engine_without_a_line_for_a_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    section, _ = follow(Script(("a", None), ("a", READY)), monkeypatch)
    assert section["missed"] == [
        {"phase": "after-load", "why": "no line says that the weights are loaded"}
    ]


def test_a_finished_start_is_not_the_one_to_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is ready, and one that failed: the failure is named."""
    script = Script(("a", READY), ("a", None), ("b", None), ("b", READY))
    section, taken = follow(script, monkeypatch)
    assert taken == ["b before-load", "b after-init"]
    assert section["restarts"] == 0
    section, taken = follow(Script(("a", EXITED), ("b", READY)), monkeypatch)
    assert taken == ["b after-init"]
    assert [one["text"] for one in section["failed"]] == [EXITED]


def test_a_start_older_than_the_timeout_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its ready line may be gone from the journal: it is not looked at as a start."""
    script = Script(("b", READY))
    script.newest = Start("a", NOW - 61 * SECOND)

    async def first() -> None:
        pass

    monkeypatch.setattr(script, "first", first)
    assert follow(script, monkeypatch)[1] == ["b after-init"]


def test_a_unit_that_is_stopped_is_waited_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(("a", None), ("a", "Stopping v.service..."), ("b", None), ("b", READY))
    section, taken = follow(script, monkeypatch)
    assert taken == ["a before-load", "b before-load", "b after-init"]
    assert (section["status"], section["restarts"], section["failed"]) == ("ready", 1, [])


def test_a_failure_ends_it_where_systemd_does_not_start_it_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    section, taken = follow(Script(("a", None), ("a", EXITED)), monkeypatch)
    assert taken == ["a before-load", "a failed"]
    assert section["status"] == "failed"


def test_a_loop_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each start is replaced before anybody saw why; the journal tells it afterwards."""
    script = Script(*((name, None) for name in "abcdefghijkl"))
    section, taken = follow(script, monkeypatch)
    assert section["status"] == "failed"
    assert section["restarts"] == MOST_RESTARTS
    assert taken == [f"{name} before-load" for name in "abcde"]
    assert {one["text"] for one in section["failed"]} == {EXITED}


@pytest.mark.parametrize(
    ("looks", "said"),
    [
        ([("", None)], "v was not started within 1 s; taken: nothing"),
        ([("a", READY)], "v was already ready and was not restarted within 1 s; taken: nothing"),
        ([("a", None)], "v was not ready within 1 s; taken: before-load"),
    ],
)
def test_time_is_bounded(
    looks: list[tuple[str, str | None]], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(TimedOut) as caught:
        follow(Script(*looks), monkeypatch, timeout_seconds=1.0)
    assert caught.value.message == said
    assert caught.value.hint == "see what it logs: fleetmem logs -H h --unit v"
